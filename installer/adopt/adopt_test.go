package adopt_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/adopt"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// evidence returns the Evidence of a cluster of a layout, from testdata.
func evidence(t *testing.T, layout string) *adopt.Evidence {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", layout+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var e adopt.Evidence
	if err := yaml.UnmarshalStrict(data, &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

// asYAML returns one of the described files as adopt writes it.
func asYAML(t *testing.T, v any) string {
	t.Helper()
	b := bytes.NewBufferString("# Test.\n")
	e := yamlv3.NewEncoder(b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(v), e.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// inventory is the one that a cluster was read through: every host with its name, and the groups of none.
func inventory(t *testing.T, e *adopt.Evidence) *manifest.Inventory {
	t.Helper()
	inv, err := adopt.Start("ops@10.0.0.11:2222")
	if err == nil {
		inv, err = adopt.Extend(inv, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// TestLayouts describes a cluster of each layout: both files and the report are compared with literals.
func TestLayouts(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"kubeadm", "kubekey", "kubespray"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			e := evidence(t, layout)
			d, err := adopt.Describe(e, inventory(t, e))
			if err != nil {
				t.Fatal(err)
			}
			cluster := asYAML(t, d.Cluster)
			hosts := asYAML(t, d.Inventory)
			var report strings.Builder
			if err := d.Report.WriteText(&report); err != nil {
				t.Fatal(err)
			}
			for name, got := range map[string]string{
				"cluster.yaml": cluster, "inventory.yaml": hosts, "report.txt": report.String(),
			} {
				golden(t, filepath.Join("testdata", layout+"-"+name), got)
				for _, secret := range []string{"hunter2", "aHVudGVyMg", "Harbor12345"} {
					if strings.Contains(got, secret) {
						t.Errorf("%s has the secret %s", name, secret)
					}
				}
			}
			for line := range strings.Lines(report.String()) {
				if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
					t.Errorf("more than 80 columns: %q", line)
				}
			}
			c, err := manifest.ParseCluster("cluster.yaml", []byte(cluster))
			if err != nil {
				t.Fatal(err)
			}
			inv, err := manifest.ParseInventory("inventory.yaml", []byte(hosts))
			if err != nil {
				t.Fatal(err)
			}
			if err := inv.Check(c); err != nil {
				t.Errorf("the files do not fit each other: %v", err)
			}
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *tasktest.Update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, diff)
	}
}

// taken makes a host one that an adoption has recorded the cluster on.
func taken(e *adopt.Evidence, host int) {
	f := &e.Hosts[host].Facts
	f.Paths = append(f.Paths, dir("/var/lib/kkbundle/applied/member"), dir(marks.AdoptionDir))
}

// TestStoppedAdoption: a cluster that an adoption has recorded on some of its hosts is described again.
func TestStoppedAdoption(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	taken(e, 0)
	e.Hosts[1].Facts.Paths = append(e.Hosts[1].Facts.Paths, dir(marks.AdoptionDir))
	if _, err := adopt.Describe(e, inventory(t, e)); err != nil {
		t.Error(err)
	}
}

// TestRefused changes one thing of a fit cluster each time.
func TestRefused(t *testing.T) {
	t.Parallel()
	const api, etcd = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/etc/kubernetes/manifests/etcd.yaml"
	replace := func(h *adopt.Host, file, old, with string) {
		if !strings.Contains(h.Files[file], old) {
			panic(file + " has no " + old)
		}
		h.Files[file] = strings.ReplaceAll(h.Files[file], old, with)
	}
	for name, c := range map[string]struct {
		layout string
		change func(e *adopt.Evidence)
		want   []string
	}{
		"in the middle of an upgrade": {"kubeadm", func(e *adopt.Evidence) {
			replace(&e.Hosts[0], api, "v1.36.3", "v1.37.0")
		}, []string{"cp1:" + api, "it runs v1.37.0, and kubeadm-config says v1.36.3", "finish or undo"}},
		"kubeadm at work": {"kubeadm", func(e *adopt.Evidence) {
			e.Cluster.Jobs = []string{"upgrade-health-check-x7k2"}
		}, []string{"job kube-system/upgrade-health-check-x7k2", "kubeadm upgrade is at work"}},
		"an ended certificate": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[0].Facts.Clock = 1777680000000000000 // 2026-05-02
		}, []string{"cp1:/etc/kubernetes/pki/apiserver.crt", "ended on 2026-05-01", "kubeadm certs renew all"}},
		"a kubelet beyond the skew": {"kubeadm", func(e *adopt.Evidence) {
			e.Cluster.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.32.9"
		}, []string{"node w1", "more than 3 minor releases before", "upgrade the node first"}},
		"a newer kubelet": {"kubeadm", func(e *adopt.Evidence) {
			e.Cluster.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.37.0"
		}, []string{"node w1", "newer than the control plane"}},
		"even members of etcd": {"kubespray", func(e *adopt.Evidence) {
			for i := range e.Hosts[:3] {
				replace(&e.Hosts[i], "/etc/etcd.env", ",etcd3=https://10.2.0.13:2380", "")
			}
		}, []string{"etcd: it has 2 members (etcd1, etcd2)", "remove or add a member"}},
		"no etcd": {"kubeadm", func(e *adopt.Evidence) {
			delete(e.Hosts[0].Files, etcd)
		}, []string{"etcd: it has 0 members"}},
		"another port": {"kubeadm", func(e *adopt.Evidence) {
			replace(&e.Hosts[0], api, "6443", "8443")
		}, []string{"port 8443", "port 6443 only"}},
		"k3s": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[1].Facts.Paths = append(e.Hosts[1].Facts.Paths, dir("/var/lib/rancher/k3s"))
		}, []string{"w1: it has /var/lib/rancher/k3s of k3s"}},
		"a control plane of units": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[0].Facts.Paths = append(e.Hosts[0].Facts.Paths[:3:3], dir("/etc/kubernetes/manifests"))
		}, []string{"cp1: unknown layout", "no static pod kube-apiserver"}},
		"a kubelet of another layout": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[1].Facts.Paths = nil
		}, []string{"w1: unknown layout: the kubelet has none of"}},
		"a node of kkbundle": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[1].Facts.Paths = append(e.Hosts[1].Facts.Paths, dir("/var/lib/kkbundle/applied/member"))
		}, []string{"w1: it is a node of a cluster of kkbundle", "kkbundle status"}},
		"adopted already": {
			"kubeadm", func(e *adopt.Evidence) { taken(e, 0); taken(e, 1) },
			[]string{"cp1: it was adopted already", "w1: it was adopted already", "kkbundle status"},
		},
		"no kubeadm": {
			"kubeadm", func(e *adopt.Evidence) { e.Cluster.Kubeadm = "" },
			[]string{"API server", "kubeadm-config is missing"},
		},
		"a hostile ConfigMap": {"kubeadm", func(e *adopt.Evidence) {
			e.Cluster.Kubeadm = "kind: ClusterConfiguration\nkubernetesVersion: \"\\e[2Jv1\"\n"
		}, []string{"kubeadm-config", "is no release"}},
		"a broken manifest": {"kubeadm", func(e *adopt.Evidence) {
			e.Hosts[0].Files[etcd] = "kind: [\n"
		}, []string{"cp1:" + etcd, "no static pod that can be read"}},
		"two runtimes": {"kubeadm", func(e *adopt.Evidence) {
			e.Cluster.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.36.1"
		}, []string{"container runtime", "one of containerd, Docker and CRI-O on every node"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := evidence(t, c.layout)
			inv := inventory(t, e)
			c.change(e)
			_, err := adopt.Describe(e, inv)
			if _, refused := errors.AsType[*adopt.RefusedError](err); !refused {
				t.Fatalf("got %v, want a refusal", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("the error has a control character: %q", err)
			}
		})
	}
}

// TestPage: the page shows the report of a test, as it is.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/day-two/adopt.md")
	if err != nil {
		t.Fatal(err)
	}
	report, err := os.ReadFile("testdata/kubeadm-report.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(report)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.Contains(string(page), "\n    "+line+"\n") {
			t.Errorf("docs/day-two/adopt.md lacks the line %q of testdata/kubeadm-report.txt", line)
		}
	}
}

func dir(path string) node.Path { return node.Path{Path: path, Type: "dir"} }

// TestNodesAndHosts: every node needs a host of its name, and every host of a group is a node.
func TestNodesAndHosts(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	inv := inventory(t, e)
	e.Cluster.Nodes[1].Name = "other"
	_, err := adopt.Describe(e, inv)
	for _, want := range []string{"node other: the inventory has no host", "host w1: the cluster has no node"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// TestSettingsThatKkbundleRefuses are left out of the file, and reported.
func TestSettingsThatKkbundleRefuses(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "[api.example]", "[Api_Example]", 1)
	d, err := adopt.Describe(e, inventory(t, e))
	if err != nil {
		t.Fatal(err)
	}
	if d.Cluster.Kubernetes.Kubeadm != nil || d.Cluster.Kubernetes.Kubelet == nil {
		t.Errorf("kubeadm %v, kubelet %v; want the second alone", d.Cluster.Kubernetes.Kubeadm, d.Cluster.Kubernetes.Kubelet)
	}
	var report strings.Builder
	if err := d.Report.WriteText(&report); err != nil || !strings.Contains(report.String(), "settings of kubeadm") {
		t.Errorf("%v; the report lacks the settings:\n%s", err, &report)
	}
}

// TestStart reads the flag --host.
func TestStart(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]struct {
		address, user string
		port          int
	}{
		"10.0.0.1":     {"10.0.0.1", "", 0},
		"ops@cp1:2222": {"cp1", "ops", 2222},
		"[fd00::1]:22": {"fd00::1", "", 22},
		"cp1.example":  {"cp1.example", "", 0},
	} {
		inv, err := adopt.Start(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		h := inv.HostSpecs[0]
		if h.Address != want.address || inv.Vars.SSH.User != want.user || inv.Vars.SSH.Port != want.port {
			t.Errorf("%s: %+v, %+v", target, h, inv.Vars.SSH)
		}
	}
	if _, err := adopt.Start("cp1:ssh"); err == nil {
		t.Error("a port that is no number was taken")
	}
}

// described describes a cluster after a change, and returns cluster.yaml and the report as texts.
func described(t *testing.T, e *adopt.Evidence) (cluster, report string) {
	t.Helper()
	d, err := adopt.Describe(e, inventory(t, e))
	if err != nil {
		t.Fatal(err)
	}
	file := asYAML(t, d.Cluster)
	var text strings.Builder
	if err := d.Report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return file, strings.Join(strings.Fields(text.String()), " ")
}

// TestSecretsStay: what may be a secret is in neither file, and the report names its place.
func TestSecretsStay(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	kubelet := `
staticPodURL: https://pods.example/hunter2
staticPodURLHeader: {Authorization: [Bearer hunter2]}
tracing: {endpoint: "https://a:hunter2@trace.example:4317", samplingRatePerMillion: 5}
`
	for i := range e.Hosts {
		for file := range e.Hosts[i].Files {
			if strings.Contains(file, "kubelet/config.yaml") {
				e.Hosts[i].Files[file] += kubelet
			}
		}
	}
	e.Cluster.Kubelet += kubelet
	e.Cluster.Proxy += "nodePortAddresses: [\"https://a:hunter2@b\", 10.0.0.0/8]\n"
	e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "extraArgs:\n", `extraArgs:
    - {name: oidc-client-secret, value: hunter2}
    - {name: service-account-issuer, value: "https://a.example/?key=hunter2"}
    - {name: labelled, value: ghp_hunter2hunter2}
    - {name: token-auth-file, value: /etc/kubernetes/pki/tokens.csv}
    - {name: enable-aggregator-token, value: "true"}
`, 1)
	e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "{dataDir: /var/lib/etcd}",
		"{dataDir: /var/lib/etcd, extraEnvs: [{name: TOKEN, value: hunter2}]}", 1)
	cluster, report := described(t, e)
	if strings.Contains(cluster, "hunter2") || strings.Contains(report, "hunter2") {
		t.Errorf("a secret is in the files:\n%s\n%s", cluster, report)
	}
	for _, want := range []string{
		"kubelet has staticPodURL, staticPodURLHeader, tracing.endpoint, which may be secrets and are not copied",
		"kubeadm has apiServer.extraArgs.oidc-client-secret, apiServer.extraArgs.service-account-issuer, apiServer.extraArgs.labelled, which may be",
		"kubeProxy has nodePortAddresses[0], which may be",
		"etcd.local has extraEnvs, which may be secrets",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	for _, want := range []string{"samplingRatePerMillion: 5", "10.0.0.0/8", "tokens", "enable-aggregator-token"} {
		if !strings.Contains(cluster, want) {
			t.Errorf("cluster.yaml lacks %q:\n%s", want, cluster)
		}
	}
}

// TestSameEachTime: gaps and causes are in the same order however often a cluster is described.
func TestSameEachTime(t *testing.T) {
	t.Parallel()
	var first, refused string
	for range 30 {
		e := evidence(t, "kubekey")
		const env = "\n  extraEnvs: [{name: A, value: b}]"
		e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "\ncontrollerManager:", "\ncontrollerManager:"+env, 1)
		e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "\nscheduler: {}", "\nscheduler:"+env, 1)
		_, report := described(t, e)
		if first == "" {
			first = report
		}
		if report != first {
			t.Fatalf("the report differs:\n%s\n%s", first, report)
		}
		inv := inventory(t, e)
		for file := range e.Hosts[0].Files {
			if strings.HasPrefix(file, "/etc/kubernetes/manifests/") {
				delete(e.Hosts[0].Files, file)
			}
		}
		_, err := adopt.Describe(e, inv)
		if err == nil || strings.Count(err.Error(), "there is no static pod") != 3 {
			t.Fatalf("got %v, want three causes", err)
		}
		if refused == "" {
			refused = err.Error()
		}
		if err.Error() != refused {
			t.Fatalf("the error differs:\n%s\n%s", refused, err)
		}
	}
}

// TestKubelets: settings that the kubelets of all nodes share are copied, and the report names the others.
func TestKubelets(t *testing.T) {
	t.Parallel()
	const file = "/var/lib/kubelet/config.yaml"
	for name, c := range map[string]struct {
		change        func(e *adopt.Evidence)
		file, without string
		report        []string
	}{
		"the files win over the ConfigMap": {func(e *adopt.Evidence) {
			for i := range e.Hosts {
				e.Hosts[i].Files[file] = strings.ReplaceAll(e.Hosts[i].Files[file], "podPidsLimit: 4096", "podPidsLimit: 77")
			}
		}, "podPidsLimit: 77", "4096", []string{"kubelet-config differs from the nodes' files, which count here: podPidsLimit"}},
		"a difference between nodes": {func(e *adopt.Evidence) {
			e.Hosts[1].Files[file] += "systemReserved: {cpu: 100m}\n"
			e.Hosts[1].Files[file] = strings.ReplaceAll(e.Hosts[1].Files[file], "podPidsLimit: 4096", "podPidsLimit: 77")
		}, "profiling", "podPidsLimit", []string{"not the same on cp1, w1, and not copied: podPidsLimit, systemReserved"}},
		"no ConfigMap": {
			func(e *adopt.Evidence) { e.Cluster.Kubelet = "" }, "podPidsLimit: 4096", "hunter2",
			[]string{"ConfigMap kube-system/kubelet-config is missing"},
		},
		"a file that was not read": {
			func(e *adopt.Evidence) { delete(e.Hosts[1].Files, file) }, "podPidsLimit: 4096",
			"hunter2",
			[]string{"w1: the kubelet's configuration is not where kubeadm or Kubespray has it"},
		},
		"arguments": {func(e *adopt.Evidence) {
			e.Hosts[1].Files["/etc/default/kubelet"] = "# --not-this\nKUBELET_EXTRA_ARGS=--cloud-token=hunter2 --v=4 --node-ip=10.0.0.12\n"
		}, "podPidsLimit: 4096", "hunter2", []string{"/etc/default/kubelet has cloud-token, v on w1: arguments"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := evidence(t, "kubeadm")
			c.change(e)
			cluster, report := described(t, e)
			if !strings.Contains(cluster, c.file) || strings.Contains(cluster+report, c.without) && c.without == "hunter2" ||
				strings.Contains(cluster, c.without) {
				t.Errorf("want %q and no %q in:\n%s\n%s", c.file, c.without, cluster, report)
			}
			for _, want := range c.report {
				if !strings.Contains(report, want) {
					t.Errorf("the report lacks %q:\n%s", want, report)
				}
			}
		})
	}
}

// TestRuntimeEndpoint: the runtime's socket, which kubeadm writes into each node's file and not into the ConfigMap, is
// no difference.
func TestRuntimeEndpoint(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	for i := range e.Hosts {
		e.Hosts[i].Files["/var/lib/kubelet/config.yaml"] += "containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock\n"
	}
	if _, report := described(t, e); strings.Contains(report, "containerRuntimeEndpoint") {
		t.Errorf("the report has it:\n%s", report)
	}
}

// TestNothingIsLost: a setting that is not copied is in the report, and a zero that is no default is copied.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "extraArgs:\n", `extraArgs:
    - {name: anonymous-auth, value: "false"}
    - {name: authorization-mode, value: RBAC}
    - {name: service-cluster-ip-range, value: 10.96.0.0/12}
    - {name: client-ca-file, value: /etc/kubernetes/pki/ca.crt}
`, 1)
	e.Cluster.Kubeadm = strings.Replace(e.Cluster.Kubeadm, "certificateValidityPeriod: 8760h0m0s",
		"certificateValidityPeriod: 9999h0m0s", 1)
	e.Cluster.Proxy = strings.Replace(e.Cluster.Proxy, "maxPerCore: null", "maxPerCore: 0, tcpEstablishedTimeout: 0s", 1)
	for i := range e.Hosts {
		const file = "/var/lib/kubelet/config.yaml"
		e.Hosts[i].Files[file] = strings.NewReplacer("cgroupDriver: systemd", "cgroupDriver: cgroupfs", "[10.96.0.10]",
			"[10.96.0.53]").Replace(e.Hosts[i].Files[file]) + "eventRecordQPS: 0\nsyncFrequency: 0s\n"
	}
	cluster, report := described(t, e)
	for _, want := range []string{
		`kubeadm apiServer.extraArgs.anonymous-auth is "false", and is not copied`,
		`kubeadm apiServer.extraArgs.authorization-mode is "RBAC", and is not copied`,
		`kubeadm certificateValidityPeriod is "9999h0m0s", and is not copied`,
		`kubelet cgroupDriver is "cgroupfs", and is not copied`,
		`kubelet clusterDNS is "[10.96.0.53]", and is not copied`,
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	for _, not := range []string{"service-cluster-ip-range", "client-ca-file", "clusterDomain", "clusterCIDR", "apiVersion"} {
		if strings.Contains(report, not) {
			t.Errorf("the report has %s, which is not lost:\n%s", not, report)
		}
	}
	for _, want := range []string{"eventRecordQPS: 0", "maxPerCore: 0", "tcpEstablishedTimeout: 0s"} {
		if !strings.Contains(cluster, want) {
			t.Errorf("cluster.yaml lacks %q:\n%s", want, cluster)
		}
	}
	for _, not := range []string{"syncFrequency", "flushFrequency", "burst", "acceptContentTypes"} {
		if strings.Contains(cluster, not) {
			t.Errorf("cluster.yaml has %s, which is a default:\n%s", not, cluster)
		}
	}
}

// gaps returns the parts of a cluster that kkbundle cannot look after by a report, a line each.
func gaps(t *testing.T, e *adopt.Evidence) string {
	t.Helper()
	d, err := adopt.Describe(e, inventory(t, e))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, g := range d.Report.Gaps {
		b.WriteString(g.What + ": " + g.Why + "\n")
	}
	return b.String()
}

// Authorities in another directory are reported where kubeadm's directory does not lead to them.
func TestAuthoritiesElsewhere(t *testing.T) {
	t.Parallel()
	const gap = "certificates: kubeadm's certificates are in /etc/kubernetes/ssl"
	e := evidence(t, "kubespray")
	if got := gaps(t, e); strings.Contains(got, gap) {
		t.Errorf("with Kubespray's link:\n%s", got)
	}
	paths := &e.Hosts[1].Facts.Paths
	*paths = slices.DeleteFunc(*paths, func(p node.Path) bool { return p.Path == "/etc/kubernetes/pki/ca.key" })
	if got := gaps(t, e); !strings.Contains(got, gap) {
		t.Errorf("without the link on one control plane:\n%s", got)
	}
}

// A balancer on a worker is reported also where the endpoint is the control plane's own address, as with Kubespray.
func TestBalancerBesideOwnEndpoint(t *testing.T) {
	t.Parallel()
	e := evidence(t, "kubeadm")
	e.Cluster.Kubeadm += "controlPlaneEndpoint: 10.0.0.11:6443\n"
	const file = "/etc/kubernetes/manifests/haproxy.yml"
	w := &e.Hosts[1]
	w.Facts.Paths = slices.Insert(w.Facts.Paths, 0,
		node.Path{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"haproxy.yml"}})
	w.Files[file] = "kind: Pod\nmetadata: {name: haproxy}\nspec: {containers: [{name: haproxy, image: \"docker.io/library/haproxy:3.2\"}]}\n"
	if got := gaps(t, e); !strings.Contains(got, "load balancer: static pod haproxy on w1") {
		t.Errorf("got\n%s", got)
	}
}
