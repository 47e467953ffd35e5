//go:build linux

package installer

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// otherAuthority is a certificate authority that is not testdata/ca.crt.
func otherAuthority(t *testing.T) string {
	t.Helper()
	a, err := newAuthority(newWorkDir(t), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate.Raw}))
}

func TestCheckMembers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members string
		change  func(s *site)
		want    string // part of the error; "" if there is none
	}{
		"a fresh site":      {},
		"a rerun":           {members: "cp1 node1 node2"},
		"a new worker":      {members: "cp1 node1"},
		"a new worker only": {members: "cp1 node1", change: func(s *site) { s.options.Limit = []string{"node2"} }},
		"a limit without the beginning": {
			change: func(s *site) { s.options.Limit = []string{"node1"} },
			want:   "cp1 begins the cluster and is no node yet",
		},
		"another pod network": {
			members: "cp1 node1 node2",
			change:  func(s *site) { s.options.Cluster = cluster(t, "kubernetes: {version: v1.34.3, podCIDR: 10.99.0.0/16}") },
			want:    "cp1 is a node of cluster site v1.34.3 with kubernetes.podCIDR 10.233.64.0/18, and this would make it one of cluster site v1.34.3 with kubernetes.podCIDR 10.99.0.0/16",
		},
		"another endpoint": {
			members: "cp1",
			change:  func(s *site) { s.options.Cluster = cluster(t, "controlPlaneEndpoint: {address: api.example}") },
			want:    "with controlPlaneEndpoint.address 10.0.0.3:6443, and",
		},
		"another version": {
			members: "cp1",
			change:  func(s *site) { s.options.Cluster = cluster(t, "kubernetes: {version: v1.34.4}") },
			want:    "this would make it one of cluster site v1.34.4",
		},
		"what kubeadm fixed, but harmless": {
			members: "cp1 node1 node2",
			change:  func(s *site) { s.options.Cluster = cluster(t, "kubernetes: {version: v1.34.3, maxPods: 200}") },
		},
		"a node of another cluster of that name": {
			members: "cp1 node1",
			change:  func(s *site) { s.hosts["node1"].put(t, clusterCA, otherAuthority(t)) },
			want:    "node1 is a node of cluster site v1.34.3 with the authority sha256:",
		},
		"a node that the first is to leave": {members: "node1", want: "one of cluster site v1.34.3 that is to begin on cp1"},
		"reset by hand": {
			members: "cp1",
			change:  func(s *site) { _ = os.Remove(s.hosts["cp1"].root + clusterCA) },
			want:    "Run kkbundle reset first",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1", "node1", "node2")
			newFakeCluster(t, s)
			for _, member := range strings.Fields(c.members) {
				s.hosts[member].put(t, memberPath, string(s.run(t, nil).memberFile().data))
			}
			if c.change != nil {
				c.change(s)
			}
			err := s.run(t, nil).checkMembers(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestIgnoredSettingsAreTold(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.hosts["cp1"].put(t, memberPath, string(s.run(t, nil).memberFile().data))
	for more, want := range map[string]string{
		"": "",
		"kubernetes: {version: v1.34.3, maxPods: 200, kubelet: {a: {b: secret}}}": "kubernetes.maxPods, kubernetes.kubelet.",
	} {
		s.options.Cluster, s.events = cluster(t, more), nil
		if err := s.run(t, nil).tellIgnored(t.Context()); err != nil {
			t.Fatal(err)
		}
		warned := slices.IndexFunc(s.events, func(e Event) bool { return e.State == Warned && strings.Contains(e.Message, want) })
		if (want != "") != (warned >= 0) {
			t.Errorf("%q: want a warning with %q, got %+v", more, want, s.events)
		}
	}
}

// TestLimitedVerification has a worker that is left out of a run and is no node yet.
func TestLimitedVerification(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2")
	newFakeCluster(t, s)
	node := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"status":{"conditions":[{"type":"Ready","status":"True"}],"nodeInfo":{"kubeletVersion":"v1.34.3"}}}`
	}
	s.hosts["cp1"].answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[`+node("cp1")+","+node("node1")+"]}")
		return err
	})
	for _, name := range []string{"cp1", "node1"} {
		s.hosts[name].put(t, memberPath, string(s.run(t, nil).memberFile().data))
	}
	if err := s.run(t, nil).targets[0].nodesAreReady(t.Context()); err == nil || !strings.Contains(err.Error(), "node2 is not a node") {
		t.Errorf("without a limit: %v", err)
	}
	s.options.Limit = []string{"cp1", "node1"}
	r := s.run(t, nil)
	if err := r.targets[0].nodesAreReady(t.Context()); err != nil {
		t.Error(err)
	}
	r.targets[2].on = nil // as connect leaves it
	members, err := r.members(t.Context())
	if err != nil || names(members) != "cp1 node1" {
		t.Errorf("the network is proven between %s, %v", names(members), err)
	}
}

func TestPodsThatAreOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	pods := `{"metadata":{"name":"a"},"status":{"phase":"Failed"}},{"metadata":{"name":"b","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running"}}`
	s.hosts["cp1"].answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[`+pods+"]}")
		return err
	})
	if err := s.run(t, nil).targets[0].podsAreReady(t.Context()); err != nil {
		t.Error(err)
	}
	pods += `,{"metadata":{"name":"c"},"status":{"phase":"Pending"}}`
	if err := s.run(t, nil).targets[0].podsAreReady(t.Context()); err == nil || !strings.Contains(err.Error(), "pod kube-system/c") {
		t.Errorf("got %v", err)
	}
}

func TestForeignImages(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	namespace := "later"
	s.hosts["cp1"].answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[{"metadata":{"name":"p","namespace":"`+namespace+`"},"status":{"containerStatuses":[{"imageID":"x@sha256:`+strings.Repeat("0", 64)+`"}]}}]}`)
		return err
	})
	err := r.targets[0].imagesAreBundled(t.Context())
	if err != nil || len(s.events) != 1 || s.events[0].State != Warned || !strings.Contains(s.events[0].Message, "pod later/p") {
		t.Errorf("an application that came later: %v, %+v", err, s.events)
	}
	namespace = "kube-system"
	if err := r.targets[0].imagesAreBundled(t.Context()); err == nil || !strings.Contains(err.Error(), "pod kube-system/p") {
		t.Errorf("got %v", err)
	}
}

// TestTokenByTheClustersClock has a control plane whose clock is years ahead.
func TestTokenByTheClustersClock(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	f := newFakeCluster(t, s)
	s.hosts["cp1"].answer("date", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "2000000000\n")
		return err
	})
	phases := []Phase{{Name: "install", Tasks: []Task{joinTask("join-worker", Each, manifest.RoleWorker)}}}
	s.hosts["node1"].put(t, begunPath, "") // and an earlier run was interrupted
	if err := s.run(t, nil).phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.applied[0], `expiration: "2033-05-18T04:33:20Z"`) {
		t.Errorf("want a token that is valid for an hour, got\n%s", f.applied[0])
	}
	if ran := strings.Join(s.hosts["cp1"].said("kubectl"), "\n"); !strings.Contains(ran, "delete node node1 --ignore-not-found") {
		t.Errorf("the node of the interrupted join stays:\n%s", ran)
	}
}

func TestCheckKubeconfig(t *testing.T) {
	t.Parallel()
	const good = `apiVersion: v1
kind: Config
preferences: {}
current-context: kubernetes-admin@site
clusters:
- name: site
  cluster: {server: https://10.0.0.3:6443, certificate-authority-data: QQ==}
contexts:
- name: kubernetes-admin@site
  context: {cluster: site, user: kubernetes-admin}
users:
- name: kubernetes-admin
  user: {client-certificate-data: QQ==, client-key-data: QQ==}
`
	if err := checkKubeconfig([]byte(good)); err != nil {
		t.Error(err)
	}
	for _, user := range []string{
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}", "tokenFile: /etc/passwd", "client-key: /root/.ssh/id_ed25519",
		"auth-provider: {name: gcp}",
	} {
		s := newSite(t, "cp1")
		s.hosts["cp1"].put(t, adminConf, strings.Replace(good, "client-certificate-data: QQ==", user, 1))
		err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "install", Tasks: []Task{adminConfTask()}}})
		if _, missing := os.Stat(s.options.WorkDir + "/" + adminConfFile); err == nil || !errors.Is(missing, os.ErrNotExist) {
			t.Errorf("%s: %v; in the work directory: %v", user, err, missing)
		}
	}
}

func TestInventoryMustFitTheCluster(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.options.Cluster = cluster(t, "imageRegistry: {type: existing, address: harbor.site/mirror}")
	var problems manifest.Problems
	if _, err := Run(t.Context(), s.options); !errors.As(err, &problems) {
		t.Errorf("install with a host for a registry that is not installed: %v", err)
	}
	if _, err := Precheck(t.Context(), s.options); !errors.As(err, &problems) {
		t.Errorf("precheck: %v", err)
	}
}

func TestWithoutPodNetwork(t *testing.T) {
	t.Parallel()
	var list []string
	for _, task := range verifyTasks(cluster(t, "cni: {type: none}")) {
		list = append(list, task.Name)
	}
	if got := strings.Join(list, " "); got != "verify-nodes verify-cluster verify-join verify-images verify-hosts-security verify-security verify-result" {
		t.Errorf("without pods that reach each other %s are verified", got)
	}
}

func TestExistingRegistry(t *testing.T) {
	t.Parallel()
	c := cluster(t, "imageRegistry: {type: existing, address: 'harbor.site:8443/mirror', ca: ca.pem}")
	for _, n := range Needs(c) {
		if n.Name == "registry" {
			t.Error("the bundle must hold a registry that nobody installs")
		}
	}
	r := &Site{cluster: c, Inputs: Inputs{Values: func(string) ([]byte, error) { return []byte("CA\n"), nil }}}
	access, err := r.nodeAccess()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range hostsFiles(access, []string{"docker.io"}) {
		got[f.path] = string(f.data)
	}
	if text := got[certsDir+"/docker.io/hosts.toml"]; !strings.Contains(text, `server = "https://harbor.site:8443/v2/mirror/docker.io"`) ||
		strings.Contains(text, "Authorization") || !strings.Contains(text, registryCAPath) {
		t.Errorf("docker.io:\n%s", text)
	}
	if text := got[certsDir+"/harbor.site:8443/hosts.toml"]; !strings.Contains(text, `server = "https://harbor.site:8443/v2"`) {
		t.Errorf("the registry itself:\n%s", text)
	}
}

// TestRegistryLogin holds that hosts get the login of the site's own registry, and that its password is hidden everywhere else.
func TestRegistryLogin(t *testing.T) {
	t.Parallel()
	c := cluster(t, "imageRegistry: {type: existing, address: harbor.site, auth: {username: puller, passwordEnv: X}}")
	r := &Site{cluster: c, Output: Output{mask: newMasker()}, Inputs: Inputs{RegistryPassword: func() (string, error) { return "hunter2hunter2", nil }}}
	access, err := r.nodeAccess()
	if err != nil {
		t.Fatal(err)
	}
	files := hostsFiles(access, []string{"docker.io"})
	if text := string(files[0].data); !strings.Contains(text, access.authorization()) || files[0].mode != 0o600 {
		t.Errorf("mode %o\n%s", files[0].mode, text)
	}
	if got := r.mask.mask("hunter2hunter2 " + access.authorization()); strings.Contains(got, "hunter2") || strings.Contains(got, strings.TrimPrefix(access.authorization(), "Basic ")) {
		t.Errorf("the log has %q", got)
	}
}

// TestRecordedConfig holds that hosts whose record has digests as earlier releases wrote them are not reported as changed.
func TestRecordedConfig(t *testing.T) {
	t.Parallel()
	const config = "kubernetes: {version: v1.34.3, kubelet: {b: {y: [1, x, true]}, a: 0.5}}"
	now := cluster(t, config).Kubernetes.Kubelet
	const (
		before = "5abf6217d08bce6fe9a8a7ca1be056686fe773241df079c92e2a3a89cbd50e4b" // of map[a:0.5 b:map[y:[1 x true]]]
		canon  = "bf61684b4223b3498fe8dc03d5eb0c39e1614c30670141e90c780d59ae1de8dc" // of {"a":0.5,"b":{"y":[1,"x",true]}}
	)
	if s := configSetting("kubernetes.kubelet", now); s.value != canon || s.before != before {
		t.Errorf("digests are %s and %s", s.value, s.before)
	}
	if none, empty := configSetting("k", nil), configSetting("k", manifest.Config{}); none != empty {
		t.Errorf("none has %+v, and an empty one %+v", none, empty)
	}
	for name, c := range map[string]struct {
		digest, cluster string
		same            bool
	}{
		"of an earlier release":              {before, config, true},
		"of this release":                    {canon, config, true},
		"of another one":                     {strings.Repeat("0a", 32), config, false},
		"changed, of an earlier release":     {before, strings.Replace(config, "0.5", "0.6", 1), false},
		"changed, of this release":           {canon, strings.Replace(config, "0.5", "0.6", 1), false},
		"text instead of a number, as JSON":  {canon, strings.Replace(config, "[1,", "['1',", 1), false},
		"another version of the same config": {canon, strings.Replace(config, "v1.34.3", "v1.34.4", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = cluster(t, config)
			text := string(s.run(t, nil).memberFile().data)
			s.hosts["cp1"].put(t, memberPath, strings.Replace(text, canon, c.digest, 1))
			s.options.Cluster = cluster(t, c.cluster)
			r := s.run(t, nil)
			if same, err := r.targets[0].records(t.Context(), memberPath); err != nil || same != c.same {
				t.Errorf("the record fits: %t, %v", same, err)
			}
			_, settings, member, err := r.targets[0].recorded(t.Context())
			if err != nil || !member {
				t.Fatalf("no node: %v", err)
			}
			changed, _ := r.changed(settings)
			if want := !c.same && !strings.Contains(c.cluster, "v1.34.4"); want != (len(changed) == 1 && changed[0].name == "kubernetes.kubelet") {
				t.Errorf("changed: %+v", changed)
			}
		})
	}
	s := newSite(t, "cp1")
	if same, err := s.run(t, nil).targets[0].records(t.Context(), memberPath); err != nil || same {
		t.Errorf("a host without a record has one: %t, %v", same, err)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	site := identity{"site", "v1.34.3"}
	for text, want := range map[string]identity{"site v1.34.3": site, "site": {name: "site"}, "": {}} {
		if got := parseIdentity(text); got != want || got.String() != text {
			t.Errorf("%q is %+v, which is written %q", text, got, got)
		}
	}
	if !site.sameName(identity{"site", "v1.35.0"}) || site.sameName(identity{"sites", "v1.34.3"}) {
		t.Error("names are compared wrongly")
	}
}

// TestMemberHint holds that only clusters that differ in their version are sent to kkbundle upgrade.
func TestMemberHint(t *testing.T) {
	t.Parallel()
	for config, want := range map[[2]string]string{
		{"site", "v1.34.4}"}:                        "kkbundle upgrade brings",
		{"site", "v1.34.3, podCIDR: 10.99.0.0/16}"}: "cannot rename or renumber",
		{"other", "v1.34.4}"}:                       "cannot rename or renumber",
	} {
		s := newSite(t, "cp1")
		newFakeCluster(t, s)
		s.hosts["cp1"].put(t, memberPath, string(s.run(t, nil).memberFile().data))
		s.options.Cluster = cluster(t, "kubernetes: {version: "+config[1])
		s.options.Cluster.Metadata.Name = config[0]
		var other *MemberError
		if err := s.run(t, nil).checkMembers(t.Context()); !errors.As(err, &other) || !strings.Contains(other.Hint(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
