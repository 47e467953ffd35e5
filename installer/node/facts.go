package node

import "net/netip"

// FactsVersion is the version of Facts. Fields are only ever added to a version.
const FactsVersion = 1

// A Probe says what Collect looks for apart from what it always looks at. Everything in it is only looked at.
type Probe struct {
	// Dirs are directories, there or not yet, whose filesystems are looked at.
	Dirs []string `json:"dirs,omitempty"`
	// Ports are TCP ports that are tried by listening on them for a moment, on all addresses.
	Ports []int `json:"ports,omitempty"`
	// UDPPorts are the same for UDP.
	UDPPorts []int `json:"udpPorts,omitempty"`
	// Units are names of systemd units.
	Units []string `json:"units,omitempty"`
	// Executables are names looked up in the directories of PATH that root has.
	Executables []string `json:"executables,omitempty"`
	// Paths are files or directories.
	Paths []string `json:"paths,omitempty"`
	// Modules are names of kernel modules.
	Modules []string `json:"modules,omitempty"`
	// KernelConfig are options of the kernel's configuration, with their CONFIG_.
	KernelConfig []string `json:"kernelConfig,omitempty"`
	// Sysctls are keys, such as net.ipv4.ip_forward.
	Sysctls []string `json:"sysctls,omitempty"`
}

// Facts are what a machine is like at one moment, as one JSON document.
type Facts struct {
	Version int `json:"version"` // FactsVersion
	// Clock is the machine's time in nanoseconds since 1970, UTC, read last.
	Clock int64 `json:"clock"`
	// UID is the effective user id that the facts were collected with.
	UID       int       `json:"uid"`
	OS        OSRelease `json:"os"`
	Kernel    string    `json:"kernel"`   // uname -r
	Machine   string    `json:"machine"`  // uname -m
	Arch      string    `json:"arch"`     // Machine in Go's spelling, "" if kkbundle does not know it
	Hostname  string    `json:"hostname"` // uname -n
	MachineID string    `json:"machineID,omitempty"`
	// CPUs is how many processors a process may use here.
	CPUs   int     `json:"cpus"`
	Memory int64   `json:"memory"` // MemTotal, bytes
	Swaps  []Swap  `json:"swaps,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Dirs has Probe.Dirs in their order.
	Dirs    []Dir   `json:"dirs,omitempty"`
	Cgroups Cgroups `json:"cgroups"`
	// KernelConfig has "y", "m", a value, or "n" for what is not set; it is nil if the configuration is nowhere to be
	// read.
	KernelConfig map[string]string `json:"kernelConfig,omitempty"`
	Modules      map[string]Module `json:"modules,omitempty"`
	// Sysctls has the keys that exist.
	Sysctls    map[string]string `json:"sysctls,omitempty"`
	Interfaces []Interface       `json:"interfaces,omitempty"`
	Routes     []DefaultRoute    `json:"defaultRoutes,omitempty"`
	DNS        DNS               `json:"dns"`
	Hosts      []HostsLine       `json:"hosts,omitempty"` // of /etc/hosts, at most 1000
	Ports      []Port            `json:"ports,omitempty"`
	Systemd    Systemd           `json:"systemd"`
	// Executables has the path of those that were found.
	Executables map[string]string `json:"executables,omitempty"`
	// Paths has Probe.Paths in their order.
	Paths []Path `json:"paths,omitempty"`
	// SELinux is "enforcing", "permissive", or "" where it is off.
	SELinux  string `json:"selinux,omitempty"`
	AppArmor bool   `json:"apparmor,omitempty"`
	// Firewalls are the firewall services that are active.
	Firewalls []string `json:"firewalls,omitempty"`
	// Programs are the container runtimes and parts of Kubernetes that are installed.
	Programs []Program `json:"programs,omitempty"`
	// PackageManager is "apt", "dnf", "yum", "zypper", "apk" or "".
	PackageManager string `json:"packageManager,omitempty"`
	// Proxies has the proxy variables of the environment and of /etc/environment by their upper case names, without
	// user and password.
	Proxies map[string]string `json:"proxies,omitempty"`
	// TimeSync says whether systemd thinks that the clock is synchronised: "yes", "no", or "" if it does not know.
	TimeSync string `json:"timeSync,omitempty"`
	// Problems say what could not be looked at, and why.
	Problems []string `json:"problems,omitempty"`
}

// OSRelease is /etc/os-release, its values unquoted.
type OSRelease struct {
	ID         string   `json:"id"`
	IDLike     []string `json:"idLike,omitempty"`
	VersionID  string   `json:"versionID,omitempty"`
	PrettyName string   `json:"prettyName,omitempty"`
}

// Swap is a line of /proc/swaps.
type Swap struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

// Mount is a line of /proc/self/mountinfo; pseudo filesystems are left out.
type Mount struct {
	Point   string   `json:"point"`
	Source  string   `json:"source"`
	Type    string   `json:"type"`
	Options []string `json:"options,omitempty"`
}

// Dir is the filesystem that holds a directory, or will hold it when it is made.
type Dir struct {
	Path string `json:"path"`
	// Exists tells whether the directory is there.
	Exists bool `json:"exists"`
	// Device tells filesystems apart: directories with the same one share their space.
	Device uint64 `json:"device"`
	// Mount is where the filesystem is mounted.
	Mount string `json:"mount"`
	Type  string `json:"type"`
	Total int64  `json:"total"` // bytes
	Free  int64  `json:"free"`  // bytes that root's reserve is not part of
	// Inodes are how many files can still be made; -1 if the filesystem does not say.
	Inodes   int64 `json:"inodes"`
	ReadOnly bool  `json:"readOnly,omitempty"`
	NoExec   bool  `json:"noExec,omitempty"`
}

// Cgroups is the kernel's control groups.
type Cgroups struct {
	// Version is 2 for the unified hierarchy, 1 for the older one (also when both are mounted), 0 for none.
	Version     int      `json:"version"`
	Controllers []string `json:"controllers,omitempty"`
}

// Module says whether a kernel module can be used.
type Module string

// The states of a Module.
const (
	ModuleLoaded    Module = "loaded"
	ModuleBuiltIn   Module = "built in"
	ModuleAvailable Module = "available" // modprobe will find it
	ModuleMissing   Module = "missing"
)

// Usable tells whether the module works or can be loaded.
func (m Module) Usable() bool { return m == ModuleLoaded || m == ModuleBuiltIn || m == ModuleAvailable }

// Interface is a network interface other than loopback.
type Interface struct {
	Name      string         `json:"name"`
	MAC       string         `json:"mac,omitempty"`
	MTU       int            `json:"mtu"`
	Up        bool           `json:"up"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// DefaultRoute is a default route of IPv4 or IPv6.
type DefaultRoute struct {
	Interface string     `json:"interface"`
	Gateway   netip.Addr `json:"gateway"`
}

// DNS is /etc/resolv.conf.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Search      []string `json:"search,omitempty"`
}

// HostsLine is a line of /etc/hosts.
type HostsLine struct {
	Address string   `json:"address"`
	Names   []string `json:"names"`
}

// Port says whether a port can be listened on.
type Port struct {
	Network string `json:"network"` // "tcp" or "udp"
	Port    int    `json:"port"`
	Free    bool   `json:"free"`
	// By is the program that listens there, as far as root can see, and Problem why it is not known whether it is free.
	By      string `json:"by,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Systemd is the machine's service manager.
type Systemd struct {
	// Init tells whether it is the machine's process 1.
	Init    bool   `json:"init"`
	Version string `json:"version,omitempty"`
	// Units has Probe.Units in their order.
	Units []Unit `json:"units,omitempty"`
}

// Unit is what systemctl show says of a unit.
type Unit struct {
	Name   string `json:"name"`
	Load   string `json:"load"`   // "loaded", "not-found", "masked", …
	Active string `json:"active"` // "active", "inactive", "failed", …
	File   string `json:"file,omitempty"`
}

// Path is what is at a path. Links are followed.
type Path struct {
	Path string `json:"path"`
	// Type is "file", "dir", "other", or "" if there is nothing.
	Type string `json:"type,omitempty"`
	Size int64  `json:"size,omitempty"`
	// Entries are the names in a directory, sorted, at most 100.
	Entries []string `json:"entries,omitempty"`
}

// Program is an installed program.
type Program struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Version is as the program prints it, such as v1.34.3; "" if it does not say.
	Version string `json:"version,omitempty"`
}

// Executable tells whether a program of Probe.Executables was found.
func (f *Facts) Executable(name string) bool { return f.Executables[name] != "" }

// Path returns what is at a path of Probe.Paths; its Type is "" if there is nothing.
func (f *Facts) Path(path string) Path {
	for _, p := range f.Paths {
		if p.Path == path {
			return p
		}
	}
	return Path{Path: path}
}

// Unit returns a unit of Probe.Units; its fields are "" if it was not asked for.
func (f *Facts) Unit(name string) Unit {
	for _, u := range f.Systemd.Units {
		if u.Name == name {
			return u
		}
	}
	return Unit{Name: name}
}

// Dir returns a directory of Probe.Dirs.
func (f *Facts) Dir(path string) (Dir, bool) {
	for _, d := range f.Dirs {
		if d.Path == path {
			return d, true
		}
	}
	return Dir{}, false
}
