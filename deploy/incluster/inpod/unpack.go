// Package inpod is the work of kkbundle-proxy inside pods of a foreign cluster: unpacking a program whose parts are
// mounted from ConfigMaps, and forwarding a port of the node to the registry. It is small, because every node loads
// it from the API server.
package inpod

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// maxProgram limits an unpacked program.
const maxProgram = 256 << 20

// Unpack writes the program whose zstd stream is the parts, in their order, to an executable file at path. The file
// exists only if the program's SHA-256 is sum, in hexadecimal digits.
func Unpack(path, sum string, parts []string) (err error) {
	var readers []io.Reader
	for _, name := range parts {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		readers = append(readers, f)
	}
	z, err := zstd.NewReader(io.MultiReader(readers...), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("parts of the program: %w", err)
	}
	defer z.Close()
	temporary := path + ".new"
	const executable = 0o755
	out, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, executable)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary))
		}
	}()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, hash), io.LimitReader(z, maxProgram+1))
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("parts of the program: %w", err)
	}
	if n > maxProgram {
		return fmt.Errorf("the program has more than %d bytes", maxProgram)
	}
	if have := hex.EncodeToString(hash.Sum(nil)); have != sum {
		return fmt.Errorf("the program's SHA-256 is %s, not %s: its ConfigMaps were changed; run kkbundle deploy again",
			have, sum)
	}
	return os.Rename(temporary, path)
}
