package convert

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the golden files anew; review the change")

// The files of testdata are written after the formats' published definitions: KubeKey apis/kubekey/v1alpha2, Hauler
// pkg/apis/hauler.cattle.io/v1, Zarf src/api/v1alpha1, Kubespray contrib/offline/generate_list.sh.
func TestRead(t *testing.T) {
	for _, name := range []string{"kubekey-v3.yaml", "hauler.yaml", "zarf.yaml", "images.txt", "kubespray-files.list"} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Read(name, data)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", name+".golden"), text(t, r))
		})
	}
}

// text is a Result for people.
func text(t *testing.T, r Result) string {
	t.Helper()
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	if err := e.Encode(r.Bundle); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Clusters {
		if err := e.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString("--- " + strings.Join(r.Formats, ", ") + "\n")
	for _, n := range r.Notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	bomb := "apiVersion: zarf.dev/v1alpha1\nkind: ZarfPackageConfig\na: &a [" + strings.Repeat("nginx,", 10_000) + "]\nc: &c {name: x, required: true, images: *a}\ncomponents: [" + strings.Repeat("*c,", 1000) + "]\n"
	for name, tc := range map[string]struct{ text, want string }{
		"empty":        {"", "it is empty"},
		"only comment": {"# nothing\n", "it is empty"},
		"prose":        {"Dear reader,\nthis is a letter\n", `line 1: "Dear reader" is no image reference`},
		"another kind": {"apiVersion: v1\nkind: Pod\n", `line 1: apiVersion "v1", kind "Pod" is none that is known`},
		"broken YAML":  {"apiVersion: v1\nkind: [\n", "read it as YAML"},
		"hauler kind":  {"apiVersion: content.hauler.cattle.io/v1\nkind: Driver\n", `kind "Driver" is none of Hauler's`},
		"long line":    {strings.Repeat("a", maxLine+1), "token too long"},
		"aliases":      {bomb, "more than 200000 values"},
	} {
		if _, err := Read("f", []byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %.300v, want %q", name, err, tc.want)
		}
	}
}

// No secret of a file becomes part of what is written or said.
func TestReadSecrets(t *testing.T) {
	data, err := os.ReadFile("testdata/kubekey-v3.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read("f", data)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, r); strings.Contains(got, "hunter2") {
		t.Errorf("the password is in\n%s", got)
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read("f", data)
		if err == nil && len(r.Formats) == 0 && len(r.Notes) == 0 && len(data) == 0 {
			t.Error("nothing was read, and nothing said")
		}
	})
}
