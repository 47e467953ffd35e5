package node

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine reads name and processors of the machine.
func (c machineCollector) machine() {
	f := &c.facts
	var u unix.Utsname
	c.problem("uname", unix.Uname(&u))
	f.Kernel = unix.ByteSliceToString(u.Release[:])
	f.Machine = unix.ByteSliceToString(u.Machine[:])
	f.Hostname = unix.ByteSliceToString(u.Nodename[:])
	switch f.Machine {
	case "x86_64":
		f.Arch = "amd64"
	case "aarch64", "arm64":
		f.Arch = "arm64"
	}
	f.MachineID = c.line("/etc/machine-id")
	f.ProductUUID = strings.ToLower(c.quiet("/sys/class/dmi/id/product_uuid"))
	f.CPUs = runtime.NumCPU()
	f.OnlineCPUs = ranges(c.quiet("/sys/devices/system/cpu/online"))
	for line := range strings.Lines(c.text("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			f.CPUModel = strings.TrimSpace(value)
			break
		}
	}
}

// ranges counts the numbers of a list such as 0-3,8.
func ranges(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA == nil && errB == nil && a <= b {
			n += int(b-a) + 1
		}
	}
	return n
}

// limits reads the limits shared by all programs.
func (c machineCollector) limits() {
	at := func(name string) int64 { return number(c.quiet("/proc/sys/" + name)) }
	c.facts.Limits = Limits{
		InotifyInstances: at("fs/inotify/max_user_instances"), InotifyWatches: at("fs/inotify/max_user_watches"),
		OpenFiles: at("fs/file-max"), PIDs: at("kernel/pid_max"), Entropy: at("kernel/random/entropy_avail"),
	}
}

// disks lists block devices, except those backed by files or memory.
func (c *storageCollector) disks() {
	const most, sector = 200, 512
	entries, err := os.ReadDir(c.path("/sys/block"))
	c.problem("/sys/block", err)
	for _, e := range entries {
		name := e.Name()
		size := number(c.quiet("/sys/block/"+name+"/size")) * sector
		if size <= 0 || len(c.facts.Disks) == most || isBackedElsewhere(name) {
			continue
		}
		d := Disk{Name: name, Size: size, Model: c.quiet("/sys/block/" + name + "/device/model")}
		d.Rotational = c.quiet("/sys/block/"+name+"/queue/rotational") == "1"
		d.ReadOnly = c.quiet("/sys/block/"+name+"/ro") == "1"
		d.Removable = c.quiet("/sys/block/"+name+"/removable") == "1"
		d.Used = c.isUsed("/sys/block/"+name, name)
		parts, err := filepath.Glob(c.path("/sys/block/" + name + "/*/partition"))
		c.problem(name, err)
		for _, p := range parts {
			part := filepath.Base(filepath.Dir(p))
			d.Partitions = append(d.Partitions, part)
			d.Used = d.Used || c.isUsed("/sys/block/"+name+"/"+part, part)
		}
		c.facts.Disks = append(c.facts.Disks, d)
	}
}

func isBackedElsewhere(disk string) bool {
	return slices.ContainsFunc([]string{"loop", "ram", "zram", "nbd", "fd"}, func(p string) bool {
		number, ok := strings.CutPrefix(disk, p)
		return ok && strings.Trim(number, "0123456789") == ""
	})
}

// isUsed reports whether a device is mounted, used for swap, or part of another one.
func (c *storageCollector) isUsed(dir, name string) bool {
	holders, err := os.ReadDir(c.path(dir + "/holders"))
	if (err == nil && len(holders) > 0) || c.mounted[c.quiet(dir+"/dev")] || c.mounted["/dev/"+name] {
		return true
	}
	return slices.ContainsFunc(c.facts.Swaps, func(s Swap) bool { return s.Name == "/dev/"+name })
}

// users looks up local users: users of a directory service cannot own kubeadm's files before the network is up.
func (c machineCollector) users() {
	for line := range strings.Lines(c.text("/etc/passwd")) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 7 || !slices.Contains(c.probe.Users, f[0]) {
			continue
		}
		put(&c.facts.Users, f[0], User{UID: int(number(f[2])), GID: int(number(f[3])), Home: f[5], Shell: f[6]})
	}
}

// virtualization asks systemd or, without it, checks the firmware's name of the machine.
func (c machineCollector) virtualization(ctx context.Context) {
	if c.find("systemd-detect-virt") != "" {
		out, _ := c.run(ctx, "systemd-detect-virt") // "none" comes with exit code 1
		if word := strings.TrimSpace(string(out)); word != "" && !strings.ContainsAny(word, " \n") {
			c.facts.Virtualization = word
			return
		}
	}
	c.facts.Virtualization = c.firmware()
}

func (c machineCollector) firmware() string {
	if name := c.quiet("/run/systemd/container"); name != "" {
		return name
	}
	for _, sign := range []struct{ file, name string }{{"/.dockerenv", "docker"}, {"/run/.containerenv", "podman"}} {
		if _, err := os.Stat(c.path(sign.file)); err == nil {
			return sign.name
		}
	}
	maker := c.quiet("/sys/class/dmi/id/sys_vendor") + " " + c.quiet("/sys/class/dmi/id/product_name")
	for _, known := range []struct{ word, name string }{
		{"KVM", "kvm"},
		{"QEMU", "qemu"},
		{"VMware", "vmware"},
		{"VirtualBox", "oracle"},
		{"Xen", "xen"},
		{"Microsoft Corporation Virtual Machine", "microsoft"},
		{"Amazon EC2", "amazon"},
		{"Google Compute Engine", "google"},
	} {
		if strings.Contains(maker, known.word) {
			return known.name
		}
	}
	switch {
	case strings.Contains(c.text("/proc/cpuinfo"), " hypervisor"):
		return "vm-other"
	case strings.TrimSpace(maker) != "":
		return "none"
	default:
		return ""
	}
}
