package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Collect looks at the machine it runs on. It changes nothing and asks nobody else. What cannot be looked at is listed
// in Facts.Problems; the error is ctx's, or that the Probe asks for too much.
func Collect(ctx context.Context, p Probe) (Facts, error) {
	return (&collector{root: "/", probe: p, run: runProgram}).collect(ctx)
}

// maxAsked bounds each list of a Probe.
const maxAsked = 1000

// ReadProbe reads a Probe; nothing at all is an empty one.
func ReadProbe(r io.Reader) (Probe, error) {
	const most = 1 << 20
	var p Probe
	data, err := io.ReadAll(io.LimitReader(r, most))
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("read the probe: %w", err)
	}
	return p, nil
}

// A collector gathers facts below a root, which is / but in tests.
type collector struct {
	root  string
	probe Probe
	run   func(ctx context.Context, args ...string) ([]byte, error)
	facts Facts
}

func (c *collector) collect(ctx context.Context) (Facts, error) {
	p := c.probe
	for _, n := range []int{
		len(p.Dirs), len(p.Ports), len(p.UDPPorts), len(p.Units), len(p.Executables),
		len(p.Paths), len(p.Modules), len(p.KernelConfig), len(p.Sysctls),
	} {
		if n > maxAsked {
			return Facts{}, fmt.Errorf("the probe asks for %d things of a kind, the limit is %d", n, maxAsked)
		}
	}
	c.facts = Facts{Version: FactsVersion, UID: os.Geteuid(), CPUs: runtime.NumCPU()}
	c.uname()
	c.osRelease()
	c.memory()
	c.mounts()
	c.dirs()
	c.cgroups()
	c.kernel()
	c.network()
	c.names()
	c.security()
	c.environment()
	c.files()
	c.ports()
	c.services(ctx)
	c.programs(ctx)
	c.facts.Clock = time.Now().UnixNano()
	return c.facts, ctx.Err()
}

// problem notes what could not be looked at. Something that is not there is not a problem.
func (c *collector) problem(what string, err error) {
	const most = 100
	if err != nil && !isAbsent(err) && len(c.facts.Problems) < most {
		c.facts.Problems = append(c.facts.Problems, what+": "+err.Error())
	}
}

func (c *collector) path(name string) string { return filepath.Join(c.root, name) }

// maxText bounds the files that are read: none of them is near it.
const maxText = 4 << 20

// text reads a small file; "" if there is none.
func (c *collector) text(name string) string {
	f, err := os.Open(c.path(name))
	if err != nil {
		c.problem(name, err)
		return ""
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxText))
	c.problem(name, err)
	return strings.ToValidUTF8(string(data), "\uFFFD")
}

// line reads a file of one line.
func (c *collector) line(name string) string { return strings.TrimSpace(c.text(name)) }

func (c *collector) uname() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		c.problem("uname", err)
		return
	}
	f := &c.facts
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
}

func (c *collector) osRelease() {
	text := c.text("/etc/os-release")
	if text == "" {
		text = c.text("/usr/lib/os-release")
	}
	values := shellValues(text)
	c.facts.OS = OSRelease{
		ID: values["ID"], IDLike: strings.Fields(values["ID_LIKE"]),
		VersionID: values["VERSION_ID"], PrettyName: values["PRETTY_NAME"],
	}
}

// shellValues reads NAME=value lines with the quoting that a shell has (os-release(5)).
func shellValues(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		values[strings.TrimPrefix(name, "export ")] = unquote(value)
	}
	return values
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '\'' && s[len(s)-1] == '\'' {
		return s[1 : len(s)-1]
	}
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (c *collector) memory() {
	const kibi = 1024
	for line := range strings.Lines(c.text("/proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			c.facts.Memory = number(fields[1]) * kibi
		}
	}
	first := true
	for line := range strings.Lines(c.text("/proc/swaps")) {
		fields := strings.Fields(line)
		if !first && len(fields) > 2 {
			c.facts.Swaps = append(c.facts.Swaps, Swap{Name: unescape(fields[0]), Size: number(fields[2]) * kibi})
		}
		first = false
	}
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// unescape undoes what the kernel does to spaces in names: \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// pseudo lists filesystem types that hold no files of anybody.
func pseudo(kind string) bool {
	return slices.Contains([]string{
		"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
		"fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
	}, kind)
}

// maxMounts bounds the list of mounts: a machine with many containers has thousands.
const maxMounts = 1000

func (c *collector) mounts() {
	for line := range strings.Lines(c.text("/proc/self/mountinfo")) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 6 || len(after) < 2 || pseudo(after[0]) || len(c.facts.Mounts) == maxMounts {
			continue
		}
		c.facts.Mounts = append(c.facts.Mounts, Mount{
			Point: unescape(before[4]), Options: strings.Split(before[5], ","),
			Type: after[0], Source: unescape(after[1]),
		})
	}
}

func (c *collector) dirs() {
	for _, name := range c.probe.Dirs {
		d, err := c.dir(name)
		if err != nil {
			c.problem(name, err)
			continue
		}
		c.facts.Dirs = append(c.facts.Dirs, d)
	}
}

// dir looks at the filesystem of a directory or, if it is not there, of the nearest one on the way to it that is.
func (c *collector) dir(name string) (Dir, error) {
	d := Dir{Path: name, Exists: true}
	at := filepath.Clean("/" + name)
	var st unix.Stat_t
	for {
		err := unix.Stat(c.path(at), &st)
		if err == nil {
			break
		}
		if !isAbsent(err) || at == "/" {
			return d, err
		}
		at, d.Exists = filepath.Dir(at), false
	}
	d.Device = st.Dev
	var fsys unix.Statfs_t
	if err := unix.Statfs(c.path(at), &fsys); err != nil {
		return d, err
	}
	d.Total, d.Free = int64(fsys.Blocks)*fsys.Bsize, int64(fsys.Bavail)*fsys.Bsize
	d.Inodes = -1
	if fsys.Files > 0 {
		d.Inodes = int64(fsys.Ffree)
	}
	d.ReadOnly = fsys.Flags&unix.ST_RDONLY != 0
	d.NoExec = fsys.Flags&unix.ST_NOEXEC != 0
	if real, err := filepath.EvalSymlinks(c.path(at)); err == nil {
		at = real
	}
	for _, m := range c.facts.Mounts { // a later mount covers an earlier one
		if within(at, m.Point) && len(m.Point) >= len(d.Mount) {
			d.Mount, d.Type = m.Point, m.Type
		}
	}
	return d, nil
}

func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func (c *collector) cgroups() {
	const base = "/sys/fs/cgroup"
	g := &c.facts.Cgroups
	if text := c.line(base + "/cgroup.controllers"); text != "" {
		g.Version, g.Controllers = 2, strings.Fields(text)
		return
	}
	for line := range strings.Lines(c.text("/proc/cgroups")) {
		fields := strings.Fields(line)
		if len(fields) == 4 && !strings.HasPrefix(line, "#") && fields[3] == "1" {
			g.Version = 1
			g.Controllers = append(g.Controllers, fields[0])
		}
	}
}

func (c *collector) network() {
	interfaces, err := net.Interfaces()
	c.problem("interfaces", err)
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		one := Interface{Name: i.Name, MAC: i.HardwareAddr.String(), MTU: i.MTU, Up: i.Flags&net.FlagUp != 0}
		addresses, err := i.Addrs()
		c.problem(i.Name, err)
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.Addresses = append(one.Addresses, p)
			}
		}
		c.facts.Interfaces = append(c.facts.Interfaces, one)
	}
	c.facts.Routes = append(routes4(c.text("/proc/net/route")), routes6(c.text("/proc/net/ipv6_route"))...)
}

// Flags of routes (linux/route.h).
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// routes4 reads default routes out of /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask …
func routes4(text string) []DefaultRoute {
	var list []DefaultRoute
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		gateway, err := strconv.ParseUint(f[2], 16, 32)
		flags, flagsErr := strconv.ParseUint(f[3], 16, 32)
		if err != nil || flagsErr != nil || flags&routeUp == 0 || flags&routeReject != 0 {
			continue
		}
		// The kernel prints the four bytes as a number of the machine's byte order; both our machines are little endian.
		a := netip.AddrFrom4([4]byte{byte(gateway), byte(gateway >> 8), byte(gateway >> 16), byte(gateway >> 24)})
		list = append(list, DefaultRoute{Interface: f[0], Gateway: a})
	}
	return list
}

// routes6 reads default routes out of /proc/net/ipv6_route: dest prefix source prefix next-hop metric … flags device.
func routes6(text string) []DefaultRoute {
	var list []DefaultRoute
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" || f[9] == "lo" {
			continue
		}
		flags, err := strconv.ParseUint(f[8], 16, 32)
		gateway, ok := address6(f[4])
		if err != nil || !ok || flags&routeUp == 0 || flags&routeReject != 0 {
			continue
		}
		list = append(list, DefaultRoute{Interface: f[9], Gateway: gateway})
	}
	return list
}

func address6(digits string) (netip.Addr, bool) {
	if len(digits) != 32 {
		return netip.Addr{}, false
	}
	var text []string
	for i := 0; i < len(digits); i += 4 {
		text = append(text, digits[i:i+4])
	}
	a, err := netip.ParseAddr(strings.Join(text, ":"))
	return a, err == nil
}

// names reads how the machine finds others.
func (c *collector) names() {
	for line := range strings.Lines(c.text("/etc/resolv.conf")) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			c.facts.DNS.Nameservers = append(c.facts.DNS.Nameservers, f[1])
		case "search", "domain":
			c.facts.DNS.Search = f[1:]
		}
	}
	const most = 1000
	for line := range strings.Lines(c.text("/etc/hosts")) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 && len(c.facts.Hosts) < most {
			c.facts.Hosts = append(c.facts.Hosts, HostsLine{Address: f[0], Names: f[1:]})
		}
	}
}

func (c *collector) security() {
	switch c.line("/sys/fs/selinux/enforce") {
	case "1":
		c.facts.SELinux = "enforcing"
	case "0":
		c.facts.SELinux = "permissive"
	}
	c.facts.AppArmor = c.line("/sys/module/apparmor/parameters/enabled") == "Y"
}

// files looks up what was asked for, and the package manager.
func (c *collector) files() {
	for _, name := range c.probe.Paths {
		c.facts.Paths = append(c.facts.Paths, c.look(name))
	}
	for _, name := range c.probe.Executables {
		if found := c.find(name); found != "" {
			if c.facts.Executables == nil {
				c.facts.Executables = map[string]string{}
			}
			c.facts.Executables[name] = found
		}
	}
	for _, m := range []struct{ program, name string }{
		{"apt-get", "apt"}, {"dnf", "dnf"}, {"yum", "yum"}, {"zypper", "zypper"}, {"apk", "apk"},
	} {
		if c.find(m.program) != "" {
			c.facts.PackageManager = m.name
			return
		}
	}
}

// find looks for a program where root's commands are looked for.
func (c *collector) find(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return ""
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		full := filepath.Join(dir, name)
		info, err := os.Stat(c.path(full))
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return full
		}
	}
	return ""
}

// maxEntries bounds the names that are listed of a directory.
const maxEntries = 100

func (c *collector) look(name string) Path {
	p := Path{Path: name}
	info, err := os.Stat(c.path(name))
	switch {
	case err != nil:
		c.problem(name, err)
	case info.IsDir():
		p.Type = "dir"
		p.Entries = c.list(name)
	case info.Mode().IsRegular():
		p.Type, p.Size = "file", info.Size()
	default:
		p.Type = "other"
	}
	return p
}

func (c *collector) list(name string) []string {
	dir, err := os.Open(c.path(name))
	if err != nil {
		c.problem(name, err)
		return nil
	}
	defer func() { _ = dir.Close() }() // only read
	names, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		c.problem(name, err)
	}
	slices.Sort(names)
	return names
}

// environment finds the proxies that programs here would use.
func (c *collector) environment() {
	values := shellValues(c.text("/etc/environment"))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"} {
		for _, n := range []string{name, strings.ToLower(name)} {
			value := os.Getenv(n)
			if value == "" {
				value = values[n]
			}
			if value == "" {
				continue
			}
			if c.facts.Proxies == nil {
				c.facts.Proxies = map[string]string{}
			}
			c.facts.Proxies[name] = withoutLogin(value)
		}
	}
}

// withoutLogin takes user and password out of a proxy's URL.
func withoutLogin(value string) string {
	i := strings.LastIndex(value, "@")
	if i < 0 {
		return value
	}
	scheme, _, ok := strings.Cut(value[:i], "://")
	if !ok {
		return value[i+1:]
	}
	return scheme + "://" + value[i+1:]
}

// scan calls f for each line of a file, without a bound on the file but with one on its lines.
func (c *collector) scan(name string, f func(line string)) {
	file, err := os.Open(c.path(name))
	if err != nil {
		c.problem(name, err)
		return
	}
	defer func() { _ = file.Close() }() // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f(lines.Text())
	}
	if err := lines.Err(); err != nil && !errors.Is(err, fs.ErrClosed) {
		c.problem(name, err)
	}
}
