// Package cache keeps blobs in a directory by digest, in the frames of bundles, so that each is downloaded and
// compressed once. use.go describes the directory.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// version changes with the file format, so that an older cache is never misread.
const version = "kkbundle cache 1\n"

// A Cache keeps blobs in a directory by digest, compressed in the same frames as in bundles. A blob is whole or
// absent. Several processes may use one directory at a time, and a Cache is safe for concurrent use. A blob that only
// another level has, or another version, is compressed again when a bundle takes it; then both entries take space.
// While a Cache is open, no GC removes a blob it was asked for.
type Cache struct {
	usage
	dir    string   // of this encoder
	others []string // directories of other encoders when the cache was opened
	parts  string   // of unfinished blobs
	enc    *format.Encoder
	dec    *zstd.Decoder
	slots  chan struct{}          // one per full piece that is not on disk yet: bounds memory over all writers
	pieces sync.Pool              // *[]byte with room for one piece
	frames sync.Pool              // *[]byte with room for one frame
	places atomic.Pointer[Places] // set by PlaceIn
}

// Open opens the cache in dir for blobs compressed at level and creates the directory if needed. It uses one
// compressor per processor, but fewer if memory would exceed its bound (level.jobs). Besides one piece per writer, at
// most 2 pieces more than that are in memory.
//
// Close ends the use of the cache. A process that exits without Close does no harm.
func Open(dir string, level format.Level) (*Cache, error) {
	c, err := newCache(dir, level)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(); err != nil {
		return nil, fmt.Errorf("open cache: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

func newCache(dir string, level format.Level) (*Cache, error) {
	jobs := level.Jobs()
	enc, err := format.NewEncoder(level, jobs)
	if err != nil {
		return nil, err
	}
	dec, err := format.NewDecoder(jobs)
	if err != nil {
		return nil, fmt.Errorf("zstd decoder: %w", err)
	}
	c := &Cache{dir: filepath.Join(dir, encoderDir(enc.ID)), enc: enc, dec: dec, slots: make(chan struct{}, jobs+2)}
	c.root, c.parts = dir, filepath.Join(c.dir, partsDir)
	c.pieces.New = func() any { b := make([]byte, 0, enc.FrameSize); return &b }
	c.frames.New = func() any { b := make([]byte, 0, format.MaxFrameLen(int64(enc.FrameSize))); return &b }
	return c, nil
}

// encoderDir returns the directory name for the entries of an encoder.
func encoderDir(id string) string {
	sum := sha256.Sum256([]byte(version + id))
	return hex.EncodeToString(sum[:8])
}

// prepare creates the directories and registers this process as a user of them.
func (c *Cache) prepare() error {
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.locked(unix.LOCK_SH, c.makeDirs); err != nil { // GC removes directories without users
		return err
	}
	if err := errors.Join(c.nameEncoder(), disk.Sweep(c.parts, c.abandoned)); err != nil {
		return err
	}
	var err error
	c.others, err = c.otherDirs()
	return err
}

// makeDirs makes the directories of this encoder.
func (c *Cache) makeDirs() error {
	for _, dir := range []string{c.dir, c.parts, filepath.Join(c.dir, blobsDir)} {
		if err := makeDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// nameEncoder records the encoder's name for people, and for later versions that do not know the encoder.
func (c *Cache) nameEncoder() error {
	name := filepath.Join(c.dir, encoderFile)
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	f, err := os.CreateTemp(c.dir, encoderFile)
	if err != nil {
		return err
	}
	_, err = f.WriteString(c.enc.ID + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Encoder returns the name of the encoder that made the entries; bundles record it.
func (c *Cache) Encoder() string { return c.enc.ID }

func (c *Cache) path(s format.Sum) string { return entryPath(c.dir, s) }

// entryPath returns the path of a blob's entry in the directory of an encoder.
func entryPath(dir string, s format.Sum) string {
	h := s.Hex()
	return filepath.Join(dir, blobsDir, h[:2], h)
}

// Stat reports whether the cache holds a blob, and its size. A visibly incomplete entry counts as absent. The entry's
// checksum is checked on reading.
func (c *Cache) Stat(_ context.Context, d digest.Digest) (size int64, ok bool, err error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return 0, false, err
	}
	e, err := c.entry(s)
	if err != nil {
		var damaged *EntryError
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, &damaged) {
			return 0, false, nil
		}
		return 0, false, err
	}
	return e.size, true, e.Close()
}

// Open streams a blob. For a damaged entry a Read fails with an *EntryError, at the latest the last Read.
func (c *Cache) Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	s, err := format.ParseDigest(d)
	if err != nil {
		return nil, err
	}
	e, err := c.entry(s)
	if err != nil {
		return nil, fmt.Errorf("read cached blob %s: %w", d, err)
	}
	return e.stream(ctx, c.dec), nil
}

// ReadBlob returns a whole blob of at most max bytes.
func (c *Cache) ReadBlob(ctx context.Context, d digest.Digest, max int64) ([]byte, error) {
	r, err := c.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("blob %s has more than %d bytes", d, max)
	}
	return b, nil
}

// Drop removes a blob. An absent blob is no error.
func (c *Cache) Drop(d digest.Digest) error {
	s, err := format.ParseDigest(d)
	if err != nil {
		return err
	}
	return c.locked(unix.LOCK_EX, func() error { return os.RemoveAll(c.path(s)) }) // a directory, too
}

// DropDamaged removes the damaged file, unless another writer replaced it meanwhile.
func (*Cache) DropDamaged(damaged *EntryError) error { return damaged.drop() }

// ownSuffix marks parts that nobody resumes: those of a second writer under a key in use.
const ownSuffix = ".own"

// partLife is how long an incomplete blob is kept so that a later run can resume it.
const partLife = 30 * 24 * time.Hour

// lockPart opens the part file of a key and locks it against other writers in any process. If the file is in use
// already, the writer gets a file of its own.
func (c *Cache) lockPart(key string) (*os.File, error) {
	name := filepath.Join(c.parts, partName(key))
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if err := f.Close(); err != nil {
				return nil, err
			}
			return c.ownPart()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
		same, err := disk.IsAt(f, name)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if same {
			return f, nil
		}
		// The previous lock holder renamed or removed the file between our open and our lock.
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// partName returns the file name of a key's part. A key that is a digest gives its name to the part, so that people can
// recognize the blob.
func partName(key string) string {
	if s, err := format.ParseDigest(digest.Digest(key)); err == nil {
		return s.Hex()
	}
	id := sha256.Sum256([]byte(key))
	return "key-" + hex.EncodeToString(id[:])
}

func (c *Cache) ownPart() (*os.File, error) {
	return disk.CreateLocked(func() (*os.File, error) { return os.CreateTemp(c.parts, "*"+ownSuffix) })
}

func isOwn(name string) bool { return strings.HasSuffix(name, ownSuffix) }
