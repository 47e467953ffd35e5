package etcdops

import (
	"context"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node/s3"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Copy is a snapshot that an etcd host has saved by its timer.
type Copy struct {
	Host   string // that saved it
	Stored bool   // in the S3 storage, else on the host
	Name   string // of the file
	Size   int64
}

const storedMark = "s3:"

// String returns the copy's name for FetchEtcdCopy: HOST/FILE, or s3:HOST/FILE.
func (c Copy) String() string {
	if c.Stored {
		return storedMark + c.Host + "/" + c.Name
	}
	return c.Host + "/" + c.Name
}

// Time returns the time of the copy in its name, zero if it has none.
func (c Copy) Time() time.Time {
	text, _, _ := strings.Cut(strings.TrimPrefix(c.Name, "etcd-"), ".")
	t, _ := time.Parse("20060102T150405Z", text)
	return t
}

// isCopy reports whether a file of a host has the name of a copy.
func isCopy(name string) bool {
	return !Copy{Name: name}.Time().IsZero() && (strings.HasSuffix(name, ".db") || strings.HasSuffix(name, ".db.age"))
}

// ListCopies lists copies on reachable etcd hosts and in the S3 storage, newest first. The error names places that
// could not be asked; the list has the copies of the others.
func ListCopies(ctx context.Context, o engine.Options) ([]Copy, error) {
	r, err := newRun(o)
	if err != nil {
		return nil, err
	}
	list, storeErr := storedCopies(ctx, r.Site)
	_, err = r.Start(ctx, func(ctx context.Context) error {
		ctx = task.InTask(ctx, "etcd-copies")
		targets := r.WithRole(manifest.RoleEtcd)
		found := make([][]Copy, len(targets))
		err := r.OnAll(targets, func(i int, t *task.Host) (err error) {
			if t.Conn == nil {
				return t.Err
			}
			found[i], err = copiesOn(ctx, t)
			return err
		})
		list = append(list, slices.Concat(found...)...)
		return err
	})
	slices.SortStableFunc(list, func(a, b Copy) int { return b.Time().Compare(a.Time()) })
	return list, errors.Join(storeErr, err)
}

// copiesOn lists the copies in a host's directory.
func copiesOn(ctx context.Context, t *task.Host) ([]Copy, error) {
	if there, err := t.Test(ctx, "test", "-d", etcd.Backups); err != nil || !there {
		return nil, err
	}
	out, err := t.Output(ctx, "find", etcd.Backups, "-maxdepth", "1", "-type", "f", "-printf", `%s %f\n`)
	if err != nil {
		return nil, err
	}
	var list []Copy
	for line := range strings.Lines(string(out)) {
		size, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseInt(size, 10, 64); err == nil && isCopy(name) {
			list = append(list, Copy{Host: t.Name, Name: name, Size: number})
		}
	}
	return list, nil
}

// FetchCopy writes a copy, by the name that ListEtcdCopies has for it, to a new file on this machine. A copy in clear
// is verified like a new snapshot; an encrypted one has its checksum inside.
func FetchCopy(ctx context.Context, o engine.Options, name, to string) (Snapshot, error) {
	var made Snapshot
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return made, fmt.Errorf("%s already exists: name another file", to)
	}
	text, stored := strings.CutPrefix(name, storedMark)
	from, file, found := strings.Cut(text, "/")
	if !found || from == "" || !isCopy(file) {
		return made, plain.Advise(fmt.Errorf("%q is no copy of etcd: want HOST/etcd-TIME.db or s3:HOST/etcd-TIME.db",
			name), "kkbundle etcd copies lists the copies")
	}
	r, err := newRun(o)
	if err != nil {
		return made, err
	}
	if stored {
		defer r.Dir.Close()
		return fetchStored(ctx, r.Site, path.Join(from, file), to)
	}
	_, err = r.Start(ctx, func(ctx context.Context) error {
		t := r.HostNamed(from)
		if t == nil || t.Conn == nil {
			return fmt.Errorf("host %s cannot be reached, or is no host of etcd", from)
		}
		made, err = writeCopy(to, func(w io.Writer) error {
			return t.Conn.Run(task.WithoutOutput(task.InTask(ctx, "etcd-fetch")),
				host.Cmd{Args: []string{"cat", "--", path.Join(etcd.Backups, file)}, Stdout: w})
		})
		return err
	})
	made.Host = from
	return made, err
}

// maxCopy is twice etcd's recommended maximum of a database.
const maxCopy = 16 << 30

// writeCopy writes a copy to a new file, which gets its name when it is whole and on the disk.
func writeCopy(to string, from func(w io.Writer) error) (made Snapshot, err error) {
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*") // with mode 0600
	if err != nil {
		return made, err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	sum := newSnapshotSum()
	within := &atMost{w: io.MultiWriter(f, sum), left: maxCopy}
	if err := errors.Join(from(within), within.err, f.Sync(), f.Close()); err != nil {
		return made, err
	}
	made = Snapshot{Path: to, Size: sum.size, SHA256: hex.EncodeToString(sum.whole.Sum(nil))}
	isAge, err := beginsWith(f.Name(), ageMagic)
	if err == nil && !isAge {
		made, err = sum.snapshot(to)
	}
	if err != nil {
		return made, err
	}
	if err := os.Link(f.Name(), to); err != nil { // unlike a rename, it replaces nothing
		return made, err
	}
	return made, syncDir(filepath.Dir(to))
}

func beginsWith(file, text string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, len(text))
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return string(head[:n]) == text, err
}

// storeOf returns the storage that etcd hosts send copies to, or nil.
func storeOf(s *task.Site) (*s3.Client, error) {
	storage, err := etcd.Storage(s)
	if err != nil || storage == nil {
		return nil, err
	}
	return s3.NewClient(*storage)
}

// storedCopies lists the cluster's copies in the storage, none without a storage.
func storedCopies(ctx context.Context, site *task.Site) ([]Copy, error) {
	s, err := storeOf(site)
	if err != nil || s == nil {
		return nil, err
	}
	base := path.Join(s.Prefix, etcd.StoredDir(site.Cluster)) + "/"
	query := map[string]string{"list-type": "2", "prefix": base}
	var list []Copy
	const pages, pageSize = 1000, 8 << 20 // a page has 1000 objects
	for range pages {
		data, err := s.Page(ctx, query, pageSize) // a longer one is no XML
		if err != nil {
			return list, fmt.Errorf("list of %s, bucket %s: %w", s.Endpoint, s.Bucket, err)
		}
		var page struct {
			Truncated bool   `xml:"IsTruncated"`
			Next      string `xml:"NextContinuationToken"`
			Contents  []struct {
				Key  string `xml:"Key"`
				Size int64  `xml:"Size"`
			} `xml:"Contents"`
		}
		if err := xml.Unmarshal(data, &page); err != nil {
			return list, fmt.Errorf("list of bucket %s: %w", s.Bucket, err)
		}
		for _, one := range page.Contents {
			from, name, _ := strings.Cut(strings.TrimPrefix(one.Key, base), "/")
			if isCopy(name) {
				list = append(list, Copy{Host: from, Stored: true, Name: name, Size: one.Size})
			}
		}
		if !page.Truncated || page.Next == "" {
			return list, nil
		}
		query["continuation-token"] = page.Next
	}
	return list, fmt.Errorf("bucket %s has more than %d pages of copies", s.Bucket, pages)
}

// fetchStored writes a copy of the storage to a new file.
func fetchStored(ctx context.Context, site *task.Site, name, to string) (Snapshot, error) {
	s, err := storeOf(site)
	if err != nil {
		return Snapshot{}, err
	}
	if s == nil {
		return Snapshot{}, errors.New("the cluster file names no storage for copies (backup.s3)")
	}
	return writeCopy(to, func(w io.Writer) error {
		object := path.Join(s.Prefix, etcd.StoredDir(site.Cluster), name)
		if err := s.Download(ctx, object, w); err != nil {
			return fmt.Errorf("%s of %s, bucket %s: %w", object, s.Endpoint, s.Bucket, err)
		}
		return nil
	})
}
