package builder_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// selfManifest writes a manifest with a program for arm64, and returns the manifest and the program that builds.
func selfManifest(t *testing.T, self string) (file string, own fetch.Program) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.yaml": "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: \"1\"}\n" +
			"platforms: [linux/amd64, linux/arm64]\nself: " + self + "\n",
		"running": "the program that builds", "kk-arm64": "#!/bin/sh\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "manifest.yaml"), fetch.Program{Path: filepath.Join(dir, "running"), Platform: "linux/amd64"}
}

// TestSelf carries the program that builds for its platform and a named one for another, and names no file of this
// machine. Another program that builds does not fit the lock.
func TestSelf(t *testing.T) {
	t.Parallel()
	file, own := selfManifest(t, "{path: kk-arm64, platforms: [linux/arm64]}")
	dir := filepath.Dir(file)
	p, err := builder.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	o := builder.Options{Cache: filepath.Join(dir, "cache"), Self: own, Output: filepath.Join(dir, "site.kkb")}
	l, err := p.Resolve(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil || strings.Contains(string(text), dir) {
		t.Errorf("%v\n%s", err, text)
	}
	if err := os.WriteFile(builder.LockFile(file), text, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Locked = true
	built, err := p.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for platform, want := range map[string]string{"linux/amd64": "the program that builds", "linux/arm64": "#!/bin/sh\n"} {
		it, ok := r.Find(bundle.KindTool, "local/"+manifest.ProgramName, platform)
		if !ok {
			t.Fatalf("no program for %s in %v", platform, built.Index.Items)
		}
		layer, err := r.ContentOf(t.Context(), it)
		if err != nil {
			t.Fatal(err)
		}
		data, err := r.ReadBlob(t.Context(), layer.Digest, 1000)
		if err != nil || string(data) != want || layer.Annotations[bundle.AnnotationMode] != "0755" {
			t.Errorf("%s: %q, %v, %v", platform, data, layer.Annotations, err)
		}
	}
	if err := os.WriteFile(own.Path, []byte("a later program"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Cache = filepath.Join(dir, "other")
	if _, err := p.Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "write a new lock with kkbundle lock") {
		t.Errorf("another program: %v", err)
	}
}

// TestSelfOfOtherPlatform names what to write for a platform that is not that of the program.
func TestSelfOfOtherPlatform(t *testing.T) {
	t.Parallel()
	file, own := selfManifest(t, "true")
	p, err := builder.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Resolve(t.Context(), builder.Options{Cache: filepath.Join(filepath.Dir(file), "cache"), Self: own})
	if err == nil || !strings.Contains(err.Error(), "tool local/kkbundle (linux/arm64): this kkbundle is for linux/amd64: write self: {url:") ||
		!strings.Contains(err.Error(), "manifest.yaml:5") {
		t.Errorf("got %v", err)
	}
}

// TestSelfOfOtherMachine: a program for another machine is refused, also under a lock and from the cache.
func TestSelfOfOtherMachine(t *testing.T) {
	t.Parallel()
	file, own := selfManifest(t, "{path: kk-arm64, platforms: [linux/arm64], sha256: 4da2d2d9cc4d2c5f0cf7fb4eab8ecc5f4de5b4f8b1d1a3d7b0b6ab0a5d3c1e2f}")
	dir := filepath.Dir(file)
	amd64 := append([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00"), make([]byte, 100)...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(amd64)
	text = []byte(strings.Replace(string(text), "4da2d2d9cc4d2c5f0cf7fb4eab8ecc5f4de5b4f8b1d1a3d7b0b6ab0a5d3c1e2f", hex.EncodeToString(sum[:]), 1))
	for name, data := range map[string][]byte{"manifest.yaml": text, "kk-arm64": amd64} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := builder.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from the cache
		_, err = p.Resolve(t.Context(), builder.Options{Cache: filepath.Join(dir, "cache"), Self: own})
		if err == nil || !strings.Contains(err.Error(), "kk-arm64 is a program for linux/amd64 and not for linux/arm64") ||
			!strings.Contains(err.Error(), "manifest.yaml:5") {
			t.Errorf("got %v", err)
		}
	}
}
