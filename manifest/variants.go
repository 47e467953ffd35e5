package manifest

// Distribution is the Kubernetes that is installed.
type Distribution string

// The distributions.
const (
	DistributionKubernetes Distribution = "kubernetes"
	DistributionK3s        Distribution = "k3s"
)

// ProxyMode is the mode of kube-proxy.
type ProxyMode string

// The modes of kube-proxy.
const (
	ProxyIPTables ProxyMode = "iptables"
	ProxyNFTables ProxyMode = "nftables"
	ProxyIPVS     ProxyMode = "ipvs"
)

// SecurityLevel is how strictly a cluster is configured.
type SecurityLevel string

// The security levels.
const (
	SecurityBaseline SecurityLevel = "baseline"
	SecurityHardened SecurityLevel = "hardened"
)

// EndpointType is how the API server's address is provided.
type EndpointType string

// The types of endpoints.
const (
	EndpointLocal    EndpointType = "local"
	EndpointKubeVIP  EndpointType = "kube-vip"
	EndpointHAProxy  EndpointType = "haproxy"
	EndpointExternal EndpointType = "external"
)

// EtcdType is where etcd runs.
type EtcdType string

// The types of etcd.
const (
	// EtcdInternal is etcd as static pods, or as a part of k3s.
	EtcdInternal EtcdType = "internal"
	// EtcdExternal is etcd as systemd units on the etcd hosts.
	EtcdExternal EtcdType = "external"
	// EtcdProvided is an existing etcd of the user's.
	EtcdProvided EtcdType = "provided"
)

// Renewal is how the control plane's certificates are renewed.
type Renewal string

// The ways of renewal.
const (
	RenewAuto   Renewal = "auto"
	RenewManual Renewal = "manual"
)

// PackageSource is where packages of the operating system come from.
type PackageSource string

// The sources of packages.
const (
	PackagesOfBundle PackageSource = "bundle"
	PackagesOfHost   PackageSource = "host"
	PackagesOfNobody PackageSource = "none"
)

// RuntimeType is a container runtime.
type RuntimeType string

// The container runtimes.
const (
	RuntimeContainerd RuntimeType = "containerd"
	RuntimeDocker     RuntimeType = "docker"
	RuntimeCRIO       RuntimeType = "crio"
)

// NetworkType is a pod network.
type NetworkType string

// The pod networks.
const (
	NetworkFlannel   NetworkType = "flannel"
	NetworkCalico    NetworkType = "calico"
	NetworkCilium    NetworkType = "cilium"
	NetworkHybridnet NetworkType = "hybridnet"
	NetworkKubeOVN   NetworkType = "kube-ovn"
	// NetworkMultus adds interfaces to those of another network.
	NetworkMultus NetworkType = "multus"
	NetworkNone   NetworkType = "none"
)

// Installed reports whether install sets the pod network up, rather than the user.
func (t NetworkType) Installed() bool { return t != NetworkNone }

// RegistryType is the kind of registry that hosts pull from.
type RegistryType string

// The kinds of registries.
const (
	// RegistryPlain is a CNCF distribution registry that install sets up.
	RegistryPlain RegistryType = "registry"
	// RegistryHarbor is a Harbor that install sets up.
	RegistryHarbor RegistryType = "harbor"
	// RegistryExisting is a registry of the user's.
	RegistryExisting RegistryType = "existing"
	// RegistryNone means that images are loaded into the hosts' runtimes.
	RegistryNone RegistryType = "none"
)

// Installed reports whether install sets the registry up.
func (t RegistryType) Installed() bool { return t == RegistryPlain || t == RegistryHarbor }

// Peers is what nodes take layers from each other by.
type Peers string

// The ways. The zero value is PeersNone.
const (
	PeersNone   Peers = "none"
	PeersSpegel Peers = "spegel"
)

// Registries is the registry host from which a node pulls.
type Registries string

// The ways. The zero value is RegistriesAddress.
const (
	RegistriesAddress Registries = "address"
	RegistriesSpread  Registries = "spread"
)

// Programs is where hosts take the bundle's files from, such as the programs of Kubernetes.
type Programs string

// The ways. The zero value is ProgramsMachine.
const (
	ProgramsMachine  Programs = "machine"
	ProgramsRegistry Programs = "registry"
)

// Ports of Spegel's chart on every node. They lie in the part of the range for node ports that Kubernetes gives away by
// itself last. https://kubernetes.io/docs/reference/networking/virtual-ips/#service-nodeport-static-sub-range
const (
	PeersHostPort = 30020 // the node's own pod
	PeersNodePort = 30021 // the pod of any node
)

// Used reports whether nodes take layers from each other.
func (p Peers) Used() bool { return p == PeersSpegel }

// InternetPolicy is whether hosts may reach the internet.
type InternetPolicy string

// The internet policies.
const (
	InternetAllowed   InternetPolicy = "allowed"
	InternetForbidden InternetPolicy = "forbidden"
)

// AddonWait is what install waits for after an addon.
type AddonWait string

// The states of an addon to wait for.
const (
	WaitReady AddonWait = "ready"
	WaitNone  AddonWait = "none"
)

// FailurePolicy is what happens to a chart that fails.
type FailurePolicy string

// The failure policies.
const (
	FailureRollback FailurePolicy = "rollback"
	FailureKeep     FailurePolicy = "keep"
)

// RunsEtcd reports whether the distribution runs etcd in itself: it adds, removes and saves the members.
func (d Distribution) RunsEtcd() bool { return d == DistributionK3s }

// BringsNetwork reports whether the pod network is a part of the distribution: k3s' own flannel, with its own
// plugins. It writes its configuration where no other network looks, so that multus needs the catalog's.
func (c *Cluster) BringsNetwork() bool {
	return c.Kubernetes.Distribution == DistributionK3s && c.CNI.Type == NetworkFlannel
}

// HostDistributions lists the supported operating systems of hosts by their ID in /etc/os-release.
func HostDistributions() []string {
	return []string{"ubuntu", "debian", "centos", "rhel", "rocky", "almalinux", "ol", "kylin", "openeuler", "uos"}
}
