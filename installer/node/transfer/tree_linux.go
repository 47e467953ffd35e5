package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
)

// Directories of the helper, relative to /.
const (
	partsDir     = receiveDir + "/parts"
	receiptsName = "receipts.json"
	lockName     = "lock"
)

// A tree is the permitted part of a filesystem. Nothing outside its roots can be reached, whatever links exist.
type tree struct {
	prefix string
	roots  map[string]*os.Root
	state  *os.Root // receiveDir
	parts  *os.Root // partsDir
	lock   *os.File

	receipts map[string]receipt // by path
	labels   map[string]string  // SELinux labels by path; nil without SELinux
}

// A receipt records an unpacked member: its digest is stored nowhere else.
type receipt struct {
	Source string `json:"source"` // digest of the archive
	Member string `json:"member"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

type receipts struct {
	Version int                `json:"version"` // 1
	Files   map[string]receipt `json:"files"`
}

// openTree opens the tree below prefix and locks it.
func openTree(ctx context.Context, prefix string) (t *tree, err error) {
	t = &tree{prefix: prefix, roots: map[string]*os.Root{}}
	defer func() {
		if err != nil {
			_ = t.close()
		}
	}()
	base, err := t.root(stateDir)
	if err != nil {
		return nil, err
	}
	if err := base.Chmod(".", 0o700); err != nil {
		return nil, err
	}
	if err := base.MkdirAll("receive/parts", 0o700); err != nil {
		return nil, err
	}
	if t.state, err = base.OpenRoot("receive"); err != nil {
		return nil, err
	}
	if t.parts, err = base.OpenRoot("receive/parts"); err != nil {
		return nil, err
	}
	if t.lock, err = t.state.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err := lock(ctx, t.lock); err != nil {
		return nil, err
	}
	return t, t.readReceipts()
}

func (t *tree) close() error {
	var errs []error
	for _, r := range t.roots {
		errs = append(errs, r.Close())
	}
	for _, r := range []*os.Root{t.state, t.parts} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Close())
	}
	return errors.Join(errs...)
}

// root opens one of the roots, and creates it if missing. A root may itself be a link, for example to a larger disk:
// that is the administrator's decision.
func (t *tree) root(name string) (*os.Root, error) {
	if r, ok := t.roots[name]; ok {
		return r, nil
	}
	dir := filepath.Join(t.prefix, name)
	const mode = 0o755
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	t.roots[name] = r
	return r, nil
}

// at returns the root of a path and the path within it.
func (t *tree) at(target string) (*os.Root, string, error) {
	name := rootOf(target)
	r, err := t.root(name)
	return r, strings.TrimPrefix(target, "/"+name+"/"), err
}

// maxReceipts bounds the file of receipts.
const maxReceipts = 64 << 20

// readReceipts reads the receipts. A damaged file counts as missing: its members are unpacked again.
func (t *tree) readReceipts() error {
	t.receipts = map[string]receipt{}
	f, err := t.state.Open(receiptsName)
	if node.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var r receipts
	data, err := io.ReadAll(io.LimitReader(f, maxReceipts))
	err = errors.Join(err, f.Close())
	if err == nil && json.Unmarshal(data, &r) == nil && r.Version == 1 && r.Files != nil {
		t.receipts = r.Files
	}
	return err
}

func (t *tree) writeReceipts() error {
	data, err := json.Marshal(receipts{Version: 1, Files: t.receipts})
	if err != nil {
		return err
	}
	temp := receiptsName + ".new"
	f, err := t.state.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return t.full(err, "/"+receiveDir, int64(len(data)))
	}
	return t.state.Rename(temp, receiptsName)
}

// has reports whether a regular file has this content.
func (t *tree) has(ctx context.Context, target, sum string, size int64) (same bool, err error) {
	r, name, err := t.at(target)
	if err != nil {
		return false, err
	}
	info, err := r.Lstat(name)
	if node.IsAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return false, nil
	}
	f, err := r.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, &until{ctx, f}); err != nil {
		return false, fmt.Errorf("read %s: %w", target, err)
	}
	return hex.EncodeToString(h.Sum(nil)) == sum, nil
}

// correct sets a file's permissions and its label, and makes root its owner.
func (t *tree) correct(target string, mode fs.FileMode) (changed bool, err error) {
	changed, err = t.setMode(target, mode)
	if err != nil || t.labels == nil {
		return changed, err
	}
	r, name, err := t.at(target)
	if err != nil {
		return changed, err
	}
	f, err := r.Open(name)
	if err != nil {
		return changed, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	relabelled, err := t.setLabel(f, target)
	return changed || relabelled, err
}

// setMode sets a file's permissions and makes root its owner.
func (t *tree) setMode(target string, mode fs.FileMode) (changed bool, err error) {
	r, name, err := t.at(target)
	if err != nil {
		return false, err
	}
	info, err := r.Lstat(name)
	if err != nil {
		return false, err
	}
	if info.Mode().Perm() != mode || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
		if err := r.Chmod(name, mode); err != nil {
			return false, err
		}
		changed = true
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 && (st.Uid != 0 || st.Gid != 0) {
		if err := r.Lchown(name, 0, 0); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

func partName(digest string) string { return strings.TrimPrefix(digest, digestPrefix) }

// partSize returns the size of a content's part. A part that is too long is ignored.
func (t *tree) partSize(digest string, size int64) (int64, error) {
	info, err := t.parts.Lstat(partName(digest))
	if node.IsAbsent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() && info.Size() <= size {
		return info.Size(), nil
	}
	return 0, t.parts.RemoveAll(partName(digest))
}

func (t *tree) dropPart(digest string) error {
	if err := t.parts.Remove(partName(digest)); err != nil && !node.IsAbsent(err) {
		return err
	}
	return nil
}

// keepParts is how long a part that is no longer planned is kept.
const keepParts = 7 * 24 * time.Hour

// isOld reports whether half of the time for which a part is kept is over.
func (t *tree) isOld(digest string, now time.Time) bool {
	info, err := t.parts.Lstat(partName(digest))
	return err == nil && now.Sub(info.ModTime()) > keepParts/2
}

// renew has a part kept from now on.
func (t *tree) renew(digest string, now time.Time) error {
	return t.parts.Chtimes(partName(digest), now, now)
}

// prune removes old parts. Errors are ignored: cleanup is best effort.
func (t *tree) prune(p Plan, now time.Time) {
	entries, err := fs.ReadDir(t.parts.FS(), ".")
	if err != nil {
		return
	}
	for _, e := range entries {
		_, planned := p.size(digestPrefix + e.Name())
		info, err := e.Info()
		if err == nil && !planned && now.Sub(info.ModTime()) > keepParts {
			_ = t.parts.Remove(e.Name())
		}
	}
}

// makeDirs creates the parents of a file, and returns the file's directory.
func makeDirs(r *os.Root, name string) (*os.File, error) {
	dir := path.Dir(name)
	const mode = 0o755
	if err := r.MkdirAll(dir, mode); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", name, err)
	}
	return r.Open(dir)
}

// tempName returns the temporary name of a file beside its place.
func tempName(base string) string { return "." + base + ".kkbundle" }
