package packages

import (
	"bufio"
	"compress/bzip2"
	"fmt"
	"io"
	"path"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"
)

const (
	// MaxList bounds an unpacked list of packages, in bytes: four times Debian's with all its files.
	MaxList = 4 << 30
	// maxWindow bounds the memory that a list's compression may require, in bytes.
	maxWindow = 128 << 20
)

// ListForms returns the suffixes of a list's published forms that Unpack reads, the best first: gzip decompresses five
// times as fast as xz, and a mirror rarely has the plain form that its index names.
func ListForms() []string { return []string{".gz", ".xz", ".zst", ".bz2", ".lzma", ""} }

// Unpack decompresses a list according to its name. It returns at most MaxList bytes, and an error if there are more.
// The caller closes the result, and then r.
func Unpack(name string, r io.Reader) (io.ReadCloser, error) {
	var (
		in    io.Reader
		err   error
		end   = func() {}
		plain = bufio.NewReaderSize(r, 64<<10)
	)
	switch path.Ext(name) {
	case ".gz":
		in, err = gzip.NewReader(plain)
	case ".xz":
		in, err = xz.NewReader(plain)
	case ".bz2":
		in = bzip2.NewReader(plain)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(plain, zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecoderConcurrency(1)); err == nil {
			in, end = z, z.Close
		}
	case ".lzma":
		in, err = lzma.ReaderConfig{DictCap: maxWindow}.NewReader(plain)
	case ".lz4", ".zck", ".Z":
		return nil, fmt.Errorf("%s has an unsupported compression; want gz, xz, zst, bz2 or lzma", path.Base(name))
	default:
		in = plain
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Base(name), err)
	}
	return &unpacked{in, MaxList, end}, nil
}

// unpacked bounds the bytes read.
type unpacked struct {
	r    io.Reader
	left int64
	end  func()
}

// Read implements io.Reader.
func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.left -= int64(n); u.left < 0 {
		return 0, fmt.Errorf("the list exceeds %d GiB after decompression", MaxList>>30)
	}
	return n, err
}

// Close implements io.Closer.
func (u *unpacked) Close() error {
	u.end()
	return nil
}
