package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry/serve/ospkg"
)

const (
	maxList     = 256 << 20 // bytes of a list of packages: five times Debian's longest
	keptIndexes = 8         // cached directories of lists

	aptSuffix, yumSuffix = ".deb", ".rpm"
)

// A packageFormat is a package format with its type of repository. Every directory is a repository of the packages
// below it: a bundle may have packages of several distributions, which must not be mixed.
type packageFormat struct {
	area   string // path of the area, with slashes
	suffix string // file name suffix of packages
	list   func(*snapshot) *lazy[*tree]
	// meta reports whether a path is a repository's own file, and splits it into the repository's directory and the
	// rest.
	meta func(path string) (dir, file string, ok bool)
	// describe returns a package's entry in each of the lists.
	describe func(r io.ReaderAt, l leaf, location string) ([][]byte, error)
	// lists returns the text before and after the entries of n packages, for each list.
	lists func(n int) []around
	// finish returns the other files, by path.
	finish func([]packageList) map[string]packageFile
	// howTo returns a client's configuration file for the repository at an address, and the commands to install it.
	howTo func(address string) (file, content string, commands []string)
}

// around is the text before and after the entries of a list.
type around struct{ before, after string }

// A packageFile is one of a repository's own files.
type packageFile struct {
	mediaType string
	body      []byte
	unpack    *packageList // nil, or the compressed list; then there is no body
}

// packages serves an area of packages.
func (s *Server) packages(w http.ResponseWriter, r *http.Request, sh *snapshot, f *packageFormat) {
	if err := s.packageFile(w, r, sh, f); err != nil {
		plainError(w, err)
	}
}

func (s *Server) packageFile(w http.ResponseWriter, r *http.Request, sh *snapshot, f *packageFormat) error {
	ctx := context.WithoutCancel(r.Context()) // the next client needs it, too
	t, err := f.list(sh).get(func() (*tree, error) { return s.buildPackages(ctx, sh, f) })
	if err != nil {
		return err
	}
	path := strings.TrimPrefix(r.URL.Path, f.area)
	if l, ok := t.find(path); ok {
		return s.sendLeaf(w, r, l, "application/octet-stream")
	}
	if dir, file, ok := f.meta(path); ok && isDir(dir) && (dir == "" || len(t.under(dir)) > 0) {
		files, err := sh.indexes.get(f.area+dir,
			func() (map[string]packageFile, error) { return s.indexPackages(ctx, f, t, dir) })
		if err != nil {
			return err
		}
		if have, ok := files[file]; ok {
			return have.send(w, r)
		}
		return notFound(codeBlobUnknown, "the repository has no such document (any more)")
	}
	dir, last, _ := cutLast("/" + path)
	if dir = strings.TrimPrefix(dir+"/", "/"); dir != "" && len(t.under(dir)) == 0 {
		return notFound(codeBlobUnknown, fmt.Sprintf("no such package; %s lists all packages", f.area))
	}
	file, content, commands := f.howTo(ourAddress(r) + escapePath(f.area+dir))
	switch last {
	case "":
		x := t.listing(f.area, dir)
		x.Commands = commands
		return s.render(w, r, "listing", x)
	case file:
		sendBytes(w, r, "text/plain; charset=utf-8", []byte(content))
		return nil
	}
	return notFound(codeBlobUnknown, fmt.Sprintf("no such package; %s lists all packages", f.area))
}

func (p packageFile) send(w http.ResponseWriter, r *http.Request) error {
	if p.unpack == nil {
		sendBytes(w, r, p.mediaType, p.body)
		return nil
	}
	h := w.Header()
	h.Set("Content-Type", p.mediaType)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", strconv.FormatInt(p.unpack.plainSize, 10))
	if r.Method == http.MethodGet {
		_, _ = p.WriteTo(w) // the client may be gone
	}
	return nil
}

// WriteTo implements io.WriterTo.
func (p packageFile) WriteTo(w io.Writer) (int64, error) {
	if p.unpack == nil {
		n, err := w.Write(p.body)
		return int64(n), err
	}
	z, err := gzip.NewReader(strings.NewReader(p.unpack.packed))
	if err != nil {
		return 0, err
	}
	return io.Copy(w, z)
}

// Repository returns a repository's own files, by path, for the packages accepted by has: together with the packages
// they form a repository of apt or dnf. dir is the packages' directory, such as packages/debian/12/; the result is
// empty without packages.
func (s *Server) Repository(ctx context.Context, dir string,
	has func(file string) bool,
) (map[string]io.WriterTo, error) {
	sh := s.use()
	defer sh.done()
	all := map[string]io.WriterTo{}
	for _, f := range []*packageFormat{aptFormat(), yumFormat()} {
		t, err := f.list(sh).get(func() (*tree, error) { return s.buildPackages(ctx, sh, f) })
		if err != nil {
			return nil, err
		}
		part := &tree{}
		for _, l := range t.under(dir) {
			if has(l.path[len(dir):]) {
				part.leaves = append(part.leaves, l)
			}
		}
		if len(part.leaves) == 0 {
			continue
		}
		files, err := s.indexPackages(ctx, f, part, dir)
		if err != nil {
			return nil, err
		}
		for name, file := range files {
			if !strings.HasPrefix(name, byHash) { // duplicates of other files
				all[name] = file
			}
		}
	}
	return all, nil
}

// isPackage reports whether an item is likely to be a package, judged by its name.
func isPackage(it *bundle.Item, suffix string) bool {
	return it.Kind == bundle.KindFile && (strings.HasSuffix(it.Ref, suffix) || strings.HasSuffix(it.Name, suffix))
}

// plainPath normalizes escapes in an address, which clients apply differently.
func plainPath(path string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' ||
			strings.ContainsRune("0123456789/._~+^:@=,-", r)) {
			return r
		}
		return '_'
	}, path)
}

// buildPackages returns the packages among all files, at their paths in /files/ except for unusual characters; a file
// that is a package only by its title gets that name.
func (s *Server) buildPackages(ctx context.Context, sh *snapshot, f *packageFormat) (*tree, error) {
	files, err := sh.filesOf.get(func() (*tree, error) { return s.buildFiles(ctx, sh.books) })
	if err != nil {
		return nil, err
	}
	t, taken := &tree{}, make(map[string]digest.Digest)
	for _, l := range files.leaves {
		if !strings.HasSuffix(l.path, f.suffix) && strings.HasSuffix(l.title, f.suffix) {
			l.path = cleanPath(l.path, l.title)
		}
		if strings.HasSuffix(l.path, f.suffix) {
			l.path = plainPath(l.path)
			dir, name, _ := cutLast("/" + l.path)
			t.add(l, taken, cleanPath(dir, l.blob.digest.Encoded(), name))
		}
	}
	t.sort()
	return t, nil
}

// indexPackages reads every package below a directory, concurrently, and builds the files of a repository. Each package
// is compared with its digest before use; damaged and invalid ones are left out.
func (s *Server) indexPackages(ctx context.Context, f *packageFormat, t *tree,
	dir string,
) (map[string]packageFile, error) {
	s.indexing.Lock() // one repository at a time: clients need the memory for frames, too
	defer s.indexing.Unlock()
	leaves := t.under(dir)
	writers := make([]*listWriter, len(f.lists(0)))
	for i := range writers {
		writers[i] = newListWriter()
	}
	n, seen := 0, make(map[digest.Digest]bool)
	for len(leaves) > 0 {
		batch := leaves[:min(len(leaves), cap(s.checks)+1)] // few, since descriptions may be long
		leaves = leaves[len(batch):]
		texts := make([][][]byte, len(batch))
		g, ctx := errgroup.WithContext(ctx)
		for i, l := range batch {
			if !seen[l.blob.digest] { // the same package may have several addresses
				seen[l.blob.digest] = true
				g.Go(func() (err error) { texts[i], err = s.describe(ctx, f, l, l.path[len(dir):]); return err })
			}
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		for _, text := range texts {
			if text == nil {
				continue
			}
			n++
			for i, w := range writers {
				if err := w.write(text[i]); err != nil {
					return nil, err
				}
			}
		}
	}
	lists := make([]packageList, len(writers))
	for i, text := range f.lists(n) {
		d, err := writers[i].close(text)
		if err != nil {
			return nil, err
		}
		lists[i] = d
	}
	return f.finish(lists), nil
}

// describe returns a package's entries in the lists, or nil if it is left out. The error is that of reading it.
func (s *Server) describe(ctx context.Context, f *packageFormat, l leaf, location string) ([][]byte, error) {
	err := l.err
	if err == nil {
		err = l.blob.book.checked(ctx, l.blob.digest, l.blob.size).wait(ctx)
	}
	var texts [][]byte
	if err == nil {
		texts, err = f.describe(l.blob.readerAt(ctx), l, location)
	}
	if err != nil && (l.err != nil || errors.Is(err, bundle.ErrDamaged) || errors.Is(err, ospkg.ErrInvalid)) {
		s.log.Error("a package is left out", "path", f.area+l.path, "error", err)
		return nil, nil
	}
	return texts, err
}

// A readerAt reads a blob at any offset.
type readerAt func(p []byte, off int64) (int, error)

// ReadAt implements io.ReaderAt.
func (f readerAt) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// readerAt requires that the blob's check has succeeded: it compares nothing itself.
func (b blob) readerAt(ctx context.Context) readerAt {
	return func(to []byte, off int64) (n int, err error) {
		for n < len(to) && err == nil {
			var piece bundle.Piece
			if off >= b.size {
				return n, io.EOF
			}
			if piece, err = b.book.reader.Piece(b.digest, off); err != nil {
				return n, err
			}
			var l *lease
			if l, err = b.book.frames.lease(ctx, b.book, piece); err != nil {
				return n, err
			}
			copied := copy(to[n:], l.content[piece.Skip:][:piece.Size][off-piece.At:])
			l.release()
			n, off = n+copied, off+int64(copied)
		}
		return n, err
	}
}

// A packageList is a compressed list with its checksums.
type packageList struct {
	packed, sum string // the compressed bytes, and the hex of their SHA-256
	plainSum    string // of the uncompressed list
	plainSize   int64
}

// A listWriter builds a list whose first line is known last: compressed streams may be concatenated (RFC 1952, section
// 2.2).
type listWriter struct {
	packed bytes.Buffer
	zip    *gzip.Writer
	size   int // bytes written
}

func newListWriter() *listWriter {
	w := &listWriter{}
	w.zip = gzip.NewWriter(&w.packed)
	return w
}

func (w *listWriter) write(text []byte) error {
	if w.size += len(text); w.size > maxList {
		return fmt.Errorf("the list of packages exceeds %d MiB: use a subdirectory as the repository", maxList>>20)
	}
	_, err := w.zip.Write(text)
	return err
}

func (w *listWriter) close(text around) (packageList, error) {
	if err := w.zip.Close(); err != nil {
		return packageList{}, err
	}
	before, err := pack(text.before)
	if err != nil {
		return packageList{}, err
	}
	after, err := pack(text.after)
	if err != nil {
		return packageList{}, err
	}
	all := append(append(before, w.packed.Bytes()...), after...)
	z, err := gzip.NewReader(bytes.NewReader(all))
	if err != nil {
		return packageList{}, err
	}
	h := sha256.New()
	n, err := io.Copy(h, z)
	packed := sha256.Sum256(all)
	return packageList{packed: string(all), sum: hex.EncodeToString(packed[:]), plainSum: hexOf(h), plainSize: n}, err
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// pack compresses a text; an empty one gives no stream.
func pack(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, text)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// An indexCache caches the files of a few repositories.
type indexCache struct {
	mu   sync.Mutex
	have map[string]*lazy[map[string]packageFile]
}

func (c *indexCache) get(key string, make func() (map[string]packageFile, error)) (map[string]packageFile, error) {
	c.mu.Lock()
	if c.have == nil || c.have[key] == nil && len(c.have) >= keptIndexes {
		c.have = map[string]*lazy[map[string]packageFile]{}
	}
	l := c.have[key]
	if l == nil {
		l = &lazy[map[string]packageFile]{}
		c.have[key] = l
	}
	c.mu.Unlock()
	return l.get(make)
}
