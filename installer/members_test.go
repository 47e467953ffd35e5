//go:build linux

package installer

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

func TestCheckMembers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members string
		change  func(s *sitetest.Site)
		want    string // part of the error; "" if there is none
	}{
		"a fresh site": {},
		"a rerun":      {members: "cp1 node1 node2"},
		"a new worker": {members: "cp1 node1"},
		"a new worker only": {
			members: "cp1 node1",
			change:  func(s *sitetest.Site) { s.Options.Limit = []string{"node2"} },
		},
		"a limit without the beginning": {
			change: func(s *sitetest.Site) { s.Options.Limit = []string{"node1"} },
			want:   "cp1 is the first control plane and not a node yet",
		},
		"another pod network": {
			members: "cp1 node1 node2",
			change: func(s *sitetest.Site) {
				s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, podCIDR: 10.99.0.0/16}")
			},
			want: "cp1 is a node of cluster site v1.34.3 with kubernetes.podCIDR 10.233.64.0/18, not of cluster site v1.34.3 with kubernetes.podCIDR 10.99.0.0/16",
		},
		"another endpoint": {
			members: "cp1",
			change: func(s *sitetest.Site) {
				s.Options.Cluster = tasktest.Cluster(t, "controlPlaneEndpoint: {address: api.example}")
			},
			want: "with controlPlaneEndpoint.address 10.0.0.3:6443, not of",
		},
		"another version": {
			members: "cp1",
			change: func(s *sitetest.Site) {
				s.Options.Cluster = tasktest.Cluster(t,
					"kubernetes: {version: v1.34.4}")
			},
			want: "not of cluster site v1.34.4",
		},
		"another domain": {
			members: "cp1 node1 node2",
			change:  func(s *sitetest.Site) { s.Options.Cluster = tasktest.Cluster(t, "dns: {domain: corp.example}") },
			want:    "with dns.domain cluster.local, not of",
		},
		"what kubeadm fixed, but harmless": {
			members: "cp1 node1 node2",
			change: func(s *sitetest.Site) {
				s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, maxPods: 200}")
			},
		},
		"a node of another cluster of that name": {
			members: "cp1 node1",
			change:  func(s *sitetest.Site) { s.Hosts["node1"].Put(t, kube.ClusterCA, sitetest.OtherAuthority(t)) },
			want:    "node1 is a node of cluster site v1.34.3 with the authority sha256:",
		},
		"a node that the first is to leave": {
			members: "node1",
			want:    "not of cluster site v1.34.3, not yet installed on cp1",
		},
		"reset by hand": {
			members: "cp1",
			change:  func(s *sitetest.Site) { _ = os.Remove(s.Hosts["cp1"].Root + kube.ClusterCA) },
			want:    "run kkbundle reset first",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1", "node2")
			sitetest.NewFakeCluster(t, s)
			for _, joined := range strings.Fields(c.members) {
				s.Hosts[joined].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
			}
			if c.change != nil {
				c.change(s)
			}
			err := begin.CheckMembers(t.Context(), s.Run(t, nil))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestLimitedVerification has a worker that is left out of a run and is no node yet.
func TestLimitedVerification(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	sitetest.NewFakeCluster(t, s)
	node := func(name string) string {
		return `{"metadata":{"name":"` + name +
			`"},"status":{"conditions":[{"type":"Ready","status":"True"}],"nodeInfo":{"kubeletVersion":"v1.34.3"}}}`
	}
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[`+node("cp1")+","+node("node1")+"]}")
		return err
	})
	for _, name := range []string{"cp1", "node1"} {
		s.Hosts[name].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
	}
	if err := health.NodesAreReady(t.Context(), s.Run(t, nil).Hosts[0]); err == nil ||
		!strings.Contains(err.Error(), "node2 is not a node") {
		t.Errorf("without a limit: %v", err)
	}
	s.Options.Limit = []string{"cp1", "node1"}
	r := s.Run(t, nil)
	if err := health.NodesAreReady(t.Context(), r.Hosts[0]); err != nil {
		t.Error(err)
	}
	r.Hosts[2].Conn = nil // as connect leaves it
	members, err := member.Members(t.Context(), r.Site)
	if err != nil || names(members) != "cp1 node1" {
		t.Errorf("the network is proven between %s, %v", names(members), err)
	}
}

func TestPodsThatAreOver(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	pods := `{"metadata":{"name":"a"},"status":{"phase":"Failed"}},{"metadata":{"name":"b","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running"}}`
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[`+pods+"]}")
		return err
	})
	if err := health.PodsAreReady(t.Context(), s.Run(t, nil).Hosts[0]); err != nil {
		t.Error(err)
	}
	pods += `,{"metadata":{"name":"c"},"status":{"phase":"Pending"}}`
	if err := health.PodsAreReady(t.Context(), s.Run(t, nil).Hosts[0]); err == nil ||
		!strings.Contains(err.Error(), "pod kube-system/c") {
		t.Errorf("got %v", err)
	}
}

func TestForeignImages(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	namespace, ends := "later", ""
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, `{"items":[{"metadata":{"name":"p","namespace":"`+namespace+`"`+ends+
			`},"status":{"containerStatuses":[{"imageID":"x@sha256:`+strings.Repeat("0", 64)+`"}]}}]}`)
		return err
	})
	var reduced []digest.Digest
	check := func() error {
		return health.ImagesAreBundled(t.Context(), r.Hosts[0],
			func(context.Context, *task.Host) ([]digest.Digest, error) { return reduced, nil })
	}
	err := check()
	if err != nil || len(s.Events) != 1 || s.Events[0].State != task.Warned ||
		!strings.Contains(s.Events[0].Message, "pod later/p") {
		t.Errorf("an application that came later: %v, %+v", err, s.Events)
	}
	namespace = "kube-system"
	if err := check(); err == nil || !strings.Contains(err.Error(), "pod kube-system/p") {
		t.Errorf("got %v", err)
	}
	ends = `,"deletionTimestamp":"2026-01-01T00:00:00Z"`
	if err := check(); err != nil {
		t.Errorf("a pod of the release before, which ends: %v", err)
	}
	ends = ""
	s.Hosts["cp2"].Put(t, marks.AdoptionOf("v1.34.3").Path("complete"), "") // the lead came later
	if err := check(); err != nil {
		t.Errorf("a pod of the tool that made the cluster: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(s.Hosts["cp2"].Root, marks.AdoptionDir)); err != nil {
		t.Fatal(err)
	}
	ends, reduced = "", []digest.Digest{digest.NewDigestFromEncoded(digest.SHA256, strings.Repeat("0", 64))}
	if err := check(); err != nil {
		t.Errorf("an index that the registry made smaller: %v", err)
	}
}

// TestTokenByTheClustersClock has a control plane whose clock is years ahead.
func TestTokenByTheClustersClock(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	f := sitetest.NewFakeCluster(t, s)
	s.Hosts["cp1"].Answer("date", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "2000000000\n")
		return err
	})
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-worker", task.Each,
		manifest.RoleWorker)}}}
	s.Hosts["node1"].Put(t, member.BegunPath, "") // and an earlier run was interrupted
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.Applied[0], `expiration: "2033-05-18T04:33:20Z"`) {
		t.Errorf("want a token that is valid for an hour, got\n%s", f.Applied[0])
	}
	if ran := strings.Join(s.Hosts["cp1"].Said("kubectl"), "\n"); !strings.Contains(ran,
		"delete node node1 --ignore-not-found") {
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
	if err := kube.CheckKubeconfig([]byte(good)); err != nil {
		t.Error(err)
	}
	for _, user := range []string{
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}", "tokenFile: /etc/passwd",
		"client-key: /root/.ssh/id_ed25519",
		"auth-provider: {name: gcp}",
	} {
		s := sitetest.NewSite(t, "cp1")
		s.Hosts["cp1"].Put(t, kube.AdminConf, strings.Replace(good, "client-certificate-data: QQ==", user, 1))
		err := s.Run(t, nil).Phases(t.Context(),
			[]task.Phase{{Name: "install", Tasks: []task.Task{cluster.AdminConfTask()}}})
		if _, missing := os.Stat(s.Options.WorkDir + "/" + task.AdminConfFile); err == nil ||
			!errors.Is(missing, os.ErrNotExist) {
			t.Errorf("%s: %v; in the work directory: %v", user, err, missing)
		}
	}
}

func TestInventoryMustFitTheCluster(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: existing, address: harbor.site/mirror}")
	var problems document.Problems
	if _, err := Run(t.Context(), s.Options); !errors.As(err, &problems) {
		t.Errorf("install with a host for a registry that is not installed: %v", err)
	}
	if _, err := begin.Precheck(t.Context(), s.Options); !errors.As(err, &problems) {
		t.Errorf("precheck: %v", err)
	}
}

func TestWithoutPodNetwork(t *testing.T) {
	t.Parallel()
	var list []string
	for _, task := range plan.VerifyTasks(tasktest.Cluster(t, "cni: {type: none}")) {
		list = append(list, task.Name)
	}
	if got := strings.Join(list,
		" "); got != "verify-nodes verify-cluster verify-join verify-images verify-hosts-security verify-security verify-result" {
		t.Errorf("without pods that reach each other %s are verified", got)
	}
}

func TestExistingRegistry(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "imageRegistry: {type: existing, address: 'harbor.site:8443/mirror', ca: ca.pem}")
	for _, n := range plan.Needs(c) {
		if n.Name == "registry" {
			t.Error("the bundle must hold a registry that nobody installs")
		}
	}
	r := &task.Site{
		Cluster: c,
		Inputs:  task.Inputs{Values: func(string) ([]byte, error) { return []byte("CA\n"), nil }},
	}
	access, err := siteregistry.NodeAccess(r)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range cri.HostsFiles(access, []string{"docker.io"}, cri.Asked{}) {
		got[f.Path] = string(f.Data)
	}
	if text := got[cri.CertsDir+"/docker.io/hosts.toml"]; !strings.Contains(text,
		`server = "https://harbor.site:8443/v2/mirror/docker.io"`) ||
		strings.Contains(text, "Authorization") || !strings.Contains(text, cri.RegistryCAPath) {
		t.Errorf("docker.io:\n%s", text)
	}
	if text := got[cri.CertsDir+"/harbor.site:8443/hosts.toml"]; !strings.Contains(text,
		`server = "https://harbor.site:8443/v2"`) {
		t.Errorf("the registry itself:\n%s", text)
	}
}

// TestRecordedConfig holds that hosts whose record has digests as earlier releases wrote them are not reported as
// changed.
func TestRecordedConfig(t *testing.T) {
	t.Parallel()
	const config = "kubernetes: {version: v1.34.3, kubelet: {b: {y: [1, x, true]}, a: 0.5}}"
	now := tasktest.Cluster(t, config).Kubernetes.Kubelet
	const (
		before = "5abf6217d08bce6fe9a8a7ca1be056686fe773241df079c92e2a3a89cbd50e4b" // of map[a:0.5 b:map[y:[1 x true]]]
		// of {"a":0.5,"b":{"y":[1,"x",true]}}
		canon = "bf61684b4223b3498fe8dc03d5eb0c39e1614c30670141e90c780d59ae1de8dc"
	)
	if s := member.ConfigSetting("kubernetes.kubelet", now); s.Value != canon || s.Before != before {
		t.Errorf("digests are %s and %s", s.Value, s.Before)
	}
	if none, empty := member.ConfigSetting("k", nil), member.ConfigSetting("k", manifest.Config{}); none != empty {
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
			s := sitetest.NewSite(t, "cp1")
			s.Options.Cluster = tasktest.Cluster(t, config)
			text := string(member.File(s.Run(t, nil).Site).Data)
			s.Hosts["cp1"].Put(t, member.Path, strings.Replace(text, canon, c.digest, 1))
			s.Options.Cluster = tasktest.Cluster(t, c.cluster)
			r := s.Run(t, nil)
			if same, err := member.Records(t.Context(), r.Hosts[0], member.Path); err != nil || same != c.same {
				t.Errorf("the record fits: %t, %v", same, err)
			}
			_, settings, joined, err := member.Recorded(t.Context(), r.Hosts[0])
			if err != nil || !joined {
				t.Fatalf("no node: %v", err)
			}
			changed, _ := member.Changed(r.Site, settings)
			if want := !c.same && !strings.Contains(c.cluster, "v1.34.4"); want != (len(changed) == 1 &&
				changed[0].Name == "kubernetes.kubelet") {
				t.Errorf("changed: %+v", changed)
			}
		})
	}
	s := sitetest.NewSite(t, "cp1")
	if same, err := member.Records(t.Context(), s.Run(t, nil).Hosts[0], member.Path); err != nil || same {
		t.Errorf("a host without a record has one: %t, %v", same, err)
	}
}

// TestMemberHint holds that only clusters that differ in their version are sent to kkbundle upgrade.
func TestMemberHint(t *testing.T) {
	t.Parallel()
	for config, want := range map[[2]string]string{
		{"site", "v1.34.4}"}:                        "run kkbundle upgrade",
		{"site", "v1.34.3, podCIDR: 10.99.0.0/16}"}: "cannot rename or renumber",
		{"other", "v1.34.4}"}:                       "cannot rename or renumber",
	} {
		s := sitetest.NewSite(t, "cp1")
		sitetest.NewFakeCluster(t, s)
		s.Hosts["cp1"].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: "+config[1])
		s.Options.Cluster.Metadata.Name = config[0]
		var other *member.OtherClusterError
		if err := begin.CheckMembers(t.Context(), s.Run(t, nil)); !errors.As(err, &other) ||
			!strings.Contains(other.Hint(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
