package delta_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/delta"
)

// reopened opens a bundle again, for Open, which closes it.
func reopened(t testing.TB, b *bundletest.Bundle) *bundle.From {
	t.Helper()
	r, err := bundle.Open(b.Path)
	check(t, err)
	return &bundle.From{Name: b.Path, Reader: r}
}

// isWhole checks every byte of an opened bundle, reads each blob and compares it with want, and closes it.
func isWhole(t testing.TB, r *bundle.Reader, want *bundletest.Bundle) {
	t.Helper()
	if r.Digest() != want.Reader.Digest() {
		t.Errorf("the opened bundle is %s; %s was expected", r.Digest(), want.Reader.Digest())
	}
	_, err := r.Verify(t.Context(), bundle.VerifyOptions{})
	check(t, err)
	for _, b := range want.Reader.Blobs() {
		for _, offset := range []int64{0, b.Size / 2} {
			rc, err := r.Blob(t.Context(), b.Digest, offset)
			check(t, err)
			n, err := io.Copy(io.Discard, rc)
			check(t, errors.Join(err, rc.Close()))
			if n != b.Size-offset {
				t.Errorf("blob %s from %d has %d bytes of %d", b.Digest, offset, n, b.Size)
			}
		}
	}
	check(t, r.Close())
}

// deltas are two bundles and the deltas between them.
type deltas struct {
	old, next           *bundletest.Bundle
	there, back, packed string
}

func TestOpen(t *testing.T) {
	var d deltas
	d.old, d.next = pairOf(t)
	d.there, _ = create(t, d.old, d.next)
	d.back, _ = create(t, d.next, d.old)
	d.packed, _ = create(t, nil, d.next)
	t.Run("the new bundle is read without being written", d.read)
	t.Run("whatever does not fit is named before anything is made", d.named)
	t.Run("an interruption leaves nothing and keeps the old bundle open", d.interrupted)
	t.Run("a damaged old bundle is named where it is read", d.damagedOld)
}

func (d deltas) read(t *testing.T) {
	old, next, there, back, packed := d.old, d.next, d.there, d.back, d.packed
	for name, c := range map[string]struct {
		old    *bundletest.Bundle
		deltas []string
		want   *bundletest.Bundle
		same   bool // bytes
	}{
		"one delta":                      {old, []string{there}, next, true},
		"a chain":                        {old, []string{there, back, there}, next, true},
		"an old bundle of another level": {atLevel(t, old, bundle.LevelDefault), []string{there}, next, false},
		"one with larger frames":         {atLevel(t, old, bundle.LevelBest), []string{there, back}, old, false},
		"a pack":                         {nil, []string{packed}, next, true},
		"a pack and a delta":             {nil, []string{packed, back}, old, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := delta.Options{Scratch: t.TempDir()}
			if c.old != nil {
				o.Old = reopened(t, c.old)
			}
			r, err := delta.Open(t.Context(), o, c.deltas...)
			check(t, err)
			if c.same && r.Size() != c.want.Reader.Size() {
				t.Errorf("the opened bundle has %d bytes; %d were expected", r.Size(), c.want.Reader.Size())
			}
			isWhole(t, r, c.want)
			nothing(t, o.Scratch)
		})
	}
}

func (d deltas) named(t *testing.T) {
	old, next, there, packed := d.old, d.next, d.there, d.packed
	cut := filepath.Join(t.TempDir(), "cut.kkd")
	whole, err := os.ReadFile(there)
	check(t, err)
	check(t, os.WriteFile(cut, append(whole[:len(whole)-40:len(whole)-40], make([]byte, 40)...), 0o600))
	for name, c := range map[string]struct {
		old    *bundletest.Bundle
		deltas []string
		want   string
	}{
		"another base":      {next, []string{there}, "made against bundle " + old.Reader.Digest().String()},
		"no base":           {nil, []string{there}, "use kkbundle patch"},
		"a delta twice":     {old, []string{there, there}, "name the deltas in their order"},
		"a pack in a chain": {old, []string{there, packed}, "name the deltas in their order"},
		"a damaged delta":   {old, []string{cut}, "its checksum does not match"},
		"no delta":          {old, []string{next.Path}, "not a delta"},
		"a delta not there": {old, []string{there, "missing.kkd"}, "missing.kkd"},
	} {
		t.Run(name, func(t *testing.T) {
			o := delta.Options{Scratch: t.TempDir(), Progress: func(string, int64,
				int64,
			) {
				t.Error("something was made")
			}}
			if c.old != nil {
				o.Old = from(c.old)
			}
			_, err := delta.Open(t.Context(), o, c.deltas...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want %q", err, c.want)
			}
			nothing(t, o.Scratch)
		})
	}
}

func (d deltas) interrupted(t *testing.T) {
	old, next, there, back := d.old, d.next, d.there, d.back
	o := delta.Options{Scratch: t.TempDir(), Old: reopened(t, old)}
	for _, phase := range []string{"unpack", "restore files", "rebuild blobs"} {
		for _, skip := range []int{0, 1} { // in the first delta, in the second
			ctx, cancel := context.WithCancel(t.Context())
			last, starts := "", 0
			o.Progress = func(p string, _, _ int64) {
				if p != last {
					last = p
					if p == phase {
						starts++
					}
				}
				if starts > skip {
					cancel()
				}
			}
			if _, err := delta.Open(ctx, o, there, back); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", phase, err)
			}
			cancel()
			nothing(t, o.Scratch)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(p string, done, total int64) { // between two steps
		if p == "restore files" && done == total {
			cancel()
		}
	}
	if _, err := delta.Open(ctx, o, there, back); !errors.Is(err, context.Canceled) {
		t.Errorf("between two steps: %v", err)
	}
	nothing(t, o.Scratch)
	o.Progress = nil
	r, err := delta.Open(t.Context(), o, there)
	check(t, err)
	isWhole(t, r, next)
}

func (d deltas) damagedOld(t *testing.T) {
	old, there := d.old, d.there
	data, err := os.ReadFile(old.Path)
	check(t, err)
	damaged := false
	for at := len(data) / 10; at < len(data); at += len(data) / 10 {
		bad := append([]byte(nil), data...)
		bad[at] ^= 1
		path := filepath.Join(t.TempDir(), "old.kkb")
		check(t, os.WriteFile(path, bad, 0o600))
		r, err := bundle.Open(path)
		if err != nil {
			continue
		}
		o := delta.Options{Scratch: t.TempDir(), Old: &bundle.From{Name: path, Reader: r}}
		opened, err := delta.Open(t.Context(), o, there)
		if err != nil {
			check(t, r.Close())
			damaged = true
			nothing(t, o.Scratch)
			continue
		}
		_, err = opened.Verify(t.Context(), bundle.VerifyOptions{})
		damaged = damaged || errors.Is(err, bundle.ErrDamaged)
		if err != nil && !errors.Is(err, bundle.ErrDamaged) {
			t.Errorf("byte %d: %v", at, err)
		}
		check(t, opened.Close())
	}
	if !damaged {
		t.Error("no damage was found")
	}
}
