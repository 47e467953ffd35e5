package bundle

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/parts"
)

// split writes a bundle in six parts and returns their common name and the bytes of the same in one file.
func split(t testing.TB) (base string, whole []byte) {
	t.Helper()
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{
		putFile(t, c, "large", noise(300_000)),
		putFile(t, c, "other", noise(200_001)),
		putFile(t, c, "small", []byte("hello\n")),
	}}
	base = filepath.Join(t.TempDir(), "x.kkb")
	var b bytes.Buffer
	if _, err := Write(t.Context(), &b, c, x, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := Create(t.Context(), base, c, x, WriteOptions{PartSize: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	if want := (b.Len()-1)/100_000 + 1; s.Parts != want || s.Size != int64(b.Len()) {
		t.Fatalf("%d parts and %d bytes, want %d and %d", s.Parts, s.Size, want, b.Len())
	}
	return base, b.Bytes()
}

func noise(n int) []byte {
	b, x := make([]byte, n), uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestPartsAreTheSameBytes(t *testing.T) {
	t.Parallel()
	base, whole := split(t)
	var cat []byte
	for i := 1; i <= 6; i++ {
		cat = append(cat, read(t, parts.Name(base, i))...)
	}
	if !bytes.Equal(cat, whole) {
		t.Error("the parts together are not the file")
	}
	want := []string{"x.kkb.001", "x.kkb.002", "x.kkb.003", "x.kkb.004", "x.kkb.005", "x.kkb.006", "x.kkb.parts.json"}
	if got := names(t, filepath.Dir(base)); !slices.Equal(got, want) {
		t.Errorf("there is %q", got)
	}
	for _, path := range []string{base, base + ".001", base + ".004", base + ".parts.json"} {
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Verify(t.Context(), VerifyOptions{}); err != nil {
			t.Error(err)
		}
		if w := r.Warnings(); len(w) > 0 {
			t.Errorf("%s: warnings %q", path, w)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := parts.Verify(t.Context(), base+".002", 0, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestPartsAgain(t *testing.T) {
	t.Parallel()
	base, _ := split(t)
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{putFile(t, c, "large", noise(150_000))}}
	// of a run that was killed
	write(t, filepath.Join(filepath.Dir(base), ".x.kkb.003.ABCDEFGH.tmp"), make([]byte, 1000))
	if _, err := Create(t.Context(), base, c, x, WriteOptions{PartSize: 100_000}); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, filepath.Dir(base)), []string{
		"x.kkb.001", "x.kkb.002",
		"x.kkb.parts.json",
	}; !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
	if _, err := parts.Verify(t.Context(), base, 0, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := Create(t.Context(), base, c, x, WriteOptions{}); err == nil ||
		!strings.Contains(err.Error(), "exists in parts (x.kkb.001 and others)") {
		t.Errorf("one file beside parts: %v", err)
	}
	for _, name := range names(t, filepath.Dir(base)) {
		if err := os.Remove(filepath.Join(filepath.Dir(base), name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Create(t.Context(), base, c, x, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), base, c, x, WriteOptions{PartSize: 100_000}); err == nil ||
		!strings.Contains(err.Error(), "exists as one file") {
		t.Errorf("parts beside one file: %v", err)
	}
	if _, err := Create(t.Context(), base+"2", c, x, WriteOptions{PartSize: 100}); err == nil ||
		!strings.Contains(err.Error(), "use parts of at least 1MiB") {
		t.Errorf("too many parts: %v", err)
	}
	if got := names(t, filepath.Dir(base)); !slices.Equal(got, []string{"x.kkb"}) {
		t.Errorf("there is %q", got)
	}
}

// TestPartsDamage has what happens to files on their way, and which file open, verify and parts verify then name.
func TestPartsDamage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		damage              func(t *testing.T, base string)
		open, verify, parts string // what the errors say; "" where there is none; verify only where open succeeds
	}{
		{"nothing", func(*testing.T, string) {}, "", "", ""},
		{"first missing", remove(".001"), "x.kkb.001: missing", "", "x.kkb.001: missing"},
		{"middle missing", remove(".003"), "", "x.kkb.003: missing", "x.kkb.003: missing"},
		{"last missing", remove(".006"), "x.kkb.006: missing", "", "x.kkb.006: missing"},
		{
			"all missing", remove(".001", ".002", ".003", ".004", ".005", ".006"), "x.kkb.004: missing", "",
			"x.kkb.004: missing",
		},
		{
			"cut", func(t *testing.T, base string) { cut(t, base+".002", 5) },
			"x.kkb.002: 99995 bytes long; x.kkb.parts.json says 100000", "",
			"x.kkb.002: 99995 bytes long instead of 100000",
		},
		{
			"longer", func(t *testing.T, base string) { write(t, base+".002", make([]byte, 100_001)) },
			"x.kkb.002: 100001 bytes long", "", "x.kkb.002: 100001 bytes long",
		},
		{"a bit", func(t *testing.T, base string) {
			data := read(t, base+".002")
			data[500] ^= 1
			write(t, base+".002", data)
		}, "", "a frame is bad", "x.kkb.002: content differs"},
		{"swapped", func(t *testing.T, base string) {
			a, b := read(t, base+".002"), read(t, base+".003")
			write(t, base+".002", b)
			write(t, base+".003", a)
		}, "", "a frame is bad", "x.kkb.003: content differs"},
		{"of another bundle", func(t *testing.T, base string) {
			other := noise(100_000)
			slices.Reverse(other)
			write(t, base+".004", other)
		}, "", "a frame is bad", "x.kkb.004: content differs"},
		{
			"surplus", func(t *testing.T, base string) { write(t, base+".009", nil) }, "", "",
			"x.kkb.009: not part of this bundle, which has 6 parts: remove the file",
		},
		{"no parts.json", remove(".parts.json"), "", "x.kkb.parts.json: missing", "x.kkb.parts.json: missing"},
		{
			"neither parts.json nor a middle part", remove(".parts.json", ".003"), "", "x.kkb.003: missing",
			"x.kkb.parts.json: missing",
		},
		{
			"neither parts.json nor the last part", remove(".parts.json", ".006"), "perhaps x.kkb.006 too", "",
			"x.kkb.parts.json: missing",
		},
		{
			"an empty part", func(t *testing.T, base string) { write(t, base+".003", nil) },
			"x.kkb.003: 0 bytes long; x.kkb.parts.json says 100000", "", "x.kkb.003: 0 bytes long instead of 100000",
		},
		{"an empty part without parts.json", func(t *testing.T, base string) {
			remove(".parts.json")(t, base)
			write(t, base+".003", nil)
		}, "", "x.kkb.003: empty", "x.kkb.parts.json: missing"},
		{"a directory", func(t *testing.T, base string) {
			remove(".003")(t, base)
			if err := os.Mkdir(base+".003", 0o700); err != nil {
				t.Fatal(err)
			}
		}, "", "x.kkb.003: not a regular file", "x.kkb.003: not a regular file"},
		{"a symlink to a part elsewhere", func(t *testing.T, base string) {
			elsewhere := filepath.Join(t.TempDir(), "stick")
			if err := errors.Join(os.Rename(base+".003", elsewhere), os.Symlink(elsewhere, base+".003")); err != nil {
				t.Fatal(err)
			}
		}, "", "", ""},
		{"a symlink to nowhere", link(".003", "nowhere"), "", "x.kkb.003: missing", "x.kkb.003: missing"},
		{
			"a symlink to a device", link(".003", "/dev/zero"), "", "x.kkb.003: not a regular file",
			"x.kkb.003: not a regular file",
		},
		{
			"parts.json is a device", link(".parts.json", "/dev/zero"), "x.kkb.parts.json: unusable", "",
			"x.kkb.parts.json: unusable",
		},
		{"parts.json is garbage", overwrite(".parts.json", "junk"), "x.kkb.parts.json: unusable", "", "not canonical"},
		{"parts.json is large", overwrite(".parts.json", strings.Repeat(" ", 256<<10+1)), "more than", "", "more than"},
		{
			"parts.json of a later version", overwrite(".parts.json", `{"version":2}`), "needs version 2 of parts.json",
			"", "use a newer kkbundle",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base, _ := split(t)
			tt.damage(t, base)
			r, err := Open(base + ".002")
			expect(t, "open", err, tt.open)
			if err == nil {
				_, err = r.Verify(t.Context(), VerifyOptions{})
				expect(t, "verify", err, tt.verify)
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
			_, err = parts.Verify(t.Context(), base, 0, nil, nil)
			expect(t, "parts verify", err, tt.parts)
		})
	}
}

func expect(t *testing.T, what string, err error, text string) {
	t.Helper()
	if text == "" && err == nil {
		return
	}
	if text == "" || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want %q", what, err, text)
		return
	}
	if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrUnsupported) {
		t.Errorf("%s: %v does not match ErrDamaged", what, err)
	}
}

func remove(suffixes ...string) func(t *testing.T, base string) {
	return func(t *testing.T, base string) {
		t.Helper()
		for _, s := range suffixes {
			if err := os.Remove(base + s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func link(suffix, to string) func(t *testing.T, base string) {
	return func(t *testing.T, base string) {
		t.Helper()
		if err := errors.Join(os.Remove(base+suffix), os.Symlink(to, base+suffix)); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(suffix, content string) func(t *testing.T, base string) {
	return func(t *testing.T, base string) { t.Helper(); write(t, base+suffix, []byte(content)) }
}

func cut(t *testing.T, path string, n int) {
	t.Helper()
	data := read(t, path)
	write(t, path, data[:len(data)-n])
}

// TestPartsLeaveNothing gives up before the parts have their names: what was there is untouched.
func TestPartsLeaveNothing(t *testing.T) {
	t.Parallel()
	base, _ := split(t)
	before := read(t, parts.Name(base, 1))
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{putFile(t, c, "large", noise(350_000))}}
	w, err := newPartWriter(base, 100_000, 400_000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), w, c, x, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if n := len(names(t, filepath.Dir(base))); n != 7 || !bytes.Equal(before, read(t, parts.Name(base, 1))) {
		t.Errorf("%d files are there, or the first changed", n)
	}
}

// TestPartsStoppedBetweenRenames has old and new parts under one name, as after a loss of power: there is no
// parts.json, and what is read is refused.
func TestPartsStoppedBetweenRenames(t *testing.T) {
	t.Parallel()
	base, _ := split(t)
	other, _ := split(t)
	data := read(t, other+".003")
	slices.Reverse(data)
	write(t, base+".003", data)
	remove(".parts.json")(t, base)
	r, err := Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if len(r.Warnings()) != 1 {
		t.Errorf("warnings %q", r.Warnings())
	}
	_, err = r.Verify(t.Context(), VerifyOptions{})
	expect(t, "verify", err, "in x.kkb.00")
}

func TestNoPartsAtAll(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"x.kkb.001", "x.kkb.017", "x.kkb.parts.json", "x.kkb"} {
		if _, err := Open(filepath.Join(t.TempDir(), name)); !errors.Is(err, os.ErrNotExist) ||
			errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOnePartThatIsNone is a bundle in one file whose name looks like a part's.
func TestOnePartThatIsNone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "backup.100")
	write(t, path, tiny(t))
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Warnings()) > 0 {
		t.Errorf("warnings %q", r.Warnings())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestPartsCancelled(t *testing.T) {
	t.Parallel()
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{putFile(t, c, "large", noise(350_000))}}
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	_, err = Create(ctx, filepath.Join(dir, "x.kkb"), c, x, WriteOptions{
		PartSize: 100_000,
		Progress: func(int64, int64) { cancel() },
	})
	if !errors.Is(err, context.Canceled) || len(names(t, dir)) > 0 {
		t.Errorf("%v; there is %q", err, names(t, dir))
	}
}

// TestFullDiskSaysAtMost: the size of what is not compressed yet is a bound, and not a need.
func TestFullDiskSaysAtMost(t *testing.T) {
	t.Parallel()
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{putFile(t, c, "large", noise(150_000))}}
	err = describe(t.Context(), "x.kkb", c, x, syscall.ENOSPC)
	if want := "write bundle x.kkb: the disk is full; the bundle takes at most 1 MiB there: " +
		syscall.ENOSPC.Error(); err.Error() != want || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want %s", err, want)
	}
}
