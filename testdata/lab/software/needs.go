package software

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// A need is a Debian package and a file that is there when it is installed: a command if it has no slash.
type need struct{ file, pkg string }

func needs(small bool) []need {
	if small {
		return nil
	}
	return []need{
		{"gcc", "gcc"},
		{"pkg-config", "pkg-config"},
		{"/usr/include/seccomp.h", "libseccomp-dev"},
		{"/usr/include/stdio.h", "libc6-dev"},
		{"/var/lib/dpkg/info/busybox-static.list", "busybox-static"},
		{"mmdebstrap", "mmdebstrap"},
		{"systemd-nspawn", "systemd-container"},
		{"ip", "iproute2"},
		{"nft", "nftables"},
		{"mkfs.ext4", "e2fsprogs"},
		{"ssh", "openssh-client"},
		{"bash", "bash"},
		{"mount", "mount"},
	}
}

// Missing returns the Debian packages that Build, or the lab's hosts, need and that are not installed.
func Missing(small bool) []string {
	var missing []string
	for _, n := range needs(small) {
		if !installed(n.file) {
			missing = append(missing, n.pkg)
		}
	}
	return missing
}

func installed(file string) bool {
	if filepath.IsAbs(file) {
		_, err := os.Stat(file)
		return err == nil
	}
	if _, err := exec.LookPath(file); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // not in every user's PATH
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return true
		}
	}
	return false
}

// Install installs what is Missing with apt-get. It needs root, and does nothing when nothing is missing.
func Install(ctx context.Context, small bool, log io.Writer) error {
	missing := Missing(small)
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing %q: run as root, or install them", missing)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing %q: %w", missing, err)
	}
	update := exec.CommandContext(ctx, "apt-get", "-q", "update")
	install := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "install", "-y", "--no-install-recommends"},
		missing...)...)
	for _, cmd := range []*exec.Cmd{update, install} {
		// RUNLEVEL=1: services that come with a package are not started.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return errors.Join(fmt.Errorf("%v: %w", cmd.Args, err))
		}
	}
	if missing := Missing(small); len(missing) > 0 {
		return fmt.Errorf("still missing after apt-get install: %q", missing)
	}
	return nil
}
