package manifest

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/values"
)

var update = flag.Bool("update", false, "write the golden files anew; review the change")

const dir = "../testdata/manifests"

// parseAny reads a file whose name begins with its kind.
func parseAny(name string, data []byte) (any, error) {
	switch kind, _, _ := strings.Cut(strings.TrimSuffix(name, ".yaml"), "-"); kind {
	case "bundle":
		return ParseBundle(name, data)
	case "cluster":
		c, err := ParseCluster(name, data)
		return c, err
	case "inventory":
		inv, err := ParseInventory(name, data)
		return inv, err
	case "lock":
		return ParseLock(name, data)
	case "precheckrules":
		return parseRules(name, data)
	case "trust":
		return ParseTrust(name, data)
	case "catalog":
		return ParseCatalog(name, data)
	default:
		return nil, errors.New("the file name does not begin with a kind")
	}
}

// parseRules knows three checks.
func parseRules(name string, data []byte) (*PrecheckRules, error) {
	return ParsePrecheckRules(name, data, []string{"swap", "memory", "time-sync"})
}

// each runs a test for every YAML file of a folder.
func each(t *testing.T, folder string, test func(t *testing.T, name string, data []byte)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			test(t, filepath.Base(file), data)
		})
	}
}

// content compares what files say and not where they say it.
func content() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreUnexported(Bundle{}, Cluster{}, Inventory{}, PrecheckRules{}, catalogfile.Catalog{}),
		cmpopts.IgnoreTypes(&values.Set{}),
		cmpopts.EquateComparable(netip.Prefix{}, scalar.Date{}),
		cmpopts.EquateEmpty(),
	}
}

func TestParseValid(t *testing.T) {
	each(t, "valid", func(t *testing.T, name string, data []byte) {
		first, err := parseAny(name, data)
		if err != nil {
			t.Fatalf("refused:\n%v", err)
		}
		written, err := yaml.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseAny(name, written)
		if err != nil {
			t.Fatalf("refused what it wrote itself:\n%v\n%s", err, written)
		}
		if diff := cmp.Diff(again, first, content()); diff != "" {
			t.Errorf("written and read again (-got +want):\n%s", diff)
		}
	})
}

func TestParseInvalid(t *testing.T) {
	each(t, "invalid", func(t *testing.T, name string, data []byte) { golden(t, "invalid", name, data) })
}

// What can be built and checked, and not installed yet, is refused by install with the places that ask for it.
func TestCheckInstall(t *testing.T) {
	each(t, "uninstallable", func(t *testing.T, name string, data []byte) { golden(t, "uninstallable", name, data) })
}

// golden compares every problem of a file with the .txt beside it.
func golden(t *testing.T, folder, name string, data []byte) {
	t.Helper()
	file, err := parseAny(name, data)
	if one, ok := file.(interface{ CheckInstall() error }); err == nil && ok {
		err = one.CheckInstall()
	}
	if err == nil {
		t.Fatal("accepted")
	}
	var problems document.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("error is a %T, want Problems", err)
	}
	text := filepath.Join(dir, folder, strings.TrimSuffix(name, ".yaml")+".txt")
	got := err.Error() + "\n"
	if *update {
		if err := os.WriteFile(text, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("problems (-got +want):\n%s", diff)
	}
}

// The examples show the whole product. All their keys and values are known, and can be installed.
func TestParseExamples(t *testing.T) {
	each(t, "examples", func(t *testing.T, name string, data []byte) {
		file, err := parseAny(name, data)
		if one, ok := file.(interface{ CheckInstall() error }); err == nil && ok {
			err = one.CheckInstall()
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// What may be a secret is not repeated in a message, wherever it was put by mistake.
func TestParseSecrets(t *testing.T) {
	const secret = "hunter2"
	head := "apiVersion: kkbundle.io/v1\nkind: %s\n"
	for name, text := range map[string]string{
		"chart repository":  "charts: [{name: a, version: 1.0.0, repo: 'https://me:hunter2@h/'}, {name: a, version: 1.0.0, repo: 'https://me:hunter2@h/'}]",
		"other scheme":      "charts: [{name: a, version: 1.0.0, repo: 'ftp://me:hunter2@h/'}]",
		"broken URL":        "files: [{name: a, url: 'https://me:hunter2@h:x/%zz'}]",
		"file URL":          "files: [{name: a, url: 'https://me:hunter2@h/a'}, {name: b, url: 'https://me:hunter2@h/a'}]",
		"checksums":         "files: [{name: a, url: 'https://h/a', checksums: 'https://me:hunter2@h/a#x'}]",
		"source":            "sources: [{host: 'me:hunter2@h'}, {host: h, mirror: 'me:hunter2@h/x'}, {host: g, mirror: 'https://me:hunter2@h/x'}]",
		"unknown fields":    "sources: [{host: h, password: hunter2, token: hunter2, auth: {password: hunter2}}]",
		"known elsewhere":   "password: hunter2",
		"image":             "images: ['me:hunter2@h/image']",
		"list for a string": "zone: [hunter2]",
	} {
		text = strings.Replace(head, "%s", KindBundle, 1) +
			"metadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\n" + text + "\n"
		_, err := ParseBundle("b", []byte(text))
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
