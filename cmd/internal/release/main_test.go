package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/proof/provenance"
	"github.com/kkbundle/kkbundle/proof/trust"
)

// dist builds the helper as a release's program, from a copy of the sources in another directory, and releases it.
func dist(t *testing.T, key string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	sources := t.TempDir()
	for _, name := range []string{
		"go.mod", "go.sum", "internal", "cmd/kkbundle-node", "installer/node", "web",
	} {
		if err := os.MkdirAll(filepath.Join(sources, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-r", filepath.Join("../../..", name),
			filepath.Join(sources, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
		filepath.Join(dir, "kkbundle-linux-amd64"), "./cmd/kkbundle-node")
	cmd.Dir = sources
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The formula names programs of all systems; this program stands in for the others.
	program := read(t, dir, "kkbundle-linux-amd64")
	for _, name := range []string{
		"kkbundle-linux-arm64", "kkbundle-darwin-amd64", "kkbundle-darwin-arm64",
		providerProgram + "amd64", providerProgram + "arm64",
	} {
		write(t, filepath.Join(dir, name), program)
	}
	for _, name := range []string{componentsFile, metadataFile} {
		write(t, filepath.Join(dir, name), read(t, "../../../provider/config", name))
	}
	write(t, filepath.Join(dir, "kkbundle-linux-amd64.deb"), []byte("a stand-in of a package"))
	write(t, filepath.Join(dir, "share/man/man1/kkbundle.1.gz"), []byte("a stand-in of a page"))
	if err := run([]string{
		dir, ownVersion(t), "0123456789012345678901234567890123456789", "2026-11-22T01:02:03Z",
		key,
	}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ownVersion is the release that the catalog and the provider's metadata are of.
func ownVersion(t *testing.T) string {
	t.Helper()
	k, err := catalog.Merged()
	if err != nil {
		t.Fatal(err)
	}
	return k.Components[providerComponent].Default
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBillNamesBothVersionsOfAModule(t *testing.T) {
	var r release
	r.link([]*debug.Module{
		{Path: "example.org/pack", Version: "v1.2.0"},
		{Path: "example.org/old-pack", Version: "v1.1.0", Replace: &debug.Module{
			Path:    "example.org/pack",
			Version: "v1.1.0",
		}},
		{Path: "example.org/absent", Version: "v1.3.0", Replace: &debug.Module{
			Path:    "./internal/stub/absent",
			Version: "(devel)",
		}},
	})
	var got []string
	for _, c := range *r.bill().Components {
		got = append(got, c.PackageURL)
	}
	if want := []string{"pkg:golang/example.org/pack@v1.1.0", "pkg:golang/example.org/pack@v1.2.0"}; !slices.Equal(got,
		want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRelease builds in two directories: everything but the signature, which has a random part, has the same bytes,
// and the signature vouches for the checksums of all of it.
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
	t.Setenv("RELEASE_TEST_KEY", string(pair.Private))
	one, two := dist(t, key), dist(t, "env://RELEASE_TEST_KEY")
	if _, err := keyText("env://RELEASE_TEST_NO_KEY"); err == nil {
		t.Error("a key in a variable that is not set")
	}
	names := []string{
		"kkbundle-linux-amd64", "kkbundle-linux-arm64", "kkbundle-darwin-amd64", "kkbundle-darwin-arm64",
		"kkbundle-linux-amd64.deb",
		image, providerImage, componentsFile, metadataFile, manual, formula, "kkbundle.cdx.json", "kkbundle.provenance.json",
	}
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
	if text := string(read(t, one, componentsFile)); !strings.Contains(text, providerName+":"+ownVersion(t)+"\n") ||
		strings.Contains(text, ":dev\n") {
		t.Error("the components name another image than that of this release")
	}
	public, err := trust.ParsePublicKey(pair.Public)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.VerifyBlob([]*trust.PublicKey{public}, read(t, one, sums+".sigstore.json"),
		[]byte(list)); err != nil {
		t.Error(err)
	}
	var bill cdx.BOM
	if err := json.Unmarshal(read(t, one, "kkbundle.cdx.json"), &bill); err != nil ||
		!strings.Contains(string(read(t, one, "kkbundle.cdx.json")), "pkg:golang/golang.org/x/sys@v") {
		t.Errorf("bill of materials: %v", err)
	}
	var statement provenance.Statement
	if err := json.Unmarshal(read(t, one, "kkbundle.provenance.json"), &statement); err != nil ||
		len(statement.Subject) != len(names)-2 ||
		statement.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] == "" {
		t.Errorf("provenance: %v %+v", err, statement)
	}
}

// TestProvider: a release is that of the catalog and of the provider's metadata, and only its own components pass.
func TestProvider(t *testing.T) {
	next := "v0.999.0"
	image := "        image: " + providerName
	series := string(read(t, "../../../provider/config", metadataFile))
	for _, c := range []struct{ version, components, metadata, want string }{
		{ownVersion(t), image + ":dev\n", series, ""},
		{"v0.0.0-17-g0123456789ab", image + ":dev\n", series, ""},
		{next + "-17-g0123456789ab", image + ":dev\n", series, "add the release series 0.999"},
		{next, image + ":dev\n", "releaseSeries: [{major: 0, minor: 999}]\n", "the default of cluster-api-provider is " + ownVersion(t) + ": write " + next},
		{ownVersion(t), image + ":dev\n", "releaseSeries: [{major: 0, minor: 999}]\n", "add the release series 0."},
		{ownVersion(t), image + ":v0.0.1\n", series, "is not there once"},
	} {
		r := release{dir: t.TempDir(), version: c.version}
		write(t, filepath.Join(r.dir, componentsFile), []byte(c.components))
		write(t, filepath.Join(r.dir, metadataFile), []byte(c.metadata))
		err := r.writeProvider()
		if c.want == "" && (err != nil || string(read(t, r.dir, componentsFile)) != image+":"+c.version+"\n") {
			t.Errorf("%s: %v, %s", c.version, err, read(t, r.dir, componentsFile))
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.version, err, c.want)
		}
	}
}

// TestFormula reads the formula of a release: every address has the checksum of its file.
func TestFormula(t *testing.T) {
	r := release{dir: t.TempDir(), version: "v1.2.3"}
	if err := r.writeFormula(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, formula)); err == nil {
		t.Error("a formula without programs")
	}
	sums := map[string]string{}
	for _, name := range []string{
		"kkbundle-darwin-amd64", "kkbundle-darwin-arm64", "kkbundle-linux-amd64",
		"kkbundle-linux-arm64", manual,
	} {
		sum := digest.FromString(name)
		r.add(name, sum)
		sums[name] = sum.Encoded()
	}
	if err := r.writeFormula(); err != nil {
		t.Fatal(err)
	}
	text := string(read(t, r.dir, formula))
	found := regexp.MustCompile(
		`url "https://github.com/kkbundle/kkbundle/releases/download/v1\.2\.3/(\S+)"\s+sha256 "(\S+)"`).FindAllStringSubmatch(text, -1)
	for _, m := range found {
		if sums[m[1]] != m[2] {
			t.Errorf("%s has checksum %s, want %s", m[1], m[2], sums[m[1]])
		}
		delete(sums, m[1])
	}
	if len(sums) > 0 || !strings.Contains(text, `version "1.2.3"`) {
		t.Errorf("the formula lacks %v:\n%s", sums, text)
	}
}
