package precheck

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// leftoverChecks check for remains of another cluster.
func leftoverChecks() []Check {
	return []Check{
		{
			ID: "leftovers", Groups: []string{GroupKubernetes, GroupEtcd}, Level: Block,
			Title: "no other cluster has left anything behind", Rule: hasNoLeftovers,
			Why:    "kubeadm refuses to start over files of an earlier cluster, and etcd must not start with another one's data",
			Fix:    "if nobody needs that cluster any more: kubeadm reset, then remove the listed remains",
			Source: "kubeadm FileAvailable-*, DirAvailable--var-lib-etcd",
			Kubeadm: []string{
				"FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml",
				"FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml",
				"FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml",
				"FileAvailable--etc-kubernetes-manifests-etcd.yaml",
				"FileAvailable--etc-kubernetes-kubelet.conf", "FileAvailable--etc-kubernetes-bootstrap-kubelet.conf",
				"FileAvailable--etc-kubernetes-pki-ca.crt", "DirAvailable--var-lib-etcd",
			},
		},
		{
			ID: "kubelet-arguments", Groups: []string{GroupKubernetes}, Level: Warn,
			Title: "no file of others sets up the kubelet", Rule: hasNoForeignArguments, Roles: cluster(),
			Why:    "environment files and drop-ins of an earlier cluster or another tool also count for the kubelet, or k3s, that is installed, which then runs otherwise than the cluster file says",
			Fix:    "remove these files; what is meant for this cluster belongs under kubernetes.kubelet of the cluster file, or is an exception of the rules file",
			Source: "kubeadm's drop-in 10-kubeadm.conf and k3s' units, which read these environment files; systemd.unit(5)",
		},
		{
			ID: "leftovers-network", Groups: []string{GroupKubernetes, GroupNetwork}, Level: Warn,
			Title: "no other pod network has left anything behind", Rule: hasNoOldNetwork, Roles: cluster(),
			Why:    "old interfaces and rules send packets of the new pods to where nobody is; kubeadm reset leaves them",
			Fix:    "reboot, or remove these interfaces (ip link delete) and rules (iptables -F; ipvsadm -C)",
			Source: "kubeadm reset: remains that it does not clean up",
		},
		{
			ID: "cni-config", Groups: []string{GroupNetwork, GroupCRI}, Level: Block,
			Title: "no other pod network is configured", Rule: hasNoForeignCNI, Roles: cluster(),
			LevelOf: warnUnlessInstall, Varies: "warns unless kkbundle is going to install",
			Why:    "containerd uses the first configuration that it finds, so pods would not get this cluster's network",
			Fix:    "remove the files from " + cniDir,
			Source: "containerd CRI, max_conf_num",
		},
	}
}

// cniDir is where container runtimes look for the pod network.
const cniDir = "/etc/cni/net.d"

// leftoverPaths returns the possible remains of an earlier cluster.
func leftoverPaths(c *manifest.Cluster) []string {
	return []string{
		"/etc/kubernetes/manifests", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf",
		"/etc/kubernetes/pki/ca.crt", c.Etcd.DataDir, "/var/lib/rancher/k3s", "/var/lib/rancher/rke2",
	}
}

// lostAndFound is in the root of each ext file system: a directory may be a disk of its own.
const lostAndFound = "lost+found"

func hasNoLeftovers(s *Subject) Finding {
	if s.Ours() {
		return pass("kkbundle has installed here before")
	}
	var found []string
	for _, name := range leftoverPaths(s.Cluster) {
		p := s.Facts.Path(name)
		// etcd's data is an obstacle only if etcd will run here.
		elsewhere := name == s.Cluster.Etcd.DataDir && !hasEtcd(s.Cluster, s.Host.Host)
		// The pods' volumes outlive a reset.
		entries := slices.DeleteFunc(slices.Clone(p.Entries), func(name string) bool { return name == lostAndFound })
		volumes := name == "/var/lib/rancher/k3s" && slices.Equal(entries, []string{"storage"})
		if p.Type == "" || (p.Type == "dir" && len(entries) == 0) || elsewhere || volumes {
			continue
		}
		if p.Type == "dir" {
			name = fmt.Sprintf("%s (%s)", name, some(entries))
		}
		found = append(found, name)
	}
	for _, name := range []string{"kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"} {
		if u := s.Facts.Unit(name + ".service"); u.Active == "active" || u.Active == "activating" {
			found = append(found, name+" is running")
		}
	}
	return none(found, "none")
}

// kubeadmDropIn is the drop-in that the installation, or kubeadm's package, writes itself.
const kubeadmDropIn = "10-kubeadm.conf"

// hasNoForeignArguments looks at the unit that the cluster has. On kkbundle's own nodes kubeadm has written some of
// the files.
func hasNoForeignArguments(s *Subject) Finding {
	if s.Ours() {
		return pass("kkbundle has installed here before")
	}
	units := []string{"kubelet.service"}
	if s.Cluster.Kubernetes.Distribution == manifest.DistributionK3s {
		units = []string{"k3s.service", "k3s-agent.service"}
	}
	var found []string
	for _, u := range s.Facts.UnitSettings {
		if slices.Contains(units, u.Unit) && path.Base(u.File) != kubeadmDropIn {
			found = append(found, fmt.Sprintf("%s sets %s", u.File, some(u.Sets)))
		}
	}
	if len(found) == 0 {
		return pass("none")
	}
	return fail(strings.Join(found, "; "))
}

// isPodInterface reports whether an interface belongs to a pod network, or to Kubernetes.
func (s *Subject) isPodInterface(name string) bool {
	return slices.Contains([]string{"kube-ipvs0", "nodelocaldns", "kube-bridge", "mynet0"}, name) ||
		s.known.IsTelling(name)
}

func hasNoOldNetwork(s *Subject) Finding {
	if s.Ours() {
		return pass("kkbundle has installed here before")
	}
	var found []string
	for _, i := range s.Facts.Interfaces {
		if s.isPodInterface(i.Name) {
			found = append(found, i.Name)
		}
	}
	for _, name := range s.Facts.Namespaces {
		if strings.HasPrefix(name, "cni-") {
			found = append(found, "/run/netns/"+name)
		}
	}
	if chains := s.Facts.PacketFilter.Foreign; len(chains) > 0 {
		found = append(found, "rules: "+some(chains))
	}
	if len(found) > 0 {
		return fail(some(found))
	}
	return pass("none")
}

func hasNoForeignCNI(s *Subject) Finding {
	if s.Ours() && !s.Cluster.CNI.Type.Installed() {
		return pass("the pod network is the user's own") // and the files must exist by now
	}
	var ours, found []string
	if s.Ours() {
		for _, n := range s.networks() {
			ours = append(ours, n.Configs...)
		}
	}
	for _, name := range s.Facts.Path(cniDir).Entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name)) && !slices.Contains(ours, name) {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return fail(some(found))
	}
	return pass("none")
}
