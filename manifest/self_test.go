package manifest_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// TestSelf: which programs a bundle carries, by form, and that other manifests keep their fingerprints.
func TestSelf(t *testing.T) {
	t.Parallel()
	head := strings.Replace(gitHead, "[linux/amd64]", "[linux/amd64, linux/arm64]", 1) + "images: [nginx:1]\n"
	without, err := manifest.ParseBundle("a.yaml", []byte(head))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"false":                                  "",
		"true":                                   "linux/amd64 builds, linux/arm64 builds",
		"{path: \"bin/kkbundle-{arch}\"}":        "linux/amd64 local/kkbundle, linux/arm64 local/kkbundle",
		"{path: kk, platforms: [linux/aarch64]}": "linux/amd64 builds, linux/arm64 local/kkbundle",
		"{url: \"https://x.example/kk-{os}-{arch}\", platforms: [linux/arm64, darwin/arm64]}": "linux/amd64 builds, " +
			"linux/arm64 https://x.example/kk-linux-arm64, darwin/arm64 https://x.example/kk-darwin-arm64",
	} {
		b, err := manifest.ParseBundle("a.yaml", []byte(head+"self: "+text+"\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var have []string
		for _, p := range b.Programs() {
			place := p.Ref()
			if p.Builds {
				place = "builds"
			}
			have = append(have, p.Platform+" "+place)
		}
		if got := strings.Join(have, ", "); got != want {
			t.Errorf("%s: %s", text, got)
		}
		old, err := without.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		now, err := b.Fingerprint()
		if err != nil || (now == old) != (want == "") {
			t.Errorf("%s: the fingerprint is %s, was %s, %v", text, now, old, err)
		}
	}
}

// TestSelfProblems: each problem with its place.
func TestSelfProblems(t *testing.T) {
	t.Parallel()
	head := strings.Replace(gitHead, "[linux/amd64]", "[linux/amd64, linux/arm64]", 1)
	for text, want := range map[string]string{
		"yes please":                 "a.yaml:5:7: self: want true or false",
		"{platforms: [linux/arm64]}": "self: has no address; write url or path, or self: true",
		"{path: kkbundle}":           "self.path: names one program for linux/amd64 and linux/arm64; write {os} and {arch}",
		"{url: \"https://x.example/kk\", platforms: [linux/arm64, linux/s390x]}": "self.url: names one program for linux/arm64 and linux/s390x",
		"{path: kk, url: \"https://x.example/{arch}\"}":                          "self: has url and path; keep one",
		"{url: \"ftp://x.example/{arch}\"}":                                      "want a URL with https, http or file://",
		"{path: \"kk-{arch}\", sha256: abc}":                                     "is not a sha256",
		"{path: \"kk-{cpu}\"}":                                                   "placeholder that is not known",
	} {
		_, err := manifest.ParseBundle("a.yaml", []byte(head+"self: "+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
