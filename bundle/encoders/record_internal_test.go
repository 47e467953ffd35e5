package encoders

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/regzip"
)

// writerVariable makes the test binary a process that writes answers: see TestWritersAtOnce.
const writerVariable = "KKBUNDLE_ENCODERS_WRITER"

const answersOfWriter = 300

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerVariable); dir != "" {
		if err := writeAnswers(dir, os.Args[1]); err != nil {
			panic(err)
		}
		return
	}
	m.Run()
}

// A stream is a gzip stream that counts how often it is opened.
type stream struct {
	data  []byte
	opens int
}

func (s *stream) digest() digest.Digest { return digest.FromBytes(s.data) }

func (s *stream) open() (io.ReadCloser, error) {
	s.opens++
	return io.NopCloser(bytes.NewReader(s.data)), nil
}

// madeByGo returns a stream of the encoder go1.26/6.
func madeByGo(t testing.TB) *stream {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for i := range 50 {
		if _, err := fmt.Fprintf(w, "line %d of %d\n", i*7919%1000, i%7); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &stream{data: b.Bytes()}
}

// madeByNone returns a stream that no encoder makes: its only block is of no type.
func madeByNone(t testing.TB) *stream {
	t.Helper()
	return &stream{data: append(bytes.Clone(madeByGo(t).data[:10]), 0xff, 0xff)}
}

func identify(t testing.TB, r *Record, s *stream) regzip.ID {
	t.Helper()
	recipe, ok, err := r.Identify(t.Context(), s.digest(), s.open)
	if err != nil || ok != (recipe.Encoder != "") || r.Err() != nil {
		t.Fatalf("identify: %v, %v, %v", ok, err, r.Err())
	}
	return recipe.Encoder
}

func sumOf(t testing.TB, d digest.Digest) format.Sum {
	t.Helper()
	s, err := format.ParseDigest(d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// forge writes a record with these answers, in this order.
func forge(t testing.TB, dir string, s *stream, answers ...answer) {
	t.Helper()
	var data []byte
	for _, a := range answers {
		data = a.appendTo(data, sumOf(t, s.digest()))
	}
	put(t, dir, data)
}

func put(t testing.TB, dir string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fileName), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAnswersAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	known, unknown, other := madeByGo(t), madeByNone(t), &stream{data: []byte("never asked about")}
	if got := identify(t, Open(dir), known); got != "go1.26/6" {
		t.Errorf("the stream is of go1.26/6; got %q", got)
	}
	if got := identify(t, Open(dir), unknown); got != "" {
		t.Errorf("no encoder makes this block; got %q", got)
	}
	first := known.opens
	known.opens, unknown.opens = 0, 0
	r := Open(dir)
	if got := identify(t, r, unknown); got != "" || unknown.opens != 0 {
		t.Errorf("the unknown stream was opened %d times although it is recorded; got %q", unknown.opens, got)
	}
	if got := identify(t, r, known); got != "go1.26/6" || known.opens == 0 || known.opens >= first {
		t.Errorf("a recorded encoder must be proved and not searched again: opened %d times, at first %d; got %q",
			known.opens, first, got)
	}
	sizes := []ocispec.Descriptor{
		{Digest: known.digest(), Size: 1},
		{Digest: unknown.digest(), Size: 20},
		{Digest: other.digest(), Size: 300},
	}
	if got, want := r.Coverage(sizes), (Coverage{Rebuilt: 1, Kept: 20, Unexamined: 300}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	if n := len(get(t, dir)); n != 2*recordSize {
		t.Errorf("the file has %d bytes; want two records", n)
	}
}

func TestWithoutFileAnswersStayInMemory(t *testing.T) {
	r, s := &Record{}, madeByNone(t)
	identify(t, r, s)
	s.opens = 0
	if identify(t, r, s); s.opens != 0 {
		t.Errorf("the stream was opened %d times although the answer is known", s.opens)
	}
}

func TestWrongRecordIsCorrected(t *testing.T) {
	dir, s := t.TempDir(), madeByGo(t)
	forge(t, dir, s, answer{"gnu/9", regzip.Generation})
	if got := identify(t, Open(dir), s); got != "go1.26/6" {
		t.Errorf("the recorded encoder makes other bytes: want go1.26/6; got %q", got)
	}
	if got, _ := Open(dir).Lookup(s.digest()); got != "go1.26/6" {
		t.Errorf("the last answer must count; got %q", got)
	}
}

func TestContentWithAnotherDigestIsNotRecorded(t *testing.T) {
	dir, s := t.TempDir(), madeByGo(t)
	claimed := digest.FromString("another blob")
	if _, ok, err := Open(dir).Identify(t.Context(), claimed, s.open); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, ok := Open(dir).Lookup(claimed); ok {
		t.Error("an answer for this digest was recorded; the content has another one")
	}
}

func TestGenerations(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []answer
		asked   bool // whether the stream is asked about again
	}{
		{"unknown to this generation", []answer{{"", regzip.Generation}}, false},
		{"unknown to a later generation", []answer{{"", regzip.Generation + 1}}, false},
		{"unknown to an earlier generation", []answer{{"", regzip.Generation - 1}}, true},
		{"unknown, decided again", []answer{{"", regzip.Generation - 1}, {"", regzip.Generation}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, s := t.TempDir(), madeByGo(t)
			forge(t, dir, s, c.answers...)
			_, recorded := Open(dir).Lookup(s.digest())
			got := identify(t, Open(dir), s)
			if recorded == c.asked || (s.opens > 0) != c.asked || (got != "") != c.asked {
				t.Errorf("recorded %v, opened %d times, got %q; asked again: want %v", recorded, s.opens, got, c.asked)
			}
			if id, ok := Open(dir).Lookup(s.digest()); !ok || id != got {
				t.Errorf("afterwards the record says %q, %v", id, ok)
			}
		})
	}
}

func TestAnswerOfLaterVersionStays(t *testing.T) {
	dir, s := t.TempDir(), madeByNone(t)
	later := answer{"invented/1", regzip.Generation + 1}
	forge(t, dir, s, later)
	if _, ok := Open(dir).Lookup(s.digest()); ok {
		t.Error("this version has no such encoder: want no answer")
	}
	identify(t, Open(dir), s)
	if got := parse(get(t, dir))[sumOf(t, s.digest())]; got != later {
		t.Errorf("the file says %+v; want the answer of the later version", got)
	}
}

func TestTornRecordIsOverwritten(t *testing.T) {
	for _, torn := range []int{1, recordSize / 2, recordSize - 1} {
		dir, s, other := t.TempDir(), madeByGo(t), madeByNone(t)
		forge(t, dir, s, answer{"go1.26/6", regzip.Generation})
		whole := get(t, dir)
		put(t, dir, append(whole, whole[:torn]...))
		r := Open(dir)
		if got, ok := r.Lookup(s.digest()); got != "go1.26/6" || !ok {
			t.Errorf("%d bytes of a torn record hide the one before: %q, %v", torn, got, ok)
		}
		identify(t, r, other)
		if _, ok := Open(dir).Lookup(other.digest()); !ok || len(get(t, dir)) != 2*recordSize {
			t.Errorf("after %d bytes of a torn record: recorded %v, %d bytes", torn, ok, len(get(t, dir)))
		}
	}
}

func TestZerosAreNoRecord(t *testing.T) { // of a file that grew when the power failed
	dir := t.TempDir()
	put(t, dir, make([]byte, 10*recordSize))
	if r := Open(dir); len(r.known) != 0 || r.Err() != nil {
		t.Errorf("%d answers, %v", len(r.known), r.Err())
	}
}

func TestTooLargeFileIsStartedOver(t *testing.T) {
	dir, s := t.TempDir(), madeByNone(t)
	var full []byte
	for i := range maxFile / recordSize {
		var sum format.Sum
		binary.LittleEndian.PutUint32(sum[:], uint32(i))
		full = answer{"", regzip.Generation}.appendTo(full, sum)
	}
	put(t, dir, full)
	r := Open(dir)
	if len(r.known) != maxFile/recordSize {
		t.Errorf("a full file has %d answers", len(r.known))
	}
	put(t, dir, append(full, full[:recordSize]...))
	if n := len(Open(dir).known); n != 0 {
		t.Errorf("%d answers of a file that is too large", n)
	}
	put(t, dir, full)
	identify(t, r, s)
	if got := Open(dir); len(got.known) != 1 || len(get(t, dir)) != recordSize {
		t.Errorf("%d answers, %d bytes; want the new one only", len(got.known), len(get(t, dir)))
	}
}

func TestUnusableFileIsNamed(t *testing.T) {
	for name, occupy := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, s := t.TempDir(), madeByGo(t)
			if err := occupy(filepath.Join(dir, fileName)); err != nil {
				t.Fatal(err)
			}
			r := Open(dir)
			if recipe, ok, err := r.Identify(t.Context(), s.digest(), s.open); err != nil || !ok ||
				recipe.Encoder != "go1.26/6" {
				t.Errorf("the answer does not need the file: %v, %v", ok, err)
			}
			if r.Err() == nil {
				t.Error("nothing says that the answer was not kept")
			}
		})
	}
}

func TestErrorsOfTheStreamAreReturned(t *testing.T) {
	dir, s := t.TempDir(), madeByGo(t)
	ended, end := context.WithCancel(t.Context())
	end()
	if _, _, err := Open(dir).Identify(ended, s.digest(), s.open); !errors.Is(err, context.Canceled) {
		t.Errorf("want the context's error; got %v", err)
	}
	forge(t, dir, s, answer{"go1.26/6", regzip.Generation})
	broken := errors.New("broken")
	if _, _, err := Open(dir).Identify(t.Context(), s.digest(),
		func() (io.ReadCloser, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("want the stream's error; got %v", err)
	}
}

// writeAnswers records answers for digests that name tells apart.
func writeAnswers(dir, name string) error {
	for i := range answersOfWriter {
		r := Open(dir)
		s, err := format.ParseDigest(digest.FromString(fmt.Sprint(name, i)))
		if err != nil {
			return err
		}
		if r.keep(s, answer{"go1.26/6", regzip.Generation}); r.Err() != nil {
			return r.Err()
		}
	}
	return nil
}

// TestWritersAtOnce has processes that write, beside one that is killed in the middle of each record.
func TestWritersAtOnce(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, nil)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b", "c"}
	ended := make(chan error)
	for _, name := range names {
		cmd := exec.CommandContext(t.Context(), self, name)
		cmd.Env = append(os.Environ(), writerVariable+"="+dir)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			ended <- err
		}()
	}
	for running := len(names); running > 0; {
		select {
		case err := <-ended:
			if running--; err != nil {
				t.Error(err)
			}
		default:
			tear(t, dir)
		}
	}
	r := Open(dir)
	for _, name := range names {
		for i := range answersOfWriter {
			if _, ok := r.Lookup(digest.FromString(fmt.Sprint(name, i))); !ok {
				t.Fatalf("answer %d of writer %s is lost", i, name)
			}
		}
	}
}

// tear leaves a torn record, as a writer that is killed: the kernel drops its lock.
func tear(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, fileName), os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err = lock(f); err == nil {
		_, err = f.Write([]byte("torn"))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestGCLeavesTheRecord(t *testing.T) {
	dir, s := t.TempDir(), madeByGo(t)
	if c, err := cache.Open(dir, bundle.LevelFast); err != nil || c.Close() != nil {
		t.Fatal(err)
	}
	identify(t, Open(dir), s)
	blobs, none, atOnce := cache.At(dir), int64(0), time.Duration(0)
	for f, err := range blobs.Files(t.Context()) {
		t.Errorf("the cache lists %s, %v", f.Path, err)
	}
	if _, err := blobs.GC(t.Context(), cache.GCOptions{MaxSize: &none, OlderThan: &atOnce}); err != nil {
		t.Fatal(err)
	}
	if _, ok := Open(dir).Lookup(s.digest()); !ok {
		t.Error("the answer is gone after a gc that keeps no blob")
	}
}

func FuzzRecord(f *testing.F) {
	rnd := rand.New(rand.NewSource(1)) //nolint:gosec // must repeat
	noise := make([]byte, 1000)
	rnd.Read(noise)
	good := answer{"zlib/6", 1}.appendTo(nil, format.Sum{1})
	for _, seed := range [][]byte{
		nil, noise, good, good[:40], append(noise[:7:7], good...),
		append(good, good[:5]...),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, s := t.TempDir(), format.Sum{2}
		put(t, dir, data)
		r := Open(dir)
		for sum, a := range r.known {
			if len(a.encoder) > encoderSize {
				t.Errorf("an encoder of %d bytes", len(a.encoder))
			}
			if again := parse(a.appendTo(nil, sum))[sum]; again != a {
				t.Errorf("%+v is read back as %+v", a, again)
			}
			r.Lookup(sum.Digest())
		}
		a := answer{"gnu/6", regzip.Generation}
		delete(r.known, s)
		r.keep(s, a)
		if got := parse(get(t, dir)); r.Err() != nil || got[s] != a {
			t.Errorf("a new answer after this content is read as %+v, %v", got[s], r.Err())
		}
	})
}
