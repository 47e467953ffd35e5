package transfer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// TestMatching checks the order in which a name selects an item: the exact name, Docker's short names, the end of a
// name, the beginning of a digest.
func TestMatching(t *testing.T) {
	t.Parallel()
	item := func(kind, ref, name, version, digits string) bundle.Item {
		d := digest.NewDigestFromEncoded(digest.SHA256, digits+strings.Repeat("0", 64-len(digits)))
		return bundle.Item{
			Kind: kind, Ref: ref, Name: name, Version: version,
			Descriptor: ocispec.Descriptor{Digest: d},
		}
	}
	items := []bundle.Item{
		item(bundle.KindImage, "docker.io/library/nginx:1.29", "docker.io/library/nginx", "1.29", "aaaaaaaa"),
		item(bundle.KindImage, "quay.io/team/nginx:2", "quay.io/team/nginx", "2", "bbbbbbbb1"),
		item(bundle.KindImage, "registry.k8s.io/coredns/coredns:v1.12.1", "registry.k8s.io/coredns/coredns", "v1.12.1",
			"bbbbbbbb2"),
		item(bundle.KindFile, "https://dl.k8s.io/kubeadm", "kubeadm", "v1.34.3", "cccccccc"),
		// as in testdata/bundles/v1.kkb
		item(bundle.KindImage, "docker.io/library/app:1.0", "docker.io/library/app:1.0", "", "dddddddd"),
		item(bundle.KindImage, "registry.site:5000/team/multi@sha256:"+strings.Repeat("e", 64), "", "", "eeeeeeee"),
	}
	for pattern, want := range map[string]string{
		"docker.io/library/nginx:1.29": "0",
		"nginx:1.29":                   "0",
		"nginx":                        "0", // Docker's short name counts before ends of names
		"nginx:2":                      "1",
		"team/nginx":                   "1",
		"coredns":                      "2",
		"coredns/coredns:v1.12.1":      "2",
		"image/coredns":                "2",
		"dns":                          "", // no whole part of a name
		"kubeadm":                      "3",
		"app":                          "4",
		"library/app":                  "4",
		"multi":                        "5",
		"aaaaaaaa":                     "0",
		"sha256:aaaaaaa":               "0",
		"aaaaaa":                       "", // six digits
		"bbbbbbbb":                     "1 2",
		"bbbbbbbb2":                    "2",
		"file/aaaaaaaa":                "",
		"file:kubeadm":                 "3",
		"image:coredns":                "2",
		"image:*/nginx:?":              "1",
		"kube???":                      "3",
		"chart:kubeadm":                "",
		"/":                            "",
		"":                             "",
	} {
		var got []string
		for _, it := range transfer.Matching(items, pattern) {
			got = append(got, string(rune('0'+slices.IndexFunc(items,
				func(o bundle.Item) bool { return o.Ref == it.Ref }))))
		}
		if have := strings.Join(got, " "); have != want {
			t.Errorf("%q: items %q, want %q", pattern, have, want)
		}
	}
}

// TestAWrongNameIsAnsweredWithTheNearest checks the whole message, with and without a near name.
func TestAWrongNameIsAnsweredWithTheNearest(t *testing.T) {
	t.Parallel()
	items := []bundle.Item{{
		Kind: bundle.KindImage, Ref: "docker.io/library/nginx:1.29",
		Name: "docker.io/library/nginx", Version: "1.29",
	}}
	for pattern, want := range map[string]string{
		"ngnix:1.29": "the bundle has no ngnix:1.29; did you mean docker.io/library/nginx:1.29?",
		"postgresql": "the bundle has no postgresql; `kkbundle inspect` lists its items",
	} {
		if got := transfer.NewNoItemError(items, pattern).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
