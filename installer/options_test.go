package installer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// allOptions are what a cluster file can ask for beyond the plainest cluster, with the task that does it; none where
// it needs nothing from a bundle.
func allOptions() map[string]struct{ yaml, task string } {
	return map[string]struct{ yaml, task string }{
		"calico":                     {"cni: {type: calico}", "calico"},
		"cilium":                     {"cni: {type: cilium}", "cilium"},
		"Cluster API":                {"clusterAPI: {version: v1.14.2}", "cluster-api"},
		"crio":                       {"cri: {type: crio}", "crio"},
		"docker":                     {"cri: {type: docker}", "docker"},
		"etcd backup":                {"etcd: {backup: {every: 30m, keep: 5}}", ""},
		"external endpoint":          {"controlPlaneEndpoint: {type: external, address: 10.0.0.9}", ""},
		"external etcd":              {"etcd: {type: external}", "etcd"},
		"harbor":                     {"imageRegistry: {type: harbor}", "harbor"},
		"harbor on two":              {"imageRegistry: {type: harbor, vip: 10.0.0.8}", "harbor-copies"},
		"haproxy":                    {"controlPlaneEndpoint: {type: haproxy}", "haproxy"},
		"hybridnet":                  {"cni: {type: hybridnet}", "hybridnet"},
		"k3s":                        {"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}", "k3s-server"},
		"kube-ovn":                   {"cni: {type: kube-ovn}", "kube-ovn"},
		"kube-vip":                   {"controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}", "kube-vip"},
		"local storage":              {"storage: {local: true}", "localpv-provisioner"},
		"metrics":                    {"metrics: true", "metrics-server"},
		"multus":                     {"cni: {type: multus, with: flannel}", "multus"},
		"NFS":                        {"storage: {nfs: true}", "nfs-server"},
		"no registry":                {"imageRegistry: {type: none}", "preload-images"},
		"node-local DNS":             {"dns: {nodeLocal: true}", "node-local-dns"},
		"peers":                      {"imageDistribution: {peers: spegel}", "spegel-login"},
		"programs from the registry": {"imageDistribution: {programs: registry}", "registry"},
		"provided etcd": {
			"etcd: {type: provided, endpoints: ['https://10.0.0.1:2379'], ca: a, cert: b, key: c}",
			"",
		},
		"spread registries": {"imageDistribution: {registries: spread}\nimageRegistry: {vip: 10.0.0.8}", "registry-address"},
		"two registries":    {"imageRegistry: {vip: 10.0.0.8}", "registry-address"},
		"tools":             {"cri: {tools: [crictl, nerdctl]}", "runtime-tools"},
	}
}

// Everything that a cluster file can ask for is done by tasks.
func TestOptionsAreInstalled(t *testing.T) {
	t.Parallel()
	texts := []string{
		"", "cni: {type: none}", "imageRegistry: {type: existing, address: r.example}",
		"kubernetes: {version: v1.30.14, proxyMode: nftables}",
		"addons: [{chart: demo}]", "cri: {version: v1.7.30}", "controlPlaneEndpoint: {address: api.example}",
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\nimageRegistry: {type: none}",
		"cri: {type: docker}\nimageRegistry: {type: none}",
		"etcd: {type: external, dataDir: /data/etcd}", "etcd: {type: external, backup: {every: 30m, keep: 5}}",
	}
	for name, option := range allOptions() {
		texts = append(texts, option.yaml)
		if !slices.ContainsFunc(plan.Tasks(tasktest.Cluster(t, option.yaml)),
			func(task task.Task) bool { return option.task == "" || task.Name == option.task }) {
			t.Errorf("%s: there is no task %s", name, option.task)
		}
	}
	for _, text := range texts {
		c := tasktest.Cluster(t, text)
		if err := c.CheckInstall(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		for _, task := range plan.Tasks(c) {
			if task.Do == nil {
				t.Errorf("%s: task %s has no Do", text, task.Name)
			}
		}
	}
}

// Everything that tasks declare is in the catalog for every minor release: the lists of what each kind of cluster
// adds to the plainest one. The images are those of the sources that the catalog's files name.
func TestNeedsOfEveryKind(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, version := range []string{"v1.30.14", "v1.34.3", "v1.36.1"} {
		plain := resolved(t, "kubernetes: {version: "+version+"}", version)
		fmt.Fprintf(&b, "Kubernetes %s\n  %s\n", version, strings.Join(plain, "\n  "))
		options := allOptions()
		for _, name := range slices.Sorted(maps.Keys(options)) {
			text := options[name].yaml
			if name == "k3s" {
				text = "kubernetes: {distribution: k3s, version: " + version + "+k3s1}"
			} else {
				text = "kubernetes: {version: " + version + "}\n" + text
			}
			list := resolved(t, text, version)
			added := slices.DeleteFunc(slices.Clone(list), func(one string) bool { return slices.Contains(plain, one) })
			left := slices.DeleteFunc(slices.Clone(plain), func(one string) bool { return slices.Contains(list, one) })
			fmt.Fprintf(&b, "%s, Kubernetes %s\n", name, version)
			for _, one := range added {
				fmt.Fprintf(&b, "  + %s\n", one)
			}
			for _, one := range left {
				fmt.Fprintf(&b, "  - %s\n", one)
			}
		}
	}
	tasktest.Golden(t, "needs.txt", []byte(b.String()))
}

// resolved lists what a bundle gets for a cluster.
func resolved(t *testing.T, text, version string) []string {
	t.Helper()
	c := tasktest.Cluster(t, text)
	a, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatalf("%s %s: %v", version, text, err)
	}
	var list []string
	for _, f := range a.Files {
		list = append(list, "file "+manifest.FileURL(f, "linux/amd64"))
	}
	for _, image := range a.Images {
		list = append(list, "image "+image.Name)
	}
	for _, chart := range a.Charts {
		list = append(list, "chart "+manifest.ChartRef(chart, chart.Name, chart.Version))
	}
	return list
}

func TestNeeded(t *testing.T) {
	t.Parallel()
	found := map[string]string{}
	for _, d := range plan.Needed(tasktest.Cluster(t, "cni: {type: calico}\nimageRegistry: {type: harbor}")) {
		found[d.Kind+" "+d.Name] = fmt.Sprintf("%v on %v", d.Tasks, d.Roles)
	}
	for need, want := range map[string]string{
		"file kubelet":         "[kubelet] on [k8s_cluster]",
		"file harbor":          "[harbor] on [image_registry]",
		"image pause":          "[containerd kubeadm-init join-control-plane join-worker] on [k8s_cluster]",
		"image kube-apiserver": "[kubeadm-init] on [kube_control_plane]",
		"image calico":         "[calico] on [k8s_cluster]",
		"chart calico":         "[calico] on [kube_control_plane]",
	} {
		if found[need] != want {
			t.Errorf("%s: %s, want %s", need, found[need], want)
		}
	}
}

func TestPackagesOf(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t,
		"kubernetes: {version: v1.34.3, proxyMode: ipvs}\nstorage: {nfs: true}\nimageRegistry: {vip: 10.0.0.8}")
	for _, tc := range []struct{ role, distribution, want string }{
		{
			"k8s_cluster", "debian/12",
			"chrony conntrack ebtables ethtool iproute2 ipset iptables ipvsadm nfs-common socat",
		},
		{
			"k8s_cluster", "rocky/9",
			"chrony conntrack-tools container-selinux ebtables ethtool iproute ipset iptables ipvsadm nfs-utils socat",
		},
		{
			"k8s_cluster", "rocky/10",
			"chrony conntrack-tools container-selinux ebtables ethtool iproute ipset iptables ipvsadm kernel-modules-extra nfs-utils socat",
		},
		{"nfs", "ubuntu/24.04", "chrony nfs-kernel-server"},
		{"image_registry", "debian/12", "chrony keepalived"},
	} {
		got, err := plan.PackagesOf(c, []manifest.Role{manifest.Role(tc.role)}, tc.distribution)
		if strings.Join(got, " ") != tc.want || err != nil {
			t.Errorf("%s on %s: %q, %v", tc.role, tc.distribution, got, err)
		}
	}
	all, err := plan.PackagesOf(c, nil, "debian/12")
	if err != nil || !slices.Contains(all, "keepalived") || !slices.Contains(all, "nfs-common") {
		t.Errorf("%q, %v", all, err)
	}
	if _, err := plan.PackagesOf(c, nil, "beos/5"); err == nil {
		t.Error("an unknown distribution has packages")
	}
}

// An installation does not begin with versions that do not go together.
func TestRunChecksVersions(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "cri: {version: v1.6.1}")
	_, err := Run(t.Context(), s.Options)
	if err == nil || !strings.Contains(err.Error(), "containerd v1.6.1 does not go with Kubernetes v1.34.3") {
		t.Error(err)
	}
}
