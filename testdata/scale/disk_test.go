//go:build linux

package scale

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inNamespace runs a shell script where it can mount what nobody else sees.
func inNamespace(t *testing.T, script string, args ...string) (out string, code int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting small and read-only file systems needs root")
	}
	if err := exec.Command("unshare", "-m", "true").Run(); err != nil {
		t.Skipf("mounting small and read-only file systems needs a mount namespace, which this machine does not let us make: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"-m", "sh", "-c", script, "sh"}, args...)...)
	data, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(data), cmd.ProcessState.ExitCode()
}

// silent is a file whose size upstream does not tell, so that nobody can know in advance that it will not fit.
func silent(size int64) source {
	return source{name: "silent", seed: 9, size: size, known: true, mute: true}
}

func wantAll(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("%q is not in:\n%s", text, out)
		}
	}
}

// TestOutputFull has no room for the bundle: nothing is written, and what was there stays.
func TestOutputFull(t *testing.T) {
	p := newPlace(t, upstream(t, silent(32*mib)))
	dir := filepath.Dir(p.output)
	out, code := inNamespace(t, `mount -t tmpfs -o size=8m,mode=0700 tmpfs "$1" || exit 99
		dir=$1; shift; echo before > $dir/x.kkb
		"$@"; code=$?; ls -A $dir; cat $dir/x.kkb; exit $code`, append(append([]string{dir}, p.command(t)...), "--force")...)
	wantAll(t, out, "no space for the bundle in "+dir, "needed there", "8.0 MiB free", "\nx.kkb\nbefore\n")
	if code != 1 || strings.Contains(out, "\n.x.kkb") {
		t.Errorf("exit code %d, want 1 and nothing left:\n%s", code, out)
	}
}

// TestCacheFull has the cache meet the end of its disk, and go on when there is room.
func TestCacheFull(t *testing.T) {
	p := newPlace(t, upstream(t, silent(32*mib)))
	out, code := inNamespace(t, `mount -t tmpfs -o size=8m,mode=0700 tmpfs "$1" || exit 99
		cache=$1; output=$2; shift 2
		"$@"; echo "code $?"; ls -A $(dirname $output); du -sm $cache
		mount -o remount,size=64m "$cache"
		exec "$@"`, append([]string{p.cache, p.output}, p.command(t)...)...)
	wantAll(t, out, "the disk of the cache is full", "--cache", "code 14")
	if code != 0 {
		t.Errorf("exit code %d after there was room:\n%s", code, out)
	}
	must(t, "", program(t), "verify", "--quiet", p.output)
}

// TestLittleDisk has room for the bundle and a little more: enough without a cache, and too little with one. Where
// there is less than that, the build says so before it begins, or where nobody could know, when it meets the end;
// nothing is left.
func TestLittleDisk(t *testing.T) {
	t.Setenv("TMPDIR", "")
	sources := make([]source, 24)
	for i := range sources {
		sources[i] = source{name: fmt.Sprint("f", i), seed: uint64(60 + i), size: 16 * mib, known: true, random: true}
	}
	manifest := upstream(t, sources...)
	dir := t.TempDir()
	lock := []string{program(t), "lock", "--quiet", "--cache", t.TempDir(), manifest}
	must(t, "", lock...)
	script := `size=$1; dir=$2; shift 2; mount -t tmpfs -o size=$size,mode=0700 tmpfs $dir || exit 99
		"$@" -o $dir/x.kkb; code=$?; ls -A $dir; exit $code`
	run := func(size string, more ...string) (string, int) {
		args := append([]string{size, dir, program(t), "build", "--locked", manifest}, more...)
		return inNamespace(t, script, args...)
	}
	if out, code := run("660m", "--no-cache"); code != 0 || !strings.HasSuffix(out, "\nx.kkb\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	out, code := run("660m", "--cache", filepath.Join(dir, "cache"))
	wantAll(t, out, "no space for the cache in "+dir, "and the bundle in "+dir, "--no-cache")
	if code != 1 {
		t.Errorf("exit code %d, want 1:\n%s", code, out)
	}
	out, code = run("300m", "--no-cache")
	wantAll(t, out, "no space for scratch space in "+dir+" (", "300.0 MiB free: make room")
	if code != 1 || strings.Contains(out, "\n.kkb") {
		t.Errorf("exit code %d, want 1 and nothing left:\n%s", code, out)
	}
}

// TestScratchFull meets the end of the disk with --no-cache.
func TestScratchFull(t *testing.T) {
	t.Setenv("TMPDIR", "")
	p := newPlace(t, upstream(t, silent(32*mib)))
	p.cache = ""
	dir := filepath.Dir(p.output)
	out, code := inNamespace(t, `mount -t tmpfs -o size=8m,mode=0700 tmpfs "$1" || exit 99
		dir=$1; shift; "$@"; code=$?; ls -A $dir; exit $code`, append([]string{dir}, p.command(t)...)...)
	wantAll(t, out, "the disk of the scratch space "+dir+" is full: make room there")
	if code == 0 || strings.Contains(out, "\n.kkb") || strings.Contains(out, "cache is full") {
		t.Errorf("exit code %d, want another and nothing left:\n%s", code, out)
	}
}

// TestOutputReadOnly cannot write the bundle at all.
func TestOutputReadOnly(t *testing.T) {
	p := newPlace(t, upstream(t, source{name: "one", seed: 3, size: mib, known: true}))
	dir := filepath.Dir(p.output)
	out, code := inNamespace(t, `mount -t tmpfs -o ro tmpfs "$1" || exit 99; shift; exec "$@"`,
		append([]string{dir}, p.command(t)...)...)
	wantAll(t, out, dir, "read-only file system")
	if code != 1 {
		t.Errorf("exit code %d, want 1:\n%s", code, out)
	}
}

// TestFilling lets the disk of the cache, and then that of the bundle, run full at one place after the other. The
// build ends with the whole bundle or with none and says why, and the next one, with room, has the bytes of an
// undisturbed build.
func TestFilling(t *testing.T) {
	p := newPlace(t, upstream(t, silent(5*mib), source{name: "told", seed: 4, size: mib, known: true, random: true},
		source{name: "small", seed: 5, size: 3000, known: true}, source{
			name: "middle", seed: 6, size: 200_000,
			known: true, mute: true,
		}))
	must(t, "", p.command(t)...)
	whole := dirSize(t, p.cache)
	steps := int64(12)
	if big {
		steps = 100
	}
	for _, c := range []struct{ name, dir string }{{"cache", p.cache}, {"output", filepath.Dir(p.output)}} {
		t.Run(c.name, func(t *testing.T) {
			q := newPlace(t, p.manifest)
			dir := q.cache
			if c.name == "output" {
				dir = filepath.Dir(q.output)
			}
			var sizes []string
			for i := range steps {
				sizes = append(sizes, fmt.Sprintf("%dk", 40+i*whole/steps/1024))
			}
			out, code := inNamespace(t, `dir=$1; want=$2; output=$3; sizes=$4; shift 4
				mount -t tmpfs -o mode=0700 tmpfs "$dir" || exit 99
				for size in $sizes; do
					rm -rf "$dir"/* "$dir"/.[!.]* "$output"; mount -o remount,size=$size "$dir" || exit 98
					if "$@"; then echo "fitted"; else echo "code $?"; [ ! -e "$output" ] || { echo "a bundle is there: $size"; exit 97; }; fi
					mount -o remount,size=64m "$dir"
					"$@" || { echo "no bundle although there was room: $size"; exit 96; }
					cmp "$output" "$want" || exit 95
					left=$(find "$dir" $(dirname "$output") -name '*.tmp' -o -name '*.own'); [ -z "$left" ] || { echo "left: $left"; exit 94; }
				done`, append([]string{dir, p.output, q.output, strings.Join(sizes, " ")}, q.command(t)...)...)
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			t.Logf("%d sizes of disk, %d too small", steps, strings.Count(out, "code "))
			if n := strings.Count(out, "code "); n < int(steps)/2 {
				t.Errorf("only %d of %d disks were too small: the test fills none", n, steps)
			}
			if strings.Contains(out, "panic") || strings.Contains(out, "goroutine ") {
				t.Error(out)
			}
		})
	}
}

// dirSize is the sum of what files in dir have.
func dirSize(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}
