package download

import (
	"bytes"
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
	"github.com/kkbundle/kkbundle/disk"
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
	if name == "." || name == "/" || strings.HasPrefix(name, ".") || !filepath.IsLocal(name) || strings.ContainsAny(name, "/\\\x00") {
		return "", fmt.Errorf("the address names no file: want https://HOST/PATH/NAME.kkb")
	}
	return name, nil
}

func baseOf(name string) string {
	base, _ := parts.Locate(name)
	return base
}

// A puller pulls one bundle into a directory of its own, in which nothing has its final place.
type puller struct {
	Options
	*Client
	at     *url.URL // of NAME.kkb
	dir    string
	name   string
	result Result
}

// Pull brings a bundle, with its signature (NAME.kkb.sigstore.json) if there is one. It compares it with NAME.kkb.sha256, if there is one,
// and calls Check. Only then does it get its name. After an interruption the next run continues; see File.
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
	p.dir = filepath.Join(filepath.Dir(o.Output), "."+p.name+".download")
	if err := os.Mkdir(p.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Result{}, err
	}
	unlock, err := lock(p.dir)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := p.bring(ctx); err != nil {
		return Result{}, err
	}
	return p.result, p.place()
}

// lock keeps other runs out of a directory.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run pulls to %s: wait for its end", dir), f.Close())
	}
	return f.Close, nil
}

func (p *puller) local(suffix string) string { return filepath.Join(p.dir, p.name+suffix) }

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
		err = p.File(ctx, p.address(""), p.local(""), p.room, p.progress("fetch"))
		if isMissing(err) {
			err = p.bringParts(ctx, err)
		} else if err == nil {
			p.result.Bytes, err = size(p.local("")), p.checkSum(ctx)
		}
	}
	if err != nil {
		return err
	}
	if err := p.Check(ctx, p.local("")); err != nil {
		return p.discard(err)
	}
	return nil
}

// bringSignature brings the signature, if the server has one. That of an encrypted bundle is of its content.
func (p *puller) bringSignature(ctx context.Context) error {
	plain := *p
	at := *p.at
	at.Path = strings.TrimSuffix(at.Path, bundle.EncryptedSuffix)
	plain.at, plain.name = &at, bundle.BaseName(p.name)
	there, err := plain.small(ctx, signatureSuffix, bundle.MaxSignatureSize)
	if there {
		p.result.Signature = bundle.BaseName(p.Output) + signatureSuffix
	}
	return err
}

// discard removes files that have the wrong content, so that the next run brings them again. Other errors, as of a missing key, keep them.
func (p *puller) discard(err error) error {
	if errors.Is(err, bundle.ErrDamaged) {
		return errors.Join(err, p.clear())
	}
	return err
}

func (p *puller) clear() error {
	entries, err := os.ReadDir(p.dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.dir, e.Name())))
	}
	return err
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// small brings a small file, and reports whether the server has it.
func (p *puller) small(ctx context.Context, suffix string, limit int64) (bool, error) {
	data, err := p.Small(ctx, p.address(suffix), limit)
	if err != nil {
		return false, err
	}
	if data == nil {
		if err := os.Remove(p.local(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		return false, nil
	}
	return true, disk.WriteFile(p.local(suffix), 0o644, bytes.NewReader(data))
}

// room refuses a file that the disk cannot hold.
func (p *puller) room(bytes int64) error {
	_, err := disk.CheckSpace(disk.Need{Dir: p.dir, What: "the bundle", Bytes: max(bytes, 0), Remedy: "name another directory with -o"})
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
	got, err := disk.Digest(ctx, p.local(""), func(int) {})
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
	data, err := os.ReadFile(p.local(parts.ListSuffix))
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
	file := p.local(suffix)
	if size(file) == part.Size {
		if got, err := disk.Digest(ctx, file, func(int) {}); err != nil || got == part.Sum.Digest() {
			progress(part.Size, part.Size)
			return err
		}
	}
	if err := p.File(ctx, p.address(suffix), file, nil, progress); err != nil {
		return err
	}
	got, err := disk.Digest(ctx, file, func(int) {})
	if err == nil && got != part.Sum.Digest() {
		err = errors.Join(&sumError{p.address(suffix), got, part.Sum.Digest()}, os.Remove(file), Settle(file))
	}
	return err
}

// bringDelta brings NAME.kkd in place of NAME.kkb, if the server has it, it was made against a bundle that is here, and it is smaller.
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
		file := p.local(deltaSuffix)
		if err := p.File(ctx, at.String(), file, p.room, p.progress("fetch")); err != nil {
			return false, err
		}
		p.result.Delta, p.result.Bytes = Shown(at.String()), size(file)
		_, err := delta.Apply(ctx, file, delta.Options{Old: &old, Output: p.local(""), Progress: p.Progress})
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
		if err := os.Remove(p.Output + last); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if to := p.result.Signature; to != "" {
		if err := os.Rename(filepath.Join(p.dir, filepath.Base(to)), to); err != nil {
			return err
		}
	}
	for i := range p.result.Parts {
		suffix := parts.Name("", i+1)
		if err := os.Rename(p.local(suffix), p.Output+suffix); err != nil {
			return err
		}
	}
	if err := os.Rename(p.local(last), p.Output+last); err != nil {
		return err
	}
	p.result.Path = p.Output
	syncDir(filepath.Dir(p.Output))
	return os.RemoveAll(p.dir)
}

// syncDir makes renames last through a power cut, where the file system can.
func syncDir(dir string) {
	if f, err := os.Open(dir); err == nil {
		_, _ = f.Sync(), f.Close() // some file systems refuse
	}
}
