//go:build linux

package scale

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCorpusUpdate prints what an update of Debian images costs: the images before and after a round of security updates, as a delta,
// and the later bundle as a pack. Sizes are exact; times depend on the machine.
func TestCorpusUpdate(t *testing.T) {
	if !big {
		t.Skip("it only measures, for minutes; make bench-corpus runs it")
	}
	names := []string{"apache2", "haproxy", "nginx", "php-fpm", "postgresql", "redis-server"}
	if os.Getenv("KKBUNDLE_CORPUS") == "all" {
		names = corpusImages()
	}
	dir := t.TempDir()
	preferences := filepath.Join(dir, "preferences")
	pins := "Package: *\nPin: release l=Debian-Security\nPin-Priority: -1\n\nPackage: *\nPin: release n=*-updates\nPin-Priority: -1\n"
	if err := os.WriteFile(preferences, []byte(pins), 0o600); err != nil {
		t.Fatal(err)
	}
	suffix := os.Getenv("KKBUNDLE_CORPUS")
	before := loadCorpusOf(t, corpus{dir: corpusDir(t, "before"+suffix), names: names, apt: []string{"-o", "Dir::Etc::preferences=" + preferences}})
	after := loadCorpusOf(t, corpus{dir: corpusDir(t, "after"+suffix), names: names})
	one, two := filepath.Join(dir, "one.kkb"), filepath.Join(dir, "two.kkb")
	host := before.serve(t)
	must(t, "", program(t), "build", "--quiet", "--no-cache", "-o", one, before.manifest(t, host))
	moved := after.serve(t)
	must(t, "", program(t), "build", "--quiet", "--no-cache", "-o", two, after.manifest(t, moved))
	changed := int64(0)
	for _, b := range after.blobs() {
		if _, err := os.Stat(before.blob(b.Digest)); err != nil {
			changed += b.Size
		}
	}
	t.Logf("the later bundle: %s in a file of %s; changed layers: %s", gb(size(t, two)), gb(size(t, two)), gb(changed))
	update, packed, back := filepath.Join(dir, "x.kkd"), filepath.Join(dir, "x.kkp"), filepath.Join(dir, "back.kkb")
	for _, row := range []struct {
		name, result string
		args         []string
	}{
		{"delta", update, []string{"delta", one, two, "-o", update}},
		{"patch", back, []string{"patch", one, update, "-o", back}},
		{"pack", packed, []string{"pack", two, "-o", packed}},
		{"unpack", back, []string{"unpack", packed, "-o", back}},
	} {
		u := must(t, "", append([]string{program(t), row.args[0], "--quiet"}, row.args[1:]...)...)
		t.Logf("%s: %d bytes, %.1f s, CPU %.1f s, %d MiB", row.name, size(t, row.result), u.Wall.Seconds(), u.CPU.Seconds(), u.Peak/mib)
		if row.result == back {
			compareFiles(t, back, two)
		}
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
