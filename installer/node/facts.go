package node

import (
	"net/netip"
	"slices"
	"strings"
)

// FactsVersion is the version of Facts. Within a version fields are only added.
const FactsVersion = 1

// A Probe lists optional facts for Collect. They are only read, never changed.
type Probe struct {
	// Dirs are existing or future directories whose filesystems to inspect.
	Dirs []string `json:"dirs,omitempty"`
	// Ports are TCP ports to test by listening on them for a moment, on all addresses.
	Ports []int `json:"ports,omitempty"`
	// UDPPorts are the same for UDP.
	UDPPorts []int `json:"udpPorts,omitempty"`
	// Addresses are addresses with ports to test over TCP and UDP in the same way. The machine need not have the
	// addresses.
	Addresses []netip.AddrPort `json:"addresses,omitempty"`
	// Units are names of systemd units.
	Units []string `json:"units,omitempty"`
	// Executables are names to look up in root's PATH.
	Executables []string `json:"executables,omitempty"`
	// Paths are files or directories.
	Paths []string `json:"paths,omitempty"`
	// Modules are names of kernel modules.
	Modules []string `json:"modules,omitempty"`
	// KernelConfig are options of the kernel's configuration, with their CONFIG_.
	KernelConfig []string `json:"kernelConfig,omitempty"`
	// Sysctls are keys, such as net.ipv4.ip_forward.
	Sysctls []string `json:"sysctls,omitempty"`
	// Packages are names of packages in the machine's package manager.
	Packages []string `json:"packages,omitempty"`
	// Users are names of local users.
	Users []string `json:"users,omitempty"`
	// Certificates are PEM files, kubeconfigs (*.conf), or directories whose *.crt and *.pem are read, without their
	// subdirectories.
	Certificates []string `json:"certificates,omitempty"`
	// Internet are HOST:PORT to dial over TCP, for a few seconds at most; no data is sent.
	Internet []string `json:"internet,omitempty"`
	// Sync is a directory in which to measure the disk by some seconds of writes; "" for none. It puts load on the
	// disk, so it is used only for etcd hosts.
	Sync string `json:"sync,omitempty"`
	// Vacant are addresses that must be unused, such as kube-vip's future one. The network is queried.
	Vacant []netip.Addr `json:"vacant,omitempty"`
	// Only leaves out everything but Units, Paths and Certificates: a look at these takes no time.
	Only bool `json:"only,omitempty"`
}

// Facts describe a machine at one moment, as one JSON document.
type Facts struct {
	Version int `json:"version"` // FactsVersion
	// Clock is the machine's time in nanoseconds since 1970, UTC, read last.
	Clock int64 `json:"clock"`
	// Took is the duration of collecting in nanoseconds, until Clock was read.
	Took int64 `json:"took,omitempty"`
	// UID is the effective user id of the collector.
	UID       int       `json:"uid"`
	OS        OSRelease `json:"os"`
	Kernel    string    `json:"kernel"`   // uname -r
	Machine   string    `json:"machine"`  // uname -m
	Arch      string    `json:"arch"`     // Machine in Go's spelling, "" if unknown to kkbundle
	Hostname  string    `json:"hostname"` // uname -n
	MachineID string    `json:"machineID,omitempty"`
	// ProductUUID is the firmware's id of the machine. A cloned virtual machine may share it.
	ProductUUID string `json:"productUUID,omitempty"`
	// FQDN is the output of hostname -f; "" if unknown.
	FQDN string `json:"fqdn,omitempty"`
	// HostnameAddresses are the addresses of Hostname on the machine; none if it does not resolve.
	HostnameAddresses []netip.Addr `json:"hostnameAddresses,omitempty"`
	// Virtualization is the kind of virtualization, in the names of systemd-detect-virt ("kvm", "vmware", "microsoft",
	// "xen", "docker", …), "none" for hardware, or "" if unknown.
	Virtualization string `json:"virtualization,omitempty"`
	// CPUs is the number of processors available to a process (its affinity mask), and OnlineCPUs that of the machine.
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
	// KernelConfig has "y", "m", a value, or "n" if not set; it is nil if the configuration is not available.
	KernelConfig map[string]string `json:"kernelConfig,omitempty"`
	Modules      map[string]Module `json:"modules,omitempty"`
	// Forbids is where a module is forbidden: a file, or "module_blacklist" of the kernel's command line.
	Forbids map[string]string `json:"forbids,omitempty"`
	// InstalledKernels are the releases whose modules are installed (/lib/modules), sorted, at most 100. The running
	// one is missing after an upgrade without a restart, and where its modules are all built in.
	InstalledKernels []string `json:"installedKernels,omitempty"`
	// Sysctls has the keys that exist.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Limits are the kernel's limits for all programs together.
	Limits     Limits         `json:"limits,omitzero"`
	Interfaces []Interface    `json:"interfaces,omitempty"`
	Routes     []DefaultRoute `json:"defaultRoutes,omitempty"`
	// AllRoutes are the routes in /proc, default routes included, at most 1000.
	AllRoutes []Route `json:"routes,omitempty"`
	// Namespaces are the names of network namespaces (/run/netns), sorted, at most 100.
	Namespaces []string    `json:"namespaces,omitempty"`
	DNS        DNS         `json:"dns"`
	Hosts      []HostsLine `json:"hosts,omitempty"` // of /etc/hosts, at most 1000
	Ports      []Port      `json:"ports,omitempty"`
	Systemd    Systemd     `json:"systemd"`
	// Executables has the paths of the executables found.
	Executables map[string]string `json:"executables,omitempty"`
	// Paths has Probe.Paths in their order.
	Paths []Path `json:"paths,omitempty"`
	// SELinux is "enforcing", "permissive", or "" if disabled.
	SELinux string `json:"selinux,omitempty"`
	// SELinuxConfig is the mode after the next boot (/etc/selinux/config), "" without that file.
	SELinuxConfig string `json:"selinuxConfig,omitempty"`
	AppArmor      bool   `json:"apparmor,omitempty"`
	// Firewalls are the active firewall services.
	Firewalls []string `json:"firewalls,omitempty"`
	// FirewallZones are the zones of the running firewalld that are the default or have interfaces or sources, at
	// most 100. They are nil if firewalld could not be asked.
	FirewallZones []FirewallZone `json:"firewallZones,omitzero"`
	// UFWRules are the rules of the active ufw, each as the arguments of ufw that add it, at most 1000. They are nil
	// if ufw could not be asked.
	UFWRules []string `json:"ufwRules,omitzero"`
	// PacketFilter holds the rules in the kernel.
	PacketFilter PacketFilter `json:"packetFilter,omitzero"`
	// Programs are the installed container runtimes and parts of Kubernetes.
	Programs []Program `json:"programs,omitempty"`
	// Libc is the C library of dynamic programs.
	Libc Libc `json:"libc,omitzero"`
	// DockerDriver is the storage driver of the running Docker, such as overlay2; "" if unknown.
	DockerDriver string `json:"dockerDriver,omitempty"`
	// PackageManager is "apt", "dnf", "yum", "zypper", "apk" or "".
	PackageManager string `json:"packageManager,omitempty"`
	// Packages has the versions of the installed packages among Probe.Packages. It is nil if the package manager could
	// not be queried, and empty if none is installed.
	Packages map[string]string `json:"packages,omitzero"`
	// Users has the existing users among Probe.Users.
	Users map[string]User `json:"users,omitempty"`
	// Certificates are those found at Probe.Certificates, at most 200.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Exports are the lines of /etc/exports and /etc/exports.d without comments, at most 200.
	Exports []string `json:"exports,omitempty"`
	// Proxies has the proxy variables of the environment and of /etc/environment by their upper case names, without
	// user and password.
	Proxies map[string]string `json:"proxies,omitempty"`
	// UnitProxies are those of container runtimes' and Kubernetes' units, from drop-ins and from systemd's own
	// configuration.
	UnitProxies []UnitProxy `json:"unitProxies,omitempty"`
	// UnitSettings are the files that change the kubelet or k3s beside their units: environment files and drop-ins,
	// at most 100. Those that only set proxies are left out.
	UnitSettings []UnitSetting `json:"unitSettings,omitempty"`
	// TimeSync is systemd's view of clock synchronisation: "yes", "no", or "" if unknown.
	TimeSync string `json:"timeSync,omitempty"`
	// Time describes clock synchronization.
	Time Time `json:"time,omitzero"`
	// Umask is the initial umask of kkbundle's commands, in octal: "0022". "" if the kernel does not tell.
	Umask string `json:"umask,omitempty"`
	// SearchPath is the initial PATH of kkbundle's commands: with sudo, usually SecurePath.
	SearchPath string `json:"searchPath,omitempty"`
	// SecurePath is secure_path of /etc/sudoers; "" if missing or unreadable.
	SecurePath string `json:"securePath,omitempty"`
	// SSHD is the SSH server's configuration, nil if unavailable.
	SSHD *SSHD `json:"sshd,omitempty"`
	// Internet has Probe.Internet in its order.
	Internet []Dialled `json:"internet,omitempty"`
	// Sync is the result of Probe.Sync, nil if it was not requested.
	Sync *SyncLatency `json:"sync,omitempty"`
	// Vacant has Probe.Vacant in its order.
	Vacant []Vacancy `json:"vacant,omitempty"`
	// Problems list facts that could not be read, with the reasons.
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

// Mount is a line of /proc/self/mountinfo, except pseudo filesystems.
type Mount struct {
	Point   string   `json:"point"`
	Source  string   `json:"source"`
	Type    string   `json:"type"`
	Options []string `json:"options,omitempty"`
	// Total and Free are bytes, Free without root's reserve, Inodes the number of files that can still be created (-1
	// if unknown). They are 0 if not read: on filesystems of other machines, which may hang.
	Total  int64 `json:"total,omitempty"`
	Free   int64 `json:"free,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
}

// Has reports whether the filesystem is mounted with an option, such as "ro" or "noexec".
func (m Mount) Has(option string) bool { return slices.Contains(m.Options, option) }

// Dir is the filesystem of an existing or future directory.
type Dir struct {
	Path string `json:"path"`
	// Exists means the directory exists.
	Exists bool `json:"exists"`
	// Device identifies the filesystem: directories with the same one share their space.
	Device uint64 `json:"device"`
	// Mount is the filesystem's mount point.
	Mount string `json:"mount"`
	Type  string `json:"type"`
	Total int64  `json:"total"` // bytes
	Free  int64  `json:"free"`  // bytes without root's reserve
	// Inodes is the number of files that can still be created; -1 if unknown.
	Inodes   int64 `json:"inodes"`
	ReadOnly bool  `json:"readOnly,omitempty"`
	NoExec   bool  `json:"noExec,omitempty"`
	// NoFileTypes means that entries of the directory lack their types (d_type), as on xfs with ftype=0.
	NoFileTypes bool `json:"noFileTypes,omitempty"`
}

// Cgroups describes the kernel's control groups.
type Cgroups struct {
	// Version is 2 for the unified hierarchy, 1 for the older one (also when both are mounted), 0 for none.
	Version     int      `json:"version"`
	Controllers []string `json:"controllers,omitempty"`
}

// UnitProxy are the proxies of a unit, with the names of Proxies.
type UnitProxy struct {
	Unit    string            `json:"unit"`
	File    string            `json:"file"` // the last one that sets a proxy
	Proxies map[string]string `json:"proxies"`
}

// UnitSetting is what a file sets for a unit.
type UnitSetting struct {
	Unit string `json:"unit"`
	File string `json:"file"`
	// Sets are names of flags, of variables without flags, and of a drop-in's keys, sorted, at most 50. Values are
	// left out.
	Sets []string `json:"sets"`
}

// Module is the availability of a kernel module.
type Module string

// The states of a Module.
const (
	ModuleLoaded    Module = "loaded"
	ModuleBuiltIn   Module = "built in"
	ModuleAvailable Module = "available" // modprobe can load it
	// installed, but a line of modprobe.d or of the kernel's command line keeps modprobe from it
	ModuleForbidden Module = "forbidden"
	ModuleMissing   Module = "missing"
)

// Usable reports whether the module is active or can be loaded.
func (m Module) Usable() bool { return m == ModuleLoaded || m == ModuleBuiltIn || m == ModuleAvailable }

// LoopbackKind is the Kind of the loopback interface.
const LoopbackKind = "loopback"

// Interface is a network interface. That of loopback is one only if it has an address that others can reach, as hosts
// have that announce their address on several links; its loopback addresses are left out.
type Interface struct {
	Name      string         `json:"name"`
	MAC       string         `json:"mac,omitempty"`
	MTU       int            `json:"mtu"`
	Up        bool           `json:"up"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Kind is the kernel's type of the interface: "bridge", "vxlan", "veth", "dummy", "bond", …; "" for hardware.
	Kind string `json:"kind,omitempty"`
	// Carrier means a cable is plugged in; false also if the kernel does not know.
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
	// To is the destination: 0.0.0.0/0 or ::/0 for a default route.
	To        netip.Prefix `json:"to"`
	Interface string       `json:"interface"`
	// Gateway is the next hop; the zero Addr for a directly connected network.
	Gateway netip.Addr `json:"gateway,omitzero"`
	Metric  int        `json:"metric,omitempty"`
}

// DNS is /etc/resolv.conf.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
	// Ndots is the option of that name, 1 if not set.
	Ndots int `json:"ndots,omitempty"`
	// Link is the target of /etc/resolv.conf if it is a symbolic link.
	Link string `json:"link,omitempty"`
	// Stub means the only nameserver is systemd-resolved's on the machine itself.
	Stub bool `json:"stub,omitempty"`
	// Upstream are systemd-resolved's own nameservers (/run/systemd/resolve/resolv.conf), if it runs.
	Upstream []string `json:"upstream,omitempty"`
}

// HostsLine is a line of /etc/hosts.
type HostsLine struct {
	Address string   `json:"address"`
	Names   []string `json:"names"`
}

// Port is the result of listening on a port.
type Port struct {
	Network string `json:"network"` // "tcp" or "udp"
	Port    int    `json:"port"`
	// Address is the one of Probe.Addresses; it is invalid for all addresses.
	Address netip.Addr `json:"address,omitzero"`
	Free    bool       `json:"free"`
	// By is the program that listens there, as far as root can see. Problem is the reason that the state is unknown.
	By      string `json:"by,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Systemd is the machine's service manager.
type Systemd struct {
	// Init means it is the machine's process 1.
	Init    bool   `json:"init"`
	Version string `json:"version,omitempty"`
	// Units has Probe.Units in their order.
	Units []Unit `json:"units,omitempty"`
}

// Unit is the state of a unit in systemctl show.
type Unit struct {
	Name   string `json:"name"`
	Load   string `json:"load"`   // "loaded", "not-found", "masked", …
	Active string `json:"active"` // "active", "inactive", "failed", …
	File   string `json:"file,omitempty"`
}

// Path describes the file at a path. Links are followed.
type Path struct {
	Path string `json:"path"`
	// Type is "file", "dir", "other", or "" if nothing exists.
	Type string `json:"type,omitempty"`
	Size int64  `json:"size,omitempty"`
	// Entries are the names in a directory, sorted, at most 100.
	Entries []string `json:"entries,omitempty"`
}

// Program is an installed program.
type Program struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Version is the program's own output, such as v1.34.3; "" if unknown.
	Version string `json:"version,omitempty"`
}

// Libc is a machine's C library.
type Libc struct {
	// Name is GLIBC or "musl"; "" if unknown.
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// Loaders are the paths of the dynamic loaders, such as /lib64/ld-linux-x86-64.so.2.
	Loaders []string `json:"loaders,omitempty"`
}

// Names of C libraries.
const (
	GLIBC = "glibc"
	musl  = "musl"
)

// String returns the name and the version.
func (l Libc) String() string { return strings.TrimSpace(l.Name + " " + l.Version) }

// Executable reports whether a program of Probe.Executables was found.
func (f *Facts) Executable(name string) bool { return f.Executables[name] != "" }

// Path returns the file at a path of Probe.Paths; its Type is "" if nothing exists.
func (f *Facts) Path(path string) Path {
	for _, p := range f.Paths {
		if p.Path == path {
			return p
		}
	}
	return Path{Path: path}
}

// Unit returns a unit of Probe.Units; its fields are "" if it was not requested.
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
