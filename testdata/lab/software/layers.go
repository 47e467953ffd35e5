package software

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// An entry is one member of an archive: a directory (Name ends with a slash), a link, a copied file or a given text.
type entry struct {
	Name string
	Mode int64 // 0 is 0755 for directories and copied files, 0644 for texts
	From string
	Link string
	Text string
	// Binds lets whoever runs the command listen on ports below 1024.
	Binds bool
}

// mayBind is what `setcap cap_net_bind_service=+ep` puts on a file: struct vfs_cap_data of linux/capability.h,
// revision 2.
const mayBind = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// writeTar writes entries in the order of their names: equal entries give equal bytes, whoever writes them, and
// whenever.
func writeTar(w io.Writer, entries []entry) error {
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	tw := tar.NewWriter(w)
	for _, e := range entries {
		if err := e.write(tw); err != nil {
			return fmt.Errorf("archive %s: %w", e.Name, err)
		}
	}
	return tw.Close()
}

func (e entry) write(tw *tar.Writer) error {
	h := &tar.Header{Name: e.Name, Mode: e.Mode, Linkname: e.Link, ModTime: epoch()}
	if e.Binds {
		h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": mayBind}
	}
	var from io.Reader = strings.NewReader(e.Text)
	switch {
	case strings.HasSuffix(e.Name, "/"):
		h.Typeflag, h.Mode = tar.TypeDir, cmp.Or(e.Mode, 0o755)
	case e.Link != "":
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
	case e.From != "":
		f, err := os.Open(e.From)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		h.Typeflag, h.Mode, h.Size, from = tar.TypeReg, cmp.Or(e.Mode, 0o755), info.Size(), f
	default:
		h.Typeflag, h.Mode, h.Size = tar.TypeReg, cmp.Or(e.Mode, 0o644), int64(len(e.Text))
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(tw, from)
	return err
}

// epoch is the time of everything in the lab's archives and images: the day of the Kubernetes release.
func epoch() time.Time { return time.Date(2025, 12, 9, 0, 0, 0, 0, time.UTC) }

// normalTar copies a tar as a layer: without what keep refuses, without owners' names, and with one time everywhere.
func normalTar(w io.Writer, r io.Reader, keep func(name string) bool, more []entry) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the Debian packages' files: %w", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if name == "" || !keep(name) {
			continue
		}
		h = &tar.Header{
			Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, Size: h.Size,
			ModTime: epoch(),
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = strings.TrimPrefix(h.Linkname, "./")
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("layer of Debian packages: %w", err)
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return fmt.Errorf("layer of Debian packages: %w", err)
		}
	}
	for _, e := range more {
		if err := e.write(tw); err != nil {
			return fmt.Errorf("layer of Debian packages: %w", err)
		}
	}
	return tw.Close()
}

// A layer is a compressed tar in a file. It implements v1.Layer.
type layer struct {
	path           string
	zstd           bool
	digest, diffID v1.Hash
	size           int64
	media          types.MediaType
}

// newLayer compresses what write writes into dir and names the file after its digest.
func newLayer(dir string, asZstd bool, write func(io.Writer) error) (_ *layer, err error) {
	f, err := os.CreateTemp(dir, "tmp-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := sha256.New(), sha256.New()
	count := &countWriter{}
	c, err := compressor(io.MultiWriter(f, packed, count), asZstd)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(write(io.MultiWriter(c, plain)), c.Close()); err != nil {
		return nil, err
	}
	l := &layer{zstd: asZstd, digest: v1Hash(packed), diffID: v1Hash(plain), size: count.n}
	l.path = filepath.Join(dir, l.digest.Hex)
	return l, os.Rename(f.Name(), l.path)
}

func compressor(w io.Writer, asZstd bool) (io.WriteCloser, error) {
	if asZstd {
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	}
	return gzip.NewWriterLevel(w, 3) // published layers are gzip of some level; this one is quick
}

func v1Hash(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type countWriter struct{ n int64 }

func (c *countWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// as returns the layer under the media type that manifests of the kind use for it.
func (l layer) as(docker bool) *layer {
	switch {
	case l.zstd:
		l.media = types.OCILayerZStd
	case docker:
		l.media = types.DockerLayer
	default:
		l.media = types.OCILayer
	}
	return &l
}

func (l *layer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *layer) Size() (int64, error)                 { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return l.media, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return nil, errors.ErrUnsupported }

// folder returns the entries of an embedded folder's files, under prefix.
func folder(fsys fs.FS, root, prefix string) ([]entry, error) {
	var entries []entry
	err := fs.WalkDir(fsys, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(fsys, name)
		entries = append(entries, entry{Name: path.Join(prefix, strings.TrimPrefix(name, root)), Text: string(text)})
		return err
	})
	return entries, err
}

// archive writes a .tar.gz of entries.
func archive(name string, entries []entry) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zw, err := gzip.NewWriterLevel(f, 3)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(zw, entries), zw.Close())
}
