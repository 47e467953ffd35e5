package adopt

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// etcd describes the cluster's store. An even number of members is refused: it stands the loss of no more members than
// one less.
func (d *describer) etcd() {
	if d.kubeadm.Etcd.External != nil {
		d.externalEtcd(d.kubeadm.Etcd.External)
		return
	}
	var members []string
	for _, p := range d.planes {
		if p.etcd != nil {
			members = append(members, p.name)
		}
	}
	d.odd(len(members), strings.Join(members, ", "))
	if len(members) < len(d.planes) {
		d.causes.add(kube.ManifestsDir, fmt.Sprintf("etcd runs on %d of %d control planes", len(members), len(d.planes)),
			"kubeadm runs a member on each control plane: complete them")
		return
	}
	flags := d.planes[0].etcd.flags()
	d.cluster.Etcd.Type = manifest.EtcdInternal
	d.cluster.Etcd.DataDir = flags["data-dir"]
	if text := flags["quota-backend-bytes"]; text != "" {
		if err := d.cluster.Etcd.Quota.UnmarshalText([]byte(text)); err != nil {
			d.gap("etcd's quota", fmt.Sprintf("%q is no size", document.Shorten(text)), "write etcd.quota")
		}
	}
	d.care("etcd", fmt.Sprintf("%s as static pods, %s, data in %s", plain.Count(len(members), "member"),
		tagOf(d.planes[0].etcd.image()), d.cluster.Etcd.DataDir))
}

func (d *describer) odd(members int, which string) {
	if members%2 == 0 {
		d.causes.add("etcd", fmt.Sprintf("it has %d members (%s): an even number tolerates no more failures than one member fewer",
			members, which), "remove or add a member with the tool that made the cluster")
	}
}

// externalEtcd describes etcd beside the cluster as one of the operator's: its files are not where kkbundle has its
// own.
func (d *describer) externalEtcd(x *externalEtcd) {
	members := x.Endpoints
	var asked *Host
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		if names := etcdMembers(parseEnv(h.Files[etcdEnv])); len(names) > 0 && h.runsEtcdUnit() {
			members, asked = names, h
		}
	}
	if slices.ContainsFunc(x.Endpoints, isAddressWithLogin) {
		d.causes.add("ConfigMap kube-system/kubeadm-config", "etcd.external.endpoints has a login in an address",
			"name the members by https://ADDRESS:PORT: kubeadm's clusters ask etcd with a certificate")
	}
	d.odd(len(members), strings.Join(members, ", "))
	// The files keep their names beside the cluster file, without their directories.
	d.cluster.Etcd = manifest.Etcd{
		Type: manifest.EtcdProvided, Endpoints: x.Endpoints,
		CA: "etcd-ca.crt", Cert: "etcd-client.crt", Key: "etcd-client.key",
	}
	where := "outside of the hosts that were read"
	if asked != nil {
		where = "as units with " + etcdEnv
		if asked.has(etcdSSL) {
			where += " and certificates below " + etcdSSL
		}
	}
	plane := d.planes[0].name
	d.care("etcd", fmt.Sprintf("%s, used as it is", plain.Count(len(members), "member")))
	d.gap("etcd", fmt.Sprintf("its members run %s: kkbundle neither saves nor upgrades them, nor adds one", where),
		fmt.Sprintf("keep the other tool's copies; put %s, %s and %s of %s beside cluster.yaml as etcd-ca.crt, etcd-client.crt and etcd-client.key (mode 0600): adopt copies no keys",
			x.CAFile, x.CertFile, x.KeyFile, plane))
}

// runtime describes the container runtime of the nodes, which all have the same.
func (d *describer) runtime() {
	found := map[string][]string{}
	for i := range d.e.Cluster.Nodes {
		n := &d.e.Cluster.Nodes[i]
		version := n.Status.NodeInfo.ContainerRuntimeVersion
		found[version] = append(found[version], n.Name)
	}
	c := &d.cluster.CRI
	for _, one := range sortedKeys(found) {
		name, version, _ := strings.Cut(one, "://")
		kind := map[string]manifest.RuntimeType{
			"containerd": manifest.RuntimeContainerd, "docker": manifest.RuntimeDocker, "cri-o": manifest.RuntimeCRIO,
		}[name]
		if kind == "" || c.Type != "" && c.Type != kind {
			d.causes.add("node "+found[one][0], fmt.Sprintf("container runtime %q", document.Shorten(one)),
				"kkbundle knows clusters with one of containerd, Docker and CRI-O on every node")
			return
		}
		c.Type = kind
		if v := releaseOf(version); v != nil && (c.Version == "" || v.GreaterThan(releaseOf(c.Version))) {
			c.Version = "v" + v.String()
		}
	}
	for _, one := range sortedKeys(found) {
		if _, version, _ := strings.Cut(one, "://"); "v"+strings.TrimPrefix(version, "v") != c.Version {
			d.change(Change{What: string(c.Type), Text: version + " becomes " + c.Version, Hosts: found[one]})
		}
	}
	c.TakeOver = true // kkbundle did not install it
	d.care(string(c.Type), c.Version)
}

// registry describes where nodes pull images from: a mirror of every registry, if all have the same one.
func (d *describer) registry() {
	var all []mirror
	for i := range d.e.Hosts {
		list, err := d.e.Hosts[i].mirrors()
		if err != nil {
			d.gap("registry", d.e.Hosts[i].Name+": "+err.Error(), "write imageRegistry of the registry that has all images")
		}
		all = append(all, list...)
		if n := len(d.e.Hosts[i].Facts.Path(certsDir).Entries); n > maxRegistries {
			d.gap("registry", fmt.Sprintf("%s has %d registries in %s; the first %d were read", d.e.Hosts[i].Name, n,
				certsDir, maxRegistries), "check the others by hand")
		}
	}
	d.cluster.ImageRegistry.Type = manifest.RegistryNone
	address := ""
	for _, m := range all {
		if m.of == "_default" {
			address = m.host
		}
	}
	private := d.kubeadm.ImageRepository
	if private == "registry.k8s.io" || private == "k8s.gcr.io" {
		private = ""
	}
	if address == "" && private != "" {
		address, _, _ = strings.Cut(private, "/")
	}
	if private != "" {
		d.change(Change{What: "images", Upgrade: true, Text: "kubeadm's imageRepository " + private +
			" becomes upstream's names, pulled from the registry"})
	}
	switch {
	case address != "":
		d.cluster.ImageRegistry = manifest.ImageRegistry{Type: manifest.RegistryExisting, Address: address}
		d.care("registry", address)
		d.gap("its login", "the login and the authority of registry "+address+" are not copied",
			"write imageRegistry.auth (passwordEnv or passwordFile) and imageRegistry.ca where it needs them")
	case len(all) > 0:
		d.gap("registry mirrors", fmt.Sprintf("the runtime has mirrors of single registries (%s)", mirrorNames(all)),
			"write imageRegistry {type: existing, address} of the registry that has all images; until then images are loaded on the nodes")
	default:
		d.care("images", "without a registry of the site: kkbundle loads them on the nodes (imageRegistry.type none)")
	}
}

func mirrorNames(list []mirror) string {
	var names []string
	for _, m := range list {
		if !slices.Contains(names, m.of) {
			names = append(names, m.of)
		}
	}
	return strings.Join(names, ", ")
}

// mirrors returns the registries that containerd asks in the place of others.
func (h *Host) mirrors() ([]mirror, error) {
	var list []mirror
	if text, ok := h.Files[containerdTOML]; ok {
		c, err := parseContainerd(text)
		if err != nil {
			return nil, err
		}
		if dirs := strings.Split(c.ConfigPath, ":"); c.ConfigPath != "" && !slices.Contains(dirs, certsDir) {
			return nil, fmt.Errorf("%s: its registries are in %s, and adopt reads %s", containerdTOML,
				document.Shorten(c.ConfigPath), certsDir)
		}
		list = c.Mirrors
	}
	for _, file := range sortedKeys(h.Files) {
		if path.Base(file) != "hosts.toml" {
			continue
		}
		m, err := parseHosts(path.Base(path.Dir(file)), h.Files[file])
		if err != nil {
			return nil, err
		}
		if m.host != "" {
			list = append(list, m)
		}
	}
	return list, nil
}

// network reports the pod network, and leaves it to whoever installed it: kkbundle's values for its chart, or its
// chart over another tool's YAML, would change what pods have.
func (d *describer) network() {
	d.cluster.CNI.Type = manifest.NetworkNone
	for _, n := range network.All() {
		agent := d.e.Cluster.workload(kindDaemonSet, n.Agents...)
		if agent == nil || len(agent.Images) == 0 {
			continue
		}
		version := tagOf(agent.Images[0])
		how := "from YAML"
		if r := d.networkRelease(); r != nil {
			how = fmt.Sprintf("Helm release %s/%s", r.Namespace, r.Name)
		}
		d.gap("pod network", fmt.Sprintf("%s %s, %s: kkbundle's own settings of it would change the pods' network", n.Title, version, how),
			fmt.Sprintf("it stays as it is (cni.type none); upgrade it with the tool that installed it, or write cni {type: %s, version: %s} with values that keep its settings",
				n.Name, version))
		return
	}
	d.gap("pod network", "none that kkbundle knows", "it stays as it is (cni.type none)")
}

// networkRelease returns the Helm release of the pod network, nil if it is none of Helm's: the one with the network's
// name, or the one in the namespace of its pods that have a chart's label.
func (d *describer) networkRelease() *Release {
	for _, n := range network.All() {
		agent := d.e.Cluster.workload(kindDaemonSet, n.Agents...)
		if agent == nil {
			continue
		}
		for i := range d.e.Cluster.Releases {
			if r := &d.e.Cluster.Releases[i]; r.Name == string(n.Name) ||
				r.Namespace == agent.Namespace && agent.Chart != "" && agent.Namespace != kube.SystemNamespace {
				return r
			}
		}
	}
	return nil
}

// certificates reports the control plane's certificates.
func (d *describer) certificates() {
	if dir := d.kubeadm.CertificatesDir; dir != "" && dir != kube.PKIDir && !d.leadsToPKI() {
		d.gap("certificates", "kubeadm's certificates are in "+dir+", kkbundle's in "+kube.PKIDir,
			"make "+kube.PKIDir+" a link to it on every control plane, as Kubespray does")
	}
	h := d.e.host(d.planes[0].name)
	if !h.has(kube.PKIDir+"/ca.key") && !h.has("/etc/kubernetes/ssl/ca.key") {
		d.gap("certificates", "the authority's key is not on "+h.Name+": kubeadm cannot renew certificates",
			"renew them where the key is, and write certificates.renew: manual")
		d.cluster.Certificates.Renew = manifest.RenewManual
	}
	var first *node.Certificate
	for _, c := range h.Facts.ClusterCertificates() {
		if c.Problem == "" && !c.CA && c.Kind().InKubernetesPKI() && (first == nil || c.NotAfter.Before(first.NotAfter)) {
			first = &c
		}
	}
	if first != nil {
		d.care("certificates", fmt.Sprintf("the first to end is %s, on %s", first.Path,
			first.NotAfter.UTC().Format(time.DateOnly)))
	}
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		if h.runs("k8s-certs-renew.timer") {
			d.gap("timer", "k8s-certs-renew.timer on "+h.Name+" is the other tool's",
				"disable it once kkbundle's own renews certificates, or write certificates.renew: manual")
		}
		if h.runs("backup-etcd.timer") {
			d.gap("timer", "backup-etcd.timer on "+h.Name+" is the other tool's", "keep it: it saves etcd")
		}
	}
}

// leadsToPKI reports whether control planes with authorities elsewhere have them in kubeadm's directory as well.
func (d *describer) leadsToPKI() bool {
	return !slices.ContainsFunc(d.planes, func(p plane) bool { return !d.e.host(p.name).has(kube.PKIDir + "/ca.key") })
}

// services reports DNS caches, Helm releases and other things in the cluster that stay as they are.
func (d *describer) services() {
	if w := d.e.Cluster.workload(kindDaemonSet, "node-local-dns", "nodelocaldns"); w != nil {
		d.gap("DNS cache", fmt.Sprintf("DaemonSet %s/%s is another tool's", w.Namespace, w.Name),
			"it stays as it is (dns.nodeLocal false)")
	}
	var names []string
	network := d.networkRelease()
	for i := range d.e.Cluster.Releases {
		if r := &d.e.Cluster.Releases[i]; r != network {
			names = append(names, r.Namespace+"/"+r.Name)
		}
	}
	if slices.Sort(names); len(names) > 0 {
		d.gap("addons", "Helm releases "+strings.Join(names, ", ")+": kkbundle does not know their charts and values",
			"they stay as they are; write a chart that kkbundle is to upgrade under addons, with the release's name and namespace")
	}
	if w := d.e.Cluster.workload(kindDeployment, "metrics-server"); w != nil {
		d.gap("metrics-server", fmt.Sprintf("Deployment %s/%s is another tool's", w.Namespace, w.Name),
			"it stays as it is (metrics false)")
	}
}
