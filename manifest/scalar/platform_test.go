package scalar

import (
	"slices"
	"strings"
	"testing"
)

func TestRunsOn(t *testing.T) {
	for p, want := range map[string]string{
		"linux/amd64":    "linux/amd64",
		"linux/amd64/v3": "linux/amd64/v3 linux/amd64/v2 linux/amd64",
		"linux/arm64":    "linux/arm64",
		"linux/arm64/v9": "linux/arm64/v9 linux/arm64",
		"linux/arm/v7":   "linux/arm/v7 linux/arm/v6 linux/arm/v5",
		"linux/arm/v5":   "linux/arm/v5",
		"linux/riscv64":  "linux/riscv64",
	} {
		if got := RunsOn(p); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %v, want %s", p, got, want)
		}
	}
}

func TestPlatformString(t *testing.T) {
	for in, want := range map[string]string{
		"linux/amd64": "linux/amd64", "linux/x86_64": "linux/amd64", "linux/amd64/v1": "linux/amd64",
		"linux/amd64/v3": "linux/amd64/v3",
		"linux/arm64":    "linux/arm64", "linux/arm64/v8": "linux/arm64", "linux/aarch64": "linux/arm64",
		"Linux/ARM64": "linux/arm64",
		"linux/arm":   "linux/arm/v7", "linux/arm/v7": "linux/arm/v7", "linux/arm/v6": "linux/arm/v6",
		"linux/armhf": "linux/arm/v7",
		"linux/i386":  "linux/386", "windows/amd64": "windows/amd64",
		"": "", "linux": "", "amd64": "", "linux/": "", "linux/amd64/": "linux/amd64", "linux/amd64/v1/x": "",
		"linux/vax": "", "linux/arm/7": "",
	} {
		got, err := PlatformString(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
		if again, _ := PlatformString(got); got != "" && again != got {
			t.Errorf("%q: %q is not the one spelling, it becomes %q", in, got, again)
		}
	}
}
