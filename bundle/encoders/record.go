package encoders

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/regzip"
	"github.com/kkbundle/kkbundle/internal/disk"
)

const (
	fileName    = "encoders" // in the cache directory
	maxFile     = 16 << 20
	recordSize  = 64
	encoderSize = 24
)

// A Record holds the encoders of gzip streams by digest. The zero value keeps nothing on disk. A Record may be used
// by several goroutines, and its file by several processes.
type Record struct {
	path  string // "" for none
	mu    sync.Mutex
	known map[format.Sum]answer
	err   error
}

// An answer is the result for one stream.
type answer struct {
	encoder    regzip.ID // "" if no encoder of the generation makes the stream
	generation uint32
}

// Open reads the record of a cache directory. Damaged answers are left out. A file that is missing or too large has
// none; so has one that cannot be read, see Err.
func Open(cache string) *Record {
	r := &Record{path: filepath.Join(cache, fileName)}
	data, err := read(r.path)
	if !errors.Is(err, fs.ErrNotExist) {
		r.err = err
	}
	r.known = parse(data)
	return r
}

// read returns the content of the file, or nothing if it is too large.
func read(path string) ([]byte, error) {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(data) > maxFile {
		return nil, err
	}
	return data, err
}

// openFile opens a regular file.
func openFile(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: remove it", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// parse returns the answers of the records in data whose checksum is right.
func parse(data []byte) map[format.Sum]answer {
	known := map[format.Sum]answer{}
	for ; len(data) >= recordSize; data = data[recordSize:] {
		b := data[:recordSize]
		body, sum := b[:recordSize-4], binary.LittleEndian.Uint32(b[recordSize-4:])
		if checksum(body) != sum {
			continue
		}
		at := len(format.Sum{})
		known[format.Sum(body[:at])] = answer{
			encoder: regzip.ID(bytes.TrimRight(body[at+4:], "\x00")), generation: binary.LittleEndian.Uint32(body[at:]),
		}
	}
	return known
}

// appendTo appends the record of an answer to b.
func (a answer) appendTo(b []byte, s format.Sum) []byte {
	var encoder [encoderSize]byte
	copy(encoder[:], a.encoder)
	body := binary.LittleEndian.AppendUint32(append([]byte{}, s[:]...), a.generation)
	body = append(body, encoder[:]...)
	return binary.LittleEndian.AppendUint32(append(b, body...), checksum(body))
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// Lookup returns the recorded encoder of a gzip stream, "" if no known encoder makes it. It returns false for a
// stream without an answer: Identify was not asked, or an older or newer version decided something that this one
// cannot use.
func (r *Record) Lookup(d digest.Digest) (encoder regzip.ID, ok bool) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return "", false
	}
	r.mu.Lock()
	a, ok := r.known[s]
	r.mu.Unlock()
	if a.encoder == "" {
		return "", ok && a.generation >= regzip.Generation
	}
	return a.encoder, a.encoder.Known()
}

// Identify is regzip.Identify for the gzip stream with a digest. A recorded encoder is tried first; the recipe is
// proved all the same. A stream that is recorded as unknown is not read. A new answer is recorded if the stream has
// this digest.
func (r *Record) Identify(ctx context.Context, d digest.Digest,
	open func() (io.ReadCloser, error),
) (regzip.Recipe, bool, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return regzip.Recipe{}, false, err
	}
	id, recorded := r.Lookup(d)
	if recorded && id == "" {
		return regzip.Recipe{}, false, nil
	}
	if recorded {
		if recipe, ok, err := regzip.Confirm(ctx, id, open); ok || err != nil {
			return recipe, ok, err
		}
	}
	recipe, _, ok, err := regzip.Identify(ctx, open)
	if err != nil {
		return recipe, ok, err
	}
	whole, err := hasDigest(ctx, d, open)
	if err == nil && whole {
		r.keep(s, answer{recipe.Encoder, regzip.Generation})
	}
	return recipe, ok, err
}

// hasDigest reports whether a stream has a digest.
func hasDigest(ctx context.Context, d digest.Digest, open func() (io.ReadCloser, error)) (bool, error) {
	src, err := open()
	if err != nil {
		return false, err
	}
	defer src.Close()
	v := d.Verifier()
	if _, err := io.Copy(v, src); err != nil {
		return false, err
	}
	return v.Verified(), ctx.Err()
}

// keep records an answer, unless a newer version has decided.
func (r *Record) keep(s format.Sum, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[s].generation > a.generation {
		return
	}
	if r.known == nil {
		r.known = map[format.Sum]answer{}
	}
	r.known[s] = a
	if r.path == "" || r.err != nil || len(a.encoder) > encoderSize {
		return
	}
	r.err = write(r.path, a.appendTo(nil, s))
}

// write appends one record to the file.
func write(path string, record []byte) (err error) {
	dir, err := disk.OpenOwn(filepath.Dir(path))
	if err != nil {
		return err
	}
	if err := dir.Close(); err != nil {
		return err
	}
	f, err := openFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := lock(f); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end := info.Size() / recordSize * recordSize // without a torn record
	if end+recordSize > maxFile {
		end = 0
	}
	if end != info.Size() {
		if err := f.Truncate(end); err != nil {
			return err
		}
	}
	_, err = f.Write(record)
	return err
}

// lock waits until no other process writes to the file.
func lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Err returns the first error of reading or writing the file, after which answers are kept in memory only.
func (r *Record) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// A Coverage counts the bytes of gzip streams.
type Coverage struct {
	Rebuilt    int64 `json:"rebuilt"`    // a known encoder makes them again
	Kept       int64 `json:"kept"`       // no known encoder makes them
	Unexamined int64 `json:"unexamined"` // no answer is recorded
}

// Coverage returns the coverage of gzip streams by the recorded answers.
func (r *Record) Coverage(streams []ocispec.Descriptor) (c Coverage) {
	for _, b := range streams {
		switch id, ok := r.Lookup(b.Digest); {
		case !ok:
			c.Unexamined += b.Size
		case id == "":
			c.Kept += b.Size
		default:
			c.Rebuilt += b.Size
		}
	}
	return c
}
