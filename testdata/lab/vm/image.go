package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// The recipe is part of the image's key.
//
//go:embed image.go
var recipe string

// packages is a Debian server, and services that the tests switch on.
func packages() []string {
	return strings.Fields(`systemd systemd-sysv dbus udev linux-image-cloud-amd64 openssh-server iproute2 iptables nftables conntrack ethtool socat ebtables kmod
		procps ca-certificates curl libseccomp2 sudo util-linux mount iputils-ping netbase login passwd tar xz-utils zstd less
		nfs-kernel-server nfs-common chrony ipvsadm ipset firewalld ufw network-manager apparmor selinux-basics selinux-policy-default dmsetup`)
}

// disabled are services that their packages enable, and that a test enables where it needs them.
func disabled() []string {
	return strings.Fields("firewalld.service ufw.service NetworkManager.service NetworkManager-wait-online.service nfs-server.service rpcbind.service rpcbind.socket apt-daily.timer apt-daily-upgrade.timer")
}

// diskSize is the size of a machine's disk. The file is sparse.
const diskSize = 16 << 30

// Missing returns the Debian packages that the machines need and that are not installed.
func Missing() []string {
	var missing []string
	for _, need := range []struct{ command, pkg string }{
		{"qemu-system-x86_64", "qemu-system-x86"},
		{"mmdebstrap", "mmdebstrap"},
		{"chronyd", "chrony"},
		{"ip", "iproute2"},
		{"nft", "nftables"},
		{"mkfs.ext4", "e2fsprogs"},
		{"ssh", "openssh-client"},
	} {
		if _, err := exec.LookPath(need.command); err != nil {
			if _, err := os.Stat("/usr/sbin/" + need.command); err != nil {
				missing = append(missing, need.pkg)
			}
		}
	}
	return missing
}

// Check reports, in one error, what keeps this machine from running virtual machines of the lab.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab's virtual machines can only be booted by root")
	}
	var errs []error
	if missing := Missing(); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("the lab's virtual machines need the Debian packages %[1]s: apt-get install --no-install-recommends %[1]s", strings.Join(missing, " ")))
	}
	for _, device := range []string{"/dev/net/tun", "/dev/loop-control"} {
		if err := unix.Access(device, unix.R_OK|unix.W_OK); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", device, err))
		}
	}
	return errors.Join(errs...)
}

// An Image is a directory with a disk, a kernel and its initial file system.
type Image struct{ Dir string }

func (i Image) disk() string   { return filepath.Join(i.Dir, "disk.img") }
func (i Image) kernel() string { return filepath.Join(i.Dir, "vmlinuz") }
func (i Image) initrd() string { return filepath.Join(i.Dir, "initrd.img") }

// Build makes the image that all machines boot from, unless the lab's directory has it: about three minutes.
func Build(ctx context.Context, log io.Writer) (Image, error) {
	if err := Check(); err != nil {
		return Image{}, err
	}
	dir, err := software.DefaultDir()
	if err != nil {
		return Image{}, err
	}
	sum := sha256.Sum256([]byte(recipe))
	image := Image{filepath.Join(dir, "vm-"+hex.EncodeToString(sum[:6]))}
	if _, err := os.Stat(image.Dir); err == nil {
		return image, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Image{}, fmt.Errorf("directory of the lab: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, "making-vm-") // not tmp-: a build of the lab's software removes those
	if err != nil {
		return Image{}, fmt.Errorf("image of the virtual machines: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a whole image has another name
	begin := time.Now()
	fmt.Fprintln(log, "lab: making the image of the virtual machines")
	if err := fill(ctx, tmp, log); err != nil {
		return Image{}, fmt.Errorf("image of the virtual machines: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp, "image"), image.Dir); err != nil {
		return Image{}, fmt.Errorf("image of the virtual machines: %w", err)
	}
	fmt.Fprintf(log, "lab: made it in %s\n", time.Since(begin).Round(time.Second))
	return image, nil
}

// fill makes tmp/image by way of tmp/root.
func fill(ctx context.Context, tmp string, log io.Writer) error {
	root, image := filepath.Join(tmp, "root"), Image{filepath.Join(tmp, "image")}
	if err := os.Mkdir(image.Dir, 0o755); err != nil {
		return err
	}
	if err := command(ctx, log, "", "mmdebstrap", "--quiet", "--variant=minbase", "--include="+strings.Join(packages(), ","), "bookworm", root); err != nil {
		return err
	}
	if err := prepare(ctx, root, log); err != nil {
		return err
	}
	for pattern, to := range map[string]string{"vmlinuz-*": image.kernel(), "initrd.img-*": image.initrd()} {
		files, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(files) != 1 {
			return errors.Join(err, fmt.Errorf("/boot has %d files %s, want 1", len(files), pattern))
		}
		if err := command(ctx, log, "", "cp", files[0], to); err != nil {
			return err
		}
	}
	return command(ctx, log, "", "mkfs.ext4", "-q", "-d", root, image.disk(), fmt.Sprintf("%dk", diskSize>>10))
}

// prepare makes what mmdebstrap left a server that can be reached.
func prepare(ctx context.Context, root string, log io.Writer) error {
	texts := map[string]string{
		"etc/machine-id":                       "",
		"etc/apt/sources.list":                 "",
		"etc/resolv.conf":                      "",
		"etc/default/locale":                   "",
		"etc/fstab":                            "/dev/vda / ext4 errors=remount-ro 0 1\n",
		"etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=persistent\nForwardToConsole=yes\nMaxLevelConsole=notice\n",
		"etc/ssh/sshd_config.d/lab.conf":       "UseDNS no\nMaxStartups 100\nMaxSessions 100\n",
	}
	for name, text := range texts {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.RemoveAll(path), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	keys, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	if err != nil {
		return err
	}
	for _, k := range keys { // every machine has its own
		if err := os.Remove(k); err != nil {
			return err
		}
	}
	chroot := func(input string, args ...string) error {
		return command(ctx, log, input, "chroot", append([]string{root}, args...)...)
	}
	return errors.Join(
		chroot("", append([]string{"systemctl", "disable"}, disabled()...)...),
		chroot("", "systemctl", "enable", "systemd-networkd.service"),
		chroot("", "useradd", "--create-home", "--shell", "/bin/bash", "--groups", "sudo", software.SudoUser),
		chroot(software.SudoUser+":"+software.SudoPassword+"\n", "chpasswd"),
		// Labels are attributes of files, which mkfs.ext4 copies. Without them an enforcing machine would not boot.
		label(ctx, log, root, "/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/sbin", "/srv", "/usr", "/var"),
	)
}

// label gives the files of a machine's file system the labels of Debian's SELinux policy. setfiles needs /proc.
func label(ctx context.Context, log io.Writer, root string, dirs ...string) error {
	const script = `mount -t proc proc "$1/proc" && root=$1 && shift && exec chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts "$@"`
	return command(ctx, log, "", "unshare", append([]string{"--mount", "sh", "-c", script, "sh", root}, dirs...)...)
}

func command(ctx context.Context, log io.Writer, input, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	errs := &capped{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), log, io.MultiWriter(log, errs)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(errs.last))
	}
	return nil
}

// capped keeps the last part of what a command said, for an error.
type capped struct{ last []byte }

func (c *capped) Write(p []byte) (int, error) {
	const most = 2000
	c.last = append(c.last, p...)
	c.last = c.last[max(0, len(c.last)-most):]
	return len(p), nil
}
