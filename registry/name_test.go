package registry

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

const zeros = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func TestDestination(t *testing.T) {
	t.Parallel()
	amd64 := &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	cases := []struct {
		registry, kind, ref, version string
		platform                     *ocispec.Platform
		want                         string
	}{
		{"harbor.site", "image", "docker.io/library/nginx:1.29", "", nil, "harbor.site/docker.io/library/nginx:1.29"},
		{"harbor.site:8443/a/b/", "image", "quay.io/x/y:1", "", nil, "harbor.site:8443/a/b/quay.io/x/y:1"},
		{"h.site", "image", "registry.lab:5000/app:1", "", nil, "h.site/registry.lab_5000/app:1"},
		{"h.site", "image", "docker.io/library/nginx", "", nil, "h.site/docker.io/library/nginx:latest"},
		{"h.site", "image", "a.b/c:1@" + zeros, "", nil, "h.site/a.b/c:1"},
		{"h.site", "image", "a.b/c@" + zeros, "", nil, "h.site/a.b/c@" + zeros},
		{"h.site", "image", "[fd00::1]:5000/c:1", "", nil, "h.site/fd00--1_5000/c:1"},
		{
			"h.site", "chart", "https://kubernetes.github.io/ingress-nginx/ingress-nginx:4.14.1", "4.14.1", nil,
			"h.site/kubernetes.github.io/ingress-nginx/ingress-nginx:4.14.1",
		},
		{
			"h.site", "chart", "oci://ghcr.io/org/charts/foo:1.0.0+build.3", "", nil,
			"h.site/ghcr.io/org/charts/foo:1.0.0_build.3",
		},
		{
			"h.site", "chart", "https://user:secret@c.example:8443/x//y/Foo:1", "", nil,
			"h.site/c.example_8443/x/y/foo:1",
		},
		{"h.site", "chart", "local/demo:0.1.0", "", nil, "h.site/local/demo:0.1.0"},
		{
			"h.site", "file", "https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubeadm", "v1.34.3", amd64,
			"h.site/dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubeadm:v1.34.3",
		},
		{
			"h.site", "file", "https://x.example/A_B/Some%20File+1.tar.gz", "", nil,
			"h.site/x.example/a_b/some-file-1.tar.gz:latest",
		},
		{"h.site", "file", "https://x.example/get?token=secret", "", nil, "h.site/x.example/get/q-4f98f24f1a39:latest"},
		{"h.site", "file", "local/My Script.sh", "", nil, "h.site/local/my-script.sh:latest"},
		{"h.site", "file", "local/tool", "1.0", amd64, "h.site/local/tool:1.0-linux-amd64"},
		{
			"h.site", "file", "https://x.example/___/..", "", nil,
			"h.site/x.example/x-9b93d5a5d9d0/x-5ec1f7e700f3:latest",
		},
		{"127.0.0.1:5000", "file", "https://x.example/" + strings.Repeat("a", 300), "", nil, ""},
	}
	hash := regexp.MustCompile(`[qx]-[0-9a-f]{12}`)
	for _, c := range cases {
		it := bundle.Item{
			Kind: c.kind, Ref: c.ref, Version: c.version,
			Descriptor: ocispec.Descriptor{Digest: digest.Digest(zeros), Platform: c.platform},
		}
		got, err := Destination(c.registry, it)
		if err != nil {
			t.Errorf("%s: %v", c.ref, err)
			continue
		}
		if c.want == "" {
			if n := len(got.Context().RepositoryStr()); n > maxNameLen {
				t.Errorf("%s: %d characters", c.ref, n)
			}
			continue
		}
		if g, w := hash.ReplaceAllString(got.Name(), "#"), hash.ReplaceAllString(c.want, "#"); g != w {
			t.Errorf("%s: got %s, want %s", c.ref, got, c.want)
		}
		if strings.Contains(got.Name(), "secret") {
			t.Errorf("%s: %s holds a secret", c.ref, got)
		}
	}
}

func TestDestinationErrors(t *testing.T) {
	t.Parallel()
	cases := []struct{ registry, kind, ref, want string }{
		{"https://h.site", "image", "a.b/c:1", "without https://"},
		{"https://u:secret@h.site", "image", "a.b/c:1", `"https://h.site"`},
		{"u:secret@h.site", "image", "a.b/c:1", `registry "h.site"`},
		{"", "image", "a.b/c:1", "write HOST"},
		{"h.site/UP", "image", "a.b/c:1", "prefix"},
		{"h.site", "image", "nginx", "no host"},
		{"h.site", "image", "a.b/C:1", "not a repository name"},
		{"h.site", "image", "a.b/c:_-+", "tag"},
		{"h.site", "image", "a.b/c@sha256:12", "not a digest"},
		{"h.site", "image", "a.b/" + strings.Repeat("a", 253) + ":1", "shorter prefix"},
		{"h.site", "lock", "lock", "not pushed"},
	}
	for _, c := range cases {
		_, err := Destination(c.registry, bundle.Item{Kind: c.kind, Ref: c.ref})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s at %q: got %v, want %q", c.ref, c.registry, err, c.want)
		}
	}
}

func TestUpstreamPath(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"docker.io": "docker.io", "registry.lab:5000": "registry.lab_5000",
		"LOCALHOST:5000": "localhost_5000",
	} {
		if got := UpstreamPath(host); got != want {
			t.Errorf("%s: got %s, want %s", host, got, want)
		}
	}
}

func FuzzDestination(f *testing.F) {
	f.Add("image", "docker.io/library/nginx:1.29@"+zeros, "")
	f.Add("chart", "oci://ghcr.io/org/foo:1.0.0+x", "1.0.0+x")
	f.Add("file", "https://u:p@x.example:1/a%2F..//__-é?q=1#f", "-.~")
	f.Add("file", "local/../x", strings.Repeat("v", 200))
	f.Add("file", "::", "\x00")
	repo := regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tag := regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	f.Fuzz(func(t *testing.T, kind, ref, version string) {
		it := bundle.Item{Kind: kind, Ref: ref, Version: version}
		got, err := Destination("h.site:5000/pre", it)
		again, err2 := Destination("h.site:5000/pre", it)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("not deterministic: %v, %v", err, err2)
		}
		if err != nil {
			if kind == bundle.KindFile || kind == bundle.KindChart {
				t.Fatalf("%s %q has no destination: %v", kind, ref, err)
			}
			return
		}
		if got.Name() != again.Name() {
			t.Fatalf("not deterministic: %s, %s", got, again)
		}
		path := got.Context().RepositoryStr()
		if !repo.MatchString(path) || len(path) > maxNameLen || !strings.HasPrefix(path, "pre/") {
			t.Fatalf("%q gives repository %q", ref, path)
		}
		if _, byDigest := got.(name.Digest); !byDigest && !tag.MatchString(got.Identifier()) {
			t.Fatalf("%q gives tag %q", ref, got.Identifier())
		}
		if _, err := name.ParseReference(got.Name(), name.StrictValidation); err != nil {
			t.Fatalf("%q gives %s: %v", ref, got, err)
		}
	})
}

func TestCheckTargetKeepsPasswords(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"anna:s3cret@h.site", "anna:a/s3cret@h.site/x", "https://anna:a/s3cret@h.site",
		"h.site/anna:s3cret@x",
	} {
		if err := CheckTarget(s); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", s, err)
		}
	}
}
