//go:build unix

package delta_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
)

const envKilled = "KKBUNDLE_TEST_PATCH" // old, delta and output, separated by newlines

// TestPatchToBeKilled is the process that TestAKilledPatchLeavesNoResult kills. It prints its phases.
func TestPatchToBeKilled(t *testing.T) {
	args := strings.Split(os.Getenv(envKilled), "\n")
	if len(args) != 3 {
		t.Skip("run by TestAKilledPatchLeavesNoResult")
	}
	old, err := bundle.Open(args[0])
	check(t, err)
	defer old.Close()
	last := ""
	_, err = delta.Apply(context.Background(), args[1], delta.Options{
		Old:    &bundle.From{Name: "old", Reader: old},
		Output: args[2], Progress: func(phase string, _, _ int64) {
			if phase != last {
				last = phase
				_, _ = os.Stdout.WriteString("phase " + phase + "\n")
				_, _ = os.Stdin.Read(make([]byte, 1)) // until killed or told to go on
			}
		},
	})
	check(t, err)
}

func TestAKilledPatchLeavesNoResult(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a run again and again")
	}
	old, next := pairOf(t)
	path, _ := create(t, old, next)
	out := filepath.Join(t.TempDir(), "new.kkb")
	for _, phase := range []string{"unpack", "restore files", "rebuild blobs", "write"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestPatchToBeKilled$", "-test.v")
		cmd.Env = append(os.Environ(), envKilled+"="+strings.Join([]string{old.Path, path, out}, "\n"))
		stdin, err := cmd.StdinPipe()
		check(t, err)
		stdout, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		seen := false
		for lines := bufio.NewScanner(stdout); !seen && lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "phase "); ok && name == phase {
				seen = true
			} else if ok {
				_, err := stdin.Write([]byte{'\n'})
				check(t, err)
			}
		}
		check(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		if !seen {
			t.Fatalf("phase %q was not reached", phase)
		}
		if _, err := os.Stat(out); err == nil {
			t.Fatalf("killed in phase %q: there is a result", phase)
		}
	}
	_, err := delta.Apply(t.Context(), path, delta.Options{Old: from(old), Output: out})
	check(t, err)
	sameFile(t, out, next.Path)
	alone(t, out)
}
