package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Collect collects facts about the machine it runs on. It changes nothing and contacts no other machine except as the
// Probe asks. Facts that cannot be read are listed in Facts.Problems. The error is ctx's, or that the Probe asks for
// too much.
func Collect(ctx context.Context, p Probe) (Facts, error) {
	return CollectBelow(ctx, "/", runProgram, p)
}

// CollectBelow is Collect for a machine with another root directory, whose programs a function runs.
func CollectBelow(ctx context.Context, root string, run func(context.Context, ...string) ([]byte, error),
	p Probe,
) (Facts, error) {
	return (&survey{system: system{root: root, run: run}, probe: p}).collect(ctx)
}

// maxAsked bounds each list of a Probe.
const maxAsked = 1000

// ReadProbe reads a Probe; empty input is an empty one.
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

// A survey has the questions and answers that the collectors of all areas share. Each fact has one writer.
type survey struct {
	system
	probe Probe
	facts Facts
}

// Collectors of facts by area.
type (
	machineCollector  struct{ *survey } // firmware, processors, memory, distribution, users, environment
	kernelCollector   struct{ *survey } // configuration, modules, settings, packet filter
	networkCollector  struct{ *survey } // interfaces, routes, names, ports, other machines
	softwareCollector struct{ *survey } // packages, programs, services, files
	timeCollector     struct{ *system } // time daemons and their servers
	storageCollector  struct {
		*survey
		mounted map[string]bool // the devices of mounted filesystems, as major:minor and by their names
	}
)

func (s *survey) collect(ctx context.Context) (Facts, error) {
	if err := s.probe.check(); err != nil {
		return Facts{}, err
	}
	began := time.Now()
	s.facts = Facts{Version: FactsVersion, UID: os.Geteuid()}
	machine, kernel, network, software, storage := machineCollector{s}, kernelCollector{s}, networkCollector{s},
		softwareCollector{s}, &storageCollector{survey: s}
	s.facts.Certificates = certificates(&s.system, s.probe.Certificates)
	software.paths()
	if s.probe.Only {
		software.units(ctx)
		return s.finish(began), ctx.Err()
	}
	for _, collect := range []func(){
		machine.machine, machine.osRelease, machine.memory, machine.limits, storage.mounts, storage.disks,
		machine.cgroups, kernel.kernel,
		network.network, network.names, machine.security, machine.environment, machine.unitProxies,
		machine.unitSettings, software.executables, machine.users,
	} {
		collect()
	}
	s.facts.Exports = exports(&s.system)
	network.ports(ctx)
	s.facts.Time = timeCollector{&s.system}.clock()
	var all sync.WaitGroup // tasks that wait for programs or for other machines
	for _, look := range []func(context.Context){
		storage.dirs, software.services, software.programs, software.packages, software.libc, software.docker,
		software.sshd, network.resolve, machine.virtualization,
		network.internet, network.vacant,
	} {
		all.Go(func() { look(ctx) })
	}
	kernel.packetFilter(ctx)
	all.Wait()
	storage.sync(ctx) // alone: nothing else may use the disk
	return s.finish(began), ctx.Err()
}

// finish returns the facts. It reads the clock last.
func (s *survey) finish(began time.Time) Facts {
	s.facts.Problems = s.problems
	s.facts.Took, s.facts.Clock = time.Since(began).Nanoseconds(), time.Now().UnixNano()
	return s.facts
}

// check refuses a probe that asks for too much.
func (p Probe) check() error {
	for _, n := range []int{
		len(p.Dirs), len(p.Ports), len(p.UDPPorts), len(p.Units), len(p.Executables), len(p.Paths), len(p.Modules),
		len(p.KernelConfig), len(p.Sysctls), len(p.Packages), len(p.Users), len(p.Certificates), len(p.Addresses),
	} {
		if n > maxAsked {
			return fmt.Errorf("the probe asks for %d things of a kind, the limit is %d", n, maxAsked)
		}
	}
	if n := max(len(p.Internet), len(p.Vacant)); n > maxDialled {
		return fmt.Errorf("the probe asks for %d addresses, the limit is %d", n, maxDialled)
	}
	return nil
}

func (c machineCollector) osRelease() {
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

// shellValues reads NAME=value lines with shell quoting (os-release(5)).
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

func (c machineCollector) memory() {
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

// unescape decodes the kernel's encoding of spaces in names: \040.
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

// pseudo reports whether a filesystem type holds no files of users.
func pseudo(kind string) bool {
	return slices.Contains([]string{
		"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
		"fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
	}, kind)
}

// maxMounts bounds the list of mounts: a machine with many containers has thousands.
const maxMounts = 1000

func (c *storageCollector) mounts() {
	c.mounted = map[string]bool{}
	for line := range strings.Lines(c.text("/proc/self/mountinfo")) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 6 || len(after) < 2 || pseudo(after[0]) || len(c.facts.Mounts) == maxMounts {
			continue
		}
		m := Mount{
			Point: unescape(before[4]), Options: strings.Split(before[5], ","),
			Type: after[0], Source: unescape(after[1]),
		}
		if len(after) > 2 && slices.Contains(strings.Split(after[2], ","), "ro") && !m.Has("ro") {
			m.Options = append(m.Options, "ro") // the filesystem as a whole
		}
		c.usage(&m)
		c.mounted[before[2]], c.mounted[m.Source] = true, true
		c.facts.Mounts = append(c.facts.Mounts, m)
	}
}

// usage reads the usage of a filesystem, unless another machine might have to answer.
func (c *storageCollector) usage(m *Mount) {
	local := []string{"btrfs", "overlay", "tmpfs", "zfs"}
	if !slices.Contains(local, m.Type) && (!strings.HasPrefix(m.Source, "/dev/") || strings.HasPrefix(m.Type, "fuse")) {
		return
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(c.path(m.Point), &fsys); err != nil {
		return // hidden by another mount, or not accessible for this user
	}
	m.Total, m.Free, m.Inodes = space(fsys)
}

// space returns bytes and the number of files that can still be created, -1 if the filesystem does not count them.
func space(fsys unix.Statfs_t) (total, free, inodes int64) {
	inodes = -1
	if fsys.Files > 0 {
		inodes = int64(fsys.Ffree)
	}
	return int64(fsys.Blocks) * fsys.Bsize, int64(fsys.Bavail) * fsys.Bsize, inodes
}

// dirTimeout bounds the wait for a directory's filesystem: that of another machine may never answer.
const dirTimeout = 5 * time.Second

func (c *storageCollector) dirs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dirTimeout)
	defer cancel()
	for _, name := range c.probe.Dirs {
		d, err := answered(ctx, func() (Dir, error) { return c.dir(name) })
		c.problem(name, err)
		if err == nil {
			c.facts.Dirs = append(c.facts.Dirs, d)
		}
	}
}

// answered waits for a filesystem's answer until ctx is done. A later answer is dropped.
func answered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := ask()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, errors.New("the filesystem does not answer")
	}
}

// dir inspects the filesystem of a directory or, if it does not exist, of its nearest existing parent.
func (c *storageCollector) dir(name string) (Dir, error) {
	d := Dir{Path: name, Exists: true}
	at := filepath.Clean("/" + name)
	var st unix.Stat_t
	for {
		err := unix.Stat(c.path(at), &st)
		if err == nil {
			break
		}
		if !IsAbsent(err) || at == "/" {
			return d, err
		}
		at, d.Exists = filepath.Dir(at), false
	}
	d.Device = st.Dev
	var fsys unix.Statfs_t
	if err := unix.Statfs(c.path(at), &fsys); err != nil {
		return d, err
	}
	d.Total, d.Free, d.Inodes = space(fsys)
	d.ReadOnly = fsys.Flags&unix.ST_RDONLY != 0
	d.NoExec = fsys.Flags&unix.ST_NOEXEC != 0
	d.NoFileTypes = lacksFileTypes(c.path(at))
	if real, err := filepath.EvalSymlinks(c.path(at)); err == nil {
		at = real
	}
	for _, m := range c.facts.Mounts { // a later mount hides an earlier one
		if within(at, m.Point) && len(m.Point) >= len(d.Mount) {
			d.Mount, d.Type = m.Point, m.Type
		}
	}
	return d, nil
}

// lacksFileTypes reports whether the entries of a directory have no types. Only the first one is looked at: every
// directory has one for itself.
func lacksFileTypes(dir string) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // only read
	const typeAt, enough = 18, 4096       // of struct linux_dirent64 (getdents64(2))
	entries := make([]byte, enough)
	n, err := unix.Getdents(fd, entries)
	return err == nil && n > typeAt && entries[typeAt] == unix.DT_UNKNOWN
}

func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func (c machineCollector) cgroups() {
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

func (c machineCollector) security() {
	switch c.line("/sys/fs/selinux/enforce") {
	case "1":
		c.facts.SELinux = "enforcing"
	case "0":
		c.facts.SELinux = "permissive"
	}
	for line := range strings.Lines(c.text("/etc/selinux/config")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "SELINUX="); ok {
			c.facts.SELinuxConfig = strings.ToLower(unquote(strings.TrimSpace(value)))
		}
	}
	c.facts.AppArmor = c.line("/sys/module/apparmor/parameters/enabled") == "Y"
}

// paths looks up the paths of the probe.
func (c softwareCollector) paths() {
	for _, name := range c.probe.Paths {
		c.facts.Paths = append(c.facts.Paths, c.look(name))
	}
}

// executables finds the programs of the probe, and the package manager.
func (c softwareCollector) executables() {
	for _, name := range c.probe.Executables {
		if found := c.find(name); found != "" {
			put(&c.facts.Executables, name, found)
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

// put sets a key of a map that is nil while it is empty.
func put[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// environment finds the proxies that programs here would use.
func (c machineCollector) environment() {
	values := shellValues(c.text("/etc/environment"))
	for _, name := range proxyNames() {
		for _, n := range []string{name, strings.ToLower(name)} {
			value := os.Getenv(n)
			value = cmp.Or(value, values[n])
			if value == "" {
				continue
			}
			put(&c.facts.Proxies, name, withoutLogin(value))
		}
	}
	for line := range strings.Lines(c.text("/proc/self/status")) {
		if value, ok := strings.CutPrefix(line, "Umask:"); ok {
			c.facts.Umask = strings.TrimSpace(value)
		}
	}
	c.facts.SearchPath = strings.TrimPrefix(setting(c.text("/etc/login.defs"), "ENV_SUPATH"), "PATH=")
	c.facts.SearchPath = cmp.Or(c.facts.SearchPath, values["PATH"])
	c.facts.SecurePath = securePath(c.quiet("/etc/sudoers"))
}

// setting returns the value of a line "NAME value", as /etc/login.defs has them.
func setting(text, name string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

// securePath finds sudo's PATH for commands (sudoers(5)); a later line wins.
func securePath(sudoers string) string {
	path := ""
	for line := range strings.Lines(sudoers) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Defaults")
		name, value, set := strings.Cut(rest, "=")
		if ok && set && strings.TrimRight(strings.TrimSpace(name), "+") == "secure_path" {
			path = unquote(strings.TrimSpace(value))
		}
	}
	return path
}

// withoutLogin removes user and password from a proxy's URL.
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
