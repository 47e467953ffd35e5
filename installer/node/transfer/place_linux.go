package transfer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"

	"golang.org/x/sys/unix"
)

// place puts a received and checked file into its places. It returns the changed paths. The last place may take the
// part itself, if it is on the same filesystem.
func (t *tree) place(ctx context.Context, f PlannedFile, last bool) (changed []string, err error) {
	if last && f.Path != "" {
		if moved, err := t.move(f); err != nil {
			return nil, err
		} else if moved {
			return []string{f.Path}, nil
		}
	}
	part, err := t.parts.Open(partName(f.Digest))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	if len(f.Unpack) > 0 {
		return t.unpack(ctx, part, f)
	}
	c := content{Reader: part, size: f.Size, sum: partName(f.Digest)}
	done, err := t.put(ctx, c, f.Path, f.Mode)
	if err != nil || !done {
		return nil, err
	}
	return []string{f.Path}, nil
}

// move renames the part to the file. It returns false if they are on different filesystems.
func (t *tree) move(f PlannedFile) (moved bool, err error) {
	part := partName(f.Digest)
	if err := t.finish(t.parts, part, f.Path, f.Mode); err != nil {
		return false, err
	}
	r, name, err := t.at(f.Path)
	if err != nil {
		return false, err
	}
	dir, err := makeDirs(r, name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	from, err := t.parts.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	err = unix.Renameat(int(from.Fd()), part, int(dir.Fd()), path.Base(name))
	if errors.Is(err, unix.EXDEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("put %s into its place: %w", f.Path, err)
	}
	return true, dir.Sync()
}

// finish gives a file the owner, permissions and label of its place, and syncs it to the disk.
func (t *tree) finish(r *os.Root, name, target string, mode fs.FileMode) (err error) {
	f, err := r.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return t.finishFile(f, target, mode)
}

func (t *tree) finishFile(f *os.File, target string, mode fs.FileMode) error {
	if os.Geteuid() == 0 {
		if err := f.Chown(0, 0); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := t.setLabel(f, target); err != nil {
		return err
	}
	return f.Sync()
}

// content is the wanted content of a file; sum is "" if it is unknown before reading.
type content struct {
	io.Reader
	size int64
	sum  string
}

// put writes content next to its place and renames it when it is complete and synced. An identical existing file only
// gets the right permissions.
func (t *tree) put(ctx context.Context, c content, target string, mode fs.FileMode) (changed bool, err error) {
	r, name, err := t.at(target)
	if err != nil {
		return false, err
	}
	dir, err := makeDirs(r, name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if info, err := r.Lstat(name); err == nil && info.IsDir() {
		return false, fmt.Errorf("%s is a directory", target)
	}
	if err := t.roomIn(dir, target, c.size); err != nil {
		return false, err
	}
	temp := path.Join(path.Dir(name), tempName(path.Base(name)))
	c.Reader = &until{ctx, c.Reader}
	sum, err := write(r, temp, c, func(f *os.File) error { return t.finishFile(f, target, mode) })
	if err != nil {
		_ = r.Remove(temp) // the first error counts
		return false, t.full(err, target, c.size)
	}
	same, err := t.has(ctx, target, sum, c.size)
	if err == nil && same {
		changed, err = t.correct(target, mode)
		return changed, errors.Join(err, r.Remove(temp))
	}
	if err := errors.Join(err, r.Rename(temp, name)); err != nil {
		_ = r.Remove(temp)
		return false, err
	}
	return true, dir.Sync()
}

// write writes a new file, calls finish and returns the SHA-256 of its content.
func write(r *os.Root, name string, c content, finish func(*os.File) error) (sum string, err error) {
	if err := r.Remove(name); err != nil && !node.IsAbsent(err) { // of an earlier run
		return "", err
	}
	f, err := r.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), c)
	if err != nil {
		return "", err
	}
	sum = hex.EncodeToString(h.Sum(nil))
	if n != c.size || (c.sum != "" && sum != c.sum) {
		return "", fmt.Errorf("%d bytes with SHA-256 %s were read where %d were expected: check the disk", n, sum,
			c.size)
	}
	return sum, finish(f)
}

// unpack extracts the wanted members of a tar archive into their places.
func (t *tree) unpack(ctx context.Context, archive io.Reader, f PlannedFile) (changed []string, err error) {
	r, err := Untar(archive)
	if err != nil {
		return nil, err
	}
	left := map[string]Member{}
	for _, m := range f.Unpack {
		left[memberName(m.Name)] = m
	}
	for len(left) > 0 {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return changed, damaged(err)
		}
		name, m, ok := wanted(left, memberName(head.Name))
		if !ok {
			continue
		}
		if head.Typeflag != tar.TypeReg {
			return changed, fmt.Errorf("member %s is not a regular file; did you mean %q?", m.Name, head.Linkname)
		}
		delete(left, name)
		done, err := t.putMember(ctx, member{r}, m, receipt{
			Source: f.Digest, Member: name, Size: head.Size,
		})
		if err != nil {
			return changed, err
		}
		if done {
			changed = append(changed, m.Path)
		}
	}
	if len(left) > 0 {
		missing := make([]string, 0, len(left))
		for name := range left {
			missing = append(missing, name)
		}
		slices.Sort(missing)
		return changed, fmt.Errorf("the archive has no %s", strings.Join(missing, ", no "))
	}
	return changed, t.writeReceipts()
}

// wanted finds the member for a name in the archive, by the name itself or by its part below the first directory.
func wanted(left map[string]Member, inArchive string) (name string, m Member, ok bool) {
	if m, ok = left[inArchive]; ok {
		return inArchive, m, true
	}
	_, below, _ := strings.Cut(inArchive, "/")
	name = anyDir + below
	m, ok = left[name]
	return name, m, ok
}

// putMember extracts a member into its place and stores its receipt, to which it adds the SHA-256.
func (t *tree) putMember(ctx context.Context, r io.Reader, m Member, kept receipt) (bool, error) {
	h := sha256.New()
	changed, err := t.put(ctx, content{Reader: io.TeeReader(r, h), size: kept.Size}, m.Path, m.Mode)
	if err != nil {
		return false, err
	}
	kept.SHA256 = hex.EncodeToString(h.Sum(nil))
	t.receipts[m.Path] = kept
	return changed, nil
}

// A member attributes its errors to the archive.
type member struct{ io.Reader }

func (m member) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = damaged(err)
	}
	return n, err
}

// A FullError means a filesystem lacks space.
type FullError struct {
	Path       string
	Need, Free int64 // bytes
}

// Error names the path and the bytes.
func (e *FullError) Error() string {
	return fmt.Sprintf("no space for %s: %d bytes needed, %d free", e.Path, e.Need, e.Free)
}

// room refuses content larger than the free space in a directory's filesystem.
func (t *tree) room(r *os.Root, name string, need int64) error {
	dir, err := r.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(t.roomIn(dir, name, need), dir.Close())
}

func (t *tree) roomIn(dir *os.File, name string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("free space of %s: %w", name, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return &FullError{Path: name, Need: need, Free: free}
	}
	return nil
}

// full turns an error about a full disk into a *FullError.
func (t *tree) full(err error, name string, need int64) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &FullError{Path: name, Need: need}
	}
	return err
}
