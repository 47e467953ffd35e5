// Package ospkg reads the metadata in Debian and RPM packages, as far as a repository's index needs it. Packages are
// untrusted: sizes and counts are bounded, and field values are checked before use.
//
// Sources: deb(5) and deb-control(5) of dpkg 1.21; the RPM file format in docs/manual/format_v4.md and lib/rpmtag.h of
// rpm 4.18.
package ospkg

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz/lzma"
)

// ErrInvalid matches every error about a package's content, as opposed to reading it.
var ErrInvalid = errors.New("not a valid package")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

const (
	maxMembers    = 16       // of a .deb before its control member
	maxControlTar = 16 << 20 // bytes read of control.tar
	maxControl    = 1 << 20  // bytes of the control file
	maxWindow     = 64 << 20 // bytes of a zstd window: dpkg-deb's highest level
	arHeader      = 60
)

// A Deb is a Debian binary package.
type Deb struct {
	Package, Version, Architecture string
	// Control is the package's control paragraph, newline-terminated lines without the fields that a repository's index
	// adds.
	Control []byte
}

// ReadDeb reads the control file of a .deb of size bytes, and nothing after it.
func ReadDeb(r io.ReaderAt, size int64) (*Deb, error) {
	name, member, err := controlMember(r, size)
	if err != nil {
		return nil, err
	}
	unpacked, err := unpack(name, bufio.NewReader(member))
	if err != nil {
		return nil, err
	}
	defer unpacked.Close()
	files := tar.NewReader(io.LimitReader(unpacked, maxControlTar))
	for {
		h, err := files.Next()
		if err != nil {
			return nil, invalid("%s has no control file in its first %d MiB: %v", name, maxControlTar>>20, err)
		}
		if path.Clean("/"+h.Name) != "/control" || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > maxControl {
			return nil, invalid("the control file has %d bytes", h.Size)
		}
		text, err := io.ReadAll(io.LimitReader(files, maxControl))
		if err != nil {
			return nil, invalid("control file: %v", err)
		}
		return parseControl(text)
	}
}

// controlMember finds control.tar in the ar archive.
func controlMember(r io.ReaderAt, size int64) (string, io.Reader, error) {
	at := int64(len("!<arch>\n"))
	magic := make([]byte, at)
	if _, err := r.ReadAt(magic, 0); err != nil || string(magic) != "!<arch>\n" {
		return "", nil, notRead("not an ar archive", err)
	}
	header := make([]byte, arHeader)
	for range maxMembers {
		if size-at < arHeader {
			break
		}
		if _, err := r.ReadAt(header, at); err != nil {
			return "", nil, notRead("truncated ar archive", err)
		}
		name := strings.TrimSuffix(strings.TrimRight(string(header[:16]), " "), "/")
		length, err := strconv.ParseInt(strings.TrimRight(string(header[48:58]), " "), 10, 64)
		if err != nil || string(header[58:]) != "`\n" || length < 0 || length > size-at-arHeader {
			return "", nil, invalid("the ar archive has an invalid header")
		}
		at += arHeader
		if strings.HasPrefix(name, "control.tar") {
			return name, io.NewSectionReader(r, at, length), nil
		}
		at += length + length%2
	}
	return "", nil, invalid("no control.tar")
}

// notRead distinguishes an invalid or truncated archive from a disk error.
func notRead(why string, err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("%s", why)
	}
	return err
}

// unpack decompresses a member, in any of dpkg-deb's compressions.
func unpack(name string, r io.Reader) (io.ReadCloser, error) {
	switch strings.TrimPrefix(name, "control.tar") {
	case "":
		return io.NopCloser(r), nil
	case ".gz":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, invalid("%s: %v", name, err)
		}
		return z, nil
	case ".xz":
		z, err := unpackXZ(r)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(z), nil
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, invalid("%s: %v", name, err)
		}
		return z.IOReadCloser(), nil
	}
	return nil, invalid("%s has an unknown compression", name)
}

// unpackXZ decompresses the first block of an .xz stream (the file format, version 1.1.0, sections 2.1.1 and 3.1),
// which is the whole output of a single thread. The dictionary is at most as large as the bytes to be read, whatever
// the header requests.
func unpackXZ(r io.Reader) (io.Reader, error) {
	const streamHeader, lzma2 = 12, 0x21
	head := make([]byte, streamHeader+1)
	if _, err := io.ReadFull(r, head); err != nil || !bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")) ||
		head[streamHeader] == 0 {
		return nil, notRead("control.tar.xz is not an xz stream", err)
	}
	block := make([]byte, int(head[streamHeader])*4+3)
	if _, err := io.ReadFull(r, block); err != nil {
		return nil, notRead("truncated control.tar.xz", err)
	}
	flags, rest := block[0], block[1:len(block)-4]
	for _, present := range []byte{0x40, 0x80} { // sizes, compressed and not
		for more := flags&present != 0; more; {
			if len(rest) == 0 {
				return nil, invalid("control.tar.xz has an invalid header")
			}
			more, rest = rest[0]&0x80 != 0, rest[1:]
		}
	}
	if flags&3 != 0 || len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 {
		return nil, invalid("control.tar.xz uses other filters than LZMA2")
	}
	dictionary, err := lzma.DecodeDictCap(rest[2])
	if err != nil {
		return nil, invalid("control.tar.xz: %v", err)
	}
	z, err := lzma.Reader2Config{DictCap: int(min(max(dictionary, lzma.MinDictCap), maxControlTar))}.NewReader2(r)
	if err != nil {
		return nil, invalid("control.tar.xz: %v", err)
	}
	return z, nil
}

// The grammars of deb-control(5), deb-version(7) and Debian's policy, section 5.6.1.
var (
	fieldName  = regexp.MustCompile(`^[!-9;-~]+$`)
	debName    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9+.-]*$`)
	debVersion = regexp.MustCompile(`^[0-9a-zA-Z.+:~-]+$`)
	debArch    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
)

// ofIndex reports whether a field describes a file in a repository's index: a package with such a field of its own
// could misdescribe another file.
func ofIndex(field string) bool {
	switch strings.ToLower(field) {
	case "filename", "size", "md5sum", "sha1", "sha256", "sha512", "description-md5", "status", "conffiles":
		return true
	}
	return false
}

// parseControl reads a control file: one paragraph.
func parseControl(text []byte) (*Deb, error) {
	d, out := &Deb{}, &bytes.Buffer{}
	values := map[string]*string{"package": &d.Package, "version": &d.Version, "architecture": &d.Architecture}
	seen := make(map[string]bool)
	ended, dropped := false, false
	for line := range strings.SplitSeq(string(text), "\n") {
		line = strings.TrimRight(line, " \t\r")
		switch {
		case line == "":
			ended = len(seen) > 0
			continue
		case ended:
			return nil, invalid("the control file has more than one paragraph")
		case strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return nil, invalid("the control file has control characters")
		case line[0] == '#':
			continue
		case line[0] == ' ' || line[0] == '\t':
			if len(seen) == 0 {
				return nil, invalid("the control file begins with a continuation line")
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			key := strings.ToLower(name)
			if !ok || !fieldName.MatchString(name) || name[0] == '-' || seen[key] {
				return nil, invalid("the control file has an invalid line %.60q", line)
			}
			seen[key], dropped = true, ofIndex(name)
			if at := values[key]; at != nil {
				*at = strings.TrimSpace(value)
			}
		}
		if !dropped {
			out.WriteString(line + "\n")
		}
	}
	if !debName.MatchString(d.Package) || !debVersion.MatchString(d.Version) || !debArch.MatchString(d.Architecture) {
		return nil, invalid("invalid package %.60q, version %.60q or architecture %.60q", d.Package, d.Version,
			d.Architecture)
	}
	d.Control = out.Bytes()
	return d, nil
}
