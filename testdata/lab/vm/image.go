package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// The recipe is part of the image's key.
//
//go:embed image.go foreign.go
var recipe embed.FS

// packages is a Debian server, and services that the tests switch on. A machine of another architecture has none of
// these: its packages are set up by emulated programs, which takes long.
func packages(arch string) []string {
	server := strings.Fields(`systemd systemd-sysv dbus udev openssh-server iproute2 iptables nftables conntrack ethtool socat ebtables kmod
		procps ca-certificates curl libseccomp2 sudo util-linux mount iputils-ping netbase login passwd tar xz-utils zstd less chrony`)
	server = append(server, "linux-image-cloud-"+arch)
	if arch != runtime.GOARCH {
		return server
	}
	return append(server, strings.Fields(
		`nfs-kernel-server nfs-common ipvsadm ipset firewalld ufw network-manager apparmor selinux-basics selinux-policy-default dmsetup`)...)
}

// disabled are services that their packages enable, and that a test enables where it needs them.
func disabled(arch string) []string {
	timers := strings.Fields("apt-daily.timer apt-daily-upgrade.timer")
	if arch != runtime.GOARCH {
		return timers
	}
	return append(timers, strings.Fields(
		"firewalld.service ufw.service NetworkManager.service NetworkManager-wait-online.service nfs-server.service rpcbind.service rpcbind.socket")...)
}

// diskSize is the size of a machine's disk. The file is sparse.
const diskSize = 16 << 30

// Missing returns the Debian packages that machines of an architecture need and that are not installed.
func Missing(arch string) []string {
	needs := []struct{ command, pkg string }{
		{emulator("amd64"), "qemu-system-x86"},
		{"mmdebstrap", "mmdebstrap"},
		{"chronyd", "chrony"},
		{"ip", "iproute2"},
		{"nft", "nftables"},
		{"mkfs.ext4", "e2fsprogs"},
		{"ssh", "openssh-client"},
	}
	if arch == "arm64" {
		needs[0].command, needs[0].pkg = emulator(arch), "qemu-system-arm"
	}
	if arch != runtime.GOARCH {
		needs = append(needs, foreignNeeds(arch)...)
	}
	var missing []string
	for _, need := range needs {
		if _, err := exec.LookPath(need.command); err != nil {
			if _, err := os.Stat("/usr/sbin/" + need.command); err != nil {
				missing = append(missing, need.pkg)
			}
		}
	}
	return missing
}

// emulator is QEMU's program for an architecture.
func emulator(arch string) string {
	if arch == "arm64" {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// Check reports, in one error, what keeps this machine from running virtual machines of an architecture.
func Check(arch string) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab's virtual machines can only be booted by root")
	}
	var errs []error
	if missing := Missing(arch); len(missing) > 0 {
		errs = append(errs, fmt.Errorf(
			"the lab's virtual machines need the Debian packages %[1]s: apt-get install --no-install-recommends %[1]s",
			strings.Join(missing, " ")))
	}
	for _, device := range []string{"/dev/net/tun", "/dev/loop-control"} {
		if err := unix.Access(device, unix.R_OK|unix.W_OK); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", device, err))
		}
	}
	return errors.Join(errs...)
}

// An Image is a directory with a disk, a kernel and its initial file system, for an architecture in Go's spelling.
type Image struct{ Dir, Arch string }

func (i Image) disk() string   { return filepath.Join(i.Dir, "disk.img") }
func (i Image) kernel() string { return filepath.Join(i.Dir, "vmlinuz") }
func (i Image) initrd() string { return filepath.Join(i.Dir, "initrd.img") }

// Build makes the image that all machines of an architecture boot from, unless the lab's directory has it: about
// three minutes for this machine's own, ten for another one.
func Build(ctx context.Context, arch string, log io.Writer) (Image, error) {
	if err := Check(arch); err != nil {
		return Image{}, err
	}
	dir, err := software.DefaultDir()
	if err != nil {
		return Image{}, err
	}
	sum := sha256.New()
	for _, name := range []string{"image.go", "foreign.go"} {
		text, err := recipe.ReadFile(name)
		if err != nil {
			return Image{}, err
		}
		sum.Write(text)
	}
	image := Image{filepath.Join(dir, "vm-"+arch+"-"+hex.EncodeToString(sum.Sum(nil)[:6])), arch}
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
	fmt.Fprintf(log, "lab: making the image of virtual machines with %s\n", arch)
	if err := (filling{tmp, arch, log}).fill(ctx); err != nil {
		return Image{}, fmt.Errorf("image of the virtual machines: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp, "image"), image.Dir); err != nil {
		return Image{}, fmt.Errorf("image of the virtual machines: %w", err)
	}
	fmt.Fprintf(log, "lab: made it in %s\n", time.Since(begin).Round(time.Second))
	return image, nil
}

// A filling is the work on an image in a directory.
type filling struct {
	dir, arch string
	log       io.Writer
}

// root is the machine's file system before it is on a disk.
func (f filling) root() string { return filepath.Join(f.dir, "root") }

// fill makes image, in the directory.
func (f filling) fill(ctx context.Context) error {
	image := Image{filepath.Join(f.dir, "image"), f.arch}
	if err := os.Mkdir(image.Dir, 0o755); err != nil {
		return err
	}
	if err := f.run(ctx, "", "mmdebstrap", "--quiet", "--variant=minbase", "--architectures="+f.arch, "--include="+
		strings.Join(packages(f.arch), ","),
		"--dpkgopt=force-unsafe-io", "--essential-hook="+fewModules, "bookworm", f.root()); err != nil {
		return err
	}
	if err := f.prepare(ctx); err != nil {
		return err
	}
	for pattern, to := range map[string]string{"vmlinuz-*": image.kernel(), "initrd.img-*": image.initrd()} {
		files, err := filepath.Glob(filepath.Join(f.root(), "boot", pattern))
		if err != nil || len(files) != 1 {
			return errors.Join(err, fmt.Errorf("/boot has %d files %s, want 1", len(files), pattern))
		}
		if err := command(ctx, f.log, "", "cp", files[0], to); err != nil {
			return err
		}
	}
	return command(ctx, f.log, "", "mkfs.ext4", "-q", "-d", f.root(), image.disk(), fmt.Sprintf("%dk", diskSize>>10))
}

// fewModules limits the initial file system to the modules of a machine's disk: each module more is several emulated
// programs.
const fewModules = `mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d" &&
	echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab" && printf '%s\n' virtio_pci virtio_blk ext4 >"$1/usr/share/initramfs-tools/modules.d/lab"`

// prepare makes what mmdebstrap left a server that can be reached.
func (f filling) prepare(ctx context.Context) error {
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
		path := filepath.Join(f.root(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.RemoveAll(path),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	keys, err := filepath.Glob(filepath.Join(f.root(), "etc/ssh/ssh_host_*"))
	if err != nil {
		return err
	}
	for _, k := range keys { // every machine has its own
		if err := os.Remove(k); err != nil {
			return err
		}
	}
	chroot := func(input string, args ...string) error {
		return f.run(ctx, input, "chroot", append([]string{f.root()}, args...)...)
	}
	return errors.Join(
		chroot("", append([]string{"systemctl", "disable"}, disabled(f.arch)...)...),
		chroot("", "systemctl", "enable", "systemd-networkd.service"),
		chroot("", "useradd", "--create-home", "--shell", "/bin/bash", "--groups", "sudo", software.SudoUser),
		chroot(software.SudoUser+":"+software.SudoPassword+"\n", "chpasswd"),
		f.label(ctx, "/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/sbin", "/srv", "/usr",
			"/var"),
	)
}

// label gives the files of a machine's file system the labels of Debian's SELinux policy, if it is installed:
// mkfs.ext4 copies them, and without them an enforcing machine would not boot. setfiles needs /proc.
func (f filling) label(ctx context.Context, dirs ...string) error {
	if f.arch != runtime.GOARCH {
		return nil
	}
	const script = `mount -t proc proc "$1/proc" && root=$1 && shift && exec chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts "$@"`
	return command(ctx, f.log, "", "unshare", append([]string{"--mount", "sh", "-c", script, "sh", f.root()},
		dirs...)...)
}

// run runs a command, and programs of the image's architecture below it.
func (f filling) run(ctx context.Context, input, name string, args ...string) error {
	if f.arch == runtime.GOARCH {
		return command(ctx, f.log, input, name, args...)
	}
	return f.foreign(ctx, input, name, args...)
}

func command(ctx context.Context, log io.Writer, input, name string, args ...string) error {
	return runLogged(exec.CommandContext(ctx, name, args...), log, input)
}

// runLogged runs a command. Its error contains the end of the command's output.
func runLogged(cmd *exec.Cmd, log io.Writer, input string) error {
	errs := &capped{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), log, io.MultiWriter(log, errs)
	cmd.Env = append(cmd.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Args[0], err, bytes.TrimSpace(errs.last))
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
