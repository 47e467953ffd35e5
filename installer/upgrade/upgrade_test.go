//go:build linux

package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// A fakeAPI plays kubectl, kubeadm and the kubelets of a cluster that is upgraded: it keeps versions, marks and what is
// unschedulable. That real ones do what it pretends is shown by TestUpgrade of the lab.
type fakeAPI struct {
	mu      sync.Mutex
	servers map[string]string // by host
	nodes   map[string]*corev1.Node
	address map[string]string // host by address
	target  string            // what kubeadm was last told
	said    []string
	objects map[string]string // answers of get, by what is got
	hosts   map[string]*sitetest.Rooted
	// manifests means that kubeadm writes static pods' manifests, from which an API server has its version.
	manifests bool
	// dead is a version whose API servers do not start.
	dead string
	// silent is how often an API server does not answer for its version.
	silent map[string]int
	// snapshot is what etcd saves.
	snapshot []byte
	// alarm is what etcdctl says about members of etcd that are not healthy, "" if they are.
	alarm string
	// services is the address of the API servers behind Services. behind is how often a host does not reach a new
	// Service, unled how often one has no endpoints.
	services string
	behind   map[string]int
	unled    int
	// late is how often the Job of kubeadm's preflight is not done in time.
	late int
	// fail, if set, decides for each command whether it fails, and whether it does so before anything is done.
	fail func(n int, line string) (before, after bool)
}

func newFakeAPI(t *testing.T, s *sitetest.Site, version string) *fakeAPI {
	t.Helper()
	ca := sitetest.CA()
	f := &fakeAPI{
		services: listening(t), behind: map[string]int{},
		hosts: s.Hosts, snapshot: sitetest.EtcdCopy("keys"), silent: map[string]int{}, servers: map[string]string{},
		nodes: map[string]*corev1.Node{}, address: map[string]string{},
		target: version, objects: map[string]string{
			"configmap kubeadm-config": `{"data":{"ClusterConfiguration":"apiVersion: kubeadm.k8s.io/v1beta4\n"}}`,
			"poddisruptionbudgets":     `{"items":[]}`,
		},
	}
	f.pods(staticPods(s.Options.Inventory)...)
	for _, h := range s.Options.Inventory.Hosts() {
		if len(h.Roles) == 0 {
			continue
		}
		f.address[h.Address] = h.Name
		if slices.Contains(h.Roles, manifest.RoleControlPlane) {
			f.servers[h.Name] = version
		}
		f.node(h.Name, version)
		on := s.Hosts[h.Name]
		on.Put(t, kube.ClusterCA, string(ca))
		on.Mkdir(t, "/usr/local/lib")
		on.Put(t, kube.PKIDir+"/etcd/healthcheck-client.crt", string(ca))
		for _, name := range []string{"etcdctl", "etcdutl"} {
			on.Stub(t, name, "exit 1") // answered below
		}
		for _, name := range []string{"kubectl", "kubeadm", "systemctl", "etcdctl", "etcdutl"} {
			on.Answer(name, func(_ context.Context, cmd host.Cmd) error { return f.run(on, cmd) })
		}
		on.Answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "dial" && strings.HasPrefix(cmd.Args[2], newService+":") {
				cmd.Args = []string{cmd.Args[0], "dial", f.connect(on)}
			}
			return on.Helper(ctx, cmd)
		})
	}
	return f
}

// newService is the address of every Service that is made.
const newService = "10.233.7.7"

// listening returns an address that takes connections.
func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// connect returns where a host's connection to a new Service leads.
func (f *fakeAPI) connect(on *sitetest.Rooted) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, on.Name+": connect")
	if f.behind[on.Name] > 0 {
		f.behind[on.Name]--
		return "127.0.0.1:0" // nothing can listen there
	}
	return f.services
}

// staticPods returns the names of the static pods of all control planes.
func staticPods(inventory *manifest.Inventory) []string {
	var names []string
	for _, h := range inventory.Hosts() {
		if slices.Contains(h.Roles, manifest.RoleControlPlane) {
			names = append(names, kube.ControlPlanePods(h.Name, true)...)
		}
	}
	return names
}

// pods are all pods of kube-system. They are ready.
func (f *fakeAPI) pods(names ...string) {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"kube-system"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, name)
	}
	f.objects["pods --namespace=kube-system"] = `{"items":[` + strings.Join(items, ",") + `]}`
}

// node adds a node that is ready.
func (f *fakeAPI) node(name, version string) {
	n := &corev1.Node{}
	n.Name, n.Annotations = name, map[string]string{}
	n.Status.NodeInfo.KubeletVersion = version
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	f.nodes[name] = n
}

func (f *fakeAPI) run(on *sitetest.Rooted, cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := strings.TrimPrefix(strings.Join(cmd.Args, " "), "kubectl --kubeconfig="+kube.AdminConf+" ")
	isLook := strings.HasPrefix(line, "get ") || strings.HasPrefix(line, "--server") ||
		strings.Contains(line, "endpoint health") ||
		strings.HasPrefix(line, "systemctl is-active")
	var before, after bool
	if !isLook {
		f.said = append(f.said, on.Name+": "+line)
		if f.fail != nil {
			before, after = f.fail(len(f.said), line)
		}
	}
	failed := &host.ExitError{Host: on.Name, Args: cmd.Args, Code: 1, Stderr: "planted"}
	if before {
		return failed
	}
	answer, err := f.do(on, cmd.Args[0], strings.Fields(line))
	if after {
		return failed
	}
	if err == nil && cmd.Stdout != nil {
		_, err = io.WriteString(cmd.Stdout, answer)
	}
	return err
}

func (f *fakeAPI) do(on *sitetest.Rooted, program string, words []string) (string, error) {
	line := strings.Join(words, " ")
	if program == "kubectl" && f.dead != "" && f.serverOf("cp1") == f.dead {
		return "", &host.ExitError{Host: on.Name, Args: words, Code: 1, Stderr: "connection refused"}
	}
	switch {
	case program == "systemctl":
		if line == "systemctl try-restart kubelet.service" {
			f.nodes[on.Name].Status.NodeInfo.KubeletVersion = f.target
		}
	case program == "kubeadm":
		switch words[2] {
		case "apply":
			if f.late > 0 {
				f.late--
				return "", &host.ExitError{Host: on.Name, Args: words, Code: 1, Stderr: lateJob}
			}
			f.target = words[3]
			return "", f.serve(on, f.target)
		case "node":
			if f.servers[on.Name] != "" {
				return "", f.serve(on, f.target)
			}
		}
	case strings.HasSuffix(line, "--raw=/version"):
		address, _, _ := strings.Cut(strings.TrimPrefix(words[0], "--server=https://"), ":")
		if name := f.address[address]; f.silent[name] > 0 {
			f.silent[name]--
			return "", &host.ExitError{Host: on.Name, Args: words, Code: 1, Stderr: "connection refused"}
		}
		return `{"gitVersion":"` + f.serverOf(f.address[address]) + `"}`, nil
	case words[0] == "api-resources":
		return "pods\n" + f.objects["types"], nil
	case strings.HasPrefix(line, "get nodes"):
		return f.list(), nil
	case words[0] == "create":
		return `{"metadata":{"name":"kkbundle-verify-x"},"spec":{"clusterIP":"` + newService +
			`","ports":[{"port":12345}]}}`, nil
	case strings.HasPrefix(line, "get endpointslices"):
		if f.unled > 0 {
			f.unled--
			return `{"items":[{"endpoints":[{"conditions":{"ready":false}}]}]}`, nil
		}
		return `{"items":[{"endpoints":[{"conditions":{"ready":true}}]}]}`, nil
	case words[0] == "get":
		what := strings.TrimSuffix(strings.Join(words[1:], " "), " --output=json")
		for name, answer := range f.objects {
			if strings.HasPrefix(what, name) {
				return answer, nil
			}
		}
		return `{"items":[]}`, nil
	case words[0] == "drain":
		f.nodes[words[1]].Spec.Unschedulable = true
	case words[0] == "uncordon":
		f.nodes[words[1]].Spec.Unschedulable = false
	case words[0] == "annotate":
		if strings.HasSuffix(words[3], "-") {
			delete(f.nodes[words[2]].Annotations, marks.UpgradingAnnotation)
		} else {
			f.nodes[words[2]].Annotations[marks.UpgradingAnnotation] = strings.TrimPrefix(words[3],
				marks.UpgradingAnnotation+"=")
		}
	case strings.Contains(line, "endpoint health"):
		var members []map[string]any
		for name := range f.servers {
			members = append(members, map[string]any{"endpoint": name, "health": f.alarm == "", "error": f.alarm})
		}
		data, err := json.Marshal(members)
		return string(data), err
	case strings.Contains(line, "snapshot save"):
		name := filepath.Join(on.Root, words[len(words)-1])
		return "", errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, f.snapshot, 0o600))
	case strings.Contains(line, "snapshot status"):
		return `{"revision":5,"totalKey":1}`, nil
	}
	return "", nil
}

// serve makes a control plane's API server one of a version.
func (f *fakeAPI) serve(on *sitetest.Rooted, version string) error {
	f.servers[on.Name] = version
	if !f.manifests {
		return nil
	}
	dir := filepath.Join(on.Root, kube.ManifestsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text := "version: " + version + "\n"
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "etcd.yaml"), []byte(text+"    image: registry.k8s.io/etcd:3.6."+
		version[len(version)-1:]+"-0\n"), 0o600)
}

// serverOf returns the version of a control plane's API server.
func (f *fakeAPI) serverOf(name string) string {
	_, version, ok := strings.Cut(f.hosts[name].Content(kube.ManifestsDir+"/kube-apiserver.yaml"), "version: ")
	if !f.manifests || !ok {
		return f.servers[name]
	}
	return strings.TrimSpace(version)
}

func (f *fakeAPI) list() string {
	var items []*corev1.Node
	for _, n := range f.nodes {
		items = append(items, n)
	}
	data, _ := json.Marshal(map[string]any{"items": items})
	return string(data)
}

// steps returns what was done, without what is of no interest for the order, and forgets it.
func (f *fakeAPI) steps() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, line := range f.said {
		for _, word := range []string{"kubeadm upgrade", "drain ", "uncordon ", "try-restart kubelet"} {
			if strings.Contains(line, word) {
				line, _, _ = strings.Cut(line, " --ignore")
				list = append(list, line)
			}
		}
	}
	f.said = nil
	return list
}

// upgradeSite makes hosts that are nodes of a cluster of a version: control planes begin with cp.
func upgradeSite(t *testing.T, version string, names ...string) (*sitetest.Site, *fakeAPI) {
	t.Helper()
	s := sitetest.NewSite(t, names...)
	groups := manifest.Groups{Registry: names[:1]}
	var specs manifest.HostSpecs
	for i, name := range names {
		specs = append(specs, manifest.HostSpec{Name: name, Address: fmt.Sprintf("10.0.0.%d", 3+i)})
		if strings.HasPrefix(name, "cp") {
			groups.ControlPlane = append(groups.ControlPlane, name)
		} else {
			groups.Worker = append(groups.Worker, name)
		}
	}
	// Not parsed: that several control planes are refused is no matter of upgrades.
	s.Options.Inventory = &manifest.Inventory{HostSpecs: specs, Groups: groups}
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+version+"}")
	for _, name := range names {
		s.Hosts[name].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
		s.Hosts[name].Put(t, "/usr/local/bin/kubelet", "old kubelet")
	}
	return s, newFakeAPI(t, s, version)
}

// upgradeTo prepares an upgrade with a bundle that has all the versions; the last is the target.
func upgradeTo(s *sitetest.Site, t *testing.T, versions ...string) *upgrade {
	t.Helper()
	var clusters []*manifest.Cluster
	for _, v := range versions {
		clusters = append(clusters, tasktest.Cluster(t, "kubernetes: {version: "+v+"}"))
	}
	s.Options.Cluster = clusters[len(clusters)-1]
	return upgradeWith(s, t, bundleOf(t, clusters...))
}

// upgradeWith prepares an upgrade to the site's cluster.
func upgradeWith(s *sitetest.Site, t *testing.T, b *bundle.Reader) *upgrade {
	t.Helper()
	r := s.Run(t, b)
	r.Operation, r.Rule = engine.Upgrading(), task.OtherVersion
	return newUpgrade(&nodeWalk{
		Run: r, how: Options{Options: r.Options, DrainTimeout: kube.DrainTimeout},
		servicesWait: servicesWait,
	})
}

// bundleOf has what several clusters need.
func bundleOf(t *testing.T, clusters ...*manifest.Cluster) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	seen := map[string]bool{}
	for _, c := range clusters {
		for i, need := range plan.Needs(c) {
			refs, err := catalog.Refs(c, need, "linux/amd64")
			if err != nil {
				t.Fatal(err)
			}
			for j, ref := range refs {
				if seen[need.Kind+ref] {
					continue
				}
				seen[need.Kind+ref] = true
				switch need.Kind {
				case manifest.ItemFile:
					b.File(ref, need.Name, &ocispec.Platform{OS: "linux", Architecture: "amd64"},
						sitetest.FileContent(t, c, need.Name))
				case manifest.ItemImage:
					b.Image(ref, bundletest.RandomImage(t, int64(1000*len(seen)+100*i+j+1), 1, 1000))
				default:
					b.Chart(ref, need.Name, "1.0.0", bundletest.ChartArchive(t, need.Name, "1.0.0"))
				}
			}
		}
	}
	return b.Bundle().Reader
}

// walkAll makes a plan and goes all its way.
func (u *upgrade) walkAll(ctx context.Context) (Plan, error) {
	plan, err := u.look(ctx)
	if err != nil {
		return plan, err
	}
	return plan, u.walk(ctx, plan)
}

func TestUpgradeSteps(t *testing.T) {
	t.Parallel()
	cp := func(server, kubelet, recorded string) Node {
		return Node{Name: "cp1", ControlPlane: true, APIServer: server, Kubelet: kubelet, Recorded: recorded}
	}
	worker := func(kubelet string) Node {
		return Node{Name: "node1", Kubelet: kubelet, Recorded: kubelet}
	}
	for name, c := range map[string]struct {
		to    string
		nodes []Node
		want  string // the steps
		err   string
	}{
		"a patch": {
			"v1.34.3",
			[]Node{cp("v1.34.1", "v1.34.1", "v1.34.1"), worker("v1.34.1")},
			"v1.34.3",
			"",
		},
		"a minor release": {
			"v1.35.4",
			[]Node{cp("v1.34.2", "v1.34.2", "v1.34.2"), worker("v1.34.2")},
			"v1.35.4",
			"",
		},
		"an etcd on the way": {
			"v1.34.3",
			[]Node{cp("v1.33.2", "v1.33.2", "v1.33.2"), worker("v1.33.2")},
			"v1.33 v1.34.3", "",
		},
		"the newest patch": {"v1.34.3", []Node{cp("v1.33.99", "v1.33.99", "v1.33.99")}, "v1.33.99 v1.34.3", ""},
		"three minor releases": {
			"v1.34.3",
			[]Node{cp("v1.31.4", "v1.31.4", "v1.31.4"), worker("v1.31.4")},
			"v1.32 v1.33 v1.34.3", "",
		},
		"settings only": {
			"v1.34.3",
			[]Node{cp("v1.34.3", "v1.34.3", "v1.34.3"), worker("v1.34.3")},
			"v1.34.3",
			"",
		},
		"interrupted in the middle of a control plane": {
			"v1.34.3", []Node{cp("v1.34.3", "v1.33.2", "v1.33.2"), worker("v1.33.2")}, "v1.34.3", "",
		},
		"interrupted in the middle of the way": {
			"v1.35.0", []Node{cp("v1.34.1", "v1.33.2", "v1.33.2"), worker("v1.33.2")}, "v1.34 v1.35.0", "",
		},
		"a kubelet that is behind as far as it may": {
			"v1.34.3",
			[]Node{cp("v1.33.2", "v1.33.2", "v1.33.2"), worker("v1.30.4")},
			"v1.33 v1.34.3", "",
		},
		"a kubelet that is too far behind": {
			"v1.34.3",
			[]Node{cp("v1.33.2", "v1.33.2", "v1.33.2"), worker("v1.29.4")},
			"",
			"the kubelet of node1 is v1.29.4, more than 3 minor releases behind v1.33.",
		},
		"a kubelet that is newer than the API": {
			"v1.34.3",
			[]Node{cp("v1.33.2", "v1.33.2", "v1.33.2"), worker("v1.34.1")},
			"",
			"the kubelet of node1 is v1.34.1, newer than every API server (v1.33.2)",
		},
		"a downgrade": {
			"v1.34.3",
			[]Node{cp("v1.34.9", "v1.34.3", "v1.34.3"), worker("v1.34.3")},
			"",
			"cluster site is not upgraded to v1.34.3: the API server of cp1 is v1.34.9, and Kubernetes cannot be downgraded",
		},
		"a downgrade of a kubelet": {
			"v1.34.3",
			[]Node{cp("v1.34.3", "v1.34.3", "v1.34.3"), worker("v1.35.0")},
			"",
			"the kubelet of node1 is v1.35.0, and",
		},
		"a version that is none": {
			"v1.34.3",
			[]Node{cp("beta", "v1.34.3", "v1.34.3")},
			"",
			`the API server of cp1 reports the version "beta"`,
		},
		"done": {"v1.34.3", []Node{{
			Name: "cp1", ControlPlane: true, APIServer: "v1.34.3",
			Kubelet: "v1.34.3", Recorded: "v1.34.3", Current: true,
		}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(&nodeWalk{Run: &engine.Run{Site: &task.Site{Cluster: tasktest.Cluster(t,
				"kubernetes: {version: "+c.to+"}")}}})
			steps, err := u.steps(Plan{Cluster: "site", To: c.to, Nodes: c.nodes})
			if c.err != "" {
				var refused *RefusedError
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %s", err, c.err)
				}
				return
			}
			want := strings.Fields(c.want)
			if err != nil || len(steps) != len(want) {
				t.Fatalf("got %q, %v, want %q", steps, err, want)
			}
			for i := range want { // which patch of a release between is known changes with the catalog
				if steps[i] != want[i] && majorMinor(steps[i]) != want[i] {
					t.Errorf("got %q, want %q", steps, want)
				}
			}
		})
	}
}

func TestUpgradeNeedsWhatIsOnTheWay(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.32.4", "cp1", "node1")
	u := upgradeTo(s, t, "v1.34.3")
	plan, err := u.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = u.complete(t.Context(), plan)
	var hinted interface{ Hint() string }
	if err == nil || !strings.Contains(err.Error(), "for the intermediate release v1.33.") ||
		!strings.Contains(err.Error(), "kubelet") ||
		!errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "kubernetes.upgradeFrom: v1.32.4") {
		t.Errorf("got %v", err)
	}
	if want := (map[string]string{plan.Steps[0]: "3.5.32-0"}); !maps.Equal(plan.Etcd, want) {
		t.Errorf("the plan names etcd %v, want %v", plan.Etcd, want)
	}
	u = upgradeWith(s, t, bundleOf(t, slices.Collect(maps.Values(u.clusters))...))
	if plan, err = u.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := u.complete(t.Context(), plan); err != nil {
		t.Error(err)
	}
}

// All API servers come before the first kubelet, control planes one by one, and workers in batches.
func TestUpgradeOrder(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "cp2", "node1", "node2", "node3")
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Batch = Batch{count: 1}
	plan, err := u.walkAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if plan.From != "v1.34.2" || plan.Batch != 1 {
		t.Errorf("plan %+v", plan)
	}
	var want []string
	want = append(want, "cp1: kubeadm upgrade apply v1.34.3 --yes", "cp2: kubeadm upgrade node")
	for _, name := range []string{"cp1", "cp2", "node1", "node2", "node3"} {
		want = append(want, "cp1: drain "+name)
		if strings.HasPrefix(name, "node") {
			want = append(want, name+": kubeadm upgrade node")
		}
		want = append(want, name+": systemctl try-restart kubelet.service", "cp1: uncordon "+name)
	}
	if diff := cmp.Diff(f.steps(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if kept := s.Hosts["node1"].Content(marks.CopiesDir + "/v1.34.2/complete"); kept != "" {
		t.Errorf("the mark of what was kept has %q in it", kept)
	}
	again := upgradeTo(s, t, "v1.34.3")
	if plan, err := again.walkAll(t.Context()); err != nil || !plan.Empty() || len(f.steps()) > 0 {
		t.Errorf("a rerun plans %+v, %v", plan, err)
	}
}

// A run that was killed has left node2 drained: while it is, pods of the other nodes have nowhere to go.
func TestUpgradeBeginsWithCordonedNodes(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
	f.nodes["node2"].Annotations[marks.UpgradingAnnotation], f.nodes["node2"].Spec.Unschedulable = "v1.34.3", true
	u := upgradeTo(s, t, "v1.34.3")
	u.how.Batch = Batch{count: 2}
	if _, err := u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	steps := f.steps()
	drained := slices.DeleteFunc(slices.Clone(steps),
		func(step string) bool { return !strings.Contains(step, ": drain ") })
	if diff := cmp.Diff(drained, []string{"cp1: drain node2", "cp1: drain cp1", "cp1: drain node1"}); diff != "" ||
		steps[0] != "cp1: kubeadm upgrade apply v1.34.3 --yes" {
		t.Errorf("(-got +want):\n%s\n%q", diff, steps)
	}
	if n := f.nodes["node2"]; n.Spec.Unschedulable || len(n.Annotations) > 0 {
		t.Errorf("node2 stays cordoned: %v", n.Annotations)
	}
}

// lateJob is what kubeadm v1.33.13 prints while the controller manager waits for the lease of the one that was killed.
const lateJob = `error execution phase preflight: [preflight] Some fatal errors occurred:
	[ERROR CreateJob]: Job "upgrade-health-check-1795767707000" in the namespace "kube-system" did not complete in 15s: no condition of type Complete`

// kubeadm's preflight wants a Job done within seconds, also of a control plane that has just been started again.
func TestUpgradeTriesAgainWhileJobsAreLate(t *testing.T) {
	t.Parallel()
	for late, fails := range map[int]bool{applyTries - 1: false, applyTries: true} {
		s, f := upgradeSite(t, "v1.34.2", "cp1")
		f.late = late
		_, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context())
		applied := strings.Count(strings.Join(f.steps(), "\n"), "kubeadm upgrade apply")
		if applied != applyTries || (err != nil) != fails ||
			fails && !strings.Contains(err.Error(), "did not complete in 15s") {
			t.Errorf("late %d times: applied %d times, %v", late, applied, err)
		}
	}
}

func TestUpgradeOverReleasesBetween(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.32.4", "cp1", "node1")
	u := upgradeTo(s, t, "v1.34.3")
	plan, err := u.look(t.Context())
	if err != nil || len(plan.Steps) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	u = upgradeTo(s, t, plan.Steps...)
	if plan, err = u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	var applied []string
	for _, line := range f.steps() {
		if _, version, ok := strings.Cut(line, "upgrade apply "); ok {
			applied = append(applied, strings.TrimSuffix(version, " --yes"))
		}
	}
	if diff := cmp.Diff(applied, plan.Steps); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// A run that ended in the first of two steps, on a worker, is continued there: the worker is unschedulable, so that
// nothing else can be drained.
func TestUpgradeCompletesAStepBeforeTheNext(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1", "node1")
	plan, err := upgradeTo(s, t, "v1.36.3").look(t.Context())
	if err != nil || len(plan.Steps) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	way := plan.Steps
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "drain node1") }
	if _, err := upgradeTo(s, t, way...).walkAll(t.Context()); err == nil {
		t.Fatal("the drain did not fail")
	}
	f.fail = nil
	f.steps()
	if plan, err = upgradeTo(s, t, way...).walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Steps, way); diff != "" {
		t.Errorf("steps (-got +want):\n%s", diff)
	}
	said := f.steps()
	if back, next := slices.Index(said, "cp1: uncordon node1"), slices.Index(said, "cp1: drain cp1"); back < 0 ||
		next < back {
		t.Errorf("the worker is not completed first: %q", said)
	}
}

// It stops at the first node that fails, says what the nodes are, and goes on there.
func TestUpgradeStopsAndContinues(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
	f.nodes["node2"].Spec.Unschedulable = true // by the operator
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "drain node1") }
	_, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context())
	var (
		stopped *StoppedError
		failed  *engine.TaskError
	)
	if !errors.As(err, &stopped) || !errors.As(err, &failed) || failed.Host != "node1" || failed.Task != "drain" {
		t.Fatalf("got %v", err)
	}
	want := []string{
		"cp1: complete at v1.34.3, kubelet v1.34.3",
		"node1: complete at v1.34.2, kubelet v1.34.2, upgrade in progress, unschedulable",
		"node2: complete at v1.34.2, kubelet v1.34.2, unschedulable",
	}
	if diff := cmp.Diff(stopped.Nodes, want); diff != "" {
		t.Errorf("nodes (-got +want):\n%s", diff)
	}
	f.fail = nil
	f.steps()
	if _, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.steps(); len(got) == 0 || got[0] != "cp1: drain node1" {
		t.Errorf("it goes on with %q", got)
	}
	if f.nodes["node1"].Spec.Unschedulable || !f.nodes["node2"].Spec.Unschedulable ||
		len(f.nodes["node1"].Annotations) > 0 {
		t.Errorf("nodes are %s", f.list())
	}
}

// A run that ends at any command (without KKBUNDLE_BIG=1, at some), before or after that did its work, is continued
// by the next one.
func TestUpgradeContinuesAfterEachCommand(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 5)
	next := tasktest.Cluster(t, "kubernetes: {version: v1.34.3}")
	b := bundleOf(t, next)
	whole, all := upgradeSite(t, "v1.34.2", "cp1", "node1")
	whole.Options.Cluster = next
	if _, err := upgradeWith(whole, t, b).walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends := 2 * len(all.said)
	if ends < 30 {
		t.Fatalf("only %d ends are tried", ends)
	}
	for end := 0; end < ends; end += step { // by turns before and after
		n, after := 1+end/2, end%2 == 1
		s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
		s.Options.Cluster = next
		f.fail = func(i int, _ string) (bool, bool) { return i == n && !after, i == n && after }
		_, first := upgradeWith(s, t, b).walkAll(t.Context())
		f.fail = nil
		if _, err := upgradeWith(s, t, b).walkAll(t.Context()); err != nil {
			t.Fatalf("command %d failed with %v, and then: %v", n, first, err)
		}
		for _, name := range []string{"cp1", "node1"} {
			state := f.nodes[name]
			if state.Status.NodeInfo.KubeletVersion != "v1.34.3" || state.Spec.Unschedulable ||
				len(state.Annotations) > 0 ||
				!strings.HasPrefix(s.Hosts[name].Content(member.Path), "site v1.34.3\n") ||
				s.Hosts[name].Content(marks.KubeadmConfig) != "" {
				t.Fatalf("command %d failed with %v, and then %s is %+v", n, first, name, state)
			}
		}
	}
}

func TestUpgradeRefusesOtherNodes(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
	f.node("stranger", "v1.34.2")
	delete(f.nodes, "node1")
	_, err := upgradeTo(s, t, "v1.34.3").look(t.Context())
	for _, want := range []string{
		"node stranger is not in the inventory",
		"node1 of the inventory is not a node of the cluster",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// A look that is interrupted by the end of the time says nothing of the cluster.
func TestLastingReasons(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks, wrong := 0, errors.New("etcd has no leader")
		reasons := lasting(t.Context(), time.Minute, func(ctx context.Context) []error {
			if looks++; looks == 1 {
				return []error{wrong}
			}
			<-ctx.Done()
			return []error{ctx.Err()}
		})
		if looks < 2 || len(reasons) != 1 || !errors.Is(reasons[0], wrong) {
			t.Errorf("after %d looks: %v", looks, reasons)
		}
		if reasons := lasting(t.Context(), time.Minute, func(context.Context) []error { return nil }); reasons != nil {
			t.Errorf("of a healthy cluster: %v", reasons)
		}
	})
}

func TestUpgradeHealth(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1")
	df := func(free string) func(_ context.Context, cmd host.Cmd) error {
		return func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, "Avail Mounted on\n"+free+" /\n")
			return err
		}
	}
	for _, h := range s.Hosts {
		h.Answer("df", df("99999999999"))
	}
	check := func() error {
		u := upgradeTo(s, t, "v1.34.3")
		plan, err := u.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Ended at once, so that what might come right by itself is not waited for.
		reasons := u.budgets(t.Context(), u.Hosts[0], plan)
		for _, c := range []healthCheck{
			u.serversAnswer, u.nodesReady, u.etcdHealthy, u.systemPods, u.lonePods,
			u.configReadable,
		} {
			reasons = append(reasons, c(t.Context(), u.Hosts[0], plan)...)
		}
		for _, target := range u.Hosts {
			reasons = append(reasons, append(certificatesValid(t.Context(), target),
				u.roomFor(t.Context(), target, plan)...)...)
		}
		if len(reasons) == 0 {
			return nil
		}
		return &UnfitError{Reasons: reasons}
	}
	if err := check(); err != nil {
		t.Fatalf("a healthy cluster: %v", err)
	}
	f.nodes["node1"].Status.Conditions[0] = corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: "the disk is full",
	}
	f.servers["cp9"] = "v1.34.2" // a member of etcd without a control plane
	f.objects["poddisruptionbudgets"] = `{"items":[{"metadata":{"name":"all","namespace":"shop"},"status":{"expectedPods":2,"desiredHealthy":2}},{"metadata":{"name":"fine"},"status":{"expectedPods":2,"desiredHealthy":1}}]}`
	f.objects["pods --all-namespaces"] = `{"items":[{"metadata":{"name":"alone","namespace":"shop"},"spec":{"nodeName":"node1"},"status":{"phase":"Running"}},{"metadata":{"name":"owned","ownerReferences":[{"controller":true}]},"spec":{"nodeName":"node1"}}]}`
	f.objects["pods --namespace=kube-system"] = `{"items":[{"metadata":{"name":"kube-proxy-1","namespace":"kube-system"},"spec":{"nodeName":"node1"},"status":{"phase":"Pending"}}]}`
	f.objects["configmap kubeadm-config"] = `{"data":{"ClusterConfiguration":"apiVersion: kubeadm.k8s.io/v1beta2\n"}}`
	s.Hosts["node1"].Put(t, "/etc/kubernetes/pki/ca.crt", "garbage")
	s.Hosts["cp1"].Answer("df", df("4096"))
	err := check()
	for _, want := range []string{
		"node node1 is not ready: the disk is full", "etcd has 2 members, and there are 1 control planes",
		"PodDisruptionBudget shop/all wants 2 of its 2 pods", "pod shop/alone on node1",
		"pod kube-system/kube-proxy-1 on node1 is not ready: Pending",
		"is of kubeadm.k8s.io/v1beta2", "ca.crt of node1 has no certificate in it",
		"cp1 has 0 MiB free on /",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if err != nil && (strings.Contains(err.Error(), "fine") || strings.Contains(err.Error(), "owned")) {
		t.Errorf("too much in\n%v", err)
	}
}

// etcd that is full takes no changes, so an upgrade is refused with the command that makes room.
func TestUpgradeOfFullEtcd(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1")
	u := upgradeTo(s, t, "v1.34.3")
	for alarm, defrag := range map[string]bool{"Active Alarm(s): NOSPACE ": true, "context deadline exceeded": false} {
		f.alarm = alarm
		errs := u.etcdHealthy(t.Context(), u.Hosts[0], Plan{})
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), alarm) ||
			strings.Contains(errs[0].Error(), "kkbundle etcd defrag") != defrag {
			t.Errorf("%q: %v", alarm, errs)
		}
	}
}

// The remedy of an expired certificate is kkbundle's, which restarts what uses it.
func TestExpiredCertificateNamesTheRemedy(t *testing.T) {
	t.Parallel()
	if err := validAt(node.Certificate{NotAfter: time.Now()}, time.Now().AddDate(1000, 0, 0)); err == nil ||
		!strings.Contains(err.Error(), "kkbundle certs renew") {
		t.Errorf("got %v", err)
	}
}

func TestUpgradeSaves(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1")
	var told []string
	for range 2 { // the second run finds the first one's
		u := upgradeTo(s, t, "v1.34.3")
		u.how.Saved = func(dir string) { told = append(told, dir) }
		plan, err := u.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := u.phase(t.Context(), task.Phase{Name: "save", Tasks: []task.Task{u.saveTask(plan)}}); err != nil {
			t.Fatal(err)
		}
		if err := u.Dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
	saved, err := filepath.Glob(filepath.Join(s.Options.WorkDir, "upgrade", "*-v1.34.2-to-v1.34.3", "*"))
	if err != nil || len(saved) != 5 {
		t.Fatalf("saved %q, %v", saved, err)
	}
	for _, name := range saved {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if want := []string{filepath.Dir(saved[0])}; !slices.Equal(told, want) {
		t.Fatalf("told of %q, want %q", told, want)
	}
	if _, err := etcdops.ReadSnapshot(filepath.Join(told[0], "etcd.db")); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"var/lib/etcd/*", "var/lib/kkbundle/etcd-snapshot"} {
		left, err := filepath.Glob(filepath.Join(s.Hosts["cp1"].Root, dir))
		if err != nil || len(left) > 0 {
			t.Errorf("%q is left on the host, %v", left, err)
		}
	}
	u := upgradeTo(s, t, "v1.34.3")
	if err := u.saved(); err != nil {
		t.Fatal(err)
	}
	save := u.saveTask(Plan{From: "v1.34.2", To: "v1.34.3"})
	for name, spoil := range map[string]func(){
		"etcd that cannot be saved": func() {
			f.fail = func(_ int, line string) (bool, bool) { return strings.Contains(line, "snapshot save"), false }
		},
		"a damaged copy": func() { f.snapshot = append([]byte{1}, sitetest.EtcdCopy("keys")[1:]...) },
	} {
		spoil()
		if err := save.Do(t.Context(), u.Hosts[0]); err == nil {
			t.Errorf("%s: upgraded", name)
		}
		if begun, err := save.Done(t.Context(), u.Hosts[0]); err != nil || begun {
			t.Errorf("%s: taken for saved, %v", name, err)
		}
		f.fail, f.snapshot = nil, sitetest.EtcdCopy("keys")
	}
}

// Copies of external etcd are saved too, encrypted where the cluster file says so. The etcd of an operator is not.
func TestUpgradeSavesEachEtcd(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for settings, want := range map[string]string{
		"etcd: {type: external}": "etcd.db",
		"etcd: {type: external}\nbackup: {recipients: [" + key.Recipient().String() +
			"]}": "etcd.db.age",
		"backup: {recipients: [" + key.Recipient().String() +
			"]}": "etcd.db.age",
		"etcd: {type: provided, endpoints: [\"https://10.0.0.9:2379\"], ca: ca.crt, cert: etcd.crt, key: etcd.key}": "",
	} {
		s, _ := upgradeSite(t, "v1.34.3", "cp1")
		s.Hosts["cp1"].Put(t, "/etc/kkbundle/etcd-client/client.crt", "")
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\n"+settings)
		u := upgradeWith(s, t, nil)
		if err := u.saveTask(Plan{From: "v1.34.2", To: "v1.34.3"}).Do(t.Context(), u.Hosts[0]); err != nil {
			t.Errorf("%s: %v", settings, err)
			continue
		}
		saved, err := filepath.Glob(filepath.Join(s.Options.WorkDir, "upgrade", "*", "etcd*"))
		switch {
		case err != nil || want == "" && len(saved) > 0 || want != "" && (len(saved) != 1 ||
			filepath.Base(saved[0]) != want):
			t.Errorf("%s: saved %q, %v", settings, saved, err)
		case want == "":
			if !slices.ContainsFunc(s.Events, func(e task.Event) bool {
				return e.State == task.Warned && strings.Contains(e.Message, "your etcd is not saved")
			}) {
				t.Errorf("%s: no warning in %v", settings, s.Events)
			}
		default:
			if _, err := etcdops.ReadSnapshot(saved[0], key); err != nil {
				t.Errorf("%s: %v", settings, err)
			}
		}
	}
}

// Copies have all objects of the cluster: those of the last two upgrades stay.
func TestUpgradeKeepsTheLastCopies(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1")
	mine := filepath.Join(s.Options.WorkDir, "upgrade", "mine")
	if err := os.MkdirAll(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{"v1.34.3", "v1.34.4", "v1.34.5", "v1.34.6"} {
		u := upgradeTo(s, t, to)
		u.Now = func() time.Time { return time.Date(2026, 11, 1+i, 0, 0, 0, 0, time.UTC) }
		f.fail = func(_ int, line string) (bool, bool) {
			return i == 2 && strings.Contains(line, "snapshot save"),
				false
		}
		if err := u.saveTask(Plan{From: "v1.34.2", To: to}).Do(t.Context(), u.Hosts[0]); (err != nil) != (i == 2) {
			t.Fatalf("%s: %v", to, err)
		}
		if err := u.Dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(mine))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"20261102T000000Z-v1.34.2-to-v1.34.4", "20261104T000000Z-v1.34.2-to-v1.34.6", "mine", "under-way"}
	if diff := cmp.Diff(names, want); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
}

// An API server that a kubeadm without its session is still replacing answers a moment later.
func TestUpgradeWaitsForEachAPIServer(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "cp2", "node1")
	f.silent["cp2"] = 2
	if _, err := upgradeTo(s, t, "v1.34.3").look(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestParseBatch(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int{ // of 5 and of 40 workers
		"": {1, 4}, "3": {3, 3}, "20%": {1, 8}, "100%": {5, 40}, "1%": {1, 1},
	} {
		b, err := ParseBatch(text)
		if got := [2]int{b.of(5), b.of(40)}; err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "x", "0%", "101%", "%", "1.5"} {
		if _, err := ParseBatch(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
