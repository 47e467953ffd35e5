//go:build linux

package rotate

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

// A movingCluster plays kubectl, kubeadm and systemctl of a cluster whose endpoint is moved, and the API servers with
// real certificates: each reads the files of its host at every connection, as a real one does within a minute. That
// real programs do what it pretends is shown by TestEndpointMove of the lab.
type movingCluster struct {
	mu       sync.Mutex
	before   string // the endpoint
	after    string
	ca       *pki.Authority
	configs  map[string]map[string]string // ConfigMaps
	mark     string                       // annotation of kube-proxy's pods
	leases   map[string]time.Time
	restarts []string // of kubelets
}

// loopbackAPI listens on port 6443 of two addresses of this machine's that nobody else has. Further addresses of
// network, which ends with a dot, are free as well: whoever uses it has those two first.
func loopbackAPI(t *testing.T, one, two int) (network string, listeners []net.Listener) {
	t.Helper()
	for len(listeners) < 2 {
		address := fmt.Sprintf("%s%d:6443", network, two)
		if len(listeners) == 0 {
			// TestLinks has those from 127.128.0.0
			network = fmt.Sprintf("127.%d.%d.", 1+rand.IntN(127), 1+rand.IntN(254))
			address = fmt.Sprintf("%s%d:6443", network, one)
		}
		l, err := net.Listen("tcp", address)
		if len(listeners) == 0 && errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		listeners = append(listeners, l)
	}
	return network, listeners
}

// movingSite is a cluster of cp1 and node1 at the address of cp1.
func movingSite(t *testing.T) (*sitetest.Site, *movingCluster) {
	t.Helper()
	network, listeners := loopbackAPI(t, 3, 100)
	before, after := listeners[0].Addr().String(), listeners[1].Addr().String()
	s := sitetest.NewSite(t, "cp1", "node1")
	inv := &manifest.Inventory{ // not parsed: that nodes have loopback addresses is refused
		HostSpecs: manifest.HostSpecs{{Name: "cp1", Address: network + "3"}, {Name: "node1", Address: network + "4"}},
		Groups:    manifest.Groups{ControlPlane: []string{"cp1"}, Worker: []string{"node1"}, Registry: []string{"cp1"}},
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t, "")
	s.Join(t, "cp1", "node1")
	authority, pair, err := pki.NewAuthority("kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f := &movingCluster{
		before: before, after: after, ca: authority, leases: map[string]time.Time{},
		configs: map[string]map[string]string{
			"kubeadm-config": {"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: " + before + "\napiServer: {certSANs: [mine.example]}\n"},
			"cluster-info":   {"kubeconfig": "clusters:\n- cluster:\n    server: https://" + before + "\n"},
			"kube-proxy": {
				"kubeconfig.conf": "clusters:\n- cluster:\n    server: https://" + before + "\n",
				"config.conf":     "mine\n",
			},
		},
	}
	serving, err := authority.Issue(pki.ParseNames([]string{strings.TrimSuffix(before, ":6443")}), time.Now(),
		time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range s.Hosts {
		h.Put(t, kube.ClusterCA, string(pair.Cert))
		h.Put(t, "/etc/kubernetes/kubelet.conf", "server: https://"+before+"\n")
		for _, program := range []string{"kubectl", "kubeadm", "systemctl"} {
			h.Answer(program, func(_ context.Context, cmd host.Cmd) error { return f.run(h, cmd) })
		}
		f.leases[name] = time.Now()
	}
	cp := s.Hosts["cp1"]
	for path, text := range map[string]string{
		kube.PKIDir + "/ca.key": string(pair.Key), kube.PKIDir + "/apiserver.crt": string(serving.Cert), kube.PKIDir +
			"/apiserver.key": string(serving.Key),
		kube.AdminConf: "apiVersion: v1\nclusters:\n- cluster:\n    server: https://" + before + "\n  name: x\n",
		"/etc/kubernetes/controller-manager.conf": "server: https://" + before + "\n",
		"/etc/kubernetes/scheduler.conf":          "server: https://" + before + "\n",
	} {
		cp.Put(t, path, text)
	}
	for _, listener := range listeners {
		serveAPI(t, cp, listener)
	}
	s.Options.Cluster = tasktest.Cluster(t, "controlPlaneEndpoint: {type: external, address: \""+after+"\"}")
	return s, f
}

// serveAPI is an API server with the certificate that the host has at the time.
func serveAPI(t *testing.T, h *sitetest.Rooted, listener net.Listener) {
	t.Helper()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request,
		) {
			w.WriteHeader(http.StatusForbidden)
		}),
		ReadHeaderTimeout: time.Minute, ErrorLog: nil,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(filepath.Join(h.Root, kube.PKIDir, "apiserver.crt"),
					filepath.Join(h.Root, kube.PKIDir, "apiserver.key"))
				return &pair, err
			},
		},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

func (f *movingCluster) run(h *sitetest.Rooted, cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := strings.Join(slices.DeleteFunc(slices.Clone(cmd.Args),
		func(a string) bool { return strings.HasPrefix(a, "--kubeconfig") || strings.HasPrefix(a, "--server") }), " ")
	var answer any
	switch {
	case line == "systemctl restart kubelet.service":
		f.restarts = append(f.restarts, h.Name)
		// after the restart for a host that is asked for its time much later
		f.leases[h.Name] = time.Now().Add(time.Hour)
	case strings.HasPrefix(line, "kubeadm init phase certs apiserver"):
		return f.issue(h)
	case strings.HasPrefix(line, "kubectl get configmap "):
		answer = map[string]any{"data": f.configs[strings.Fields(line)[3]]}
	case strings.HasPrefix(line, "kubectl get daemonset kube-proxy"):
		answer = map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": map[string]string{"kkbundle.io/endpoint": f.mark}}}}}
	case strings.HasPrefix(line, "kubectl get lease"):
		answer = map[string]any{"spec": map[string]any{"renewTime": f.leases[strings.Fields(line)[3]].UTC().Format(
			"2006-01-02T15:04:05.000000Z07:00")}}
	case strings.HasPrefix(line, "kubectl patch "):
		return f.patch(line)
	}
	if answer != nil && cmd.Stdout != nil {
		return json.NewEncoder(cmd.Stdout).Encode(answer)
	}
	return nil
}

func (f *movingCluster) patch(line string) error {
	_, text, _ := strings.Cut(line, "--patch=")
	if strings.HasPrefix(line, "kubectl patch daemonset") {
		_, text, _ = strings.Cut(text, `"kkbundle.io/endpoint":"`)
		f.mark, _, _ = strings.Cut(text, `"`)
		return nil
	}
	var patch struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(text), &patch); err != nil {
		return err
	}
	for key, value := range patch.Data {
		f.configs[strings.Fields(line)[3]][key] = value
	}
	return nil
}

// issue is kubeadm's phase for the API server's certificate: a pair in certificatesDir, with the names of the
// configuration.
func (f *movingCluster) issue(h *sitetest.Rooted) error {
	for _, text := range strings.Split(h.Content(marks.KubeadmConfig), "\n---\n") {
		var config struct {
			Kind, CertificatesDir, ControlPlaneEndpoint string
			APIServer                                   struct{ CertSANs []string }
		}
		if err := yaml.Unmarshal([]byte(text), &config); err != nil {
			return err
		}
		if config.Kind != "ClusterConfiguration" {
			continue
		}
		name, _, _ := net.SplitHostPort(config.ControlPlaneEndpoint)
		own := strings.Replace(name, ".100", ".3", 1)
		pair, err := f.ca.Issue(pki.ParseNames(append([]string{name, own}, config.APIServer.CertSANs...)), time.Now(),
			time.Hour)
		if err != nil {
			return err
		}
		dir := filepath.Join(h.Root, config.CertificatesDir)
		return errors.Join(os.WriteFile(filepath.Join(dir, "apiserver.key"), pair.Key, 0o600),
			os.WriteFile(filepath.Join(dir, "apiserver.crt"), pair.Cert, 0o600))
	}
	return errors.New("no ClusterConfiguration")
}

// moveOnce moves as far as it goes. wrap changes the connections to hosts.
func moveOnce(s *sitetest.Site, ctx context.Context, t *testing.T, wrap func(host.Host) host.Host) error {
	t.Helper()
	r := s.Run(t, nil)
	for _, h := range r.Hosts {
		h.Conn = &engine.Journaled{Host: wrap(s.Hosts[h.Name]), Watch: r.Watch(h.Name), Journal: r.Journal}
	}
	r.LeadHost = r.Hosts[0]
	defer func() { _ = r.Dir.Close() }()
	if err := checkMovable(ctx, r); err != nil {
		return err
	}
	m, err := endpoint.FindMove(ctx, r.Site)
	if err != nil || len(m.From) == 0 {
		return err
	}
	own := []string{
		"endpoint-pending", "endpoint-begin", "kubeadm-config", "endpoint-certificate", "endpoint", "cluster-info",
		"node-endpoint", "proxy-move", "admin-conf", "former-kube-vip",
		"former-haproxy", "hosts-file", "endpoint-end",
	}
	phases := movePhases(r.Cluster, m)
	for i := range phases {
		phases[i].Tasks = slices.DeleteFunc(phases[i].Tasks,
			func(t task.Task) bool { return !slices.Contains(own, t.Name) })
	}
	return r.Phases(ctx, phases)
}

func unchanged(h host.Host) host.Host { return h }

// isMoved checks that everything names the new endpoint.
func isMoved(s *sitetest.Site, t *testing.T, f *movingCluster) {
	t.Helper()
	before, after := f.before, f.after
	for _, h := range s.Hosts {
		for path, want := range map[string]string{
			"/etc/kubernetes/kubelet.conf": after,
			member.Path:                    "controlPlaneEndpoint.address " + after,
		} {
			own := h.Name == "cp1" && path != member.Path // kubelet and its own API server
			if text := h.Content(path); strings.Contains(text, want) == own || strings.Contains(text, before) != own {
				t.Errorf("%s %s:\n%s", h.Name, path, text)
			}
		}
		if !strings.Contains(h.Content(member.Path), "controlPlaneEndpoint.type external\n") ||
			!slices.Contains(f.restarts, h.Name) {
			t.Errorf("%s is recorded as\n%s\nrestarted: %q", h.Name, h.Content(member.Path), f.restarts)
		}
	}
	cp := s.Hosts["cp1"]
	if text := cp.Content(kube.AdminConf); !strings.Contains(text, after) || strings.Contains(text, before) {
		t.Errorf("admin.conf:\n%s", text)
	}
	if text := cp.Content("/etc/kubernetes/scheduler.conf"); !strings.Contains(text, before) {
		t.Errorf("the scheduler does not use its own API server any more:\n%s", text)
	}
	for name, data := range f.configs {
		text := fmt.Sprint(data)
		if !strings.Contains(text, after) || strings.Contains(text, "server: https://"+before) ||
			strings.Contains(text, "controlPlaneEndpoint: "+before) {
			t.Errorf("%s: %s", name, text)
		}
	}
	if !strings.Contains(f.configs["kubeadm-config"]["ClusterConfiguration"], "mine.example") ||
		f.configs["kube-proxy"]["config.conf"] != "mine\n" || f.mark != after {
		t.Errorf("lost: %v, mark %s", f.configs, f.mark)
	}
	left, err := filepath.Glob(filepath.Join(cp.Root, kube.PKIDir, "kkbundle-*"))
	if err != nil || len(left) > 0 || cp.Content(task.StampDir+"/endpoint-move") != "" {
		t.Errorf("left on cp1: %q, %v", left, err)
	}
	if work, err := os.ReadFile(filepath.Join(s.Options.WorkDir, task.AdminConfFile)); err != nil ||
		!strings.Contains(string(work), after) {
		t.Errorf("admin.conf in the work directory: %s, %v", work, err)
	}
}

func TestMoveEndpoint(t *testing.T) {
	t.Parallel()
	s, f := movingSite(t)
	if err := moveOnce(s, t.Context(), t, unchanged); err != nil {
		t.Fatal(err)
	}
	isMoved(s, t, f)
	s.States()
	f.restarts = nil
	if err := moveOnce(s, t.Context(), t, unchanged); err != nil || len(s.States()) > 0 || len(f.restarts) > 0 {
		t.Errorf("a rerun: %v, restarts %q", err, f.restarts)
	}
}

// An ending host ends all its commands at the n-th one, before or after it did its work.
type ending struct {
	host.Host
	count *atomic.Int64
	n     int64
	after bool
	kill  func()
}

func (e ending) Run(ctx context.Context, cmd host.Cmd) error {
	switch count := e.count.Add(1); { // hosts are asked side by side
	case count > e.n, count == e.n && !e.after:
		e.kill()
		return &host.ExitError{Args: cmd.Args, Code: 1, Stderr: "planted"}
	case count == e.n:
		cmd.Stdout = io.Discard
		_ = e.Host.Run(ctx, cmd)
		e.kill()
		return &host.UnreachableError{Host: "x", Err: errors.New("planted")}
	}
	return e.Host.Run(ctx, cmd)
}

// A move that ends at any command (without KKBUNDLE_BIG=1, at some) is continued by the next one, and the API server
// can be asked through the old endpoint until then.
func TestMoveEndpointContinues(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 5)
	whole, _ := movingSite(t)
	var count atomic.Int64
	if err := moveOnce(whole, t.Context(), t,
		func(h host.Host) host.Host { return ending{h, &count, 1 << 30, false, nil} }); err != nil {
		t.Fatal(err)
	}
	ends := 2 * int(count.Load())
	if ends < 60 {
		t.Fatalf("only %d ends are tried", ends)
	}
	for end := 0; end < ends; end += step {
		s, f := movingSite(t)
		var count atomic.Int64
		ctx, kill := context.WithCancel(t.Context())
		ctxErr := moveOnce(s, ctx, t,
			func(h host.Host) host.Host { return ending{h, &count, int64(1 + end/2), end%2 == 1, kill} })
		kill()
		if err := moveOnce(s, t.Context(), t, unchanged); err != nil {
			t.Fatalf("command %d failed with %v, and then: %v", 1+end/2, ctxErr, err)
		}
		isMoved(s, t, f)
		if t.Failed() {
			t.Fatalf("after command %d failed with %v", 1+end/2, ctxErr)
		}
	}
}

func TestMoveRefuses(t *testing.T) {
	t.Parallel()
	vip := endpoint.Address{Type: manifest.EndpointKubeVIP, HostPort: "10.0.0.100:6443"}
	proxy := endpoint.Address{Type: manifest.EndpointHAProxy, HostPort: "api.site.internal:6443"}
	local := endpoint.Address{Type: manifest.EndpointLocal, HostPort: "10.0.0.3:6443"}
	other := endpoint.Address{Type: manifest.EndpointKubeVIP, HostPort: "10.0.0.101:6443"}
	for name, c := range map[string]struct {
		cluster  string
		to, from endpoint.Address
		want     string
	}{
		"to haproxy":               {"", proxy, local, ""},
		"to kube-vip":              {"", vip, local, ""},
		"from haproxy to kube-vip": {"", vip, proxy, ""},
		"to another kube-vip": {
			"", other, vip,
			"kube-vip cannot serve 10.0.0.100:6443 and 10.0.0.101:6443 at the same time",
		},
		"to the same address": {
			"",
			endpoint.Address{Type: manifest.EndpointExternal, HostPort: vip.HostPort},
			vip, "is served by kube-vip, which the move removes",
		},
		"to kube-vip with IPVS": {"kubernetes: {version: v1.34.3, proxyMode: ipvs}", vip, local, "IPVS"},
		"a balancer gets a new type": {
			"",
			endpoint.Address{Type: manifest.EndpointExternal, HostPort: local.HostPort},
			local, "",
		},
	} {
		err := checkMove(tasktest.Cluster(t, c.cluster), endpoint.Move{To: c.to, From: []endpoint.Address{c.from}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The programs of old endpoints are removed, and kube-proxy leaves the proxies before.
func TestFormerEndpoints(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: external, address: lb.example:6443}")
	m := endpoint.Move{
		To: endpoint.Address{Type: manifest.EndpointExternal, HostPort: "lb.example:6443"},
		From: []endpoint.Address{
			{Type: manifest.EndpointKubeVIP, HostPort: "10.0.0.100:6443"},
			{Type: manifest.EndpointHAProxy, HostPort: "api.site.internal:6443"},
		},
	}
	files := map[string][]string{
		"cp1": {endpoint.KubeVIPManifest},
		"node1": {kube.ManifestsDir + "/haproxy.yaml", task.ConfigDir + "/haproxy.cfg", task.ConfigDir +
			"/haproxy-ca.crt", task.StampDir + "/haproxy"},
	}
	for name, paths := range files {
		for _, path := range paths {
			s.Hosts[name].Put(t, path, "x")
		}
	}
	address := "2: eth0    inet 10.0.0.100/32 scope global eth0\n"
	s.Hosts["cp2"].Answer("ip", func(_ context.Context, cmd host.Cmd) error {
		if slices.Contains(cmd.Args, "delete") || slices.Contains(cmd.Args, "del") {
			address = ""
		}
		_, err := io.WriteString(cmd.Stdout, address)
		return err
	})
	run := func() []string {
		t.Helper()
		r := s.Run(t, nil)
		r.LeadHost = r.Hosts[0]
		if err := r.Phases(t.Context(), []task.Phase{{Name: "former", Tasks: endpoint.FormerTasks(m)}}); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(s.States(), func(state string) bool { return strings.HasSuffix(state, " done") })
	}
	if got, want := run(), []string{
		"former-haproxy@node1 changed", "former-kube-vip@cp1 changed",
		"former-kube-vip@cp2 changed",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, paths := range files {
		for _, path := range paths {
			if s.Hosts[name].Content(path) != "" {
				t.Errorf("%s has %s", name, path)
			}
		}
	}
	if got := run(); len(got) > 0 {
		t.Errorf("a rerun: %q", got)
	}
}

// A run was killed when the new key was in use, and its certificate was not: an API server that starts then fails.
func TestMoveEndpointAfterAKillBetweenKeyAndCertificate(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]string{
		"key in use":   {"apiserver.crt"},
		"not used yet": {"apiserver.crt", "apiserver.key"}, "all in use": nil,
	} {
		s, _ := sitetest.NewHA(t, "")
		h := s.Hosts["cp1"]
		h.Put(t, kube.PKIDir+"/apiserver.crt", "old")
		h.Put(t, kube.PKIDir+"/apiserver.key", "old")
		h.Put(t, kube.PKIDir+"/kkbundle-new/ca.key", "secret")
		for _, file := range files {
			h.Put(t, kube.PKIDir+"/kkbundle-new/"+file, "new")
		}
		want := "old"
		if len(files) == 1 {
			want = "new"
		}
		r := s.Run(t, nil)
		r.LeadHost = r.Hosts[0]
		if err := r.Phases(t.Context(),
			[]task.Phase{{Name: "look", Tasks: []task.Task{kubeadm.EndpointPendingTask()}}}); err != nil {
			t.Fatal(err)
		}
		if got := h.Content(kube.PKIDir + "/apiserver.crt"); got != want ||
			h.Content(kube.PKIDir+"/kkbundle-new/ca.key") != "" {
			t.Errorf("%s: the certificate is the %s one, want the %s one; left: %q", name, got, want,
				h.Content(kube.PKIDir+"/kkbundle-new/ca.key"))
		}
	}
}

// A move during an upgrade would write the settings of one release into the other.
func TestMoveRefusesAnUnfinishedUpgrade(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(s *sitetest.Site){
		"kubeadm was at work": func(s *sitetest.Site) { s.Hosts["cp1"].Put(t, string(marks.UpgradeBegun), "") },
		"the kubelet is still older": func(s *sitetest.Site) {
			s.Hosts["cp1"].Put(t, string(marks.ServerUpgraded),
				"")
		},
		"a worker is still older": func(s *sitetest.Site) { s.Hosts["node1"].Put(t, member.Path, "site v1.33.9\n") },
	} {
		s, _ := movingSite(t)
		if err := checkMovable(t.Context(), s.Run(t, nil)); err != nil {
			t.Fatalf("%s: before: %v", name, err)
		}
		begin(s)
		err := checkMovable(t.Context(), s.Run(t, nil))
		var hinted interface{ Hint() string }
		if !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "kkbundle upgrade") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
