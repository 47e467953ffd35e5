package bundle

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
)

// cacheVersion changes with the file format, so that an older cache is never misread.
const cacheVersion = "kkbundle cache 1\n"

// A Cache keeps blobs in a directory by digest, compressed in the same frames as in bundles. A blob is whole or absent.
// Several processes may use one directory at a time, and a Cache is safe for concurrent use. A blob that only another
// level has, or another version, is compressed again when a bundle takes it; then both entries take space. While a Cache
// is open, no GC removes a blob it was asked for.
type Cache struct {
	cacheUse
	dir    string   // of this encoder
	others []string // directories of other encoders when the cache was opened
	parts  string   // of unfinished blobs
	enc    *format.Encoder
	dec    *zstd.Decoder
	slots  chan struct{}          // one per full piece that is not on disk yet: bounds memory over all writers
	pieces sync.Pool              // *[]byte with room for one piece
	frames sync.Pool              // *[]byte with room for one frame
	places atomic.Pointer[places] // while a bundle is written to which blobs come
}

// OpenCache opens the cache in dir for blobs compressed at level and creates the directory if needed. It uses one
// compressor per processor, but fewer if memory would exceed its bound (level.jobs). Besides one piece per writer, at
// most 2 pieces more than that are in memory.
//
// Close ends the use of the cache. A process that exits without Close does no harm.
func OpenCache(dir string, level Level) (*Cache, error) {
	c, err := newCache(dir, level)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(); err != nil {
		return nil, fmt.Errorf("open cache: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

func newCache(dir string, level Level) (*Cache, error) {
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
	sum := sha256.Sum256([]byte(cacheVersion + id))
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
	if err := errors.Join(c.nameEncoder(), sweep(c.parts, c.abandoned)); err != nil {
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
		var damaged *CacheError
		if errors.Is(err, fs.ErrNotExist) || errors.As(err, &damaged) {
			return 0, false, nil
		}
		return 0, false, err
	}
	return e.size, true, e.close()
}

// Open streams a blob. For a damaged entry a Read fails with a *CacheError, at the latest the last Read.
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

// read returns a whole blob of at most max bytes.
func (c *Cache) read(ctx context.Context, s format.Sum, max int64) ([]byte, error) {
	r, err := c.Open(ctx, s.Digest())
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("blob %s has more than %d bytes", s.Digest(), max)
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
func (*Cache) DropDamaged(damaged *CacheError) error { return damaged.drop() }

// ownSuffix marks parts that nobody resumes: those of a second writer under a key in use.
const ownSuffix = ".own"

// partLife is how long an incomplete blob is kept so that a later run can resume it.
const partLife = 30 * 24 * time.Hour

// sweep removes the abandoned files in dir that no running process has locked.
func sweep(dir string, abandoned func(fs.FileInfo) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || !abandoned(info) {
			continue // already removed
		}
		f, err := os.OpenFile(filepath.Join(dir, info.Name()), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // another process removed it first, or its owner is not us
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.Remove(f.Name())
		}
		if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// createLocked calls create, which makes a file under a new name, until it has locked one. A sweep of another writer
// may remove the file between creation and lock.
func createLocked(create func() (*os.File, error)) (*os.File, error) {
	for {
		f, err := create()
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close(), os.Remove(f.Name()))
		}
		if err == nil {
			there, err := isAt(f, f.Name())
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			if there {
				return f, nil
			}
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

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
		same, err := isAt(f, name)
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
	return createLocked(func() (*os.File, error) { return os.CreateTemp(c.parts, "*"+ownSuffix) })
}

// isAt reports whether name still leads to f.
func isAt(f *os.File, name string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(mine, there), nil
}

func isOwn(name string) bool { return strings.HasSuffix(name, ownSuffix) }

// ReadBlob returns a blob of at most the given number of bytes.
func (c *Cache) ReadBlob(ctx context.Context, d digest.Digest, most int64) (data []byte, err error) {
	r, err := c.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err = io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("blob %s has more than %d bytes", d, most)
	}
	return data, err
}
