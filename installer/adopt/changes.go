package adopt

import (
	"strings"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
)

// changes reports what each task of an installation would change on these nodes, in the order of the tasks.
func (d *describer) changes(c *manifest.Cluster) {
	known, swapping := taskChanges(c), d.swapping()
	if swapping == nil {
		known["swap"] = "turns swap off at boot, where /etc/fstab or systemd turns it on; now it is off everywhere"
	}
	for _, phase := range plan.Plan(c) {
		for _, step := range phase.Tasks {
			change := Change{What: step.Name, Text: known[step.Name]}
			if step.Name == "swap" {
				change.Hosts = swapping
			}
			if change.Text != "" {
				d.change(change)
			}
		}
	}
	d.change(Change{
		What: "control plane", Upgrade: true,
		Text: "kubeadm writes its static pods and ConfigMaps anew, with the settings of " + ClusterFile,
	})
}

// taskChanges returns what each task of an installation changes on nodes that another tool has made; "" for tasks that
// only look, and for those without work on a node of a described cluster.
func taskChanges(c *manifest.Cluster) map[string]string {
	changes := map[string]string{
		"os-packages":        "installs the packages of the operating system that nodes lack",
		"selinux-labels":     "labels directories of nodes for SELinux, where it is on",
		"hosts-file":         "a block of its own in /etc/hosts; blocks of other tools stay",
		"swap":               "turns swap off, now and at boot",
		"kernel":             "sets kernel modules and parameters, in files of its own; those of other tools stay",
		"service-route":      "adds a route to the services' network on nodes without a default route",
		"existing-registry":  "checks the registry for the bundle's images, and trusts its authority",
		"preload-images":     "loads the bundle's images on the nodes",
		"containerd":         "the bundle's containerd, runc and CNI plugins, their unit and configuration; the former files are kept",
		"cri-dockerd":        "the bundle's cri-dockerd and its unit",
		"docker":             "the bundle's Docker, its unit and daemon.json",
		"crio":               "the bundle's CRI-O, its unit and configuration",
		"runtime-tools":      "installs " + strings.Join(c.CRI.Tools, ", "),
		"etcd-tools":         "installs etcdctl and etcdutl on control planes",
		"kubelet":            "the bundle's kubeadm, kubelet and kubectl in /usr/local/bin, and the kubelet's unit with its drop-in",
		"kube-vip":           "kkbundle's static pod of kube-vip",
		"node-labels":        "the label node-role.kubernetes.io/worker on workers, and the inventory's labels and taints",
		"admin-conf":         "copies admin.conf into the work directory and into root's home on control planes",
		"certificates-timer": "a timer on control planes that renews certificates before they end",
		"cluster-dns":        "CoreDNS forwards names of the outside only where its nodes have name servers",
		"etcd-backup":        "a timer on the etcd hosts that saves etcd",
	}
	for _, without := range []string{
		"pre_install", "post_install", "precheck", "clock", "pod-links", "docker-is-ours", "kubeadm-patches", "security",
		"encrypt-secrets", "kubeadm-init", "api-server", "endpoint", "proxy-endpoint", "join-control-plane", "join-worker",
		"etcd-quota", "etcd-quota-config", "etcd-endpoints", "etcd-client", "etcd-member", "removed-addons",
		"certificates-leaf-timer",
	} {
		changes[without] = ""
	}
	return changes
}

// swapping returns the hosts that swap.
func (d *describer) swapping() []string {
	var hosts []string
	for i := range d.e.Hosts {
		if h := &d.e.Hosts[i]; len(h.Facts.Swaps) > 0 {
			hosts = append(hosts, h.Name)
		}
	}
	return hosts
}
