package node

import (
	"net/netip"
	"slices"
)

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
	// Packages are names of packages, as the machine's package manager has them.
	Packages []string `json:"packages,omitempty"`
	// Users are names of local users.
	Users []string `json:"users,omitempty"`
	// Certificates are PEM files, or directories whose *.crt and *.pem are read, without their subdirectories.
	Certificates []string `json:"certificates,omitempty"`
	// Internet are HOST:PORT that are dialled over TCP, for a few seconds at most; nothing is said to them.
	Internet []string `json:"internet,omitempty"`
	// Sync is a directory whose disk is measured by writing there for some seconds; "" for none. It costs the disk
	// something, so it is asked for where etcd will be only.
	Sync string `json:"sync,omitempty"`
	// Vacant are addresses that nobody should have yet, such as the one that kube-vip will have. The network is asked.
	Vacant []netip.Addr `json:"vacant,omitempty"`
}

// Facts are what a machine is like at one moment, as one JSON document.
type Facts struct {
	Version int `json:"version"` // FactsVersion
	// Clock is the machine's time in nanoseconds since 1970, UTC, read last.
	Clock int64 `json:"clock"`
	// Took is how many nanoseconds collecting took, until Clock was read.
	Took int64 `json:"took,omitempty"`
	// UID is the effective user id that the facts were collected with.
	UID       int       `json:"uid"`
	OS        OSRelease `json:"os"`
	Kernel    string    `json:"kernel"`   // uname -r
	Machine   string    `json:"machine"`  // uname -m
	Arch      string    `json:"arch"`     // Machine in Go's spelling, "" if kkbundle does not know it
	Hostname  string    `json:"hostname"` // uname -n
	MachineID string    `json:"machineID,omitempty"`
	// ProductUUID is the firmware's name of the machine. A clone of a virtual machine may have that of another.
	ProductUUID string `json:"productUUID,omitempty"`
	// FQDN is what hostname -f says; "" if it does not know.
	FQDN string `json:"fqdn,omitempty"`
	// HostnameAddresses are those that Hostname resolves to on the machine; none if it does not resolve.
	HostnameAddresses []netip.Addr `json:"hostnameAddresses,omitempty"`
	// Virtualization is what the machine runs in, as systemd-detect-virt names it ("kvm", "vmware", "microsoft", "xen",
	// "docker", …), "none" for hardware, or "" if it is not known.
	Virtualization string `json:"virtualization,omitempty"`
	// CPUs is how many processors a process may use here (its affinity mask), and OnlineCPUs how many the machine has.
	CPUs       int     `json:"cpus"`
	OnlineCPUs int     `json:"onlineCPUs,omitempty"`
	CPUModel   string  `json:"cpuModel,omitempty"`
	Memory     int64   `json:"memory"` // MemTotal, bytes
	Swaps      []Swap  `json:"swaps,omitempty"`
	Disks      []Disk  `json:"disks,omitempty"`
	Mounts     []Mount `json:"mounts,omitempty"`
	// Dirs has Probe.Dirs in their order.
	Dirs    []Dir   `json:"dirs,omitempty"`
	Cgroups Cgroups `json:"cgroups"`
	// KernelConfig has "y", "m", a value, or "n" for what is not set; it is nil if the configuration is nowhere to be
	// read.
	KernelConfig map[string]string `json:"kernelConfig,omitempty"`
	Modules      map[string]Module `json:"modules,omitempty"`
	// Sysctls has the keys that exist.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Limits are of the kernel, for all programs together.
	Limits     Limits         `json:"limits,omitzero"`
	Interfaces []Interface    `json:"interfaces,omitempty"`
	Routes     []DefaultRoute `json:"defaultRoutes,omitempty"`
	// AllRoutes are the routes of all tables that /proc shows, default routes among them, at most 1000.
	AllRoutes []Route `json:"routes,omitempty"`
	// Namespaces are the names of network namespaces (/run/netns), sorted, at most 100.
	Namespaces []string    `json:"namespaces,omitempty"`
	DNS        DNS         `json:"dns"`
	Hosts      []HostsLine `json:"hosts,omitempty"` // of /etc/hosts, at most 1000
	Ports      []Port      `json:"ports,omitempty"`
	Systemd    Systemd     `json:"systemd"`
	// Executables has the path of those that were found.
	Executables map[string]string `json:"executables,omitempty"`
	// Paths has Probe.Paths in their order.
	Paths []Path `json:"paths,omitempty"`
	// SELinux is "enforcing", "permissive", or "" where it is off.
	SELinux string `json:"selinux,omitempty"`
	// SELinuxConfig is what it will be after the next boot (/etc/selinux/config), "" without that file.
	SELinuxConfig string `json:"selinuxConfig,omitempty"`
	AppArmor      bool   `json:"apparmor,omitempty"`
	// Firewalls are the firewall services that are active.
	Firewalls []string `json:"firewalls,omitempty"`
	// PacketFilter are the rules in the kernel.
	PacketFilter PacketFilter `json:"packetFilter,omitzero"`
	// Programs are the container runtimes and parts of Kubernetes that are installed.
	Programs []Program `json:"programs,omitempty"`
	// PackageManager is "apt", "dnf", "yum", "zypper", "apk" or "".
	PackageManager string `json:"packageManager,omitempty"`
	// Packages has the version of those of Probe.Packages that are installed. It is nil if the package manager could not
	// be asked, and empty if it knows none of them.
	Packages map[string]string `json:"packages,omitzero"`
	// Users has those of Probe.Users that exist.
	Users map[string]User `json:"users,omitempty"`
	// Certificates are those found where Probe.Certificates says, at most 200.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Exports are the lines of /etc/exports and /etc/exports.d without comments, at most 200.
	Exports []string `json:"exports,omitempty"`
	// Proxies has the proxy variables of the environment and of /etc/environment by their upper case names, without
	// user and password.
	Proxies map[string]string `json:"proxies,omitempty"`
	// TimeSync says whether systemd thinks that the clock is synchronised: "yes", "no", or "" if it does not know.
	TimeSync string `json:"timeSync,omitempty"`
	// Time is how the clock is kept right.
	Time Time `json:"time,omitzero"`
	// Umask is the one that a command of kkbundle starts with, in octal: "0022". "" if the kernel does not say.
	Umask string `json:"umask,omitempty"`
	// SearchPath is the PATH that a command of kkbundle starts with: with sudo, mostly SecurePath.
	SearchPath string `json:"searchPath,omitempty"`
	// SecurePath is secure_path of /etc/sudoers; "" if there is none, or if it cannot be read.
	SecurePath string `json:"securePath,omitempty"`
	// SSHD is the SSH server's configuration, nil if it does not say.
	SSHD *SSHD `json:"sshd,omitempty"`
	// Internet has Probe.Internet in its order.
	Internet []Dialled `json:"internet,omitempty"`
	// Sync is the answer to Probe.Sync, nil if it was not asked for.
	Sync *SyncLatency `json:"sync,omitempty"`
	// Vacant has Probe.Vacant in its order.
	Vacant []Vacancy `json:"vacant,omitempty"`
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
	// Total and Free are bytes, Free without root's reserve, Inodes how many files can still be made (-1 if the filesystem
	// does not say). They are 0 where it was not asked: on filesystems of other machines, which may hang.
	Total  int64 `json:"total,omitempty"`
	Free   int64 `json:"free,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
}

// Has tells whether the filesystem is mounted with an option, such as "ro" or "noexec".
func (m Mount) Has(option string) bool { return slices.Contains(m.Options, option) }

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
	// Kind is what made it: "bridge", "vxlan", "veth", "dummy", "bond", … as the kernel names it; "" for hardware.
	Kind string `json:"kind,omitempty"`
	// Carrier tells whether something is plugged in; false also where the kernel does not know.
	Carrier bool `json:"carrier,omitempty"`
	// Speed is in megabits a second, 0 if the kernel does not know.
	Speed int `json:"speed,omitempty"`
}

// DefaultRoute is a default route of IPv4 or IPv6.
type DefaultRoute struct {
	Interface string     `json:"interface"`
	Gateway   netip.Addr `json:"gateway"`
}

// Route is a route of IPv4 or IPv6.
type Route struct {
	// To is where it leads: 0.0.0.0/0 or ::/0 for a default route.
	To        netip.Prefix `json:"to"`
	Interface string       `json:"interface"`
	// Gateway is the next hop; the zero Addr for a network that the interface is in.
	Gateway netip.Addr `json:"gateway,omitzero"`
	Metric  int        `json:"metric,omitempty"`
}

// DNS is /etc/resolv.conf.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
	// Ndots is the option of that name, 1 where it is not set.
	Ndots int `json:"ndots,omitempty"`
	// Link is where /etc/resolv.conf leads if it is a symbolic link.
	Link string `json:"link,omitempty"`
	// Stub tells whether the only nameserver is systemd-resolved's on the machine itself.
	Stub bool `json:"stub,omitempty"`
	// Upstream are the nameservers that systemd-resolved asks (/run/systemd/resolve/resolv.conf), if it runs.
	Upstream []string `json:"upstream,omitempty"`
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
