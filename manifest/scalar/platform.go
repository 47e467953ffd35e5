package scalar

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Platform is an operating system and architecture, linux/amd64, with a variant if there are several, linux/arm/v7.
// PlatformString defines the spelling.
type Platform = string

// AllPlatforms is the key in Sums of a file that is the same for all platforms.
const AllPlatforms = ""

// PlatformString normalizes a platform: operating system and architecture in Go's spelling, and a variant only if it is
// not the usual one (linux/arm64/v8 is linux/arm64, linux/arm is linux/arm/v7). It accepts uname's names (x86_64,
// aarch64).
func PlatformString(s string) (Platform, error) {
	os, rest, _ := strings.Cut(strings.ToLower(s), "/")
	arch, variant, _ := strings.Cut(rest, "/")
	switch arch {
	case "x86_64", "x86-64":
		arch = "amd64"
	case "aarch64":
		arch = "arm64"
	case "armhf", "armv7l":
		arch, variant = "arm", cmp.Or(variant, "v7")
	case "i386", "i686", "x86":
		arch = "386"
	}
	if !slices.Contains(systems(), os) || !slices.Contains(architectures(), arch) {
		return "", fmt.Errorf("%q is not a known platform; write one such as linux/amd64 or linux/arm64",
			document.Shorten(s))
	}
	usual := map[string]string{"arm": "v7", "arm64": "v8", "amd64": "v1"}[arch]
	if variant == "" && arch == "arm" {
		variant = usual
	}
	if !isVariant(variant) {
		return "", fmt.Errorf("%q: the variant is not v and a number, as in linux/arm/v7", document.Shorten(s))
	}
	if variant == "" || arch != "arm" && variant == usual {
		return os + "/" + arch, nil
	}
	return os + "/" + arch + "/" + variant, nil
}

func isVariant(s string) bool {
	return s == "" || len(s) <= 3 && len(s) > 1 && s[0] == 'v' && strings.Trim(s[1:], "0123456789") == ""
}

func systems() []string { return []string{"linux", "windows", "darwin", "freebsd"} }

func architectures() []string {
	return []string{"amd64", "arm64", "arm", "386", "loong64", "mips64le", "ppc64le", "riscv64", "s390x"}
}

// Expand replaces the placeholders {os}, {arch} (amd64, arm64) and {x86arch} (x86_64, aarch64, as in uname) by a
// platform's names.
func Expand(template string, platform Platform) string {
	os, rest, _ := strings.Cut(platform, "/")
	arch, _, _ := strings.Cut(rest, "/")
	uname := arch
	switch arch {
	case "amd64":
		uname = "x86_64"
	case "arm64":
		uname = "aarch64"
	case "386":
		uname = "i386"
	case "arm":
		uname = "armv7l"
	case "loong64":
		uname = "loongarch64"
	}
	return strings.NewReplacer("{os}", os, "{arch}", arch, "{x86arch}", uname).Replace(template)
}

// RunsOn lists the platforms whose images run on a platform, the best first: itself, and the older variants of its
// architecture, in the order of container runtimes (containerd's platforms.Only). Other architectures that some
// processors also run (386 on amd64, 32-bit arm on arm64) are left out, since support depends on the host.
func RunsOn(p Platform) []Platform {
	list := []Platform{p}
	os, rest, _ := strings.Cut(p, "/")
	arch, variant, _ := strings.Cut(rest, "/")
	oldest := map[string]int{"amd64": 1, "arm": 5, "arm64": 8}[arch]
	version, err := strconv.Atoi(strings.TrimPrefix(variant, "v"))
	if oldest == 0 || err != nil {
		return list
	}
	for version--; version >= oldest; version-- {
		if older, err := PlatformString(fmt.Sprintf("%s/%s/v%d", os, arch, version)); err == nil {
			list = append(list, older)
		}
	}
	return list
}
