package parts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// hashBuffer is the number of bytes that one job of Verify reads at a time.
const hashBuffer = 1 << 20

// A State is the verdict of Verify on a file.
type State string

// The states of parts.
const (
	Good    State = "good"
	Bad     State = "bad"     // wrong size or content, or unreadable
	Missing State = "missing" // the file does not exist
	Surplus State = "surplus" // a number that the bundle does not have
)

// A Report is the result of Verify for one file.
type Report struct {
	Path   string        // of the file
	Size   int64         // bytes according to parts.json
	Digest digest.Digest // according to parts.json
	State  State
	Err    error // nil if the file matches parts.json, else an *Error
}

// Verify compares every part of the bundle at path (as in bundle.Open) with its size and sha256 in
// NAME.kkb.parts.json. It reports every missing, wrong or surplus file, and needs no readable frame. jobs files are
// read at a time; 0 means one per processor, at most 8. If nothing differs but contents, whole is asked whether the
// bundle can be read and every content in it has its digest: parts.json is wrong then, and not the parts. whole may
// be nil. The error concerns all files, or parts.json. Intact parts do not prove that the bundle was intact when it
// was cut: see bundle.Reader.Verify.
func Verify(ctx context.Context, path string, jobs int, progress func(done, total int64),
	whole func(context.Context) bool,
) ([]Report, error) {
	base, parts := Locate(path)
	if !parts {
		return nil, fmt.Errorf("%s is not in parts: there is no %s beside it; use kkbundle verify for a bundle in one file", path, filepath.Base(path)+ListSuffix)
	}
	list, err := readPartList(base)
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, (&Set{base: base}).noList()
	}
	c := &partsCheck{total: list.size(), progress: progress}
	if jobs <= 0 {
		jobs = min(runtime.GOMAXPROCS(0), 8)
	}
	reports := make([]Report, len(list))
	var g errgroup.Group
	g.SetLimit(jobs)
	for i, want := range list {
		reports[i] = Report{Path: Name(base, i+1), Size: want.Size, Digest: want.Sum.Digest()}
		g.Go(func() error {
			reports[i].State, reports[i].Err = c.part(ctx, reports[i].Path, want)
			return nil
		})
	}
	_ = g.Wait() // errors are in the reports
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	surplus, err := after(base, len(list))
	if err != nil {
		return nil, err
	}
	for _, name := range surplus {
		reports = append(reports, Report{Path: name, State: Surplus, Err: &Error{Part: name, Reason: fmt.Sprintf(
			"not part of this bundle, which has %d parts: remove the file", len(list))}})
	}
	if whole != nil && onlyContents(reports) && whole(ctx) {
		reports = blameList(base, reports)
	}
	errs := make([]error, 0, len(reports))
	for _, r := range reports {
		errs = append(errs, r.Err)
	}
	return reports, errors.Join(errs...)
}

// onlyContents reports whether contents differ from parts.json, and nothing else is wrong.
func onlyContents(reports []Report) bool {
	differ := false
	for _, r := range reports {
		e, ok := errors.AsType[*Error](r.Err)
		if ok && e.got == "" {
			return false
		}
		differ = differ || ok
	}
	return differ
}

// blameList returns the reports of parts that are whole: where they differ from parts.json, that is wrong.
func blameList(base string, reports []Report) []Report {
	var wrong []string
	for i, r := range reports {
		if e, ok := errors.AsType[*Error](r.Err); ok {
			wrong = append(wrong, filepath.Base(r.Path))
			reports[i].State, reports[i].Digest, reports[i].Err = Good, e.got, nil
		}
	}
	name := base + ListSuffix
	return append(reports, Report{Path: name, State: Bad, Err: &Error{
		Part: name, Reason: "has a wrong sha256 of " + strings.Join(wrong, ", ") + "; the bundle itself is whole",
	}})
}

// SurplusParts returns the files that have the name of a part of the bundle at path and a higher number than its
// parts.json lists: cat would append them to the bundle. Without a parts.json there are none.
func SurplusParts(path string) ([]string, error) {
	base, _ := Locate(path)
	list, err := readPartList(base)
	if list == nil || err != nil {
		return nil, err
	}
	return after(base, len(list))
}

// after returns the existing parts with higher numbers than n.
func after(base string, n int) ([]string, error) {
	last, err := Last(base)
	if err != nil {
		return nil, err
	}
	var all []string
	for i := n + 1; i <= last; i++ {
		if name := Name(base, i); exists(name) {
			all = append(all, name)
		}
	}
	return all, nil
}

type partsCheck struct {
	total    int64
	progress func(done, total int64)

	mu   sync.Mutex
	done int64
}

func (c *partsCheck) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

func (c *partsCheck) part(ctx context.Context, name string, want Info) (State, error) {
	size, lost := partSize(name)
	switch {
	case errors.Is(lost, fs.ErrNotExist):
		return Missing, lost
	case lost != nil:
		return Bad, lost
	case size != want.Size:
		return Bad, &Error{Part: name, Reason: fmt.Sprintf("%d bytes long instead of %d", size, want.Size)}
	}
	got, err := c.hash(ctx, name)
	switch {
	case err != nil:
		return Bad, &Error{Part: name, Reason: "cannot be read", Err: err}
	case got != want.Sum:
		return Bad, &Error{
			Part: name, Reason: "content differs from parts.json: digest " + string(got.Digest()),
			got: got.Digest(),
		}
	}
	return Good, nil
}

func (c *partsCheck) hash(ctx context.Context, name string) (s format.Sum, err error) {
	f, err := OpenRegular(name)
	if err != nil {
		return s, err
	}
	defer f.Close()
	h, buf := sha256.New(), make([]byte, hashBuffer)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		c.add(int64(n))
		if errors.Is(err, io.EOF) {
			return format.Sum(h.Sum(nil)), nil
		}
		if err != nil {
			return s, err
		}
	}
	return s, ctx.Err()
}
