package node

import (
	"net/netip"
	"time"
)

// Disk is a block device that is not a partition.
type Disk struct {
	Name string `json:"name"` // name below /dev: "sda", "nvme0n1", "dm-0"
	Size int64  `json:"size"` // bytes
	// Rotational is the device's own claim; virtual disks often claim it wrongly.
	Rotational bool   `json:"rotational,omitempty"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	Removable  bool   `json:"removable,omitempty"`
	Model      string `json:"model,omitempty"`
	// Partitions are the names of its partitions.
	Partitions []string `json:"partitions,omitempty"`
	// Used means that it or a partition of it is mounted, used for swap, or part of another device.
	Used bool `json:"used,omitempty"`
}

// Limits are the kernel's limits for all programs together; 0 if unknown.
type Limits struct {
	InotifyInstances int64 `json:"inotifyInstances,omitempty"` // fs.inotify.max_user_instances
	InotifyWatches   int64 `json:"inotifyWatches,omitempty"`   // fs.inotify.max_user_watches
	OpenFiles        int64 `json:"openFiles,omitempty"`        // fs.file-max
	PIDs             int64 `json:"pids,omitempty"`             // kernel.pid_max
	// Entropy is kernel.random.entropy_avail in bits; always 256 since Linux 5.18.
	Entropy int64 `json:"entropy,omitempty"`
}

// Time describes clock synchronization.
type Time struct {
	// Daemons are the running time daemons: "chronyd", "ntpd", "systemd-timesyncd", …
	Daemons []string `json:"daemons,omitempty"`
	// Servers are the servers in the daemons' configuration, including pools.
	Servers []string `json:"servers,omitempty"`
	// Known means the kernel could be queried for the following fields.
	Known bool `json:"known,omitempty"`
	// Synchronized is the kernel's state: it becomes false when no daemon refreshes it.
	Synchronized bool `json:"synchronized,omitempty"`
	// Offset is the remaining clock adjustment in nanoseconds, and MaxError the maximal clock error.
	Offset   int64 `json:"offset,omitempty"`
	MaxError int64 `json:"maxError,omitempty"`
}

// PacketFilter holds the rules of iptables and nftables in the kernel. Reading them loads nothing.
type PacketFilter struct {
	// Known means the rules could be read; the rest is empty if not.
	Known bool `json:"known,omitempty"`
	// Drops are the base chains with policy drop, at most 100.
	Drops []FilterChain `json:"drops,omitempty"`
	// Foreign are the names of chains of Kubernetes and its networks (KUBE-…, cali-…, FLANNEL-…, CILIUM_…), sorted, at
	// most 100.
	Foreign []string `json:"foreign,omitempty"`
}

// FirewallZone is a zone of firewalld.
type FirewallZone struct {
	Name string `json:"name"`
	// Default means that interfaces without a zone belong to this one.
	Default bool `json:"default,omitempty"`
	// Target is "ACCEPT", "DROP", "%%REJECT%%", or "default" (reject).
	Target     string   `json:"target,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"`
	Sources    []string `json:"sources,omitempty"` // the networks among them
	Ports      []string `json:"ports,omitempty"`   // "6443/tcp", "30000-32767/udp"
}

// FilterChain is a chain called by the kernel itself.
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

// Certificate is an X.509 certificate, the first one of its file, or that of a kubeconfig's user.
type Certificate struct {
	Path    string `json:"path"`
	Subject string `json:"subject,omitempty"`
	// CommonName is the one in Subject.
	CommonName string    `json:"commonName,omitempty"`
	Issuer     string    `json:"issuer,omitempty"`
	CA         bool      `json:"ca,omitempty"`
	NotBefore  time.Time `json:"notBefore,omitzero"`
	NotAfter   time.Time `json:"notAfter,omitzero"`
	// Names are its DNS names and addresses.
	Names []string `json:"names,omitempty"`
	// Problem is the reason that the rest is empty.
	Problem string `json:"problem,omitempty"`
}

// SSHD holds the output of sshd -T.
type SSHD struct {
	KexAlgorithms      []string `json:"kexAlgorithms,omitempty"`
	Ciphers            []string `json:"ciphers,omitempty"`
	MACs               []string `json:"macs,omitempty"`
	HostKeyAlgorithms  []string `json:"hostKeyAlgorithms,omitempty"`
	AllowTCPForwarding string   `json:"allowTCPForwarding,omitempty"`
	PermitRootLogin    string   `json:"permitRootLogin,omitempty"`
}

// Dialled is the result of a TCP connection.
type Dialled struct {
	Address string `json:"address"` // HOST:PORT as requested
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// SyncLatency is the disk's latency for small durable writes, as etcd's log needs them: 2300 bytes appended to a file,
// and fdatasync.
type SyncLatency struct {
	Dir string `json:"dir"` // as requested
	// In is the measured directory: Dir, or its nearest existing parent.
	In     string `json:"in,omitempty"`
	Type   string `json:"type,omitempty"` // of the filesystem
	Writes int    `json:"writes,omitempty"`
	// Nanoseconds of fdatasync.
	P50 int64 `json:"p50,omitempty"`
	P90 int64 `json:"p90,omitempty"`
	P99 int64 `json:"p99,omitempty"`
	Max int64 `json:"max,omitempty"`
	// Problem is the reason for a missing or incomplete measurement.
	Problem string `json:"problem,omitempty"`
}

// Vacancy is the usage of an address on the network.
type Vacancy struct {
	Address netip.Addr `json:"address"`
	// Interface is the one whose network contains the address, "" if none does.
	Interface string `json:"interface,omitempty"`
	// Own means this machine itself has the address.
	Own bool `json:"own,omitempty"`
	// Asked means the network could be queried by ARP or neighbour solicitation.
	Asked bool `json:"asked,omitempty"`
	// MACs are the answering machines.
	MACs []string `json:"macs,omitempty"`
	// Ping and APIServer mean that it answers ICMP echo, and TCP on port 6443.
	Ping      bool `json:"ping,omitempty"`
	APIServer bool `json:"apiServer,omitempty"`
	// Problem names the failed queries.
	Problem string `json:"problem,omitempty"`
}

// InUse reports whether another machine has the address. On the own link, only the link's answer counts: a firewall or
// a proxy may answer TCP for unused addresses.
func (v Vacancy) InUse() bool {
	if v.Asked || len(v.MACs) > 0 {
		return len(v.MACs) > 0
	}
	return !v.Own && (v.Ping || v.APIServer)
}
