package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// Options say what Up boots.
type Options struct {
	State string `json:"-"` // directory for keys, disks and logs; a lab is known by it
	Image Image
	Hosts int
	// Containers are the numbers of hosts that are no virtual machines: package hosts boots them, of RootFS.
	Containers []int
	RootFS     string
	Groups     hosts.Groups // as in package hosts
	Memory     int          // of each machine, in MiB
	// KernelArgs are added to the kernel's command line of every machine.
	KernelArgs string
	Log        io.Writer `json:"-"`
}

// A Lab is a network of virtual machines. Its embedded Lab reaches them; only Down, Start, Kill and Stop differ.
type Lab struct {
	*hosts.Lab

	o Options
}

// bootTime is how long a machine may take until it answers over SSH: 72 s with amd64 on a busy machine of two
// processors. An arm64 machine did not answer within ten minutes at load 35.
const bootTime = 30 * time.Minute

// Up boots the machines of a new lab and returns when all of them answer over SSH. Down removes what a failed or
// killed Up left.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := Check(o.Image.Arch); err != nil {
		return nil, err
	}
	network, err := hosts.Prepare(ctx, hosts.Options{
		State: o.State, RootFS: o.RootFS, Hosts: o.Hosts, Groups: o.Groups,
		Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	l := &Lab{Lab: network, o: o}
	if err := l.save(); err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	for _, step := range []func(context.Context, hosts.Host) error{l.make, l.boot, l.wait} {
		for _, h := range l.Hosts {
			if err := step(ctx, h); err != nil {
				return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
			}
		}
	}
	return l, nil
}

// Open finds the lab that Up booted with this state directory.
func Open(state string, log io.Writer) (*Lab, error) {
	network, err := hosts.Open(state, log)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(network.State, optionsFile))
	if err != nil {
		return nil, fmt.Errorf("no lab of virtual machines is up: %w", err)
	}
	l := &Lab{Lab: network}
	if err := json.Unmarshal(data, &l.o); err != nil {
		return nil, fmt.Errorf("%s: %w", optionsFile, err)
	}
	return l, nil
}

const optionsFile = "vm.json"

func (l *Lab) save() error {
	data, err := json.Marshal(l.o)
	if err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	return os.WriteFile(filepath.Join(l.State, optionsFile), data, 0o644)
}

// seed puts a machine's own files on its disk, in a mount namespace of its own: nothing stays mounted, whatever
// happens.
const seed = `set -e
mount -o loop "$DISK" "$MNT"
mount -t proc proc "$MNT/proc"
cp -r --preserve=mode "$SEED/." "$MNT"
printf '[Match]\nName=eth0\n[Network]\nAddress=%s/24\nIPv6AcceptRA=no\n' "$ADDRESS" > "$MNT/etc/systemd/network/10-lab.network"
chown -R root:root "$MNT/root" "$MNT/etc/ssh"
chown -R --reference="$MNT/home/ops" "$MNT/home/ops"
policy=/etc/selinux/default/contexts/files/file_contexts
if [ -e "$MNT$policy" ]; then chroot "$MNT" setfiles -F -e /proc -e /usr -e /var -e /boot "$policy" /; fi
umount "$MNT/proc" "$MNT"
`

// isContainer reports whether a host is no virtual machine.
func (l *Lab) isContainer(h hosts.Host) bool { return slices.Contains(l.o.Containers, h.Number) }

// make makes what a machine needs before it boots.
func (l *Lab) make(ctx context.Context, h hosts.Host) error {
	if l.isContainer(h) {
		return nil
	}
	return errors.Join(l.disk(ctx, h), l.port(ctx, h))
}

// disk makes the machine's disk: a copy of the image with the files of this machine.
func (l *Lab) disk(ctx context.Context, h hosts.Host) error {
	disk, mnt := l.file(h, "disk.img"), l.file(h, "mnt")
	if err := os.MkdirAll(mnt, 0o755); err != nil {
		return fmt.Errorf("disk of %s: %w", h.Name, err)
	}
	for _, args := range [][]string{
		{"cp", "--sparse=always", "--reflink=auto", l.o.Image.disk(), disk},
		{
			"env", "DISK=" + disk, "MNT=" + mnt, "SEED=" + l.SeedDir(h), "ADDRESS=" + h.Address, "unshare", "--mount",
			"sh", "-c", seed,
		},
	} {
		if err := command(ctx, io.Discard, "", args[0], args[1:]...); err != nil {
			return fmt.Errorf("disk of %s: %w", h.Name, err)
		}
	}
	return nil
}

// port connects a machine to the lab's bridge.
func (l *Lab) port(ctx context.Context, h hosts.Host) error {
	for _, args := range [][]string{
		{"tuntap", "add", "dev", l.Port(h), "mode", "tap"},
		{"link", "set", l.Port(h), "master", hosts.Bridge},
		{"link", "set", l.Port(h), "up"},
	} {
		if out, err := l.Command(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("network of %s: ip %s: %w: %s", h.Name, strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// Start switches a machine on and waits until it answers over SSH.
func (l *Lab) Start(ctx context.Context, h hosts.Host) error {
	if err := l.boot(ctx, h); err != nil {
		return err
	}
	return l.wait(ctx, h)
}

func (l *Lab) boot(ctx context.Context, h hosts.Host) error {
	if l.isContainer(h) {
		return l.Lab.Start(ctx, h)
	}
	if l.pid(h) != 0 {
		return fmt.Errorf("%s is on already", h.Name)
	}
	log, err := os.OpenFile(l.file(h, "qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	defer log.Close()
	// Writes that the guest has finished are in this machine's page cache, which survives the end of QEMU. So
	// cache=unsafe only spares this machine's disk.
	console, args := l.o.Image.hardware()
	cmd := l.Command(context.WithoutCancel(ctx), emulator(l.o.Image.Arch), append(args, "-name", h.Name, "-smp", "2",
		"-m", strconv.Itoa(l.o.Memory), "-kernel", l.o.Image.kernel(), "-initrd", l.o.Image.initrd(),
		"-append", strings.TrimSpace("root=/dev/vda rw net.ifnames=0 console="+console+" "+l.o.KernelArgs),
		"-drive", "file="+l.file(h, "disk.img")+",format=raw,if=virtio,cache=unsafe",
		"-netdev", "tap,id=n0,script=no,downscript=no,ifname="+l.Port(h),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n0,mac=02:00:0a:fa:00:%02x", h.Number),
		"-device", "virtio-rng-pci", "-display", "none", "-serial", "file:"+l.file(h, "console.log"),
		"-qmp", "unix:"+l.file(h, "qmp")+",server=on,wait=off", "-pidfile", l.file(h, "pid"))...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives us
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	go func() { _ = cmd.Wait() }() // reaps it if we live on
	for range 100 {
		if l.pid(h) != 0 {
			return favour(l.pid(h))
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("start %s: QEMU ended; see %s", h.Name, log.Name())
}

// favour gives a machine's session the processors first. The kernel weighs sessions against each other, whatever
// their processes' nice value: beside a few programs that compile, a machine in a session of its own did not boot
// within ten minutes.
func favour(pid int) error {
	const niceness = "-10"
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(niceness), 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the kernel has no such groups
	}
	return err
}

// hardware returns the name of the console and the machine's kind. Without KVM, a processor of Arm's own is faster
// than "max", whose pointer authentication is emulated.
func (i Image) hardware() (console string, args []string) {
	accel := "tcg,thread=multi,tb-size=1024"
	if i.Arch == runtime.GOARCH && os.Getenv("KKBUNDLE_VM_ACCEL") == "kvm" {
		accel = "kvm"
	}
	if i.Arch == "arm64" {
		return "ttyAMA0", []string{"-accel", accel, "-machine", "virt,gic-version=3", "-cpu", "neoverse-n1"}
	}
	return "ttyS0", []string{"-accel", accel, "-cpu", "max"}
}

func (l *Lab) wait(ctx context.Context, h hosts.Host) error {
	if l.isContainer(h) {
		return nil // it answers since it was booted
	}
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		out, err := l.SSH(ctx, h, "true").CombinedOutput()
		switch {
		case err == nil:
			return nil
		case l.pid(h) == 0:
			return fmt.Errorf("%s is off; see %s", h.Name, l.file(h, "qemu.log"))
		case ctx.Err() != nil:
			return fmt.Errorf("%s does not answer: %w: %s; see %s", h.Name, err, out, l.file(h, "console.log"))
		}
		time.Sleep(time.Second)
	}
}

// Kill pulls a machine's plug. Its disk stays.
func (l *Lab) Kill(h hosts.Host) error {
	for range 100 {
		pid := l.pid(h)
		if pid == 0 {
			return nil
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s: %w", h.Name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("end %s: process %d does not end", h.Name, l.pid(h))
}

// Reboot restarts a machine in order and waits until it answers again.
func (l *Lab) Reboot(ctx context.Context, h hosts.Host) error {
	const boot = "cat /proc/sys/kernel/random/boot_id"
	before, err := l.SSH(ctx, h, boot).Output()
	if err != nil {
		return fmt.Errorf("reboot %s: %w", h.Name, err)
	}
	_ = l.SSH(ctx, h, "systemctl reboot").Run() // the connection may end first
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		if now, err := l.SSH(ctx, h, boot).Output(); err == nil && string(now) != string(before) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("reboot %s: it does not answer; see %s", h.Name, l.file(h, "console.log"))
		}
		time.Sleep(time.Second)
	}
}

// Pause stops a machine's processors and its clock for a time, as a hypervisor does for a snapshot. Its clock is
// behind then.
func (l *Lab) Pause(ctx context.Context, h hosts.Host, d time.Duration) error {
	if err := l.monitor(ctx, h, "stop"); err != nil {
		return err
	}
	time.Sleep(d)
	return l.monitor(ctx, h, "cont")
}

// monitor gives QEMU a command without arguments.
// https://www.qemu.org/docs/master/interop/qmp-spec.html
func (l *Lab) monitor(ctx context.Context, h hosts.Host, name string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", l.file(h, "qmp"))
	if err != nil {
		return fmt.Errorf("monitor of %s: %w", h.Name, err)
	}
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	lines.Scan() // the greeting
	for _, command := range []string{"qmp_capabilities", name} {
		if _, err := fmt.Fprintf(conn, "{\"execute\": %q}\n", command); err != nil {
			return fmt.Errorf("monitor of %s: %w", h.Name, err)
		}
		var answer struct{ Return, Error any }
		for answer.Return == nil && lines.Scan() { // events come in between
			if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
				return fmt.Errorf("monitor of %s: %w", h.Name, err)
			}
			if answer.Error != nil {
				return fmt.Errorf("monitor of %s: %s: %v", h.Name, command, answer.Error)
			}
		}
		if answer.Return == nil {
			return errors.Join(fmt.Errorf("monitor of %s: %s: no answer", h.Name, command), lines.Err())
		}
	}
	return nil
}

// Down ends the machines and removes everything of the lab. It may be called again, and after a crash of anything.
func (l *Lab) Down(ctx context.Context) error {
	var errs []error
	for _, h := range l.Hosts {
		if !l.isContainer(h) {
			errs = append(errs, l.Kill(h))
		}
	}
	if err := errors.Join(append(errs, l.Lab.Down(ctx))...); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(l.State, optionsFile))
}

// pid returns the number of a machine's QEMU process, or 0 if the machine is off.
func (l *Lab) pid(h hosts.Host) int {
	data, err := os.ReadFile(l.file(h, "pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	// The number may have gone to another process.
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), l.file(h, "pid")) {
		return 0
	}
	return pid
}

func (l *Lab) file(h hosts.Host, name string) string { return filepath.Join(l.HostDir(h), name) }
