//go:build linux

package installer

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestLead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ members, silent, want string }{
		"a fresh site":                     {want: "cp1"},
		"a rerun":                          {members: "cp1 cp2 cp3 node1", want: "cp1"},
		"the first was replaced":           {members: "cp2 cp3 node1", want: "cp2"},
		"only the last is left":            {members: "cp3 node1", silent: "cp3", want: "cp3"},
		"the first does not answer":        {members: "cp1 cp2 cp3", silent: "cp1", want: "cp2"},
		"nobody answers, as after a flood": {members: "cp1 cp2 cp3", silent: "cp1 cp2 cp3", want: "cp1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
			s.Join(t, strings.Fields(c.members)...)
			for _, silent := range strings.Fields(c.silent) {
				s.Hosts[silent].Answer("kubectl", func(context.Context, host.Cmd) error {
					return &host.ExitError{
						Host: silent, Args: []string{"kubectl"}, Code: 1,
						Stderr: "connection refused",
					}
				})
			}
			r := s.Run(t, nil)
			if err := r.FindLead(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := r.FirstControlPlane().Name; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			for _, task := range []task.Task{kubeadm.InitTask(r.Cluster), cluster.AdminConfTask()} {
				if got := names(engine.TargetsOf(r.Site, task)); got != c.want {
					t.Errorf("%s is for %s", task.Name, got)
				}
			}
		})
	}
}

func TestLeadOfAnotherCluster(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "")
	s.Hosts["cp2"].Put(t, member.Path, "other v1.34.3\n")
	var other *member.OtherClusterError
	if err := s.Run(t, nil).FindLead(t.Context()); !errors.As(err, &other) || other.Host != "cp2" {
		t.Errorf("got %v", err)
	}
}

// With the endpoint of the first control plane, the cluster keeps it when another host is the first.
func TestEndpointOutlivesTheInventory(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "")
	s.Join(t, "cp2", "cp3")
	r := s.Run(t, nil)
	if err := r.FindLead(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.Endpoint(); got != "10.0.0.3:6443" {
		t.Errorf("got %s", got)
	}
	if err := begin.CheckMembers(t.Context(), r); err != nil {
		t.Error(err)
	}
}

// A run that is limited to some hosts needs one control plane, whichever it is.
func TestLostControlPlane(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
	s.Join(t, "cp2", "cp3", "node1")
	s.Options.Limit = []string{"node2"}
	r := s.Run(t, nil)
	out := &host.UnreachableError{Host: "cp1", Err: errors.New("no route to host")}
	r.Hosts[0].Conn, r.Hosts[0].Err = nil, out
	if err := r.ReportSpared(); err != nil {
		t.Error(err)
	}
	if got := names(r.Needed()); got != "cp2 cp3 node1 node2" {
		t.Errorf("it needs %s", got)
	}
	if err := begin.CheckMembers(t.Context(), r); err != nil || r.LeadHost.Name != "cp2" {
		t.Errorf("%v, %v", r.LeadHost, err)
	}
	if got := names(r.Needed()); got != "cp2 node1 node2" {
		t.Errorf("then it needs %s", got)
	}
	for _, t := range r.Hosts[1:3] {
		t.Conn, t.Err = nil, out
	}
	if err := r.ReportSpared(); !errors.Is(err, out) {
		t.Errorf("without any: %v", err)
	}
	s.Options.Limit = nil
	if r := s.Run(t, nil); r.CanSpare(r.Hosts[0]) {
		t.Error("a run for all hosts goes on without one")
	}
}

// The lost one is not what the run is judged by; any other is.
func TestVerificationWithoutALostHost(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
	s.Options.Limit = []string{"node2"}
	sick := "cp1"
	s.Hosts["cp2"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		line, items := strings.Join(cmd.Args, " "), []string{}
		for _, name := range []string{"cp1", "cp2", "cp3", "node1", "node2"} {
			ready := "True"
			if name == sick {
				ready = "Unknown"
			}
			status := `"conditions":[{"type":"Ready","status":"` + ready + `"}],"nodeInfo":{"kubeletVersion":"v1.34.3"}`
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%[1]q},"spec":{"nodeName":%[1]q},"status":{%[2]s}}`,
				name, status))
		}
		if !strings.Contains(line, " get ") {
			return nil
		}
		_, err := io.WriteString(cmd.Stdout, `{"items":[`+strings.Join(items, ",")+"]}")
		return err
	})
	r := s.Run(t, nil)
	r.Hosts[0].Conn, r.Hosts[0].Err = nil, errors.New("no answer")
	cp2 := r.Hosts[1]
	if err := errors.Join(health.NodesAreReady(t.Context(), cp2), health.PodsAreReady(t.Context(), cp2)); err != nil {
		t.Error(err)
	}
	sick = "cp3"
	if health.NodesAreReady(t.Context(), cp2) == nil || health.PodsAreReady(t.Context(), cp2) == nil {
		t.Error("a host that was not lost may be sick")
	}
}

// Where the cluster may be on a host that is not reached, no second one begins.
func TestNoSecondCluster(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "")
	s.Options.Limit = []string{"cp2"}
	r := s.Run(t, nil)
	r.Hosts[0].Conn, r.Hosts[0].Err = nil, errors.New("no answer")
	var lost interface{ Hint() string }
	if err := begin.CheckMembers(t.Context(), r); !errors.As(err, &lost) ||
		!strings.Contains(err.Error(), "it may be running on cp1, which cannot be reached") {
		t.Errorf("got %v", err)
	}
}

func TestHAProxy(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
	s.Join(t, "cp1", "cp2", "cp3", "node1", "node2")
	r := s.Run(t, nil)
	config, err := endpoint.HAProxyConfig(r.Site)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "haproxy.cfg", config)
	pod, err := endpoint.HAProxyPod(r.Site, config)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "haproxy.yaml", pod)
	s.Options.Inventory = sitetest.HaInventory(t, "cp2")
	if again, err := endpoint.HAProxyConfig(s.Run(t, nil).Site); err != nil || strings.Contains(string(again), "cp1") {
		t.Errorf("without cp1: %v\n%s", err, again)
	}
	task := endpoint.HAProxyTask()
	for _, target := range r.Hosts {
		done, err := task.Done(t.Context(), target)
		if err != nil || done != target.Is(manifest.RoleControlPlane) {
			t.Errorf("%s: %v, %v", target.Name, done, err)
		}
	}
}

// The endpoint's name leads to a control plane until the host is a node, then to the host itself.
func TestEndpointName(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
	s.Join(t, "cp2", "node1")
	r := s.Run(t, nil)
	if err := r.FindLead(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cp1": "10.0.0.4", "cp2": "127.0.0.1", "cp3": "10.0.0.4", "node1": "127.0.0.1",
		"node2": "10.0.0.4",
	}
	for _, target := range r.Hosts {
		_, hosts, err := machine.HostsFile(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		line := want[target.Name] + " api.site.internal\n"
		if has := strings.Contains(string(hosts), line); has != (want[target.Name] != "") ||
			strings.Count(string(hosts), "api.site.internal") > 1 {
			t.Errorf("%s, want %q:\n%s", target.Name, line, hosts)
		}
	}
	if parts := kubeadm.Parts(r.Site, true); !strings.Contains(fmt.Sprint(parts), "[127.0.0.1]") {
		t.Errorf("the certificates lack the loopback address: %v", parts)
	}
}

func TestProxyEndpoint(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
	s.Join(t, "cp1")
	kubeconfig := "server: https://api.site.internal:6443"
	patched := ""
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		if line := strings.Join(cmd.Args, " "); strings.Contains(line, " patch ") {
			patched = line
			kubeconfig = "server: https://127.0.0.1:6443"
			return nil
		}
		_, err := fmt.Fprintf(cmd.Stdout, `{"data":{"kubeconfig.conf":%q}}`, kubeconfig)
		return err
	})
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{endpoint.ProxyEndpointTask()}}}
	for _, want := range []string{"proxy-endpoint@cp1 changed", "proxy-endpoint@cp1 done"} {
		if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.States(), []string{want}); diff != "" {
			t.Errorf("(-got +want):\n%s", diff)
		}
	}
	if !strings.Contains(patched, `{"data":{"kubeconfig.conf":"server: https://127.0.0.1:6443"}}`) {
		t.Errorf("it was patched with %s", patched)
	}
}

// kube-vip is there when kubeadm runs, each time that it runs: kubeadm reset takes it away.
func TestKubeVIP(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ version, first string }{
		"v1.34.3": {"v1.34.3", endpoint.SuperAdminConf}, "before super-admin.conf": {"v1.28.15", kube.AdminConf},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := sitetest.NewHA(t, "kubernetes: {version: "+c.version+
				"}\ncontrolPlaneEndpoint: {type: kube-vip, address: 10.0.0.100}")
			var seen []string
			for _, name := range []string{"cp1", "cp2", "cp3"} {
				h := s.Hosts[name]
				h.Answer("ip", func(_ context.Context, cmd host.Cmd) error {
					_, err := io.WriteString(cmd.Stdout,
						"1: lo    inet 127.0.0.1/8 scope host lo\n7: ens3    inet 10.0.0.3/24 brd 10.0.0.255 scope global ens3\n")
					return err
				})
				h.Answer("etcdctl", sitetest.NoMembers)
				h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
					if !strings.Contains(strings.Join(cmd.Args, " "), " get pod kube-vip-"+name+" ") {
						return nil
					}
					_, digest, _ := strings.Cut(h.Content(endpoint.KubeVIPManifest), kube.ConfigAnnotation+": ")
					digest, _, _ = strings.Cut(digest, "\n")
					_, err := fmt.Fprintf(cmd.Stdout,
						`{"metadata":{"annotations":{%q:%q}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, kube.ConfigAnnotation, digest)
					return err
				})
				h.Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
					switch {
					case cmd.Args[1] == "reset":
						return os.Remove(h.Root + endpoint.KubeVIPManifest)
					case cmd.Args[1] == "join" || cmd.Args[1] == "init" && cmd.Args[2] != "phase":
						_, path, _ := strings.Cut(h.Content(endpoint.KubeVIPManifest), "hostPath:\n      path: ")
						path, _, _ = strings.Cut(path, "\n")
						seen = append(seen, name+" "+cmd.Args[1]+" "+path)
						return f.Fail
					}
					return nil
				})
			}
			phases := []task.Phase{{Name: "install", Tasks: append(kubeadm.SecurityTasks(),
				kubeadm.InitTask(s.Options.Cluster), endpoint.KubeVIPTask(),
				kubeadm.JoinTask("join-control-plane", task.OneByOne, manifest.RoleControlPlane),
			)}}
			f.Fail = &host.ExitError{Host: "cp1", Args: []string{"kubeadm", "init"}, Code: 1}
			if err := s.Run(t, nil).Phases(t.Context(), phases); err == nil {
				t.Fatal("a kubeadm that fails is passed over")
			}
			f.Fail = nil
			for range 2 {
				s.States()
				if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
					t.Fatal(err)
				}
			}
			want := []string{"cp1 init " + c.first, "cp1 init " + c.first, "cp2 join " + kube.AdminConf, "cp3 join " +
				kube.AdminConf}
			if diff := cmp.Diff(seen, want); diff != "" {
				t.Errorf("when kubeadm ran (-got +want):\n%s", diff)
			}
			for _, state := range s.States() {
				if !strings.HasSuffix(state, " done") {
					t.Errorf("a rerun: %s", state)
				}
			}
			if name == "v1.34.3" {
				tasktest.Golden(t, "kube-vip.yaml", []byte(s.Hosts["cp1"].Content(endpoint.KubeVIPManifest)))
			}
		})
	}
}

func TestDropVIP(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.100}")
	var ran []string
	s.Hosts["cp1"].Answer("ip", func(_ context.Context, cmd host.Cmd) error {
		ran = append(ran, strings.Join(cmd.Args, " "))
		if cmd.Stdout != nil && cmd.Args[1] == "-oneline" {
			_, err := io.WriteString(cmd.Stdout, "7: ens3    inet 10.0.0.100/32 scope global ens3\n")
			return err
		}
		return nil
	})
	if err := endpoint.DropVIP(t.Context(), s.Run(t, nil).Hosts[0]); err != nil {
		t.Fatal(err)
	}
	want := []string{"ip -oneline address show to 10.0.0.100/32", "ip address delete 10.0.0.100/32 dev ens3"}
	if diff := cmp.Diff(ran, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// A host that Cluster API provisioned has an address that only its own manifest names.
func TestLeaveVIP(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ manifest, want string }{
		"kube-vip": {
			"spec: {containers: [{name: kube-vip, env: [{name: port, value: '6443'}, {name: address, value: 10.0.0.100}]}]}\n",
			"systemctl stop kubelet.service, pkill --exact kube-vip, ip -oneline address show to 10.0.0.100/32, " +
				"ip address delete 10.0.0.100/32 dev ens3",
		},
		"a name":       {"spec: {containers: [{name: kube-vip, env: [{name: address, value: api.site}]}]}\n", ""},
		"no manifest":  {"spec: {", ""},
		"no kube-vip":  {"", ""},
		"nothing else": {"spec: {containers: [{name: kube-vip}]}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sitetest.NewHA(t, "")
			var ran []string
			for _, program := range []string{"ip", "systemctl", "pkill"} {
				s.Hosts["cp1"].Answer(program, func(_ context.Context, cmd host.Cmd) error {
					ran = append(ran, strings.Join(cmd.Args, " "))
					if cmd.Stdout != nil && cmd.Args[1] == "-oneline" {
						_, err := io.WriteString(cmd.Stdout, "7: ens3    inet 10.0.0.100/32 scope global ens3\n")
						return err
					}
					return nil
				})
			}
			if test.manifest != "" {
				s.Hosts["cp1"].Put(t, endpoint.KubeVIPManifest, test.manifest)
			}
			if err := endpoint.LeaveVIP(t.Context(), s.Run(t, nil).Hosts[0]); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(ran, ", "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// The endpoint has to answer with a certificate of the cluster's authority.
func TestEndpointAnswers(t *testing.T) {
	t.Parallel()
	status := http.StatusForbidden // who may not ask is answered all the same
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		w.WriteHeader(status)
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: external, address: "+address+"}")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	r := s.Run(t, nil)
	if err := endpoint.APIAnswers(t.Context(), r.Hosts[4], r.Endpoint(), ca); err != nil {
		t.Error(err)
	}
	err := endpoint.APIAnswers(t.Context(), r.Hosts[4], r.Endpoint(), []byte(sitetest.OtherAuthority(t)))
	if err == nil || !strings.Contains(err.Error(), "no answer from the API server at "+address+
		", asked from node2: ") || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("another authority: %v", err)
	}
	status = http.StatusServiceUnavailable
	if err := endpoint.APIAnswers(t.Context(), r.Hosts[4], r.Endpoint(), ca); err == nil ||
		!strings.Contains(err.Error(), "is not ready") {
		t.Errorf("a server that is not ready: %v", err)
	}
}

// On a control plane kubectl asks its own API server, where admin.conf names another address.
func TestKubectlAsksItsOwnServer(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"": "kubectl --kubeconfig=" + kube.AdminConf + " get nodes",
		"controlPlaneEndpoint: {type: haproxy}": "kubectl --kubeconfig=" + kube.AdminConf +
			" --server=https://10.0.0.3:6443 get nodes",
		"controlPlaneEndpoint: {address: a.lan}": "kubectl --kubeconfig=" + kube.AdminConf +
			" --server=https://10.0.0.3:6443 get nodes",
	} {
		s, _ := sitetest.NewHA(t, endpoint)
		if _, err := s.Run(t, nil).Hosts[0].Kubectl(t.Context(), "get", "nodes"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.Hosts["cp1"].Said("kubectl"), []string{want}); diff != "" {
			t.Errorf("%s (-got +want):\n%s", endpoint, diff)
		}
	}
}
