package early_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/cmd/internal/early"
)

// TestMain makes the test binary the program that TestPercent runs.
func TestMain(m *testing.M) {
	if os.Getenv("EARLY_PRINT") == "" {
		os.Exit(m.Run())
	}
	early.Done()
	if own, err := strconv.Atoi(os.Getenv("EARLY_OWN")); err == nil {
		debug.SetGCPercent(own)
	}
	before := current()
	runtime.GC()
	time.Sleep(100 * time.Millisecond) // cleanups run beside the program
	fmt.Println(before, current())
}

func current() int {
	now := debug.SetGCPercent(-1)
	debug.SetGCPercent(now)
	return now
}

// TestPercent reads the percentage before and after the first collection.
func TestPercent(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ gogc, own, want string }{
		{"", "", "400 100"},
		{"50", "", "400 50"},
		{"800", "", "400 800"},
		{"off", "", "-1 -1"},
		{"", "25", "25 25"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "EARLY_PRINT=1", "GOGC="+one.gogc, "EARLY_OWN="+one.own)
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != one.want {
			t.Errorf("GOGC=%q and %q: %q, want %q: %v", one.gogc, one.own, got, one.want, err)
		}
	}
}
