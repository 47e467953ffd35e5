package disk

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
)

// Digest returns the sha256 of a file's content. progress is called with the number of bytes of each read.
func Digest(ctx context.Context, path string, progress func(n int)) (digest.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return DigestOf(ctx, f, progress)
}

// DigestOf returns the sha256 of everything that r returns. progress is called with the number of bytes of each read.
func DigestOf(ctx context.Context, r io.Reader, progress func(n int)) (digest.Digest, error) {
	d := digest.SHA256.Digester()
	buf := make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := r.Read(buf)
		_, _ = d.Hash().Write(buf[:n]) // a hash never fails
		progress(n)
		if errors.Is(err, io.EOF) {
			return d.Digest(), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", context.Cause(ctx)
}
