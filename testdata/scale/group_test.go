//go:build linux

package scale

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const groupRoot = "/sys/fs/cgroup"

// newGroup makes a control group whose processes, with the pages of files they read and write, get at most limit bytes
// of memory. It skips the test where this process may not make one.
func newGroup(t testing.TB, limit int64) string {
	t.Helper()
	parent, name := filepath.Join(groupRoot, "memory"), "memory.limit_in_bytes" // version 1
	if _, err := os.Stat(filepath.Join(groupRoot, "cgroup.controllers")); err == nil {
		parent, name = groupRoot, "memory.max"
		// Refused where the group that is the root here has processes of its own, as in most containers.
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0o600); err != nil {
			t.Skipf("limiting memory needs a control group, which this machine does not let us make: %v", err)
		}
	}
	group := filepath.Join(parent, fmt.Sprintf("kkbundle-scale-%d-%s", os.Getpid(), filepath.Base(t.Name())))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("limiting memory needs a control group, which this machine does not let us make: %v", err)
	}
	t.Cleanup(func() {
		err := os.Remove(group)
		for errors.Is(err, syscall.EBUSY) { // the kernel may not be done with a process that has ended
			if left, _ := os.ReadFile(filepath.Join(group, "cgroup.procs")); len(left) > 0 {
				t.Errorf("processes are left: %s", left)
				break
			}
			time.Sleep(time.Millisecond)
			err = os.Remove(group)
		}
		if err != nil {
			t.Errorf("remove the control group: %v", err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, name), []byte(strconv.FormatInt(limit, 10)), 0o600); err != nil {
		t.Skipf("limiting memory needs the memory controller, which this machine does not let us use: %v", err)
	}
	return group
}

// killedForMemory returns how many processes of the group the kernel killed because they took too much.
func killedForMemory(t testing.TB, group string) int64 {
	t.Helper()
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		counters, err := readCounters(filepath.Join(group, name))
		if err == nil {
			return counters["oom_kill"]
		}
		if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Fatal("the control group does not say how many it killed")
	return 0
}
