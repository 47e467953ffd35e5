package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

func FuzzParseBundle(f *testing.F)    { fuzz(f, "bundle", ParseBundle) }
func FuzzParseCluster(f *testing.F)   { fuzz(f, "cluster", parseClusterFile) }
func FuzzParseInventory(f *testing.F) { fuzz(f, "inventory", ParseInventory) }
func FuzzParseLock(f *testing.F)      { fuzz(f, "lock", ParseLock) }
func FuzzParseRules(f *testing.F)     { fuzz(f, "precheckrules", parseRules) }
func FuzzParseCatalog(f *testing.F)   { fuzz(f, "catalog", ParseCatalog) }

func parseClusterFile(file string, data []byte) (*Cluster, error) { return ParseCluster(file, data) }

// fuzz holds for any bytes: no panic; an error is Problems at places in the file; and what is accepted is accepted
// again when it is written out, with the same meaning. The seeds are the files of testdata/manifests.
func fuzz[T any](f *testing.F, kind string, parse func(string, []byte) (*T, error)) {
	for _, folder := range []string{"valid", "invalid", "examples"} {
		files, err := filepath.Glob(filepath.Join(dir, folder, kind+"*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := parse("f", data)
		if err != nil {
			var problems document.Problems
			if !errors.As(err, &problems) || len(problems) == 0 || len(problems) > document.MaxProblems+1 {
				t.Fatalf("error %T: %v", err, err)
			}
			return
		}
		switch v := any(first).(type) {
		case *Inventory:
			v.Hosts()
		case *Cluster:
			v.WithDefaults()
		case *PrecheckRules:
			for _, r := range v.Rules {
				r.Names()
			}
		case *Bundle:
			if _, err := v.Fingerprint(); err != nil {
				t.Fatalf("accepted, and no fingerprint: %v", err)
			}
			if v.Set != nil {
				return // written out, its texts are expanded, and would be expanded again
			}
		}
		written, err := yaml.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse("again", written)
		if err != nil {
			t.Fatalf("accepted, written and refused:\n%v\n%s", err, written)
		}
		if diff := cmp.Diff(again, first, content()); diff != "" {
			t.Errorf("written and read again (-got +want):\n%s\n%s", diff, written)
		}
	})
}
