package software

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// SudoUser may become root on the lab's hosts with SudoPassword. The hosts are in a network of their own, so that the
// password is no secret.
const (
	SudoUser     = "ops"
	SudoPassword = "no-way-out"
)

//go:embed root/lab-init
var labInit string

// What is done to the root file system is part of its key.
//
//go:embed rootfs.go
var rootfsSource string

// packages is a Debian server as an administrator leaves it for Kubernetes: reachable, and with what kubeadm's
// preflight asks for.
func packages() []string {
	return strings.Fields(`systemd systemd-sysv dbus udev openssh-server iproute2 iptables nftables conntrack ethtool socat ebtables kmod
		procps ca-certificates curl libseccomp2 sudo util-linux mount iputils-ping netbase login passwd tar xz-utils zstd less`)
}

// masked are units that make no sense in a container, or that would change the machine around it.
func masked() []string {
	return strings.Fields(`systemd-sysctl.service systemd-modules-load.service systemd-udevd.service systemd-udev-trigger.service
		systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-resolved.service systemd-networkd.service
		systemd-timesyncd.service getty.target console-getty.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
		e2scrub_all.timer fstrim.timer sys-kernel-debug.mount sys-kernel-tracing.mount`)
}

// rootFS makes the root file system that all hosts share, below their own changes.
func (b *builder) rootFS(ctx context.Context) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("the root file system of the lab's hosts can only be made by root")
	}
	key, err := keyOf("rootfs", rootfsSource, labInit, kernelRelease())
	if err != nil {
		return "", err
	}
	return b.output("rootfs", key, func(tmp string) error {
		cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+
			strings.Join(packages(), ","), "bookworm", tmp)
		cmd.Stdout, cmd.Stderr = b.log, b.log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("mmdebstrap: %w", err)
		}
		return b.prepare(ctx, tmp)
	})
}

func (b *builder) prepare(ctx context.Context, root string) error {
	texts := map[string]string{
		"sbin/lab-init":                        labInit,
		"etc/machine-id":                       "",
		"etc/apt/sources.list":                 "",
		"etc/resolv.conf":                      "",
		"etc/default/locale":                   "",
		"etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=volatile\nReadKMsg=no\n",
		"etc/systemd/system.conf.d/lab.conf":   "[Manager]\nDefaultTimeoutStopSec=5s\n",
		"etc/ssh/sshd_config.d/lab.conf":       "UseDNS no\nMaxStartups 100\nMaxSessions 100\n",
	}
	for name, text := range texts {
		if err := writeFile(filepath.Join(root, name), text); err != nil {
			return fmt.Errorf("prepare the root file system: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "sbin/lab-init"), 0o755); err != nil {
		return fmt.Errorf("prepare the root file system: %w", err)
	}
	for _, u := range masked() {
		link := filepath.Join(root, "etc/systemd/system", u)
		if err := errors.Join(ignoreMissing(os.Remove(link)), os.Symlink("/dev/null", link)); err != nil {
			return fmt.Errorf("prepare the root file system: %w", err)
		}
	}
	keys, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	if err != nil {
		return err
	}
	for _, k := range keys { // every host has its own
		if err := os.Remove(k); err != nil {
			return fmt.Errorf("prepare the root file system: %w", err)
		}
	}
	if err := modules(ctx, root); err != nil {
		return err
	}
	useradd := exec.CommandContext(ctx, "chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "--groups",
		"sudo", SudoUser)
	chpasswd := exec.CommandContext(ctx, "chroot", root, "chpasswd")
	chpasswd.Stdin = strings.NewReader(SudoUser + ":" + SudoPassword + "\n")
	for _, cmd := range []*exec.Cmd{useradd, chpasswd} {
		cmd.Stdout, cmd.Stderr = b.log, b.log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("prepare the root file system: %v: %w", cmd.Args[2:], err)
		}
	}
	return nil
}

// modules makes modprobe content: what a node loads is part of this kernel, or does not exist in it.
func modules(ctx context.Context, root string) error {
	dir := filepath.Join(root, "lib/modules", kernelRelease())
	var list strings.Builder
	for _, m := range []string{
		"fs/overlayfs/overlay", "net/bridge/br_netfilter", "net/netfilter/nf_conntrack",
		"net/netfilter/nf_tables", "drivers/net/vxlan/vxlan",
	} {
		fmt.Fprintf(&list, "kernel/%s.ko\n", m)
	}
	for _, name := range []string{"modules.builtin", "modules.order"} {
		if err := writeFile(filepath.Join(dir, name), list.String()); err != nil {
			return fmt.Errorf("prepare the root file system: %w", err)
		}
	}
	if out, err := exec.CommandContext(ctx, "chroot", root, "depmod", kernelRelease()).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w: %s", err, out)
	}
	return nil
}

func writeFile(name, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), ignoreMissing(os.Remove(name)),
		os.WriteFile(name, []byte(text), 0o644))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
