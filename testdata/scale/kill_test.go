//go:build linux

package scale

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// several is enough for every part of a build to take a while: pieces in flight, a last piece, small blobs.
func several() []source {
	var all []source
	for i, size := range []int64{24 * mib, 4 * mib, 12*mib + 1, 9*mib - 1, 200_000, 70_000, 3000, 8 * mib} {
		all = append(all, source{name: fmt.Sprint("file-", i), seed: uint64(40 + i), size: size, known: true})
	}
	return all
}

// A place is where builds of one manifest happen.
type place struct {
	manifest, cache, output string // cache is "" for builds without one
}

func newPlace(t testing.TB, manifest string) place {
	t.Helper()
	p := place{manifest: manifest, cache: t.TempDir(), output: t.TempDir()}
	p.output = filepath.Join(p.output, "x.kkb")
	return p
}

func (p place) command(t testing.TB) []string {
	t.Helper()
	args := []string{program(t), "build", "--quiet", "-o", p.output, p.manifest}
	if p.cache == "" {
		return append(args, "--no-cache")
	}
	return append(args, "--cache", p.cache)
}

// left lists files that are neither bundles nor whole entries of the cache.
func (p place) left(t testing.TB) (temporary []string) {
	t.Helper()
	for _, dir := range []string{filepath.Dir(p.output), p.cache} {
		if dir == "" {
			continue
		}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			whole := path == p.output || filepath.Base(filepath.Dir(filepath.Dir(path))) == "sha256"
			kept := d.Name() == "lock" || d.Name() == "encoder" // the cache's own
			if err == nil && !d.IsDir() && !whole && !kept {
				temporary = append(temporary, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return temporary
}

// check demands the bytes of an undisturbed build, or with mayLack no file at all.
func (p place) check(t testing.TB, want []byte, mayLack bool) {
	t.Helper()
	got, err := os.ReadFile(p.output)
	if mayLack && errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s has %d bytes that are not those of an undisturbed build, which has %d", p.output, len(got),
			len(want))
	}
}

// reference builds undisturbed.
func reference(t testing.TB, manifest string) (content []byte, took time.Duration) {
	t.Helper()
	p := newPlace(t, manifest)
	u := must(t, "", p.command(t)...)
	must(t, "", program(t), "verify", "--quiet", p.output)
	content, err := os.ReadFile(p.output)
	if err != nil {
		t.Fatal(err)
	}
	if left := p.left(t); len(left) > 0 {
		t.Errorf("an undisturbed build leaves %v", left)
	}
	return content, u.Wall
}

// TestKilled kills builds at random moments. Whatever the moment, there is a whole bundle under its name or none, and
// the next run needs nobody to clean up. A moment is one in which upstream has sent so much, which no machine is too
// slow or too fast for, or some time after the start, for what comes after the last byte.
func TestKilled(t *testing.T) {
	var water tap
	manifest := upstreamBehind(t, &water, several()...)
	want, took := reference(t, manifest)
	places, random := 8, rand.New(rand.NewPCG(1, 2))
	if big {
		places = 100
	}
	killed, late := 0, 0
	for range places {
		p := newPlace(t, manifest)
		check := func() {
			t.Helper()
			p.check(t, want, true)
			// At most one temporary bundle, the run's own file, a part of a document and one of each file: nothing
			// piles up.
			if left := p.left(t); len(left) > 3+len(several()) {
				t.Fatalf("killed builds leave %v", left)
			}
		}
		// The first has everything to bring; the next goes on with what that left, and may have less than it is let.
		if !p.killedAt(t, &water, random.Int64N(total(several()))) {
			t.Error("a build that did not get everything was not killed")
		}
		check()
		if p.killedAt(t, &water, random.Int64N(total(several())/2)) {
			killed++
		}
		check()
		if p.killed(t, time.Duration(random.Float64()*0.4*float64(took))) {
			late++
		}
		check()
		must(t, "", p.command(t)...)
		p.check(t, want, false)
		must(t, "", program(t), "verify", "--quiet", p.output)
		if left := p.left(t); len(left) > 0 {
			t.Errorf("after killed builds a whole one leaves %v", left)
		}
	}
	t.Logf("of %d builds each, all first ones were killed, %d second and %d third ones; the others had what they needed", places, killed, late)
}

// TestKilledWithoutCache is the same with --no-cache: nothing is kept, and what is left over does not pile up.
func TestKilledWithoutCache(t *testing.T) {
	t.Setenv("TMPDIR", "")
	var water tap
	manifest := upstreamBehind(t, &water, several()...)
	want, took := reference(t, manifest)
	p, random := newPlace(t, manifest), rand.New(rand.NewPCG(3, 4))
	p.cache = ""
	rounds, late := 12, 0
	if big {
		rounds = 200
	}
	for i := range rounds {
		switch {
		case i%2 == 0 && !p.killedAt(t, &water, random.Int64N(total(several()))):
			t.Error("a build that did not get everything was not killed")
		case i%2 == 1 && p.killed(t, time.Duration(random.Float64()*float64(took))):
			late++
		}
		p.check(t, want, true)
		entries, err := os.ReadDir(filepath.Dir(p.output))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 4 { // a bundle, a temporary one, scratch space and its lock
			t.Fatalf("killed builds leave %v", entries)
		}
	}
	must(t, "", p.command(t)...)
	p.check(t, want, false)
	if left := p.left(t); len(left) > 0 {
		t.Errorf("after killed builds a whole one leaves %v", left)
	}
	t.Logf("%d builds were killed while they waited for upstream, %d of %d after some time", rounds/2, late, rounds/2)
}

// total is what sources have in bytes.
func total(sources []source) (n int64) {
	for _, s := range sources {
		n += s.size
	}
	return n
}

// killedAt starts a build, kills it when upstream has sent so many bytes, and says whether it came to that.
func (p place) killedAt(t testing.TB, water *tap, bytes int64) bool {
	t.Helper()
	full := make(chan struct{})
	water.open(bytes, sync.OnceFunc(func() { close(full) }))
	defer water.open(0, nil)
	return p.killedBy(t, full)
}

// killed starts a build, kills it after a while, and says whether it came to that.
func (p place) killed(t testing.TB, after time.Duration) bool {
	t.Helper()
	over := make(chan struct{})
	timer := time.AfterFunc(after, func() { close(over) })
	defer timer.Stop()
	return p.killedBy(t, over)
}

func (p place) killedBy(t testing.TB, moment <-chan struct{}) bool {
	t.Helper()
	args := p.command(t)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var printed strings.Builder
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-moment:
		_ = cmd.Process.Kill() // it may have ended
		err = <-ended
	}
	if err != nil && cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("it failed by itself: %v\n%s", err, printed.String())
	}
	return err != nil
}

// TestAtOnce has several builds write the same output from the same cache at once.
func TestAtOnce(t *testing.T) {
	manifest := upstream(t, several()...)
	want, _ := reference(t, manifest)
	for range 3 {
		p := newPlace(t, manifest)
		var all [3]*exec.Cmd
		var printed [len(all)]strings.Builder
		for i := range all {
			all[i] = exec.CommandContext(t.Context(), p.command(t)[0], p.command(t)[1:]...)
			all[i].Stdout, all[i].Stderr = &printed[i], &printed[i]
			if err := all[i].Start(); err != nil {
				t.Fatal(err)
			}
		}
		for i, cmd := range all {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, printed[i].String())
			}
		}
		p.check(t, want, false)
		if left := p.left(t); len(left) > 0 {
			t.Errorf("builds at once leave %v", left)
		}
	}
}
