//go:build linux

package registry

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// processorTime returns the processor time that f takes on its thread.
func processorTime(t *testing.T, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := spent()
	f()
	return spent() - before
}

// jobsOf makes n jobs of one manifest and one shared blob each.
func jobsOf(n int, repoOf func(i int) *repo) []*job {
	blob := ocispec.Descriptor{Digest: digest.FromString("shared"), Size: 1}
	jobs := make([]*job, n)
	for i := range jobs {
		r := repoOf(i)
		root := &node{desc: ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(i))}}
		jobs[i] = &job{
			dest: name.MustParseReference("site.example/app:1"), repo: r, root: root, nodes: []*node{root},
			blobs: []ocispec.Descriptor{blob},
		}
	}
	return jobs
}

// TestPlanOfManyItems: the time that push takes for itself grows with the number of items, and not with its square:
// neither with files in a repository each that share a blob, nor with images of one repository and a signature each.
func TestPlanOfManyItems(t *testing.T) {
	const few, times, most = 3000, 8, 24
	share := func(n int) func() {
		p := &planner{jobs: jobsOf(n, func(i int) *repo { return &repo{name: fmt.Sprint("file", i)} })}
		return func() {
			if p.share(); len(p.blobs) != 1 || len(p.blobs[0].places) != n || p.total != int64(n) {
				t.Errorf("%d blobs, %d bytes", len(p.blobs), p.total)
			}
		}
	}
	sign := func(n int) func() {
		one := &repo{name: "app"}
		p := &pusher{jobs: jobsOf(2*n, func(int) *repo { return one }), tally: &tally{}}
		for i, j := range p.jobs[n:] {
			p.jobs[i].ended = true
			j.root.subject = p.jobs[i].root.desc.Digest
		}
		return func() {
			for _, j := range p.jobs[n:] {
				if err := p.subjectLost(j); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for what, work := range map[string]func(n int) func(){"share": share, "sign": sign} {
		less, more := processorTime(t, work(few)), processorTime(t, work(times*few))
		t.Logf("%s: %s for %d items, %s for %d", what, less, few, more, times*few)
		if more > most*max(less, 5*time.Millisecond) {
			t.Errorf("%s: %s for %d items and %s for %d", what, less, few, more, times*few)
		}
	}
}
