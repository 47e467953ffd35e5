//go:build linux

package scale

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMemory builds and verifies a bundle with one very large file, and smaller ones to keep every transfer busy,
// where the kernel grants far less memory than the file has bytes: pages of files count too, but can be dropped. More
// processors take more memory, up to a bound. The kernel decides: the resident size of a process also counts pages of
// the program that others read before, which a kernel may map a hundred MiB of at once.
func TestMemory(t *testing.T) {
	for _, c := range []struct{ processors, limit int64 }{{2, 160 * mib}, {64, 400 * mib}} {
		t.Run(fmt.Sprint("processors=", c.processors), func(t *testing.T) {
			t.Setenv("GOMAXPROCS", fmt.Sprint(c.processors))
			underLimit(t, 384*mib, c.limit)
		})
	}
	if big {
		t.Run("8GiB", func(t *testing.T) { underLimit(t, 8*gib, 400*mib) })
	}
}

// TestMemoryIsLimited holds that TestMemory can fail: with less memory than it needs, the kernel ends the program.
func TestMemoryIsLimited(t *testing.T) {
	group := newGroup(t, 24*mib)
	manifest, dir := upstream(t, source{name: "large", seed: 1, size: 64 * mib}), t.TempDir()
	build := []string{
		"build", "--quiet", "--cache", filepath.Join(dir, "cache"), "-o", filepath.Join(dir, "x.kkb"),
		manifest,
	}
	enter := []string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group, program(t)}
	out, err := exec.CommandContext(t.Context(), "sh", append(enter, build...)...).CombinedOutput()
	if n := killedForMemory(t, group); err == nil || n == 0 {
		t.Errorf("%v, %d killed for memory\n%s", err, n, out)
	}
}

func underLimit(t *testing.T, size, limit int64) {
	group := newGroup(t, limit)
	sources := []source{{name: "large", seed: 1, size: size}}
	for i := range 8 {
		sources = append(sources, source{name: fmt.Sprint("more-", i), seed: uint64(2 + i), size: size / 64})
	}
	manifest, dir := upstream(t, sources...), t.TempDir()
	output := filepath.Join(dir, "x.kkb")
	for _, args := range [][]string{
		{program(t), "build", "--quiet", "--cache", filepath.Join(dir, "cache"), "-o", output, manifest},
		{program(t), "verify", "--quiet", output},
	} {
		u, out := measure(t, group, args...)
		if !u.ok() {
			t.Fatalf("%s: %s, %d killed for memory, peak %d MiB\n%s", args[1], u.Status, killedForMemory(t, group),
				u.Peak/mib, out)
		}
		t.Logf("%s: %d MiB of which the program's own pages are shared, %.1f s, CPU %.1f s, read %s, written %s",
			args[1], u.Peak/mib, u.Wall.Seconds(), u.CPU.Seconds(), gb(u.Read), gb(u.Wrote))
	}
	if n := killedForMemory(t, group); n != 0 {
		t.Errorf("%d processes were killed for memory", n)
	}
}
