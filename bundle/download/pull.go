package download

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	bundleSuffix    = ".kkb"
	deltaSuffix     = ".kkd"
	signatureSuffix = ".sigstore.json"
	sumSuffix       = ".sha256"
	maxSum          = 4 << 10
	together        = 4 // parts at once
)

// Options configure Pull.
type Options struct {
	URL    string        // of NAME.kkb, of one of its parts, or of its parts.json
	Output string        // the path to write, NAME.kkb
	Have   []bundle.From // older bundles: a delta against one of them is brought instead
	// Check verifies the bundle at a path, before it gets its name. Its signature, if there is one, is beside it.
	Check    func(ctx context.Context, path string) error
	Progress func(phase string, done, total int64) // may be nil
}

// A Result describes a pulled bundle.
type Result struct {
	Path      string // of the bundle; of the base name for parts
	Bytes     int64  // transferred or continued, without signature and checksum
	Parts     int    // 0 for one file
	Delta     string // address of the delta that was brought instead, or ""
	Signature string // path, or ""
}

// Name returns the name of the bundle at an address: the last element of its path, without the suffix of a part.
func Name(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("not an address of a file on a web server: want https://HOST/PATH/NAME.kkb")
	}
	name := baseOf(path.Base(u.Path))
	if name == "." || name == "/" || strings.HasPrefix(name, ".") || !filepath.IsLocal(name) ||
		strings.ContainsAny(name, "/\\\x00") {
		return "", fmt.Errorf("the address names no file: want https://HOST/PATH/NAME.kkb")
	}
	return name, nil
}

func baseOf(name string) string {
	base, _ := parts.Locate(name)
	return base
}

// A puller pulls one bundle into a directory of its own, in which nothing has its final place. That may lie in a
// directory in which other users write, as /tmp, so it is held open, and files are opened, moved and removed in it
// only.
type puller struct {
	Options
	*Client
	at     *url.URL // of NAME.kkb
	into   *os.Root // directory of the output
	dir    *os.Root
	held   *os.File // dir, locked
	name   string
	result Result
}

// Pull brings a bundle, with its signature (NAME.kkb.sigstore.json) if there is one. It compares it with
// NAME.kkb.sha256, if there is one, and calls Check. Only then does it get its name. After an interruption the next
// run continues; see File.
func (c *Client) Pull(ctx context.Context, o Options) (_ Result, err error) {
	name, err := Name(o.URL)
	if err != nil {
		return Result{}, err
	}
	at, err := url.Parse(o.URL)
	if err != nil {
		return Result{}, err
	}
	if err := disk.CheckOutput(o.Output); err != nil {
		return Result{}, err
	}
	at.Path, at.RawPath = path.Join(path.Dir(at.Path), name), ""
	p := &puller{Options: o, Client: c, at: at, name: filepath.Base(o.Output)}
	if err := p.open(); err != nil {
		return Result{}, errors.Join(err, p.close())
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.bring(ctx); err != nil {
		return Result{}, err
	}
	return p.result, p.place()
}

// open opens and locks the directory of the partial files. One that this user's kkbundle did not make is refused, and
// one with other files: they would be removed.
func (p *puller) open() (err error) {
	if p.into, err = os.OpenRoot(filepath.Dir(p.Output)); err != nil {
		return err
	}
	if p.dir, err = disk.OpenState(p.into, p.dirName()); err != nil {
		return plain.Advise(fmt.Errorf("directory for unfinished files: %w", err), p.otherPlace())
	}
	if p.held, err = p.dir.Open("."); err != nil {
		return err
	}
	if err := unix.Flock(int(p.held.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &BusyError{p.local("")}
	}
	entries, err := p.entries()
	for _, e := range entries {
		if err == nil && !p.owns(e) {
			err = plain.Advise(fmt.Errorf("%s is not an unfinished file of %s", p.path(e.Name()), p.name),
				p.otherPlace())
		}
	}
	return err
}

// A BusyError means that another run pulls the same bundle to the same place.
type BusyError struct{ Path string }

// Error names the place and the remedy.
func (e *BusyError) Error() string {
	return fmt.Sprintf("another run pulls to %s: wait for its end", e.Path)
}

// close unlocks and closes what open opened.
func (p *puller) close() (err error) {
	if p.held != nil {
		err = p.held.Close()
	}
	for _, dir := range []*os.Root{p.dir, p.into} {
		if dir != nil {
			err = errors.Join(err, dir.Close())
		}
	}
	return err
}

func (p *puller) dirName() string { return "." + p.name + ".download" }

// path returns that of a file in the directory.
func (p *puller) path(name string) string {
	return filepath.Join(filepath.Dir(p.Output), p.dirName(), name)
}

func (p *puller) otherPlace() string {
	return fmt.Sprintf("remove %s if you know that it is not needed, or name a directory of your own with -o",
		p.path(""))
}

// owns reports whether a file is one that pull or patch makes in the directory.
func (p *puller) owns(e fs.DirEntry) bool {
	name := strings.TrimPrefix(e.Name(), ".")
	return e.Type().IsRegular() && (strings.HasPrefix(name, bundle.BaseName(p.name)) ||
		strings.HasPrefix(name, "kkbundle-"))
}

func (p *puller) entries() (entries []fs.DirEntry, err error) {
	f, err := p.dir.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err = f.ReadDir(-1)
	return entries, errors.Join(err, f.Close())
}

func (p *puller) target(suffix string) target { return target{p.dir, p.name + suffix} }

func (p *puller) local(suffix string) string { return p.path(p.name + suffix) }

// address returns that of NAME.kkb with a suffix.
func (p *puller) address(suffix string) string {
	at := *p.at
	at.Path += suffix
	return at.String()
}

func (p *puller) progress(phase string) func(done, total int64) {
	return func(done, total int64) {
		if p.Progress != nil {
			p.Progress(phase, done, total)
		}
	}
}

// bring brings the bundle and checks it.
func (p *puller) bring(ctx context.Context) error {
	if err := p.bringSignature(ctx); err != nil {
		return err
	}
	done, err := p.bringDelta(ctx)
	if err == nil && !done {
		err = p.file(ctx, p.address(""), p.target(""), p.room, p.progress("fetch"))
		if isMissing(err) {
			err = p.bringParts(ctx, err)
		} else if err == nil {
			p.result.Bytes, err = p.target("").size(), p.checkSum(ctx)
		}
	}
	if err != nil {
		return err
	}
	if err := p.Check(ctx, p.local("")); err != nil {
		return p.discard(err)
	}
	return p.checked()
}

// checked returns an error unless the path that Check read leads to the directory whose files get their names.
func (p *puller) checked() error {
	read, err := os.Lstat(p.path(""))
	if err != nil {
		return err
	}
	held, err := p.held.Stat()
	if err == nil && !os.SameFile(read, held) {
		err = fmt.Errorf("%s was replaced while its files were checked", p.path(""))
	}
	return err
}

// bringSignature brings the signature, if the server has one. That of an encrypted bundle is of its content.
func (p *puller) bringSignature(ctx context.Context) error {
	plain := *p
	at := *p.at
	at.Path = strings.TrimSuffix(at.Path, bundle.EncryptedSuffix)
	plain.at, plain.name = &at, bundle.BaseName(p.name)
	there, err := plain.small(ctx, signatureSuffix, published.MaxSignatureSize)
	if there {
		p.result.Signature = bundle.BaseName(p.Output) + signatureSuffix
	}
	return err
}

// discard removes files that have the wrong content, so that the next run brings them again. Other errors, as of a
// missing key, keep them.
func (p *puller) discard(err error) error {
	if errors.Is(err, bundle.ErrDamaged) {
		return errors.Join(err, p.clear())
	}
	return err
}

func (p *puller) clear() error {
	entries, err := p.entries()
	for _, e := range entries {
		err = errors.Join(err, p.dir.RemoveAll(e.Name()))
	}
	return err
}

// small brings a small file, and reports whether the server has it.
func (p *puller) small(ctx context.Context, suffix string, limit int64) (bool, error) {
	data, err := p.Small(ctx, p.address(suffix), limit)
	if err != nil {
		return false, err
	}
	if data == nil {
		return false, p.target(suffix).remove()
	}
	return true, disk.WriteFileIn(p.dir, p.name+suffix, 0o644, data)
}

// room refuses a file that the disk cannot hold.
func (p *puller) room(bytes int64) error {
	_, err := disk.CheckSpace(disk.Need{
		Dir: filepath.Dir(p.Output), What: "the bundle", Bytes: max(bytes, 0),
		Remedy: "name another directory with -o",
	})
	return err
}

// checkSum compares the bundle with the checksum file on the server, if there is one.
func (p *puller) checkSum(ctx context.Context) error {
	data, err := p.Small(ctx, p.address(sumSuffix), maxSum)
	if err != nil || data == nil {
		return err
	}
	want, err := parseSum(data)
	if err != nil {
		return fmt.Errorf("%s: %w", Shown(p.address(sumSuffix)), err)
	}
	got, err := p.target("").digest(ctx)
	if err == nil && got != want {
		err = p.discard(&sumError{Shown(p.at.String()), got, want})
	}
	return err
}

// A sumError means that a file has another checksum than its server says. It matches bundle.ErrDamaged.
type sumError struct {
	name      string
	got, want digest.Digest
}

// Error names both checksums.
func (e *sumError) Error() string {
	return fmt.Sprintf("%s has %s; its checksum file says %s", e.name, e.got, e.want)
}

// Hint returns the remedy.
func (*sumError) Hint() string {
	return "run the command again; if the error stays, the server has the wrong file or the wrong checksum"
}

// Is makes the exit code that of a damaged bundle.
func (*sumError) Is(target error) bool { return target == bundle.ErrDamaged }

// parseSum reads the first field of a file of sha256sum.
func parseSum(data []byte) (digest.Digest, error) {
	fields := strings.Fields(string(data))
	if len(fields) == 0 || len(fields) > 2 {
		return "", errors.New("not a checksum: want one line of sha256sum")
	}
	sum, err := hex.DecodeString(fields[0])
	if err != nil || len(sum) != 32 {
		return "", errors.New("not a checksum: want one line of sha256sum")
	}
	return digest.NewDigestFromBytes(digest.SHA256, sum), nil
}

// bringParts brings a bundle in parts, several at a time. missing is the error about the bundle in one file.
func (p *puller) bringParts(ctx context.Context, missing error) error {
	there, err := p.small(ctx, parts.ListSuffix, parts.MaxList)
	if err != nil {
		return err
	}
	if !there {
		return missing
	}
	data, err := p.target(parts.ListSuffix).read(parts.MaxList)
	if err != nil {
		return err
	}
	list, err := parts.ParseList(data)
	if err != nil {
		return fmt.Errorf("%s: %w", Shown(p.address(parts.ListSuffix)), err)
	}
	total := int64(0)
	for _, part := range list {
		total += part.Size
	}
	if err := p.room(total); err != nil {
		return err
	}
	var mu sync.Mutex
	done, sum := make([]int64, len(list)), int64(0)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for i, part := range list {
		group.Go(func() error {
			return p.part(ctx, parts.Name("", i+1), part, func(n, _ int64) {
				mu.Lock()
				defer mu.Unlock()
				sum += n - done[i]
				done[i] = n
				p.progress("fetch")(sum, total)
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.result.Parts, p.result.Bytes = len(list), total
	return nil
}

// part brings one part and compares it with the list. A part that is here and whole is not asked for.
func (p *puller) part(ctx context.Context, suffix string, part parts.Info, progress func(done, total int64)) error {
	file := p.target(suffix)
	if file.size() == part.Size {
		if got, err := file.digest(ctx); err != nil || got == part.Sum.Digest() {
			progress(part.Size, part.Size)
			return err
		}
	}
	if err := p.file(ctx, p.address(suffix), file, nil, progress); err != nil {
		return err
	}
	got, err := file.digest(ctx)
	if err == nil && got != part.Sum.Digest() {
		err = errors.Join(&sumError{p.address(suffix), got, part.Sum.Digest()}, file.forget())
	}
	return err
}

// bringDelta brings NAME.kkd in place of NAME.kkb, if the server has it, it was made against a bundle that is here,
// and it is smaller.
func (p *puller) bringDelta(ctx context.Context) (bool, error) {
	stem, ok := strings.CutSuffix(p.at.Path, bundleSuffix)
	if len(p.Have) == 0 || !ok {
		return false, nil
	}
	at := *p.at
	at.Path = stem + deltaSuffix
	remote, err := p.Open(ctx, at.String())
	if err != nil {
		if ctx.Err() == nil {
			err = nil // the bundle itself will do
		}
		return false, err
	}
	head, err := delta.ParseHead(remote, remote.Size)
	if err != nil {
		return false, fmt.Errorf("%s: %w", Shown(at.String()), err)
	}
	offer := delta.Offer{Old: head.Old, New: head.New, Size: remote.Size}
	for _, old := range p.Have {
		if delta.Route([]digest.Digest{old.Digest()}, head.New, []delta.Offer{offer}, head.Size) == nil {
			continue
		}
		file := p.target(deltaSuffix)
		if err := p.file(ctx, at.String(), file, p.room, p.progress("fetch")); err != nil {
			return false, err
		}
		p.result.Delta, p.result.Bytes = Shown(at.String()), file.size()
		_, err := delta.Apply(ctx, p.local(deltaSuffix), delta.Options{
			Old: &old, Output: p.local(""),
			Progress: p.Progress,
		})
		return true, p.discard(err)
	}
	return false, nil
}

// place gives the files their names: the bundle, or the list of its parts, last.
func (p *puller) place() error {
	if err := parts.CheckTarget(p.Output, p.result.Parts > 0); err != nil {
		return err
	}
	last := ""
	if p.result.Parts > 0 {
		last = parts.ListSuffix
		if err := p.into.Remove(p.name + last); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	names := make([]string, 0, 2+p.result.Parts)
	if signature := p.result.Signature; signature != "" {
		names = append(names, filepath.Base(signature))
	}
	for i := range p.result.Parts {
		names = append(names, p.name+parts.Name("", i+1))
	}
	if err := p.move(append(names, p.name+last)); err != nil {
		return err
	}
	p.result.Path = p.Output
	_ = disk.SyncDir(filepath.Dir(p.Output)) // the files are there
	return p.into.RemoveAll(p.dirName())
}

// move gives files their place, out of the very directory that is held: its name may lead elsewhere by now.
func (p *puller) move(names []string) (err error) {
	into, err := p.into.Open(".")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	for _, name := range names {
		if err := unix.Renameat(int(p.held.Fd()), name, int(into.Fd()), name); err != nil {
			return fmt.Errorf("rename %s to %s: %w", p.path(name), filepath.Join(filepath.Dir(p.Output), name), err)
		}
	}
	return nil
}
