package manifest

import (
	"maps"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Role is a group of hosts in an Inventory.
type Role string

// The roles.
const (
	RoleControlPlane Role = "kube_control_plane"
	RoleWorker       Role = "kube_worker"
	RoleEtcd         Role = "etcd"
	RoleRegistry     Role = "image_registry"
	RoleNFS          Role = "nfs"
	// RoleCluster is every host of RoleControlPlane and RoleWorker. It is derived and never written.
	RoleCluster Role = "k8s_cluster"
)

// groupRoles returns the possible groups of a file, in the order of a host's roles.
func groupRoles() []Role {
	return []Role{RoleControlPlane, RoleWorker, RoleEtcd, RoleRegistry, RoleNFS}
}

// Inventory lists the hosts and their logins, as written; Hosts resolves it.
type Inventory struct {
	APIVersion string             `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string             `yaml:"kind" kk:"required" doc:"Inventory"`
	Metadata   *InventoryMetadata `yaml:"metadata,omitempty" doc:"Name of the inventory."`
	Vars       Vars               `yaml:"vars,omitempty" doc:"Settings of every host without its own."`
	GroupVars  GroupVars          `yaml:"groupVars,omitempty" doc:"Settings of a group's hosts without their own."`
	HostSpecs  HostSpecs          `yaml:"hosts" kk:"required" doc:"Hosts by name; node[1:3] stands for node1, node2 and node3."`
	Groups     Groups             `yaml:"groups" kk:"required" doc:"Roles of the hosts."`

	src *document.Tree
}

// InventoryMetadata names an inventory.
type InventoryMetadata struct {
	Name string `yaml:"name" kk:"required" doc:"Lower case letters, digits, hyphens and dots."`
}

// Groups lists the hosts of each role; names can be ranges.
type Groups struct {
	ControlPlane []string `yaml:"kube_control_plane" kk:"required" doc:"Hosts that run the control plane."`
	Worker       []string `yaml:"kube_worker,omitempty" doc:"Hosts that run pods."`
	Etcd         []string `yaml:"etcd,omitempty" doc:"Hosts that run etcd. Default the control planes."`
	Registry     []string `yaml:"image_registry,omitempty" doc:"Hosts of the image registry: one, or two with imageRegistry.vip. Default the first control plane, if kkbundle installs the registry."`
	NFS          []string `yaml:"nfs,omitempty" doc:"NFS server."`
}

// Hint says what to write in the place of an unknown field.
func (*Groups) Hint(name string) string {
	if name == string(RoleCluster) {
		return "it is the union of kube_control_plane and kube_worker and follows from them"
	}
	return ""
}

// of returns the entries of a role as written.
func (g *Groups) of(r Role) []string {
	switch r {
	case RoleControlPlane:
		return g.ControlPlane
	case RoleWorker:
		return g.Worker
	case RoleEtcd:
		return g.Etcd
	case RoleRegistry:
		return g.Registry
	case RoleNFS:
		return g.NFS
	default:
		return nil
	}
}

// Vars apply to hosts without settings of their own.
type Vars struct {
	SSH         SSH                   `yaml:"ssh,omitempty" doc:"SSH access to the hosts."`
	Sudo        Sudo                  `yaml:"sudo,omitempty" doc:"How a user other than root becomes root."`
	Labels      map[string]LabelValue `yaml:"labels,omitempty" doc:"Labels of the nodes."`
	Annotations map[string]Annotation `yaml:"annotations,omitempty" doc:"Annotations of the nodes."`
	Taints      []Taint               `yaml:"taints,omitempty" doc:"Taints of the nodes, as key=value:Effect; [] for none."`
	Cluster     *HostSettings         `yaml:"cluster,omitempty" doc:"Differences from the cluster file on these hosts."`
}

// GroupVars are the Vars of groups. For a host in several groups, a later group overrides an earlier one.
type GroupVars struct {
	Cluster      Vars `yaml:"k8s_cluster,omitempty" doc:"Settings for the hosts of kube_control_plane and kube_worker; other groups win over them."`
	NFS          Vars `yaml:"nfs,omitempty" doc:"Settings for the hosts of nfs."`
	Registry     Vars `yaml:"image_registry,omitempty" doc:"Settings for the hosts of image_registry."`
	Etcd         Vars `yaml:"etcd,omitempty" doc:"Settings for the hosts of etcd."`
	Worker       Vars `yaml:"kube_worker,omitempty" doc:"Settings for the hosts of kube_worker."`
	ControlPlane Vars `yaml:"kube_control_plane,omitempty" doc:"Settings for the hosts of kube_control_plane; they win over other groups."`
}

// groupVars are the Vars of one group.
type groupVars struct {
	role Role
	*Vars
}

// all lists the groups; later ones override earlier ones.
func (g *GroupVars) all() []groupVars {
	return []groupVars{
		{RoleCluster, &g.Cluster},
		{RoleNFS, &g.NFS},
		{RoleRegistry, &g.Registry},
		{RoleEtcd, &g.Etcd},
		{RoleWorker, &g.Worker},
		{RoleControlPlane, &g.ControlPlane},
	}
}

// SSH configures access to a host. Without key and password, the agent and the user's own keys are tried.
type SSH struct {
	// User is root by default.
	User string `yaml:"user,omitempty" doc:"User for the login. Default root."`
	// Key is the path of a private key, relative to kkbundle's working directory; a leading ~/ is the home directory.
	Key string `yaml:"key,omitempty" local:"machine" doc:"Private key file."`
	// Port is 22 by default.
	Port int `yaml:"port,omitempty" doc:"Port of the SSH server. Default 22."`
	// PasswordEnv names an environment variable, PasswordFile a file that contains the password.
	PasswordEnv  string `yaml:"passwordEnv,omitempty" local:"machine" doc:"Environment variable that has the password."`
	PasswordFile string `yaml:"passwordFile,omitempty" local:"machine" doc:"File that has the password."`
	// Bastion is the path to the host in the syntax of ssh's ProxyJump: hops separated by commas, the first one dialled
	// first. A hop is a host of the inventory or [user@]host[:port]; none overrides hops in vars or a group.
	Bastion string `yaml:"bastion,omitempty" doc:"Hops to go through, separated by commas: hosts of the inventory or [user@]host[:port]; none for no hop."`
	// Password and PrivateKey (a PEM file's content) come from files of KubeKey, which contain secrets.
	Password   Secret `yaml:"password,omitempty" kk:"foreign"`
	PrivateKey Secret `yaml:"privateKey,omitempty" kk:"foreign"`
}

// Hint says what to write in the place of an unknown field.
func (*SSH) Hint(name string) string { return passwordHint(name) }

// Sudo configures how a user other than root becomes root. Without a password, sudo must not ask for one.
type Sudo struct {
	PasswordEnv  string `yaml:"passwordEnv,omitempty" local:"machine" doc:"Environment variable that has the password."`
	PasswordFile string `yaml:"passwordFile,omitempty" local:"machine" doc:"File that has the password."`
	// Password comes from files of KubeKey, which contain secrets.
	Password Secret `yaml:"password,omitempty" kk:"foreign"`
}

// Hint says what to write in the place of an unknown field.
func (*Sudo) Hint(name string) string { return passwordHint(name) }

// passwordHint refuses secrets and names the right setting.
func passwordHint(name string) string {
	switch name {
	case "password", "pass", "passwd":
		return "secrets never live in this file; write passwordEnv (an environment variable's name) or passwordFile"
	case "privateKey", "private_key", "keyContent", "private_key_content":
		return "secrets never live in this file; write key, the path of the private key"
	}
	return ""
}

// HostSpec is one entry of an inventory's hosts: one host or a range of them.
type HostSpec struct {
	Name string `yaml:"-" kk:"key"`
	// Address is the address for SSH, by default the host's name. Its range has as many hosts as Name's.
	Address string `yaml:"address,omitempty" doc:"Address for SSH; may contain a range, like the name. Default the host's name."`
	// InternalIPv4 and InternalIPv6 are the node's addresses in the cluster, by default Address.
	InternalIPv4 string `yaml:"internalIPv4,omitempty" doc:"The node's IPv4 address in the cluster; may contain a range, like the name. Default address."`
	InternalIPv6 string `yaml:"internalIPv6,omitempty" doc:"The node's IPv6 address in the cluster; may contain a range, like the name. Default address."`
	// Local marks the machine that kkbundle runs on.
	Local bool `yaml:"local,omitempty" doc:"The machine that kkbundle runs on; no SSH."`
	// The other fields are as in Vars.
	SSH         SSH                   `yaml:"ssh,omitempty" doc:"SSH access to this host."`
	Sudo        Sudo                  `yaml:"sudo,omitempty" doc:"How a user other than root becomes root."`
	Labels      map[string]LabelValue `yaml:"labels,omitempty" doc:"Labels of the node."`
	Annotations map[string]Annotation `yaml:"annotations,omitempty" doc:"Annotations of the node."`
	Taints      []Taint               `yaml:"taints,omitempty" doc:"Taints of the node, as key=value:Effect; [] for none."`
	Cluster     *HostSettings         `yaml:"cluster,omitempty" doc:"Differences from the cluster file on this host."`
}

// vars returns the entry's settings as Vars.
func (h *HostSpec) vars() *Vars {
	return &Vars{h.SSH, h.Sudo, h.Labels, h.Annotations, h.Taints, h.Cluster}
}

// Hint says what to write in the place of an unknown field.
func (*HostSpec) Hint(name string) string {
	switch name {
	case "user", "key", "port", "bastion":
		return "it belongs under ssh"
	}
	return passwordHint(name)
}

// HostSpecs are the entries of an inventory's hosts in the order of the file.
type HostSpecs []HostSpec

// MarshalYAML writes the entries as the mapping that was read.
func (h HostSpecs) MarshalYAML() (any, error) {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for _, one := range h {
		var k, v yaml.Node
		if err := k.Encode(one.Name); err != nil {
			return nil, err
		}
		if err := v.Encode(one); err != nil {
			return nil, err
		}
		m.Content = append(m.Content, &k, &v)
	}
	return m, nil
}

// Host is one host with all its settings. Precedence: defaults, then vars, then groupVars, then the host's own entry.
type Host struct {
	Name string
	// Address is the address for SSH.
	Address string
	// InternalIPv4 is the node's address in the cluster. It is invalid if the inventory has no IPv4 address; the host
	// must be asked then.
	InternalIPv4 netip.Addr
	// InternalIPv6 is the node's IPv6 address in the cluster; it may be invalid like InternalIPv4.
	InternalIPv6 netip.Addr
	Local        bool
	// SSH is without Bastion; see Hops.
	SSH SSH
	// Labels, Annotations and Taints are set on the node in addition to those of Kubernetes and kkbundle.
	Labels      map[string]string
	Annotations map[string]string
	Taints      []Taint
	// Hops are the SSH servers on the path to the host: the first is dialled directly, each further one and the host
	// through the one before.
	Hops []Hop
	Sudo Sudo
	// Roles are the host's groups in a fixed order, RoleCluster last.
	Roles []Role

	// entry is the path of its entry.
	entry    string
	settings []settingsAt
	// inherited are the settings of hops outside of the inventory: vars.
	inherited SSH
	// ownBastion means the host's own entry sets its hops.
	ownBastion bool
}

// settingsAt is a place of an inventory with HostSettings for a host.
type settingsAt struct{ name, path string }

// Hop is an SSH server on the path to a host, with all its settings. Two hops that are the same server have the same
// Address, port and user.
type Hop struct {
	// Name is the hop's name in the inventory, or its address if it is not a host of the inventory.
	Name    string
	Address string
	// SSH has user, port and credentials; Bastion is empty.
	SSH SSH
}

// Is reports whether the host has a role.
func (h Host) Is(r Role) bool { return slices.Contains(h.Roles, r) }

// ParseInventory reads an Inventory. The error is Problems.
func ParseInventory(file string, data []byte) (*Inventory, error) {
	src, err := document.Parse(file, data, document.FileLimits())
	if err != nil {
		return nil, err
	}
	return inventoryOf(src)
}

func inventoryOf(src *document.Tree) (*Inventory, error) {
	inv := &Inventory{src: src}
	return decodeTree(src, KindInventory, inv, func(c *checker) { inventoryChecker{c}.check(inv) })
}

const (
	defaultUser    = "root"
	defaultSSHPort = 22
)

// WithDefaults returns the inventory with the default that depends on the cluster: a registry that kkbundle installs
// is on the first control plane. Only a registry with a VIP, which is on two hosts, has no default.
func (inv *Inventory) WithDefaults(k *Cluster) *Inventory {
	r := k.WithDefaults().ImageRegistry
	if len(inv.Groups.Registry) > 0 || !r.Type.Installed() || r.VIP != "" {
		return inv
	}
	d := *inv
	for _, h := range inv.expand() {
		if h.Is(RoleControlPlane) {
			d.Groups.Registry = []string{h.Name}
			break
		}
	}
	return &d
}

// Hosts returns every host in the order of the file, ranges expanded. Without an etcd group, the control plane has
// RoleEtcd.
func (inv *Inventory) Hosts() []Host {
	list := inv.expand()
	w := newWays(list)
	for i := range list {
		list[i].Hops, _ = w.to(&list[i]) // ParseInventory has refused unknown hops
	}
	for i := range list {
		list[i].SSH.Bastion = ""
	}
	return list
}

// expand returns every host, without its hops.
func (inv *Inventory) expand() []Host {
	roles := inv.roles()
	var list []Host
	for i := range inv.HostSpecs {
		spec := &inv.HostSpecs[i]
		many, err := spec.expand()
		if err != nil || len(list)+len(many) > scalar.MaxHosts {
			continue // refused by ParseInventory
		}
		for _, h := range many {
			inv.resolve(&h, spec, roles[h.Name])
			list = append(list, h)
		}
	}
	return list
}

// resolve adds the settings of an expanded host.
func (inv *Inventory) resolve(h *Host, spec *HostSpec, roles []Role) {
	h.Roles, h.entry = roles, document.Key("hosts", spec.Name)
	all := inv.Vars
	h.inherited = inv.Vars.SSH
	add := func(name, path string, v *Vars) {
		all = all.with(v)
		if v.Cluster != nil {
			h.settings = append(h.settings, settingsAt{name, document.Join(path, "cluster")})
		}
	}
	add("vars", "vars", &Vars{Cluster: inv.Vars.Cluster})
	for _, g := range inv.GroupVars.all() {
		if slices.Contains(roles, g.role) {
			add("group "+string(g.role), document.Join("groupVars", string(g.role)), g.Vars)
		}
	}
	add("host "+h.Name, h.entry, spec.vars())
	h.ownBastion = spec.SSH.Bastion != ""
	h.SSH, h.Sudo, h.Taints = all.SSH, all.Sudo, all.Taints
	h.SSH.User = orDefault(h.SSH.User, defaultUser)
	h.SSH.Port = orDefault(h.SSH.Port, defaultSSHPort)
	h.Labels, h.Annotations = asStrings(all.Labels), asStrings(all.Annotations)
}

// roles returns each host's roles. It counts at most MaxHosts in each group.
func (inv *Inventory) roles() map[string][]Role {
	roles := map[string][]Role{}
	for _, r := range groupRoles() {
		members := inv.Groups.of(r)
		if r == RoleEtcd && len(members) == 0 {
			members = inv.Groups.ControlPlane
		}
		n := 0
		for _, entry := range members {
			names, err := scalar.ExpandRange(entry)
			if err != nil {
				continue
			}
			if n += len(names); n > scalar.MaxHosts {
				break // refused elsewhere
			}
			for _, name := range names {
				roles[name] = append(roles[name], r)
			}
		}
	}
	for name, list := range roles {
		if slices.Contains(list, RoleControlPlane) || slices.Contains(list, RoleWorker) {
			roles[name] = append(list, RoleCluster)
		}
	}
	return roles
}

// with returns v overridden by o: labels and annotations by name, taints as a whole.
func (v Vars) with(o *Vars) Vars {
	v.SSH, v.Sudo = v.SSH.with(o.SSH), v.Sudo.with(o.Sudo)
	v.Labels, v.Annotations = union(v.Labels, o.Labels), union(v.Annotations, o.Annotations)
	if o.Taints != nil {
		v.Taints = o.Taints
	}
	return v
}

// union returns m with everything in o; neither is changed.
func union[T any](m, o map[string]T) map[string]T {
	switch {
	case len(o) == 0:
		return m
	case len(m) == 0:
		return o
	}
	both := maps.Clone(m)
	maps.Copy(both, o)
	return both
}

// with returns s overridden by o. The credentials are one choice: a host with a key or a password does not also get
// those of vars.
func (s SSH) with(o SSH) SSH {
	s.User = orDefault(o.User, s.User)
	s.Port = orDefault(o.Port, s.Port)
	s.Bastion = orDefault(o.Bastion, s.Bastion)
	if o.Key != "" || o.PasswordEnv != "" || o.PasswordFile != "" || o.Password.IsSet() || o.PrivateKey.IsSet() {
		s.Key, s.PasswordEnv, s.PasswordFile, s.Password, s.PrivateKey = o.Key, o.PasswordEnv, o.PasswordFile,
			o.Password, o.PrivateKey
	}
	return s
}

func (s Sudo) with(o Sudo) Sudo {
	if o != (Sudo{}) {
		return o
	}
	return s
}
