package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// cut writes content in parts of the given sizes, with a parts.json, and returns the base name.
func cut(t *testing.T, content []byte, sizes ...int) string {
	t.Helper()
	base := filepath.Join(t.TempDir(), "x.kkb")
	var l List
	for i, n := range sizes {
		write(t, Name(base, i+1), content[:n])
		l = append(l, Info{Size: int64(n), Sum: sha256.Sum256(content[:n])})
		content = content[n:]
	}
	write(t, base+ListSuffix, l.Marshal())
	return base
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// TestReadAcrossParts reads every range of a set, with and without parts.json.
func TestReadAcrossParts(t *testing.T) {
	t.Parallel()
	content := []byte("0123456789abcdef")
	base := cut(t, content, 5, 1, 4, 6)
	for _, listed := range []bool{true, false} {
		if !listed {
			remove(t, base+ListSuffix)
		}
		s, err := Open(base)
		if err != nil {
			t.Fatal(err)
		}
		if s.Size != int64(len(content)) || s.LastSize() != 6 || (len(s.Wrong()) == 0) != listed {
			t.Errorf("%d bytes, the last part has %d; wrong: %v", s.Size, s.LastSize(), s.Wrong())
		}
		if size, infos, err := s.Stat(); size != s.Size || len(infos) != 0 || err != nil {
			t.Errorf("before a read: %d bytes, %d files, %v", size, len(infos), err)
		}
		for from := range len(content) + 1 {
			for to := from; to <= len(content); to++ {
				b := make([]byte, to-from)
				if n, err := s.ReadAt(b, int64(from)); n != len(b) || err != nil || !bytes.Equal(b, content[from:to]) {
					t.Fatalf("%d to %d: %q, %v", from, to, b[:n], err)
				}
			}
		}
		if n, err := s.ReadAt(make([]byte, 3), int64(len(content)-2)); n != 2 || !errors.Is(err, io.EOF) {
			t.Errorf("over the end: %d bytes, %v", n, err)
		}
		for off, want := range map[int64]string{
			-1: "", 0: "x.kkb.001", 4: "x.kkb.001", 5: "x.kkb.002", 6: "x.kkb.003",
			15: "x.kkb.004", 16: "",
		} {
			if got := s.NameAt(off); got != want {
				t.Errorf("byte %d is in %q, want %q", off, got, want)
			}
		}
		if size, infos, err := s.Stat(); size != s.Size || len(infos) != 4 || err != nil {
			t.Errorf("after all reads: %d bytes, %d files, %v", size, len(infos), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestAnEmptyPartEnds: without parts.json nothing says how long a part must be, but none is empty, and reading must
// come to an end.
func TestAnEmptyPartEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	base := cut(t, []byte("0123456789"), 4, 4, 2)
	remove(t, base+ListSuffix)
	write(t, Name(base, 2), nil)
	s, err := Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := make(chan error, 1)
	go func() {
		_, err := s.ReadAt(make([]byte, 10), 0)
		read <- err
	}()
	select {
	case err := <-read:
		if !errors.Is(err, format.ErrDamaged) || !strings.Contains(err.Error(), "x.kkb.002: empty") {
			t.Errorf("got %v", err)
		}
	case <-ctx.Done():
		t.Fatal("reading did not end")
	}
	for _, number := range []int{1, 3} {
		base := cut(t, []byte("0123456789"), 4, 4, 2)
		remove(t, base+ListSuffix)
		write(t, Name(base, number), nil)
		if _, err := Open(base); err == nil || !strings.Contains(err.Error(), filepath.Base(Name(base, number))+
			": empty") {
			t.Errorf("part %d: %v", number, err)
		}
	}
}

// TestOpenNamesWhatIsWrong has each fault of the files, what Open says about it, and what Wrong and a read do where
// Open succeeds.
func TestOpenNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change     func(t *testing.T, base string)
		open, read string
	}{
		"nothing": {func(*testing.T, string) {}, "", ""},
		"the first is missing": {
			func(t *testing.T, base string) { remove(t, Name(base, 1)) }, "x.kkb.001: missing",
			"",
		},
		"a middle one": {
			func(t *testing.T, base string) { remove(t, Name(base, 2)) }, "",
			"x.kkb.002: missing",
		},
		"the last": {
			func(t *testing.T, base string) { remove(t, Name(base, 3)) }, "x.kkb.003: missing",
			"",
		},
		"of another size": {
			func(t *testing.T, base string) { write(t, Name(base, 2), []byte("1")) },
			"x.kkb.002: 1 bytes long; x.kkb.parts.json says 4", "",
		},
		"a link to itself": {func(t *testing.T, base string) {
			remove(t, Name(base, 3))
			if err := os.Symlink("x.kkb.003", Name(base, 3)); err != nil {
				t.Fatal(err)
			}
		}, "x.kkb.003: cannot be read", ""},
		"parts.json is as long as allowed": {func(t *testing.T,
			base string,
		) {
			write(t, base+ListSuffix, make([]byte, MaxList))
		}, "not canonical", ""},
		"parts.json is no list": {func(t *testing.T,
			base string,
		) {
			write(t, base+ListSuffix, []byte("{}"))
		}, "x.kkb.parts.json: unusable", ""},
		"parts.json is long": {func(t *testing.T,
			base string,
		) {
			write(t, base+ListSuffix, make([]byte, MaxList+1))
		}, "more than 262144 bytes", ""},
		"of a newer version": {func(t *testing.T, base string) {
			write(t, base+ListSuffix, []byte(`{"version":2}`))
		}, "version 2 of parts.json", ""},
		"cut while it is open": {func(*testing.T, string) {}, "", "x.kkb.002: ends after 1 of 4 bytes"},
	} {
		base := cut(t, []byte("0123456789"), 4, 4, 2)
		tt.change(t, base)
		s, err := Open(base)
		if tt.open != "" {
			if err == nil || !strings.Contains(err.Error(), tt.open) {
				t.Errorf("%s: %v, want %q", name, err, tt.open)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if strings.HasPrefix(name, "cut") {
			write(t, Name(base, 2), []byte("4"))
		}
		n, err := s.ReadAt(make([]byte, 10), 0)
		if tt.read == "" && (n != 10 || err != nil) || tt.read != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.read) || !errors.Is(err, format.ErrDamaged)) {
			t.Errorf("%s: %d bytes, %v, want %q", name, n, err, tt.read)
		}
		if wrong := s.Wrong(); (len(wrong) > 0) != strings.Contains(tt.read, "missing") {
			t.Errorf("%s: wrong: %v", name, wrong)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none.kkb")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no parts at all: %v", err)
	}
}

// TestParseListIsBounded: a list of the largest size is refused for its content, a longer one for its size.
func TestParseListIsBounded(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{MaxList: "not canonical", MaxList + 1: "more than 262144 bytes"} {
		if _, err := ParseList(make([]byte, n)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v, want %q", n, err, want)
		}
	}
	if _, err := ParseList([]byte(`{"version":1,"size":4,"parts":[{"size":4,"sha256":"` + (format.Sum{}).Hex() +
		`"},{"size":0,"sha256":"` + (format.Sum{}).Hex() + `"}]}`)); err == nil || err.Error() != "part 2 is empty" {
		t.Errorf("an empty part: %v", err)
	}
	if hint := (&Error{Part: "/mnt/x.kkb.002"}).Hint(); hint != "copy x.kkb.002 again from where the bundle was built, and check all parts with kkbundle parts verify" {
		t.Errorf("the remedy: %s", hint)
	}
}

// TestExplain: only without parts.json can a damaged end mean that a part is missing.
func TestExplain(t *testing.T) {
	t.Parallel()
	base := cut(t, []byte("0123456789"), 4, 6)
	damage, other := format.Damage(0, "no seek table"), errors.New("no permission")
	for _, listed := range []bool{true, false} {
		if !listed {
			remove(t, base+ListSuffix)
		}
		s, err := Open(base)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Explain(damage)
		if !errors.Is(got, damage) || strings.HasSuffix(got.Error(), "; x.kkb.parts.json is missing, and perhaps x.kkb.003 too") == listed || listed && got != error(damage) { //nolint:errorlint // unwrapped
			t.Errorf("listed: %t: %v", listed, got)
		}
		if got := s.Explain(other); got != other { //nolint:errorlint // the same error
			t.Errorf("another error: %v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	base := cut(t, []byte("0123456789"), 4, 6)
	other := filepath.Join(filepath.Dir(base), "y")
	write(t, other+".001", nil)
	write(t, other+".tar", nil)
	for path, want := range map[string]string{ // the base name; "" for one file
		base: base, base + ".001": base, base + ".002": base, base + ".999": base, base + ListSuffix: base,
		other: other, other + ".001": other, other + ".tar": "", "none.kkb": "", "none.kkb.001": "none.kkb",
		"none.kkb.age.007": "none.kkb.age",
		"none.001":         "", "none.kkb.000": "", "none.kkb.01": "", "none.kkb.1000": "",
	} {
		got, ok := Locate(path)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %t", path, got, ok)
		}
	}
	if err := CheckTarget(base, false); err == nil || !strings.Contains(err.Error(), "exists in parts") {
		t.Errorf("a file beside parts: %v", err)
	}
	if err := CheckTarget(other+".tar", true); err == nil || !strings.Contains(err.Error(), "exists as one file") {
		t.Errorf("parts beside a file: %v", err)
	}
	if err := errors.Join(CheckTarget(base, true), CheckTarget(other+".tar", false)); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	states := func(reports []Report) (all []State) {
		for _, r := range reports {
			all = append(all, r.State)
		}
		return all
	}
	base := cut(t, []byte("0123456789"), 4, 4, 2)
	var done, total int64
	reports, err := Verify(t.Context(), base, 1, func(d, all int64) { done, total = d, all }, nil)
	if err != nil || !slices.Equal(states(reports), []State{Good, Good, Good}) || done != 10 || total != 10 {
		t.Errorf("%v, %v; %d of %d bytes", reports, err, done, total)
	}
	if surplus, err := SurplusParts(base); len(surplus) != 0 || err != nil {
		t.Errorf("surplus: %v, %v", surplus, err)
	}
	write(t, Name(base, 1), []byte("0x23"))
	write(t, Name(base, 2), []byte("45"))
	remove(t, Name(base, 3))
	write(t, Name(base, 5), nil)
	reports, err = Verify(t.Context(), base, 0, nil, nil)
	if !slices.Equal(states(reports), []State{Bad, Bad, Missing, Surplus}) || err == nil {
		t.Errorf("%v, %v", reports, err)
	}
	for _, want := range []string{
		"x.kkb.001: content differs", "x.kkb.002: 2 bytes long instead of 4",
		"x.kkb.003: missing", "x.kkb.005: not part of this bundle, which has 3 parts",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if surplus, err := SurplusParts(base); !slices.Equal(surplus, []string{Name(base, 5)}) || err != nil {
		t.Errorf("surplus: %v, %v", surplus, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Verify(ended, base, 0, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	remove(t, base+ListSuffix)
	if _, err := Verify(t.Context(), base, 0, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "x.kkb.parts.json: missing") {
		t.Errorf("without parts.json: %v", err)
	}
	if surplus, err := SurplusParts(base); len(surplus) != 0 || err != nil {
		t.Errorf("surplus without parts.json: %v, %v", surplus, err)
	}
	if _, err := Verify(t.Context(), filepath.Join(t.TempDir(), "y.kkb"), 0, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "is not in parts") {
		t.Errorf("one file: %v", err)
	}
}

// TestWrongSum: a sum that differs is the part's fault or that of parts.json. The bundle itself tells which.
func TestWrongSum(t *testing.T) {
	t.Parallel()
	base := cut(t, []byte("0123456789"), 4, 4, 2)
	list, err := readPartList(base)
	if err != nil {
		t.Fatal(err)
	}
	right := list[1].Sum.Digest()
	list[1].Sum[0] ^= 1
	write(t, base+ListSuffix, list.Marshal())
	asked := 0
	whole := func(is bool) func(context.Context) bool {
		return func(context.Context) bool { asked++; return is }
	}
	states := func(reports []Report) (all []State) {
		for _, r := range reports {
			all = append(all, r.State)
		}
		return all
	}
	reports, err := Verify(t.Context(), base, 0, nil, whole(true))
	if !slices.Equal(states(reports), []State{Good, Good, Good, Bad}) || reports[1].Digest != right ||
		reports[3].Path != base+ListSuffix || asked != 1 {
		t.Errorf("the bundle is whole: asked %d times, %+v", asked, reports)
	}
	if !errors.Is(err, format.ErrDamaged) ||
		!strings.Contains(err.Error(), "x.kkb.parts.json: has a wrong sha256 of x.kkb.002;") ||
		strings.Contains(err.Error(), "differs") {
		t.Errorf("the bundle is whole: %v", err)
	}
	reports, err = Verify(t.Context(), base, 0, nil, whole(false))
	if !slices.Equal(states(reports), []State{Good, Bad, Good}) || err == nil ||
		!strings.Contains(err.Error(), "x.kkb.002: content differs from parts.json") || asked != 2 {
		t.Errorf("the bundle is damaged: asked %d times, %+v, %v", asked, reports, err)
	}
	write(t, Name(base, 4), nil)
	if reports, err := Verify(t.Context(), base, 0, nil, whole(true)); !slices.Equal(states(reports),
		[]State{Good, Bad, Good, Surplus}) || err == nil || asked != 2 {
		t.Errorf("something else is wrong, too: asked %d times, %+v, %v", asked, reports, err)
	}
}
