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
)

// Partial returns how many bytes an earlier writer left under the key, which Begin would go on from. It reads frame by
// frame and checks none: damage is found by Begin.
func (c *Cache) Partial(ctx context.Context, key string) (int64, error) {
	id := sha256.Sum256([]byte(key))
	f, err := os.Open(filepath.Join(c.parts, hex.EncodeToString(id[:])))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for a part in the cache: %w", err)
	}
	defer f.Close()
	buf := *c.frames.Get().(*[]byte) // the pool has nothing else
	buf = buf[:cap(buf)]
	defer c.frames.Put(&buf)
	var at, total int64
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("look for a part in the cache: %w", err)
		}
		length, size, err := splitFrame(buf[:n])
		if err != nil || size != int64(c.enc.frameSize) || length > n {
			return total, nil //nolint:nilerr // it ends here
		}
		at, total = at+int64(length), total+size
	}
}
