package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/kkbundle/kkbundle/provenance"
	"github.com/kkbundle/kkbundle/trust"
)

// dist builds the helper as a release's program, from a copy of the sources in another directory, and releases it.
func dist(t *testing.T, key string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	sources := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "cmd/kkbundle-node", "installer/node", "hostfile", "plain", "capped", "disk", "pki"} {
		if err := os.MkdirAll(filepath.Join(sources, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-r", filepath.Join("../../..", name), filepath.Join(sources, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, "kkbundle-linux-amd64"), "./cmd/kkbundle-node")
	cmd.Dir = sources
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := run([]string{dir, "v1.2.3", "0123456789012345678901234567890123456789", key}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestRelease builds in two directories: everything but the signature, which has a random part, has the same bytes, and the signature
// vouches for the checksums of all of it.
func TestRelease(t *testing.T) {
	t.Setenv("COSIGN_PASSWORD", "password")
	pair, err := trust.GenerateKeyPair([]byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "release.key")
	if err := os.WriteFile(key, pair.Private, 0o600); err != nil {
		t.Fatal(err)
	}
	one, two := dist(t, key), dist(t, key)
	names := []string{"kkbundle-linux-amd64", "kkbundle.cdx.json", "kkbundle.provenance.json"}
	list := string(read(t, one, sums))
	for _, name := range names {
		data := read(t, one, name)
		if string(data) != string(read(t, two, name)) {
			t.Errorf("%s differs between two directories", name)
		}
		sum := sha256.Sum256(data)
		if line := hex.EncodeToString(sum[:]) + "  " + name + "\n"; !strings.Contains(list, line) {
			t.Errorf("the checksums lack %s", line)
		}
	}
	if list != string(read(t, two, sums)) || strings.Count(list, "\n") != len(names) {
		t.Errorf("checksums:\n%s", list)
	}
	public, err := trust.ParsePublicKey(pair.Public)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.VerifyBlob([]*trust.PublicKey{public}, read(t, one, sums+".sigstore.json"), []byte(list)); err != nil {
		t.Error(err)
	}
	var bill cdx.BOM
	if err := json.Unmarshal(read(t, one, "kkbundle.cdx.json"), &bill); err != nil || !strings.Contains(string(read(t, one, "kkbundle.cdx.json")), "pkg:golang/golang.org/x/sys@v") {
		t.Errorf("bill of materials: %v", err)
	}
	var statement provenance.Statement
	if err := json.Unmarshal(read(t, one, "kkbundle.provenance.json"), &statement); err != nil || len(statement.Subject) != 1 ||
		statement.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] == "" {
		t.Errorf("provenance: %v %+v", err, statement)
	}
}
