package hosts

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Check says, in one error, everything that keeps this machine from running a lab. It changes nothing that lasts.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab's hosts can only be booted by root")
	}
	var errs []error
	for _, c := range []string{"systemd-nspawn", "ip", "nft", "mkfs.ext4", "mount", "ssh", "bash"} {
		if _, err := exec.LookPath(c); err != nil {
			if _, err := os.Stat("/usr/sbin/" + c); err != nil {
				errs = append(errs, fmt.Errorf("%s is missing: `go run . needs` installs it", c))
			}
		}
	}
	return errors.Join(append(errs, checkCgroups(), checkOverlay(), checkLoop())...)
}

// checkCgroups tries whether this process may make groups where it is in each v1 hierarchy.
func checkCgroups() error {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	defer f.Close()
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue // the v2 hierarchy
		}
		controller := strings.TrimPrefix(fields[1], "name=")
		dir, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", controller, fields[2]), "kklab-check-")
		if err != nil {
			return fmt.Errorf("cgroup hierarchy %s is not writable, the lab needs cgroup v1: %w", controller, err)
		}
		if err := os.Remove(dir); err != nil {
			return fmt.Errorf("cgroups: %w", err)
		}
		seen[controller] = true
	}
	for _, c := range []string{"systemd", "memory", "cpu", "cpuset", "pids"} {
		if !seen[c] {
			return fmt.Errorf("cgroup hierarchy %s is missing: the lab runs on machines with cgroup v1 only (systemd.unified_cgroup_hierarchy=0)", c)
		}
	}
	return lines.Err()
}

func checkOverlay() error {
	list, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("file systems: %w", err)
	}
	if !strings.Contains(string(list), "\toverlay\n") {
		return errors.New("the kernel has no overlay file system (modprobe overlay)")
	}
	return nil
}

func checkLoop() error {
	if err := unix.Access("/dev/loop-control", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("no loop devices for the hosts' disks: /dev/loop-control: %w", err)
	}
	return nil
}
