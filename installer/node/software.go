package node

import (
	"net/netip"
	"time"
)

// Disk is a block device that is not a partition.
type Disk struct {
	Name string `json:"name"` // as below /dev: "sda", "nvme0n1", "dm-0"
	Size int64  `json:"size"` // bytes
	// Rotational tells whether it says of itself that it turns; virtual disks often say so and do not.
	Rotational bool   `json:"rotational,omitempty"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	Removable  bool   `json:"removable,omitempty"`
	Model      string `json:"model,omitempty"`
	// Partitions are its partitions' names.
	Partitions []string `json:"partitions,omitempty"`
	// Used tells whether it or a partition of it is mounted, is swapped to, or is part of another device.
	Used bool `json:"used,omitempty"`
}

// Limits are the kernel's limits for all programs together; 0 where the kernel does not say.
type Limits struct {
	InotifyInstances int64 `json:"inotifyInstances,omitempty"` // fs.inotify.max_user_instances
	InotifyWatches   int64 `json:"inotifyWatches,omitempty"`   // fs.inotify.max_user_watches
	OpenFiles        int64 `json:"openFiles,omitempty"`        // fs.file-max
	PIDs             int64 `json:"pids,omitempty"`             // kernel.pid_max
	// Entropy is kernel.random.entropy_avail in bits; always 256 since Linux 5.18.
	Entropy int64 `json:"entropy,omitempty"`
}

// Time is how the machine's clock is kept right.
type Time struct {
	// Daemons are the programs that do it and run: "chronyd", "ntpd", "systemd-timesyncd", …
	Daemons []string `json:"daemons,omitempty"`
	// Servers are those that the daemons' configuration names, pools among them.
	Servers []string `json:"servers,omitempty"`
	// Known tells whether the kernel could be asked for what follows.
	Known bool `json:"known,omitempty"`
	// Synchronized is what the kernel was told last: it goes back to false when nobody tells it any more.
	Synchronized bool `json:"synchronized,omitempty"`
	// Offset is by how many nanoseconds the kernel still has to move the clock, and MaxError how far it may be off.
	Offset   int64 `json:"offset,omitempty"`
	MaxError int64 `json:"maxError,omitempty"`
}

// PacketFilter is what iptables and nftables have in the kernel. Nothing is loaded in order to look.
type PacketFilter struct {
	// Known tells whether it could be looked at; the rest is empty if not.
	Known bool `json:"known,omitempty"`
	// Drops are the base chains whose policy is to drop, at most 100.
	Drops []FilterChain `json:"drops,omitempty"`
	// Foreign are the names of chains of Kubernetes and its networks (KUBE-…, cali-…, FLANNEL-…, CILIUM_…), sorted, at
	// most 100.
	Foreign []string `json:"foreign,omitempty"`
}

// FilterChain is a chain that the kernel itself calls.
type FilterChain struct {
	Family string `json:"family"` // "ip", "ip6", "inet", "bridge", …
	Table  string `json:"table"`
	Name   string `json:"name"`
	Hook   string `json:"hook"` // "input", "forward", "output", …
}

// User is a line of /etc/passwd.
type User struct {
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Home  string `json:"home,omitempty"`
	Shell string `json:"shell,omitempty"`
}

// Certificate is an X.509 certificate, the first one of its file.
type Certificate struct {
	Path      string    `json:"path"`
	Subject   string    `json:"subject,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	CA        bool      `json:"ca,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	// Names are the DNS names and addresses that it is for.
	Names []string `json:"names,omitempty"`
	// Problem says why the rest is empty.
	Problem string `json:"problem,omitempty"`
}

// SSHD is what sshd -T says.
type SSHD struct {
	KexAlgorithms      []string `json:"kexAlgorithms,omitempty"`
	Ciphers            []string `json:"ciphers,omitempty"`
	MACs               []string `json:"macs,omitempty"`
	HostKeyAlgorithms  []string `json:"hostKeyAlgorithms,omitempty"`
	AllowTCPForwarding string   `json:"allowTCPForwarding,omitempty"`
	PermitRootLogin    string   `json:"permitRootLogin,omitempty"`
}

// Dialled says whether a TCP connection could be made.
type Dialled struct {
	Address string `json:"address"` // HOST:PORT as asked
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// SyncLatency is how long the disk takes to have a small write for good, as etcd's log needs it: 2300 bytes written to
// the end of a file, and fdatasync.
type SyncLatency struct {
	Dir string `json:"dir"` // as asked
	// In is where it was measured: Dir, or the nearest directory on the way to it that exists.
	In     string `json:"in,omitempty"`
	Type   string `json:"type,omitempty"` // of the filesystem
	Writes int    `json:"writes,omitempty"`
	// Nanoseconds of fdatasync.
	P50 int64 `json:"p50,omitempty"`
	P90 int64 `json:"p90,omitempty"`
	P99 int64 `json:"p99,omitempty"`
	Max int64 `json:"max,omitempty"`
	// Problem says why it could not be measured, or not to the end.
	Problem string `json:"problem,omitempty"`
}

// Vacancy says whether somebody on the network has an address.
type Vacancy struct {
	Address netip.Addr `json:"address"`
	// Interface is the one whose network has the address, "" if none has.
	Interface string `json:"interface,omitempty"`
	// Own tells whether this machine has the address itself.
	Own bool `json:"own,omitempty"`
	// Asked tells whether the network could be asked for it by ARP or neighbour solicitation.
	Asked bool `json:"asked,omitempty"`
	// MACs are those that answered.
	MACs []string `json:"macs,omitempty"`
	// Ping and APIServer tell whether it answers ICMP echo, and TCP on port 6443.
	Ping      bool `json:"ping,omitempty"`
	APIServer bool `json:"apiServer,omitempty"`
	// Problem says what could not be asked.
	Problem string `json:"problem,omitempty"`
}

// InUse tells whether another machine has the address. On its own link that is what the link says: a firewall or a proxy
// may answer TCP for addresses that nobody has.
func (v Vacancy) InUse() bool {
	if v.Asked || len(v.MACs) > 0 {
		return len(v.MACs) > 0
	}
	return !v.Own && (v.Ping || v.APIServer)
}
