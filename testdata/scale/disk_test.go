//go:build linux

package scale

import (
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
	out, code := inNamespace(t, `mount -t tmpfs -o size=8m tmpfs "$1" || exit 99
		dir=$1; shift; echo before > $dir/x.kkb
		"$@"; code=$?; ls -A $dir; cat $dir/x.kkb; exit $code`, append([]string{dir}, p.command(t)...)...)
	wantAll(t, out, "no space for the bundle in "+dir, "needed there", "8.0 MiB free", "\nx.kkb\nbefore\n")
	if code != 1 || strings.Contains(out, "\n.x.kkb") {
		t.Errorf("exit code %d, want 1 and nothing left:\n%s", code, out)
	}
}

// TestCacheFull has the cache meet the end of its disk, and go on when there is room.
func TestCacheFull(t *testing.T) {
	p := newPlace(t, upstream(t, silent(32*mib)))
	out, code := inNamespace(t, `mount -t tmpfs -o size=8m tmpfs "$1" || exit 99
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

// TestOutputReadOnly cannot write the bundle at all.
func TestOutputReadOnly(t *testing.T) {
	p := newPlace(t, upstream(t, source{name: "one", seed: 3, size: mib, known: true}))
	dir := filepath.Dir(p.output)
	out, code := inNamespace(t, `mount -t tmpfs -o ro tmpfs "$1" || exit 99; shift; exec "$@"`, append([]string{dir}, p.command(t)...)...)
	wantAll(t, out, dir, "read-only file system")
	if code != 1 {
		t.Errorf("exit code %d, want 1:\n%s", code, out)
	}
}
