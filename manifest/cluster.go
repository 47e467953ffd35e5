package manifest

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Cluster describes the wanted cluster. Build reads its needs from it, precheck its requirements, install its
// configuration. Missing values are zero until WithDefaults.
type Cluster struct {
	APIVersion           string        `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind                 string        `yaml:"kind" kk:"required" doc:"Cluster"`
	Metadata             Metadata      `yaml:"metadata" kk:"required" doc:"Name of the cluster."`
	Kubernetes           Kubernetes    `yaml:"kubernetes" kk:"required" doc:"Version and settings of Kubernetes."`
	ControlPlaneEndpoint Endpoint      `yaml:"controlPlaneEndpoint,omitempty" doc:"Address of the API server for nodes and clients."`
	Etcd                 Etcd          `yaml:"etcd,omitempty" doc:"Where etcd runs."`
	Backup               BackupKeys    `yaml:"backup,omitempty" doc:"Encryption of copies of etcd and of keys."`
	Certificates         Certificates  `yaml:"certificates,omitempty" doc:"The control plane's certificates."`
	CRI                  CRI           `yaml:"cri,omitempty" doc:"The container runtime."`
	CNI                  CNI           `yaml:"cni,omitempty" doc:"The pod network."`
	ImageRegistry        ImageRegistry `yaml:"imageRegistry,omitempty" doc:"The registry that hosts pull images from."`
	// ImageDistribution spreads images beside the registry.
	ImageDistribution ImageDistribution `yaml:"imageDistribution,omitempty" doc:"How images reach many nodes without each asking the registry."`
	Storage           Storage           `yaml:"storage,omitempty" doc:"Storage classes."`
	DNS               ClusterDNS        `yaml:"dns,omitempty" doc:"Name resolution in the cluster."`
	Metrics           bool              `yaml:"metrics,omitempty" doc:"Install metrics-server."`
	// OSPackages is the source of operating system packages that hosts lack.
	OSPackages PackageSource `yaml:"osPackages,omitempty" enum:"bundle,host,none" doc:"Origin of packages that hosts lack: the bundle, the host's own sources, or none (nothing is installed). Default bundle."`
	Time       Time          `yaml:"time,omitempty" doc:"Time servers; without it clocks are left alone."`
	Precheck   Precheck      `yaml:"precheck,omitempty" doc:"Requirements for every host."`
	ClusterAPI ClusterAPI    `yaml:"clusterAPI,omitempty" doc:"Cluster API with kkbundle's provider: a cluster that makes others on a pool of hosts."`
	Addons     []Addon       `yaml:"addons,omitempty" doc:"Charts and YAML installed after the cluster, in this order."`
	// Components overrides the catalog's default versions, by the catalog's names.
	Components map[string]Component `yaml:"components,omitempty" doc:"Versions other than the catalog's defaults, by component, such as runc."`
	// Catalog are paths of Catalog files, relative to the cluster file; later ones win.
	Catalog []string `yaml:"catalog,omitempty" local:"carried" doc:"Your own catalog files; their entries replace those of kkbundle's catalog, and later files win."`

	// Catalogs are the parsed files of Catalog, in their order. The reader of the cluster file fills them; they are not
	// part of the file.
	Catalogs []*catalogfile.Catalog `yaml:"-"`
	// Base is the catalog of the bundle, in place of the program's own; nil means the program's. It is not part of
	// the file either.
	Base *catalogfile.Catalog `yaml:"-"`

	src *document.Tree
	// file is the cluster file alone, and sets the settings over it; src combines both.
	file *document.Tree
	sets []string
}

// Kubernetes is the Kubernetes to install.
type Kubernetes struct {
	Distribution Distribution `yaml:"distribution,omitempty" enum:"kubernetes,k3s" doc:"kubeadm (kubernetes) or k3s, which was never run on a real host. Default kubernetes."`
	// Version is vMAJOR.MINOR.PATCH.
	Version string `yaml:"version" kk:"required" doc:"Version to install, such as v1.36.3."`
	// UpgradeFrom is the Kubernetes that hosts run now. A bundle includes each minor release between it and Version.
	UpgradeFrom string `yaml:"upgradeFrom,omitempty" doc:"Version that the hosts run now; the needs of each minor release between it and version are added to the bundle."`
	// PodCIDR is 10.233.64.0/18 by default.
	PodCIDR scalar.CIDRs `yaml:"podCIDR,omitempty" doc:"Network of the pods; IPv4,IPv6 for dual stack. Default 10.233.64.0/18."`
	// ServiceCIDR is 10.233.0.0/18 by default.
	ServiceCIDR scalar.CIDRs `yaml:"serviceCIDR,omitempty" doc:"Network of the services; IPv4,IPv6 for dual stack. Default 10.233.0.0/18."`
	// MaxPods is the most pods on a node, 110 by default (kubelet's own default).
	MaxPods   int       `yaml:"maxPods,omitempty" doc:"Most pods on a node. Default 110."`
	ProxyMode ProxyMode `yaml:"proxyMode,omitempty" enum:"iptables,nftables,ipvs" doc:"Mode of kube-proxy. Default iptables."`
	// Kubelet, Kubeadm and KubeProxy are merged into KubeletConfiguration, ClusterConfiguration and
	// KubeProxyConfiguration and override kkbundle's values, except those that package programs refuses.
	Kubelet   Config `yaml:"kubelet,omitempty" doc:"Merged into KubeletConfiguration."`
	Kubeadm   Config `yaml:"kubeadm,omitempty" doc:"Merged into kubeadm's ClusterConfiguration."`
	KubeProxy Config `yaml:"kubeProxy,omitempty" doc:"Merged into KubeProxyConfiguration."`
	// Patches are paths of kubeadm's patch files, relative to the cluster file. Their names determine their targets.
	Patches  []string      `yaml:"patches,omitempty" local:"carried" doc:"Patch files for kubeadm, with kubeadm's file names, such as kube-apiserver0+merge.yaml."`
	Security SecurityLevel `yaml:"security,omitempty" enum:"baseline,hardened" doc:"Security level. Default baseline."`
}

// Config is a free-form part of another program's configuration. Its values have the types of JSON: nil, bool, int64,
// float64, string, []any and map[string]any.
type Config map[string]any

// Endpoint is the address of the API server for nodes and clients.
type Endpoint struct {
	Type EndpointType `yaml:"type,omitempty" enum:"local,kube-vip,haproxy,external" doc:"local: the address of the first control plane, or a name of yours; kube-vip: an address that moves; haproxy: a proxy on each worker; external: your balancer. Default local."`
	// Address is host or host:port; empty is the first control plane's address.
	Address string `yaml:"address,omitempty" doc:"host or host:port. Default the first control plane, port 6443."`
	// Interface is the interface on which kube-vip announces the address; empty means that of the node's address.
	Interface string `yaml:"interface,omitempty" doc:"Interface for kube-vip's address. Default the interface of the node's address."`
}

// HostPort returns the endpoint as host:port. Without an address in the file it uses first, that of the first control
// plane; without a port, DefaultPort.
func (e Endpoint) HostPort(first string) string {
	host, port := first, 0
	if e.Address != "" {
		host, port, _ = scalar.SplitHostPort(e.Address) // checked by ParseCluster
	}
	return net.JoinHostPort(host, strconv.Itoa(orDefault(port, DefaultPort)))
}

// Etcd is the cluster's store.
type Etcd struct {
	Type   EtcdType `yaml:"type,omitempty" enum:"internal,external,provided" doc:"internal: kubeadm's static pods; external: programs on the etcd hosts; provided: yours. Default internal."`
	Backup *Backup  `yaml:"backup,omitempty" doc:"Regular copies on the etcd hosts. Default every 6h, the newest 8; not for a provided etcd and k3s."`
	// DataDir is /var/lib/etcd by default.
	DataDir string `yaml:"dataDir,omitempty" doc:"Directory of the data. Default /var/lib/etcd."`
	// Quota is etcd's --quota-backend-bytes. https://etcd.io/docs/v3.6/dev-guide/limit/#storage-size-limit
	Quota scalar.Quantity `yaml:"quota,omitempty" doc:"Size of the database at which etcd takes no changes, for types internal and external. etcd suggests at most 8Gi. Default etcd's own, 2Gi."`
	// Endpoints, CA, Cert and Key describe the user's own etcd: addresses, and paths of PEM files relative to the
	// cluster file.
	Endpoints []string `yaml:"endpoints,omitempty" doc:"Addresses of a provided etcd, such as https://10.0.0.1:2379."`
	CA        string   `yaml:"ca,omitempty" local:"machine" doc:"PEM file with the certificate authority of a provided etcd. It does not go into a bundle."`
	Cert      string   `yaml:"cert,omitempty" local:"machine" doc:"PEM file with the client certificate for a provided etcd. It does not go into a bundle."`
	Key       string   `yaml:"key,omitempty" local:"machine" doc:"PEM file with the client's key. It does not go into a bundle."`
}

// Certificates configure the signing and renewal of the control plane's certificates.
type Certificates struct {
	// Renew is auto by default: a timer on every control plane renews certificates that expire within RenewBefore.
	Renew Renewal `yaml:"renew,omitempty" enum:"auto,manual" doc:"auto: a timer on the control planes renews certificates before they end; manual: kkbundle certs renew does. Default auto."`
	// CA, FrontProxyCA and EtcdCA are the user's own authorities; kubeadm creates missing ones.
	CA           *KeyPair `yaml:"ca,omitempty" doc:"Your own authority for the cluster."`
	FrontProxyCA *KeyPair `yaml:"frontProxyCA,omitempty" doc:"Your own authority for the API server's front proxy."`
	EtcdCA       *KeyPair `yaml:"etcdCA,omitempty" doc:"Your own authority for etcd of type internal."`
}

// A KeyPair is a certificate and its key: paths of PEM files relative to the cluster file.
type KeyPair struct {
	Cert string `yaml:"cert" kk:"required" local:"machine" doc:"PEM file with the certificate. It does not go into a bundle."`
	Key  string `yaml:"key" kk:"required" local:"machine" doc:"PEM file with the key. It does not go into a bundle."`
}

// Time configures the hosts' time sources.
type Time struct {
	// Servers are names or addresses of NTP servers. A host of the inventory, by its name, serves the time to the
	// others, from its own clock if it reaches no other server.
	Servers []string `yaml:"servers" kk:"required" doc:"NTP servers. The name of an inventory host makes that host a server for the others."`
}

// Backup is the frequency of etcd snapshots and the number of copies kept.
type Backup struct {
	Every scalar.Duration `yaml:"every,omitempty" doc:"Time between copies, such as 30m. Default 6h."`
	Keep  int             `yaml:"keep,omitempty" doc:"Number of copies that stay. Default 8."`
	Off   bool            `yaml:"off,omitempty" doc:"The etcd hosts save no copies. Default false."`
}

// BackupKeys encrypt copies of etcd and of the cluster's keys, and name a place for copies of etcd outside the cluster.
type BackupKeys struct {
	// Recipients are public keys of age or SSH. Without any, copies are in clear.
	Recipients []string `yaml:"recipients,omitempty" doc:"Public keys that copies are encrypted to: age1..., ssh-ed25519 ... or ssh-rsa .... Default none: copies are in clear, with mode 0600."`
	// S3 receives the etcd hosts' copies.
	S3 *S3 `yaml:"s3,omitempty" doc:"Object storage that every etcd host sends its copies to. Default none."`
}

// S3 is a bucket of an object storage with the S3 API.
type S3 struct {
	Endpoint string `yaml:"endpoint" kk:"required" doc:"Address of the storage, such as https://s3.example:9000. http:// needs backup.recipients."`
	Bucket   string `yaml:"bucket" kk:"required" doc:"Name of the bucket, which must exist."`
	Prefix   string `yaml:"prefix,omitempty" doc:"First part of the names of objects; CLUSTER/HOST/etcd-TIME.db follows. Default none."`
	Region   string `yaml:"region,omitempty" doc:"Region that requests are signed for. Default us-east-1."`
	CA       string `yaml:"ca,omitempty" local:"machine" doc:"PEM file with the authority of the storage's certificate. It does not go into a bundle. Default the hosts' own authorities."`
	// AccessKey names the user, SecretKeyFile the file with its secret.
	AccessKey     string `yaml:"accessKey" kk:"required" doc:"Access key of a user that may put objects. It needs no other right."`
	SecretKeyFile string `yaml:"secretKeyFile" kk:"required" local:"machine" doc:"File that has the secret key. It does not go into a bundle."`
}

// CRI is the container runtime.
type CRI struct {
	Type RuntimeType `yaml:"type,omitempty" enum:"containerd,docker,crio" doc:"Container runtime. Default containerd."`
	// Version is the runtime's; empty is the catalog's default.
	Version string `yaml:"version,omitempty" doc:"Version of the runtime, such as v2.3.7. Default the catalog's."`
	// TakeOver permits hosts with a running container runtime that kkbundle did not install.
	TakeOver bool `yaml:"takeOver,omitempty" doc:"Install on hosts where a container runtime runs that kkbundle did not install. containerd's files are kept and restored by reset, its other containers go on running. Default false: such hosts are refused."`
	// RuntimeClasses are containerd's runtimes beside runc.
	RuntimeClasses []RuntimeClass `yaml:"runtimeClasses,omitempty" doc:"Further runtimes of containerd, such as NVIDIA's or Kata Containers, each with a RuntimeClass."`
	// Tools are programs for operators to install on nodes, none by default.
	Tools []string `yaml:"tools,omitempty" enum:"crictl,nerdctl" doc:"Programs for operators on each node; nerdctl needs containerd. Default none."`
}

// CNI is the pod network.
type CNI struct {
	Type NetworkType `yaml:"type,omitempty" enum:"flannel,calico,cilium,hybridnet,kube-ovn,multus,none" doc:"Pod network. Default flannel."`
	// Version is the network's; empty is the catalog's default.
	Version string `yaml:"version,omitempty" doc:"Version of the network, such as v3.31.2. Default the catalog's."`
	// With is the network of the pods' first interface if Type is multus.
	With NetworkType `yaml:"with,omitempty" enum:"flannel,calico,cilium,hybridnet,kube-ovn" doc:"The network of the first interface, with multus."`
	// IPv4MaskSize and IPv6MaskSize are the sizes of each node's share of the pod networks: 24 and 64 by default.
	IPv4MaskSize int `yaml:"ipv4MaskSize,omitempty" doc:"Prefix length of each node's IPv4 pod network. Default 24."`
	IPv6MaskSize int `yaml:"ipv6MaskSize,omitempty" doc:"Prefix length of each node's IPv6 pod network. Default 64."`
	// Values are paths of values files for the network's chart, relative to the cluster file; they override kkbundle's.
	Values []string `yaml:"values,omitempty" local:"carried" doc:"Values files for the network's chart; they override kkbundle's, and later ones win."`
}

// Primary returns the network of the pods' first interface: With for multus, Type otherwise.
func (n CNI) Primary() NetworkType {
	if n.Type == NetworkMultus {
		return n.With
	}
	return n.Type
}

// ImageRegistry is the registry from which hosts pull.
type ImageRegistry struct {
	Type RegistryType `yaml:"type,omitempty" enum:"registry,harbor,existing,none" doc:"registry, harbor: installed on the image_registry hosts; existing: yours; none: images are loaded on the nodes. Default registry."`
	// Port is the port of the installed registry, 5000 by default.
	Port int `yaml:"port,omitempty" doc:"Port of the registry that is installed. Default 5000."`
	// Address is the host[:port][/path] of an existing registry.
	Address string `yaml:"address,omitempty" doc:"host[:port][/path] of an existing registry."`
	// CA is the path of a PEM file, relative to the cluster file.
	CA   string        `yaml:"ca,omitempty" local:"carried" doc:"PEM file with the certificate authorities of an existing registry."`
	Auth *RegistryAuth `yaml:"auth,omitempty" doc:"Login at an existing registry."`
	// AllowDelete lets the push login delete.
	AllowDelete bool `yaml:"allowDelete,omitempty" doc:"Let the push login delete images from the registry of type registry. Default false."`
	// VIP is the shared address of two registry hosts or more.
	VIP string `yaml:"vip,omitempty" doc:"Address that two registry hosts or more share: an unused one of their network. Harbor: two."`
}

// PushPort returns the port on which the installed registry accepts pushes, at its host's loopback address only.
func (r ImageRegistry) PushPort() int {
	const last = 65535
	if r.Port == last {
		return last - 1
	}
	return r.Port + 1
}

// RegistryAuth is a login whose password is stored elsewhere.
type RegistryAuth struct {
	Username     string `yaml:"username" kk:"required" doc:"User name."`
	PasswordEnv  string `yaml:"passwordEnv,omitempty" local:"machine" doc:"Environment variable that has the password. Not from a bundle's cluster file."`
	PasswordFile string `yaml:"passwordFile,omitempty" local:"machine" doc:"File that has the password. Not from a bundle's cluster file."`
	// Password comes from files of KubeKey, which contain passwords.
	Password Secret `yaml:"password,omitempty" kk:"foreign"`
}

// Hint says what to write in the place of an unknown field.
func (*RegistryAuth) Hint(name string) string { return passwordHint(name) }

// ImageDistribution is how images reach many nodes.
type ImageDistribution struct {
	Registries Registries `yaml:"registries,omitempty" enum:"address,spread" doc:"address: nodes pull from the address that the registry hosts share; spread: each node asks another registry host first, and the others if that one does not answer. Default address."`
	Peers      Peers      `yaml:"peers,omitempty" enum:"none,spegel" doc:"spegel: nodes take layers from each other first, and from the registry what no node has. Default none."`
	Programs   Programs   `yaml:"programs,omitempty" enum:"machine,registry" doc:"machine: kkbundle sends programs and other files of the bundle to each host; registry: hosts take them from the site's registry, and from kkbundle what it does not give. Default machine."`
}

// Storage lists the storage classes to install.
type Storage struct {
	Local bool `yaml:"local,omitempty" doc:"Volumes in directories of the nodes."`
	NFS   bool `yaml:"nfs,omitempty" doc:"Volumes on an NFS server, the host of the group nfs."`
	// NFSPath is the directory that the NFS server exports, /srv/nfs/kubernetes by default.
	NFSPath string `yaml:"nfsPath,omitempty" doc:"Directory that the NFS server exports. Default /srv/nfs/kubernetes."`
}

// ClusterDNS configures name resolution in the cluster.
type ClusterDNS struct {
	// Domain is cluster.local by default.
	Domain    string `yaml:"domain,omitempty" doc:"Domain of the names of services and pods. Default cluster.local."`
	NodeLocal bool   `yaml:"nodeLocal,omitempty" doc:"A DNS cache on every node."`
}

// ClusterAPI are the controllers of a management cluster. The versions of clusterctl and cert-manager follow Version.
type ClusterAPI struct {
	Version  string `yaml:"version" kk:"required" doc:"Version of Cluster API, its kubeadm providers and clusterctl, such as v1.14.2."`
	Provider string `yaml:"provider,omitempty" doc:"Version of kkbundle's infrastructure provider, which is that of a release of kkbundle. Default that of the kkbundle that builds."`
}

// Installed reports whether the cluster manages others.
func (a ClusterAPI) Installed() bool { return a.Version != "" }

// Precheck are the thresholds that hosts must reach.
type Precheck struct {
	MinMemory MinMemory `yaml:"minMemory,omitempty" doc:"Least memory of a host, by role."`
	// MinKernel is a kernel version, 4.9.17 by default.
	MinKernel                     string `yaml:"minKernel,omitempty" doc:"Oldest kernel. Default 4.9.17."`
	AllowUnsupportedDistributions bool   `yaml:"allowUnsupportedDistributions,omitempty" doc:"Accept operating systems that kkbundle was not made for."`
	// MinFree is the space that must stay free on each filesystem; 10% of it by default, the limit at which the kubelet
	// begins to evict pods.
	MinFree scalar.Quantity `yaml:"minFree,omitempty" doc:"Space that must stay free on each filesystem. Default 10% of it."`
	// DiskLatency is the limit for 99% of small writes to etcd's disk, 10ms by default.
	DiskLatency scalar.Duration `yaml:"diskLatency,omitempty" doc:"Longest time for 99% of small writes to etcd's disk. Default 10ms."`
	// ClockSkew is the largest allowed difference of clocks, 2s by default.
	ClockSkew scalar.Duration `yaml:"clockSkew,omitempty" doc:"Largest difference between the hosts' clocks. Default 2s."`
	// Internet allows or forbids hosts to reach the internet, allowed by default.
	Internet InternetPolicy `yaml:"internet,omitempty" enum:"allowed,forbidden" doc:"forbidden: a host with internet access is refused. Default allowed."`
}

// MinMemory is the least memory of a host by role.
type MinMemory struct {
	// ControlPlane is 1700Mi by default, kubeadm's own limit.
	ControlPlane scalar.Quantity `yaml:"controlPlane,omitempty" doc:"Memory of a control plane. Default 1700Mi."`
	// Worker is 1024Mi by default.
	Worker scalar.Quantity `yaml:"worker,omitempty" doc:"Memory of a worker. Default 1024Mi."`
}

// Component is a catalog component's version.
type Component struct {
	Version string `yaml:"version" kk:"required" doc:"Version, such as v1.3.6."`
}

// ParseCluster reads a Cluster. Settings override the file, each written PATH=VALUE with a path as in messages:
// kubernetes.maxPods=200, addons[0].namespace=web. Their values are YAML and have the types of the schema; an empty one
// means the default. The error is Problems. Defaults are not filled in; see WithDefaults.
func ParseCluster(file string, data []byte, settings ...string) (*Cluster, error) {
	src, err := document.Parse(file, data, document.FileLimits())
	if err != nil {
		return nil, err
	}
	return parseCluster(src, settings)
}

func parseCluster(file *document.Tree, settings []string) (*Cluster, error) {
	src, err := file.With(settings)
	if err != nil {
		return nil, err
	}
	k, err := clusterOf(src)
	if err != nil {
		return nil, err
	}
	k.file, k.sets = file, settings
	return k, nil
}

func clusterOf(src *document.Tree) (*Cluster, error) {
	k := &Cluster{src: src}
	return decodeTree(src, KindCluster, k, func(c *checker) { clusterChecker{c}.check(k) })
}

// Defaults of missing values in a Cluster. Versions of components come from the catalog.
const (
	// DefaultPort is the API server's port.
	DefaultPort = 6443
	// DefaultRegistryPort is the installed registry's port.
	DefaultRegistryPort = 5000

	defaultPodCIDR            = "10.233.64.0/18"
	defaultServiceCIDR        = "10.233.0.0/18"
	defaultMaxPods            = 110
	defaultMemoryControlPlane = 1700 << 20
	defaultMemoryWorker       = 1024 << 20
	defaultKernel             = "4.9.17"
	defaultDiskLatency        = scalar.Duration(10 * time.Millisecond)
	defaultClockSkew          = scalar.Duration(2 * time.Second)
	defaultEtcdDir            = "/var/lib/etcd"
	defaultBackupEvery        = scalar.Duration(6 * time.Hour)
	defaultBackupKeep         = 8 // two days
	defaultNFSPath            = "/srv/nfs/kubernetes"
	// DefaultDomain is the domain of names in a cluster.
	DefaultDomain = "cluster.local"
)

// WithDefaults returns a copy in which every missing value has its default. Two values stay empty because the cluster
// alone does not determine them: component versions (see catalog.Version) and the endpoint's address (the first control
// plane's).
func (c *Cluster) WithDefaults() *Cluster {
	d := *c
	k := &d.Kubernetes
	k.Distribution = orDefault(k.Distribution, DistributionKubernetes)
	k.MaxPods = orDefault(k.MaxPods, defaultMaxPods)
	k.ProxyMode = orDefault(k.ProxyMode, ProxyIPTables)
	k.Security = orDefault(k.Security, SecurityBaseline)
	k.PodCIDR = cidrs(k.PodCIDR, defaultPodCIDR)
	k.ServiceCIDR = cidrs(k.ServiceCIDR, defaultServiceCIDR)
	k.Patches = slices.Clone(k.Patches)
	k.Kubelet, k.Kubeadm, k.KubeProxy = k.Kubelet.clone(), k.Kubeadm.clone(), k.KubeProxy.clone()
	d.ControlPlaneEndpoint.Type = orDefault(d.ControlPlaneEndpoint.Type, EndpointLocal)
	d.Etcd.Type = orDefault(d.Etcd.Type, EtcdInternal)
	d.Certificates.Renew = orDefault(d.Certificates.Renew, RenewAuto)
	d.CRI.Type = orDefault(d.CRI.Type, RuntimeContainerd)
	d.CRI.Tools, d.CRI.RuntimeClasses = slices.Clone(d.CRI.Tools), slices.Clone(d.CRI.RuntimeClasses)
	d.CNI.Type = orDefault(d.CNI.Type, NetworkFlannel)
	d.CNI.IPv4MaskSize = orDefault(d.CNI.IPv4MaskSize, nodeBits4)
	d.CNI.IPv6MaskSize = orDefault(d.CNI.IPv6MaskSize, nodeBits6)
	d.CNI.Values = slices.Clone(d.CNI.Values)
	d.Etcd.DataDir = orDefault(d.Etcd.DataDir, defaultEtcdDir)
	d.Etcd.Backup = d.etcdBackup()
	d.Etcd.Endpoints = slices.Clone(d.Etcd.Endpoints)
	d.DNS.Domain = orDefault(d.DNS.Domain, DefaultDomain)
	d.OSPackages = orDefault(d.OSPackages, PackagesOfBundle)
	d.ImageRegistry.Type = orDefault(d.ImageRegistry.Type, RegistryPlain)
	if d.ImageRegistry.Type == RegistryPlain {
		d.ImageRegistry.Port = orDefault(d.ImageRegistry.Port, DefaultRegistryPort)
	}
	if d.Storage.NFS {
		d.Storage.NFSPath = orDefault(d.Storage.NFSPath, defaultNFSPath)
	}
	d.Precheck.MinMemory.ControlPlane = orDefault(d.Precheck.MinMemory.ControlPlane, defaultMemoryControlPlane)
	d.Precheck.MinMemory.Worker = orDefault(d.Precheck.MinMemory.Worker, defaultMemoryWorker)
	d.Precheck.MinKernel = orDefault(d.Precheck.MinKernel, defaultKernel)
	d.Precheck.DiskLatency = orDefault(d.Precheck.DiskLatency, defaultDiskLatency)
	d.Precheck.ClockSkew = orDefault(d.Precheck.ClockSkew, defaultClockSkew)
	d.Precheck.Internet = orDefault(d.Precheck.Internet, InternetAllowed)
	d.Addons = addonsWithDefaults(d.Addons)
	d.Components = maps.Clone(d.Components)
	d.Catalog, d.Catalogs = slices.Clone(d.Catalog), slices.Clone(d.Catalogs)
	return &d
}

// etcdBackup returns the plan of etcd's copies, nil if nobody or somebody else saves etcd.
func (c *Cluster) etcdBackup() *Backup {
	var b Backup
	if c.Etcd.Backup != nil {
		b = *c.Etcd.Backup
	} else if c.Etcd.Type == EtcdProvided || c.Kubernetes.Distribution.RunsEtcd() {
		return nil
	}
	b.Every, b.Keep = orDefault(b.Every, defaultBackupEvery), orDefault(b.Keep, defaultBackupKeep)
	return &b
}

// At returns the cluster with another release of Kubernetes, as a step of an upgrade.
func (c *Cluster) At(release string) *Cluster {
	d := *c
	d.Kubernetes.Version, d.Kubernetes.UpgradeFrom = release, ""
	return &d
}

// FeatureGates returns the feature gates that the cluster file sets for Kubernetes' programs.
func (k *Kubernetes) FeatureGates() []programs.FeatureGate {
	return programs.FeatureGates(k.Kubeadm, k.Kubelet, k.KubeProxy)
}

// Arguments returns the arguments that the cluster file gives to the programs of the control plane.
func (k *Kubernetes) Arguments() []programs.Argument { return programs.Arguments(k.Kubeadm) }

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// cidrs returns a copy of given, or the default.
func cidrs(given scalar.CIDRs, byDefault string) scalar.CIDRs {
	if len(given) > 0 {
		return slices.Clone(given)
	}
	return scalar.CIDRs{netip.MustParsePrefix(byDefault)}
}

func (c Config) clone() Config {
	if c == nil {
		return nil
	}
	return cloneValue(map[string]any(c)).(map[string]any)
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, one := range v {
			m[k] = cloneValue(one)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, one := range v {
			l[i] = cloneValue(one)
		}
		return l
	default:
		return v
	}
}
