//go:build linux

package scale

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// updatedCorpus makes six images, or all if KKBUNDLE_CORPUS is "all". The suffix tells the places of both apart.
func updatedCorpus(t *testing.T, place string, apt ...string) corpus {
	t.Helper()
	names, which := []string{"apache2", "haproxy", "nginx", "php-fpm", "postgresql", "redis-server"},
		os.Getenv("KKBUNDLE_CORPUS")
	if which == "all" {
		names = corpusImages()
	}
	return loadCorpusOf(t, corpus{dir: corpusDir(t, place+which), names: names, apt: apt})
}

// buildCorpus builds a bundle of a corpus.
func buildCorpus(t *testing.T, c corpus, path string) {
	t.Helper()
	must(t, "", program(t), "build", "--quiet", "--no-cache", "-o", path, c.manifest(t, c.serve(t)))
}

// A fileRow is a command that writes a file.
type fileRow struct {
	name, result string
	args         []string
}

// measureFiles prints what commands cost. A result whose name is back must equal want.
func measureFiles(t *testing.T, rows []fileRow, back, want string) {
	t.Helper()
	for _, row := range rows {
		u := must(t, "", append([]string{program(t), row.args[0], "--quiet"}, row.args[1:]...)...)
		t.Logf("%s: %d bytes, %.1f s, CPU %.1f s, %d MiB", row.name, size(t, row.result), u.Wall.Seconds(),
			u.CPU.Seconds(), u.Peak/mib)
		if row.result == back {
			compareFiles(t, back, want)
		}
	}
}

// TestCorpusUpdate prints what an update of Debian images costs: the images before and after a round of security
// updates, as a delta. Sizes are exact; times depend on the machine.
func TestCorpusUpdate(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench-corpus runs it")
	}
	dir := t.TempDir()
	preferences := filepath.Join(dir, "preferences")
	pins := "Package: *\nPin: release l=Debian-Security\nPin-Priority: -1\n\nPackage: *\nPin: release n=*-updates\nPin-Priority: -1\n"
	if err := os.WriteFile(preferences, []byte(pins), 0o600); err != nil {
		t.Fatal(err)
	}
	before := updatedCorpus(t, "before", "-o", "Dir::Etc::preferences="+preferences)
	after := updatedCorpus(t, "after")
	one, two := filepath.Join(dir, "one.kkb"), filepath.Join(dir, "two.kkb")
	buildCorpus(t, before, one)
	buildCorpus(t, after, two)
	changed := int64(0)
	for _, b := range after.blobs() {
		if _, err := os.Stat(before.blob(b.Digest)); err != nil {
			changed += b.Size
		}
	}
	t.Logf("the later bundle: %s; changed layers: %s", gb(size(t, two)), gb(changed))
	update, back := filepath.Join(dir, "x.kkd"), filepath.Join(dir, "back.kkb")
	measureFiles(t, []fileRow{
		{"delta", update, []string{"delta", one, two, "-o", update}},
		{"patch", back, []string{"patch", one, update, "-o", back}},
	}, back, two)
}

// TestCorpusPack prints what packs of Debian images cost. Sizes depend on the program zstd for --level max; times
// depend on the machine.
func TestCorpusPack(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench-corpus runs it")
	}
	dir := t.TempDir()
	whole, packed, least := filepath.Join(dir, "whole.kkb"), filepath.Join(dir, "x.kkp"),
		filepath.Join(dir, "least.kkp")
	back := filepath.Join(dir, "back.kkb")
	buildCorpus(t, updatedCorpus(t, "after"), whole)
	t.Logf("the bundle: %d bytes", size(t, whole))
	rows := []fileRow{
		{"pack", packed, []string{"pack", whole, "-o", packed}},
		{"unpack", back, []string{"unpack", packed, "-o", back}},
	}
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Log("no program zstd here: --level max is not measured")
	} else {
		rows = append(rows, fileRow{"pack --level max", least, []string{"pack", "--level", "max", whole, "-o", least}},
			fileRow{"unpack of --level max", back, []string{"unpack", least, "-o", back}})
	}
	measureFiles(t, rows, back, whole)
}

// TestCorpusLayers prints the time of inspect --layers for Debian images, without and with the answers in the cache,
// and of a build from the cache. Times depend on the machine.
func TestCorpusLayers(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench-corpus runs it")
	}
	dir := t.TempDir()
	t.Setenv("KKBUNDLE_CACHE", filepath.Join(dir, "cache"))
	c := updatedCorpus(t, "after")
	path, manifest := filepath.Join(dir, "x.kkb"), c.manifest(t, c.serve(t))
	build, inspect := []string{program(t), "build", "-o", path, manifest},
		[]string{program(t), "inspect", "--layers", path}
	for _, row := range []struct {
		name string
		args []string
	}{
		{"build", build},
		{"build from the cache", build},
		{"build from the cache", build},
		{"build from the cache", build},
		{"inspect --layers", inspect},
		{"inspect --layers, again", inspect},
		{"build, layers known", build},
		{"build, layers known", build},
		{"build, layers known", build},
	} {
		u, out := measure(t, "", row.args...)
		if !u.ok() {
			t.Fatalf("%q: %s\n%s", row.args, u.Status, out)
		}
		t.Logf("%s: %.2f s, CPU %.2f s, %d MiB\n%s", row.name, u.Wall.Seconds(), u.CPU.Seconds(), u.Peak/mib, out)
	}
}

func compareFiles(t *testing.T, a, b string) {
	t.Helper()
	one, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Errorf("%s differs from %s", a, b)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
