package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// What does not go together is said with where the file says it, why, and what fits.
func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		version, more string
		problems      []string
		notes         []string
		assumed       bool
	}{
		"defaults": {version: "v1.34.3"},
		"calico":   {version: "v1.34.3", more: "cni: {type: calico}\n"},
		"calico too old": {
			version: "v1.34.3", more: "cni: {type: calico, version: v3.28.5}\n",
			problems: []string{"cluster.yaml:5:30: cni.version: calico v3.28.5 does not go with Kubernetes v1.34.3: it is for v1.23 to v1.30; take v3.31.3"},
		},
		"calico unknown": {version: "v1.34.3", more: "cni: {type: calico, version: v3.40.0}\n"},
		"calico too new": {
			version: "v1.33.7", more: "cni: {type: calico, version: v3.32.0}\n",
			problems: []string{"calico v3.32.0 does not go with Kubernetes v1.33.7: it is for v1.34 to v1.36; take v3.31.3"},
		},
		"newest not tested": {
			version: "v1.36.1", more: "cni: {type: calico}\n",
			notes: []string{"calico v3.31.3 is known to go with Kubernetes v1.23 to v1.35; whether it does with v1.36.1 is not known here"},
		},
		"cilium": {
			version: "v1.33.7", more: "cni: {type: cilium, version: v1.16.19}\n",
			problems: []string{"cilium v1.16.19 does not go with Kubernetes v1.33.7: it is for v1.23 to v1.30; take v1.19.3"},
		},
		"without v": {
			version: "v1.33.7", more: "components: {cilium: {version: 1.16.19}}\n",
			problems: []string{"cluster.yaml:5:32: components[cilium].version: write v1.16.19"},
		},
		"behind multus": {
			version:  "v1.34.3",
			more:     "cni: {type: multus, with: kube-ovn}\ncomponents: {kube-ovn: {version: v1.13.15}}\n",
			problems: []string{"kube-ovn v1.13.15 does not go with Kubernetes v1.34.3"},
		},
		"Cluster API": {version: "v1.36.3", more: "clusterAPI: {version: v1.14.4, provider: v0.0.0-1629-g1f2c7509886e}\n"},
		"Cluster API not tested": {
			version: "v1.37.2", more: "clusterAPI: {version: v1.14.2}\n",
			notes: []string{"cluster-api v1.14.2 is known to go with Kubernetes v1.33 to v1.36; whether it does with v1.37.2 is not known here"},
		},
		"containerd": {
			version: "v1.36.1", more: "cri: {version: v1.7.30}\n",
			problems: []string{"cri.version: containerd v1.7.30 does not go with Kubernetes v1.36.1: it is for v1.24 to v1.35; take v2.3.7"},
		},
		"containerd's fix": {
			version: "v1.32.11", more: "cri: {version: v1.6.30}\n",
			problems: []string{"cri.version: containerd v1.6.30 is too old for Kubernetes v1.32.11, which needs v1.6.36 or newer; take v2.3.7"},
		},
		"containerd 2.9": {version: "v1.36.1", more: "cri: {version: v2.9.0}\n"},
		"cri-o": {
			version: "v1.34.3", more: "cri: {type: crio, version: v1.33.5}\n",
			problems: []string{"cri.version: crio v1.33.5 does not go with Kubernetes v1.34.3: its minor release has to be v1.34; take v1.34.5"},
		},
		"removed gate": {
			version:  "v1.36.3, kubelet: {featureGates: {TTLAfterFinished: true}}",
			problems: []string{"kubernetes.kubelet.featureGates.TTLAfterFinished: Kubernetes has no feature gate TTLAfterFinished since v1.25, and kubelet does not start with it; leave it out"},
		},
		"removed gates": {
			version: "v1.37.2, kubeProxy: {featureGates: {SidecarContainers: true}}, kubeadm: {apiServer: {extraArgs: {feature-gates: 'CPUManager=true,CSIMigration=false'}}, scheduler: {extraArgs: [{name: feature-gates, value: 'kube:ExpandCSIVolumes=true'}]}}",
			problems: []string{
				"kubernetes.kubeProxy.featureGates.SidecarContainers: Kubernetes has no feature gate SidecarContainers since v1.37",
				"kubernetes.kubeadm.apiServer.extraArgs.feature-gates: Kubernetes has no feature gate CSIMigration since v1.27, and kube-apiserver does not start",
				"kubernetes.kubeadm.scheduler.extraArgs[0]: Kubernetes has no feature gate ExpandCSIVolumes since v1.27, and kube-scheduler",
			},
		},
		"removed arguments": {
			version: "v1.33.1, kubeadm: {apiServer: {extraArgs: {cloud-provider: external, enable-admission-plugins: 'NodeRestriction,PodSecurityPolicy'}}, controllerManager: {extraArgs: [{name: pod-eviction-timeout, value: 1m}]}}",
			problems: []string{
				"kubernetes.kubeadm.apiServer.extraArgs.cloud-provider: kube-apiserver has no --cloud-provider since v1.33, and does not start with it; leave it out",
				"kubernetes.kubeadm.apiServer.extraArgs.enable-admission-plugins: kube-apiserver has no PodSecurityPolicy for --enable-admission-plugins since v1.25",
				"kubernetes.kubeadm.controllerManager.extraArgs[0]: kube-controller-manager has no --pod-eviction-timeout since v1.27",
			},
		},
		"present arguments": {version: "v1.32.1, kubeadm: {apiServer: {extraArgs: {cloud-provider: external}}, scheduler: {extraArgs: {cloud-provider: x}}}"},
		"present gates":     {version: "v1.36.3, kubelet: {featureGates: {SidecarContainers: true, KubeletInUserNamespace: true, AllAlpha: false}}"},
		"unread gates":      {version: "v1.36.3, kubelet: {featureGates: [a]}, kubeProxy: {featureGates: null}"},
		"kubelet newer": {
			version: "v1.34.3", more: "components: {kubelet: {version: v1.35.4}}\n",
			problems: []string{"components[kubelet].version: kubelet v1.35.4 does not go with Kubernetes v1.34.3: its minor release has to be from v1.31 to v1.34; take v1.34.3"},
		},
		"kubelet older": {version: "v1.34.3", more: "components: {kubelet: {version: v1.31.1}}\n"},
		"kubeadm": {
			version: "v1.34.3", more: "components: {kubeadm: {version: v1.35.4}}\n",
			problems: []string{"has to be v1.34"},
		},
		"kubectl": {
			version: "v1.34.3", more: "components: {kubectl: {version: v1.32.0}}\n",
			problems: []string{"has to be from v1.33 to v1.35"},
		},
		"etcd": {
			version:  "v1.34.3",
			more:     "etcd: {type: external}\ncomponents: {etcd: {version: v3.5.21}}\n",
			problems: []string{"components[etcd].version: etcd v3.5.21 is too old for Kubernetes v1.34.3, which needs 3.5.24-0 or newer; take 3.6.5-0"},
		},
		"etcd fits": {
			version: "v1.34.3",
			more:    "etcd: {type: external}\ncomponents: {etcd: {version: v3.5.24}}\n",
		},
		"etcd's image": {
			version: "v1.34.3", more: "components: {etcd: {version: v3.6.5}}\n",
			problems: []string{"components[etcd].version: v3.6.5 is not a tag of etcd's image; write one such as 3.6.5-0"},
		},
		"k3s": {
			version: "v1.34.3+k3s1", more: "",
			problems: []string{"cluster.yaml:4:23: kubernetes.version: v1.34.3+k3s1 is not a release of Kubernetes; write v1.34.3, or distribution: k3s"},
		},
		"newer patch": {version: "v1.34.99", more: "cni: {type: calico}\n"},
		"newer minor": {
			version:  "v1.40.1",
			problems: []string{"cluster.yaml:4:23: kubernetes.version: this kkbundle knows no release as new as Kubernetes v1.40.1, the newest that it knows is v1.37.2; use a newer kkbundle, or build with --assume"},
		},
		"assumed": {
			version: "v1.40.1", assumed: true,
			notes: []string{"Kubernetes v1.40.1 is newer than v1.37.2, the newest that this catalog was checked against: the versions of containerd are taken to be those for v1.37.2"},
		},
		"too old": {
			version:  "v1.29.3",
			problems: []string{"cluster.yaml:4:23: kubernetes.version: component etcd: no version is known that goes with Kubernetes v1.29.3; the first known is for v1.30.0"},
		},
		"too old, several": {
			version: "v1.29.3", more: "cni: {type: calico}\n",
			problems: []string{"cluster.yaml:4:23: kubernetes.version: components calico, etcd: no version is known that goes with Kubernetes v1.29.3; the first known is for v1.30.0; take a later release"},
		},
		"all at once": {
			version: "v1.34.3", more: "cni: {type: cilium, version: v1.14.0}\ncri: {version: v1.6.1}\ncomponents: {kubelet: {version: v1.20.0}, nothing: {version: v1}}\n",
			problems: []string{
				"cluster.yaml:5:", "cluster.yaml:6:", "cluster.yaml:7:33: components[kubelet]",
				`cluster.yaml:7:52: components[nothing]: component "nothing" is not in the catalog`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, tc.version, tc.more)
			if tc.assumed {
				c.Catalogs = assumed(tc.version)
			}
			notes, err := Check(c)
			if (err != nil) != (len(tc.problems) > 0) || err == nil && len(notes) != len(tc.notes) {
				t.Errorf("got %v, notes %q", err, notes)
			}
			for _, want := range tc.problems {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwant %s", err, want)
				}
			}
			var problems document.Problems
			if err != nil && !errors.As(err, &problems) {
				t.Errorf("got a %T", err)
			}
			for i, want := range tc.notes {
				if len(notes) > i && !strings.Contains(notes[i], want) {
					t.Errorf("note %q, want %q", notes[i], want)
				}
			}
		})
	}
}

func TestCheckK3s(t *testing.T) {
	parse := func(kubernetes string) *manifest.Cluster {
		c, err := manifest.ParseCluster("cluster.yaml",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {distribution: k3s, "+
				kubernetes+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if notes, err := Check(parse("version: v1.34.3+k3s1")); err != nil || len(notes) > 0 {
		t.Errorf("%v, %q", err, notes)
	}
	_, err := Check(parse("version: v1.34.3, upgradeFrom: v1.33.7"))
	for _, want := range []string{"kubernetes.version: v1.34.3 is not a release of k3s; write the release of k3s too, as in v1.34.3+k3s1", "kubernetes.upgradeFrom: v1.33.7 is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	c := parse("version: v1.34.3+k3s1")
	for platform, want := range map[string]string{
		"linux/amd64":  "https://github.com/k3s-io/k3s/releases/download/v1.34.3%2Bk3s1/k3s",
		"linux/arm64":  "https://github.com/k3s-io/k3s/releases/download/v1.34.3%2Bk3s1/k3s-arm64",
		"linux/arm/v7": "https://github.com/k3s-io/k3s/releases/download/v1.34.3%2Bk3s1/k3s-armhf",
	} {
		if got, err := Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: "k3s"}, platform); got != want ||
			err != nil {
			t.Errorf("%s: %s, %v", platform, got, err)
		}
	}
	if _, err := Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: "k3s"}, "linux/s390x"); err == nil ||
		!strings.Contains(err.Error(), "file k3s is not published for linux/s390x") {
		t.Error(err)
	}
}

// What is published for some platforms only is refused where every node needs it, and noted where one host does.
func TestPlatforms(t *testing.T) {
	both := []string{"linux/amd64", "linux/arm64"}
	c := cluster(t, "v1.34.3", "cni: {type: hybridnet}\nimageRegistry: {type: harbor}\n")
	harbor := manifest.Demand{
		Need: manifest.Need{Kind: manifest.ItemFile, Name: "harbor"}, Tasks: []string{"harbor"},
		Roles: []manifest.Role{manifest.RoleRegistry},
	}
	hybridnet := manifest.Demand{
		Need:  manifest.Need{Kind: manifest.ItemImage, Name: "hybridnet"},
		Tasks: []string{"hybridnet"}, Roles: []manifest.Role{manifest.RoleCluster},
	}
	a, err := Resolve(c, []manifest.Demand{harbor}, Options{Platforms: both})
	if err != nil || len(a.Notes) != 1 ||
		!strings.Contains(a.Notes[0], "hosts of the group image_registry have to be linux/amd64") {
		t.Errorf("%v, %q", err, a.Notes)
	}
	if len(a.Files) != 1 || len(a.Files[0].Platforms) != 1 || !a.Files[0].PerPlatform() {
		t.Errorf("%+v", a.Files)
	}
	_, err = Resolve(c, []manifest.Demand{harbor, hybridnet}, Options{Platforms: both[1:]})
	for _, want := range []string{
		"cluster.yaml:6:23: imageRegistry.type: file harbor is published for linux/amd64 and not for linux/arm64; choose something else here, or leave the platform out of the manifest (needed by harbor)",
		"cluster.yaml:5:13: cni.type: image hybridnet is published",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	// A newer variant runs what is published for the architecture.
	if _, err := Resolve(c, []manifest.Demand{hybridnet}, Options{Platforms: []string{"linux/amd64/v3"}}); err != nil {
		t.Error(err)
	}
}

// An upgrade brings what each release on the way needs, and of everything else one version.
func TestUpgrade(t *testing.T) {
	parse := func(kubernetes string) *manifest.Cluster {
		c, err := manifest.ParseCluster("cluster.yaml",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {"+kubernetes+
				"}\ncni: {type: calico}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	needs := list(manifest.Need{Kind: "file", Name: "kubelet"}, manifest.Need{Kind: "file", Name: "runc"},
		manifest.Need{Kind: "image", Name: "etcd"}, manifest.Need{Kind: "chart", Name: "calico"})
	a, err := Resolve(parse("version: v1.34.3, upgradeFrom: v1.31.4"), needs,
		Options{Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range a.Files {
		got = append(got, f.Name+" "+f.Version)
	}
	for _, image := range a.Images {
		got = append(got, image.Name)
	}
	const want = "kubelet v1.34.3, runc v1.3.6, kubelet v1.32.13, kubelet v1.33.13, registry.k8s.io/etcd:3.6.5-0, registry.k8s.io/etcd:3.5.24-0, registry.k8s.io/etcd:3.5.32-0"
	if text := strings.Join(got, ", "); text != want || len(a.Charts) != 1 {
		t.Errorf("got %s\nwant %s", text, want)
	}
	if len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "leads over v1.32.13, v1.33.13 with etcd 3.5.32-0, whose") {
		t.Errorf("notes %q", a.Notes)
	}
	if a, err := Resolve(parse("version: v1.34.3, upgradeFrom: v1.34.1"), needs, Options{}); err != nil ||
		len(a.Notes) != 0 {
		t.Errorf("%v %q", err, a.Notes)
	}
	far := parse("version: v1.39.0, upgradeFrom: v1.36.1")
	far.Catalogs = assumed("v1.39.0")
	_, err = Resolve(far, needs, Options{})
	if err == nil || !strings.Contains(err.Error(),
		"kubernetes.upgradeFrom: the way to v1.39.0 leads over v1.38, of which the catalog knows no release") {
		t.Error(err)
	}
}

// A catalog of the user's replaces and adds.
func TestOwnCatalog(t *testing.T) {
	own, err := manifest.ParseCatalog("own.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Catalog
releases: {v1.37: v1.37.2}
components:
  runc:
    default: v9.9.9
    file: {url: "https://files.example/runc/{number}/{arch}", checksums: "https://files.example/sums"}
  mine:
    follows: kubernetes
    chart: {repo: "oci://charts.example/ops", name: tool, version: "{line}.0"}
    images: [{name: "apps.example/tool:{version}", from: v1.34.0}, "apps.example/other:{core}"]
  ring: {follows: ring, images: [a.example/b]}
packages:
  conntrack: {debian: [my-conntrack]}
zones:
  lab: [{host: dl.k8s.io, mirror: files.example}]
`))
	if err != nil {
		t.Fatal(err)
	}
	c := cluster(t, "v1.34.3", "components: {mine: {version: v1.33.1}}\n")
	c.Catalogs = []*catalogfile.Catalog{own}
	a, err := Resolve(c, list(manifest.Need{Kind: "file", Name: "runc"}, manifest.Need{Kind: "image", Name: "mine"},
		manifest.Need{Kind: "chart", Name: "mine"}), Options{Zone: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Files[0].URL != "https://files.example/runc/9.9.9/{arch}" || len(a.Images) != 1 ||
		a.Images[0].Name != "apps.example/other:1.33.1" || a.Sources[0].Mirrors[0] != "files.example" {
		t.Errorf("%+v", a)
	}
	if ref, err := Ref(c, manifest.Need{Kind: "chart", Name: "mine"},
		""); ref != "oci://charts.example/ops/tool:v1.33.0" || err != nil {
		t.Errorf("%s, %v", ref, err)
	}
	if got, err := Packages(c, []string{"conntrack", "socat"}, "ubuntu/24.04"); strings.Join(got,
		" ") != "my-conntrack socat" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Version(c, "ring"); err == nil || !strings.Contains(err.Error(), "ring, ring follow each other") {
		t.Error(err)
	}
}

func TestPackages(t *testing.T) {
	c := cluster(t, "v1.34.3", "")
	for distribution, want := range map[string]string{
		"debian/12":    "conntrack iproute2 nfs-common nfs-kernel-server",
		"ubuntu/22.04": "conntrack iproute2 nfs-common nfs-kernel-server",
		"rocky/9":      "conntrack-tools iproute nfs-utils", "openeuler/22.03": "conntrack-tools iproute nfs-utils",
	} {
		got, err := Packages(c, []string{"nfs-server", "conntrack", "iproute", "nfs-client", "conntrack"}, distribution)
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %q, %v", distribution, got, err)
		}
	}
	// Only release 10 has the kernel modules in another package.
	for distribution, want := range map[string]string{
		"rocky/10": "container-selinux kernel-modules-extra", "rhel/10.1": "container-selinux kernel-modules-extra",
		"rocky/9": "container-selinux",
		"rocky/1": "container-selinux", "openeuler/24.03": "container-selinux", "debian/12": "",
	} {
		got, err := Packages(c, []string{"container-selinux", "kernel-modules"}, distribution)
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %q, %v", distribution, got, err)
		}
	}
	for _, tc := range [][3]string{
		{"a", "debian/12", "packages for a are not in the catalog; known: chrony"},
		{"socat", "beos/5", `distribution "beos" is not known; known: debian`},
	} {
		if _, err := Packages(c, tc[:1], tc[1]); err == nil || !strings.Contains(err.Error(), tc[2]) {
			t.Error(err)
		}
	}
}
