package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"

	"golang.org/x/sys/unix"
)

// Receive puts files in their places below root, which is / on a host, as requested by a Send on the other side. It can
// be interrupted at any byte: received content is kept in /var/lib/kkbundle/receive, and no file gets its final name
// before all of it has been checked. Errors are reported to the other side and returned.
func Receive(ctx context.Context, root string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := receive(ctx, root, newPatient(ctx, in), out)
	if err != nil {
		// If the other side is gone, nobody is left to tell.
		_ = wire.WriteMessage(out, answer{Version: ProtocolVersion, Error: err.Error()})
	}
	return err
}

func receive(ctx context.Context, root string, in io.Reader, out io.Writer) (err error) {
	var o offer
	if err := wire.ReadMessage(in, &o, wire.MaxPlan); err != nil {
		return fmt.Errorf("receive the plan: %w", err)
	}
	if o.Version != ProtocolVersion {
		return fmt.Errorf("kkbundle speaks version %d, this helper %d", o.Version, ProtocolVersion)
	}
	if o.For != toPlace && o.For != toKeep && o.For != toLook {
		return fmt.Errorf("this helper does not know what %q asks for", o.For)
	}
	if err := o.Plan.check(); err != nil {
		return err
	}
	t, err := openTree(ctx, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.learnLabels(ctx, o.Plan); err != nil {
		return err
	}
	r := &receiver{tree: t, in: in, out: out, purpose: o.For, plan: o.Plan, changed: map[string]bool{}}
	return r.run(ctx)
}

// A receiver is one session with a Send.
type receiver struct {
	tree    *tree
	in      io.Reader
	out     io.Writer
	purpose purpose
	plan    Plan
	changed map[string]bool
}

func (r *receiver) run(ctx context.Context) error {
	wanted, err := r.survey(ctx)
	if err != nil {
		return err
	}
	if r.purpose == toLook {
		return wire.WriteMessage(r.out, answer{Version: ProtocolVersion, Want: wanted, Done: len(wanted) == 0})
	}
	if err := r.room(wanted); err != nil {
		return err
	}
	if wanted, err = r.pullAll(ctx, wanted); err != nil {
		return err
	}
	for len(wanted) > 0 {
		if err := r.room(wanted); err != nil {
			return err
		}
		if err := wire.WriteMessage(r.out, answer{Version: ProtocolVersion, Want: wanted}); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if wanted, err = r.takeAll(ctx, wanted); err != nil {
			return err
		}
	}
	if r.purpose == toPlace {
		r.tree.prune(r.plan, time.Now())
	}
	return wire.WriteMessage(r.out, answer{Version: ProtocolVersion, Done: true, Changed: r.changes()})
}

// changes returns the changed paths in the order of the plan.
func (r *receiver) changes() []string {
	var list []string
	for _, f := range r.plan.Files {
		for _, p := range f.places() {
			if r.changed[p.Path] {
				list = append(list, p.Path)
			}
		}
	}
	return list
}

// places returns a file's places; a whole file has a place with an empty Name.
func (f PlannedFile) places() []Member {
	if f.Path != "" {
		return []Member{{Path: f.Path, Mode: f.Mode}}
	}
	return f.Unpack
}

// survey returns the missing content. Wrong permissions, owners or labels are corrected directly.
func (r *receiver) survey(ctx context.Context) ([]want, error) {
	var wanted []want
	for _, f := range r.plan.Files {
		whole, err := r.inPlace(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		known := slices.ContainsFunc(wanted, func(w want) bool { return w.Digest == f.Digest })
		if whole || known {
			continue
		}
		offset, err := r.tree.partSize(f.Digest, f.Size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		switch {
		case r.purpose == toKeep && offset == f.Size: // its digest is checked on its way into its place
			if err := r.tree.renew(f.Digest, time.Now()); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			continue
		case r.purpose == toLook && r.tree.isOld(f.Digest, time.Now()):
			offset = 0 // a Keep renews it
		}
		wanted = append(wanted, want{Digest: f.Digest, Offset: offset})
	}
	return wanted, nil
}

func (r *receiver) inPlace(ctx context.Context, f PlannedFile) (bool, error) {
	for _, m := range f.places() {
		sum, size := strings.TrimPrefix(f.Digest, digestPrefix), f.Size
		if m.Name != "" {
			receipt, ok := r.tree.receipts[m.Path]
			if !ok || receipt.Source != f.Digest || receipt.Member != memberName(m.Name) {
				return false, nil
			}
			sum, size = receipt.SHA256, receipt.Size
		}
		same, err := r.tree.has(ctx, m.Path, sum, size)
		if err != nil || !same {
			return false, err
		}
		changed, err := r.tree.correct(m.Path, m.Mode)
		if err != nil {
			return false, err
		}
		if changed {
			r.changed[m.Path] = true
		}
	}
	return true, nil
}

// room refuses content that does not fit, before anything is sent.
func (r *receiver) room(wanted []want) error {
	var need int64
	for _, w := range wanted {
		size, _ := r.plan.size(w.Digest)
		need += size - w.Offset
	}
	return r.tree.room(r.tree.parts, "/"+partsDir, need)
}

// takeAll receives content and puts it in its places. It returns the content to send again from its beginning, because
// a part of an earlier run was damaged.
func (r *receiver) takeAll(ctx context.Context, wanted []want) ([]want, error) {
	var again []want
	for _, w := range wanted {
		size, _ := r.plan.size(w.Digest)
		rest := size - w.Offset
		sum, err := r.take(ctx, w, rest, func(to io.Writer) error { return r.frames(to, w.Digest, rest) })
		if err != nil {
			return nil, err
		}
		if sum != w.Digest {
			if err := r.tree.dropPart(w.Digest); err != nil {
				return nil, err
			}
			if w.Offset == 0 {
				return nil, fmt.Errorf("%s: received content has digest %s: check the bundle with kkbundle verify, or this host's disk and memory", w.Digest, sum)
			}
			again = append(again, want{Digest: w.Digest})
			continue
		}
		if r.purpose == toKeep {
			continue
		}
		if err := r.place(ctx, w.Digest); err != nil {
			return nil, err
		}
	}
	return again, nil
}

// take appends bytes to a part by add and returns the digest of the whole.
func (r *receiver) take(ctx context.Context, w want, rest int64, add func(io.Writer) error) (digest string, err error) {
	part, err := r.tree.parts.OpenFile(partName(w.Digest), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	sum := sha256.New()
	if n, err := io.Copy(sum, &until{ctx, io.LimitReader(part, w.Offset)}); err != nil || n != w.Offset {
		return "", errors.Join(fmt.Errorf("read the received part of %s: %d of %d bytes", w.Digest, n, w.Offset), err)
	}
	if err := add(&filling{part, sum, r.tree, rest}); err != nil {
		return "", err
	}
	if err := part.Sync(); err != nil {
		return "", r.tree.full(err, "/"+partsDir, rest)
	}
	return digestPrefix + hex.EncodeToString(sum.Sum(nil)), nil
}

// A filling is a part that grows, and the digest of what it has.
type filling struct {
	part io.Writer
	sum  hash.Hash
	tree *tree
	rest int64 // bytes to come
}

// Write fails with a *diskError.
func (f *filling) Write(data []byte) (int, error) {
	n, err := f.part.Write(data)
	if err != nil {
		return n, &diskError{f.tree.full(err, "/"+partsDir, f.rest)}
	}
	f.rest -= int64(n)
	return f.sum.Write(data)
}

// A diskError is an error of the host's own disk, whoever sends the content.
type diskError struct{ error }

func (e *diskError) Unwrap() error { return e.error }

// frames copies content that the other side sends.
func (r *receiver) frames(to io.Writer, digest string, rest int64) error {
	buf := make([]byte, wire.MaxFrame)
	for rest > 0 {
		n, err := wire.ReadLength(r.in, wire.MaxFrame)
		if err == nil && (n == 0 || int64(n) > rest) {
			err = fmt.Errorf("a frame of %d bytes where %d are left", n, rest)
		}
		if err == nil {
			_, err = io.ReadFull(r.in, buf[:n])
		}
		if err != nil {
			return fmt.Errorf("receive %s: %d bytes are missing: %w", digest, rest, err)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
		rest -= int64(n)
	}
	return nil
}

// place puts content into every place in the plan, and removes the part.
func (r *receiver) place(ctx context.Context, digest string) error {
	var users []PlannedFile
	for _, f := range r.plan.Files {
		if f.Digest == digest {
			users = append(users, f)
		}
	}
	for i, f := range users {
		// One of several places may already be correct.
		if len(users) > 1 {
			if whole, err := r.inPlace(ctx, f); err != nil || whole {
				if err != nil {
					return fmt.Errorf("%s: %w", f.Name, err)
				}
				continue
			}
		}
		changed, err := r.tree.place(ctx, f, i == len(users)-1)
		for _, path := range changed {
			r.changed[path] = true
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return r.tree.dropPart(digest)
}

// lockTimeout is a little more than idleTimeout, so that an abandoned helper ends in time.
const (
	idleTimeout = 60 * time.Second
	lockTimeout = 75 * time.Second
	lockPause   = 100 * time.Millisecond
)

// lock waits until this is the only receiving helper on the host.
func lock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return errors.New("another kkbundle is sending files to this host; wait for its end")
		case <-time.After(lockPause):
		}
	}
}

// patient reads from a stream that cannot be interrupted, until its context is done or nothing has come for a minute: a
// helper whose connection died silently must not keep its lock for ever.
type patient struct {
	ctx    context.Context //nolint:containedctx // io.Reader has none
	pieces chan piece
	free   chan []byte
	now    []byte // rest of the current piece
	whole  []byte // its buffer
	err    error
}

type piece struct {
	data []byte
	err  error
}

func newPatient(ctx context.Context, r io.Reader) *patient {
	const buffers = 4
	p := &patient{ctx: ctx, pieces: make(chan piece, buffers), free: make(chan []byte, buffers)}
	for range buffers {
		p.free <- make([]byte, wire.Chunk)
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case buf := <-p.free:
				n, err := r.Read(buf)
				p.pieces <- piece{buf[:n], err}
				if err != nil {
					return
				}
			}
		}
	}()
	return p
}

// Read returns received bytes.
func (p *patient) Read(b []byte) (int, error) {
	for len(p.now) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		if p.whole != nil {
			p.free <- p.whole
			p.whole = nil
		}
		idle := time.NewTimer(idleTimeout)
		select {
		case <-p.ctx.Done():
			p.err = context.Cause(p.ctx)
		case <-idle.C:
			p.err = fmt.Errorf("nothing has come for %s", idleTimeout)
		case next := <-p.pieces:
			p.now, p.whole, p.err = next.data, next.data[:cap(next.data)], next.err
		}
		idle.Stop()
	}
	n := copy(b, p.now)
	p.now = p.now[n:]
	return n, nil
}

// until reads until its context is done.
type until struct {
	ctx context.Context //nolint:containedctx // io.Reader has none
	r   io.Reader
}

func (u *until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}
