package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

// TestParse: flags that clusterctl and people rely on, and values that make no sense.
func TestParse(t *testing.T) {
	o, err := parse([]string{"--namespace=site", "--leader-elect", "--hosts=3", "-v=4", "--kubeconfig="})
	if err != nil || o.namespace != "site" || !o.elect || o.hosts != 3 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := parse([]string{"--hosts=0"}); err == nil {
		t.Error("no host at a time was accepted")
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

// TestPrepare: the secrets of a killed manager's runs are removed, bundles stay, and nobody else can read either directory.
func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	o := options{scratch: filepath.Join(dir, "scratch"), bundles: filepath.Join(dir, "bundles")}
	for range 2 {
		home, err := prepare(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{o.scratch, o.bundles, home} {
			if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v", d, info, err)
			}
		}
		if _, err := os.Stat(filepath.Join(o.scratch, "key")); err == nil {
			t.Error("a key was left")
		}
		for _, file := range []string{filepath.Join(o.scratch, "key"), filepath.Join(o.bundles, "a.kkb")} {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(o.bundles, "a.kkb")); err != nil {
		t.Error("a bundle was removed")
	}
}
