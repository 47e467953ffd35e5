package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Down kills the lab's hosts and removes their processes, mounts, disks, cgroups and networks. It may be called
// again, and after a crash of anything.
func (l *Lab) Down(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(l.State, "lab.json")); errors.Is(err, os.ErrNotExist) {
		return nil // it goes last
	}
	start := time.Now()
	var group errgroup.Group
	for _, h := range l.Hosts {
		group.Go(func() error { return l.remove(ctx, h) })
	}
	err := group.Wait()
	for _, h := range l.Hosts {
		out, cleanErr := l.script(ctx, h, "clean").CombinedOutput()
		if cleanErr != nil {
			err = errors.Join(err, fmt.Errorf("clean %s: %w: %s", h.Name, cleanErr, out))
		}
	}
	if _, statErr := os.Stat("/run/netns/" + l.netns()); statErr == nil {
		err = errors.Join(err, run(ctx, "ip", "netns", "del", l.netns()))
	}
	if err != nil {
		return err
	}
	hosts := filepath.Join(l.State, "hosts")
	if m, err := mountsBelow(hosts); err != nil || len(m) > 0 {
		return errors.Join(err, fmt.Errorf("still mounted: %q", m))
	}
	for _, name := range []string{
		"hosts", "host.sh", "id_ed25519", "id_ed25519.pub", "known_hosts", "inventory.yaml",
		"sudo-password", "lab.json",
	} {
		if err := os.RemoveAll(filepath.Join(l.State, name)); err != nil {
			return fmt.Errorf("remove the lab: %w", err)
		}
	}
	l.say("down after %s", time.Since(start).Round(100*time.Millisecond))
	return nil
}

// remove ends what runs of a host: normally its supervisor goes when the host does.
func (l *Lab) remove(ctx context.Context, h Host) error {
	nspawn, supervisor := l.process(h, "nspawn"), l.process(h, "supervisor")
	if err := l.Kill(ctx, h); err != nil {
		return err
	}
	if init := l.initOf(h); init > 0 { // its supervisor was killed
		_ = syscall.Kill(init, syscall.SIGKILL) // gone if this fails
	}
	for _, p := range []process{nspawn, supervisor} {
		deadline := time.Now().Add(10 * time.Second)
		for running(p) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d of %s does not end", p.pid, h.Name)
			}
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end %s: %w", h.Name, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// mountsBelow returns the mount points in a directory, the deepest first.
func mountsBelow(dir string) ([]string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	var mounts []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			mounts = append(mounts, f[4])
		}
	}
	slices.Sort(mounts)
	slices.Reverse(mounts)
	return mounts, nil
}
