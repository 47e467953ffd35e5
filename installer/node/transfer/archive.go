package transfer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// maxUnpacked bounds the bytes read from an archive.
const maxUnpacked = 64 << 30

const gzipMagic = "\x1f\x8b"

// Untar reads a tar archive, which may be compressed with gzip.
func Untar(r io.Reader) (*tar.Reader, error) {
	buffered := bufio.NewReaderSize(r, wire.Chunk)
	magic, err := buffered.Peek(len(gzipMagic))
	if err != nil || !bytes.Equal(magic, []byte(gzipMagic)) {
		return tar.NewReader(io.LimitReader(buffered, maxUnpacked)), nil
	}
	z, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, damaged(err)
	}
	return tar.NewReader(io.LimitReader(z, maxUnpacked)), nil
}

func damaged(err error) error { return fmt.Errorf("the archive is damaged: %w", err) }

// Names reports whether Member.Name is the name of a file in an archive, as the helper finds it.
func (m Member) Names(inArchive string) bool {
	inArchive = memberName(inArchive)
	_, below, _ := strings.Cut(inArchive, "/")
	return memberName(m.Name) == inArchive || m.Name == anyDir+below
}
