package manifest

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

func TestImageName(t *testing.T) {
	const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for in, want := range map[string]string{
		"nginx":                               "docker.io/library/nginx:latest",
		"nginx:1.29":                          "docker.io/library/nginx:1.29",
		"index.docker.io/nginx":               "docker.io/library/nginx:latest",
		"team/app":                            "docker.io/team/app:latest",
		"quay.io/a/b/c:v1":                    "quay.io/a/b/c:v1",
		"localhost:5000/app":                  "localhost:5000/app:latest",
		"nginx" + digest:                      "docker.io/library/nginx" + digest,
		"registry.k8s.io/pause:3.10" + digest: "registry.k8s.io/pause:3.10" + digest,
		"":                                    "", "a b": "", "Nginx": "", "nginx:": "", "nginx@sha256:00": "",
		strings.Repeat("a", 300): "",
	} {
		got, err := scalar.ImageName(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
	got, err := Image{Name: "nginx:1.29", Digest: digest[1:]}.Ref()
	if want := "docker.io/library/nginx:1.29" + digest; got != want || err != nil {
		t.Errorf("pinned: got %q, %v; want %q", got, err, want)
	}
}

func TestFileURL(t *testing.T) {
	f := File{Name: "yq", URL: "https://example.com/{os}/{arch}/{x86arch}/yq"}
	for platform, want := range map[string]string{
		"linux/amd64":  "https://example.com/linux/amd64/x86_64/yq",
		"linux/arm64":  "https://example.com/linux/arm64/aarch64/yq",
		"linux/arm/v7": "https://example.com/linux/arm/armv7l/yq",
	} {
		if got := FileURL(f, platform); got != want {
			t.Errorf("%s: got %q, want %q", platform, got, want)
		}
	}
	if !f.PerPlatform() || (File{URL: "https://example.com/yq"}).PerPlatform() {
		t.Error("a file is for each platform where its address has placeholders, and only there")
	}
	for _, tc := range []struct {
		file      File
		path, ref string
		local     bool
	}{
		{File{Name: "a", Path: "files/{arch}/a"}, "files/arm64/a", "local/a", true},
		{File{Name: "a", URL: "file:///srv/a%20b"}, "/srv/a b", "local/a", true},
		{File{Name: "a", URL: "https://h/a"}, "", "https://h/a", false},
	} {
		path, local := tc.file.LocalPath("linux/arm64")
		if ref := FileURL(tc.file, "linux/arm64"); path != tc.path || local != tc.local || ref != tc.ref {
			t.Errorf("%+v: got %q, %t, %q", tc.file, path, local, ref)
		}
	}
}

func TestFileSum(t *testing.T) {
	f := File{SHA256: Sums{"linux/amd64": "a", "linux/arm64/v8": "b"}}
	for platform, want := range map[string]string{"linux/amd64": "a", "linux/arm64": "b", "linux/arm/v7": ""} {
		if got := f.Sum(platform); got != want {
			t.Errorf("%s: got %q, want %q", platform, got, want)
		}
	}
	if got := (File{SHA256: Sums{scalar.AllPlatforms: "c"}}).Sum("linux/amd64"); got != "c" {
		t.Errorf("one for all: got %q", got)
	}
}

func TestChartRef(t *testing.T) {
	for want, c := range map[string]Chart{
		"https://charts.example/app:1.2.3":   {Name: "app", Repo: "https://charts.example/"},
		"oci://registry.example/c/app:1.2.3": {Name: "app", Repo: "oci://registry.example/c"},
		"https://example.com/app.tgz":        {URL: "https://example.com/app.tgz"},
		"local/app:1.2.3":                    {Path: "charts/x"},
	} {
		if got := ChartRef(c, "app", "1.2.3"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
