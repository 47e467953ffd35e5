//go:build linux

package rotate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A rotatingCluster has two control planes and a worker with files that a genuine kubeadm has made and renews.
// kubectl, the restarts and the controller manager are played: a restarted program has the files of its host at that
// time. TestRotateCA of the lab has real ones.
type rotatingCluster struct {
	mu      sync.Mutex
	site    *sitetest.Site
	kubeadm string
	version string // of kubeadm, which knows its own release and the one before
	// running has the files of each program at its start, by host.
	running map[string]map[string]string
	// root is the content of the ConfigMap kube-root-ca.crt, and pod its content when the pod started. restarts
	// counts the generations of pods.
	root, pod string
	restarts  map[string]int
	addresses map[string]string
	configs   map[string]map[string]string
	restarted []string
	// renewed means that kubeadm has just written kubeconfigs with its first authority only, which the next commands
	// correct.
	renewed bool
	checked map[string]error // handshakes
}

// labKubeadm returns the kubeadm that the lab has built, or skips the test.
func labKubeadm(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "kubernetes-amd64-*", "kubeadm"))
	if err != nil || len(found) == 0 || os.Geteuid() != 0 {
		t.Skip("the lab has not built kubeadm, or this is not root, which a changed root directory needs")
	}
	return found[0]
}

// clusterConfig is kubeadm's configuration of the cluster.
func (f *rotatingCluster) clusterConfig() string {
	return fmt.Sprintf("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: %s\ncontrolPlaneEndpoint: %s:6443\napiServer: {certSANs: [%s, %s]}\n",
		f.version, f.addresses["cp1"], f.addresses["cp1"], f.addresses["cp2"])
}

// newRotating makes the cluster.
func newRotating(t *testing.T) *rotatingCluster {
	t.Helper()
	if testing.Short() {
		t.Skip("minutes of kubeadm: without -short")
	}
	s := sitetest.NewSite(t, "cp1", "cp2", "node1")
	network, listeners := loopbackAPI(t, 3, 4)
	addresses := map[string]string{"cp1": network + "3", "cp2": network + "4", "node1": network + "5"}
	s.Options.Inventory = &manifest.Inventory{ // not parsed: that nodes have loopback addresses is refused
		HostSpecs: manifest.HostSpecs{
			{Name: "cp1", Address: addresses["cp1"]},
			{Name: "cp2", Address: addresses["cp2"]},
			{Name: "node1", Address: addresses["node1"]},
		},
		Groups: manifest.Groups{
			ControlPlane: []string{"cp1", "cp2"}, Worker: []string{"node1"},
			Registry: []string{"cp1"},
		},
	}
	s.Options.Cluster = tasktest.Cluster(t, "controlPlaneEndpoint: {type: external, address: \""+addresses["cp1"]+
		":6443\"}")
	s.Join(t, "cp1", "cp2", "node1")
	f := &rotatingCluster{
		site: s, kubeadm: labKubeadm(t), running: map[string]map[string]string{}, restarts: map[string]int{},
		addresses: addresses, configs: map[string]map[string]string{}, checked: map[string]error{},
	}
	version, err := exec.CommandContext(t.Context(), f.kubeadm, "version", "--output=short").Output()
	if err != nil {
		t.Fatal(err)
	}
	f.version = strings.TrimSpace(string(version))
	f.configs["kubeadm-config"] = map[string]string{"ClusterConfiguration": f.clusterConfig()}
	for _, name := range []string{"cp1", "cp2", "node1"} {
		f.begin(t, s.Hosts[name])
	}
	serveAPI(t, s.Hosts["cp1"], listeners[0])
	serveAPI(t, s.Hosts["cp2"], listeners[1])
	f.root = s.Hosts["cp1"].Content(kube.ClusterCA)
	f.pod = f.root
	f.configs["cluster-info"] = map[string]string{"kubeconfig": "clusters:\n- cluster:\n    certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte(f.root)) + "\n"}
	f.configs["extension-apiserver-authentication"] = map[string]string{
		"client-ca-file": f.root, "requestheader-client-ca-file": s.Hosts["cp1"].Content(kube.PKIDir +
			"/front-proxy-ca.crt"), "other": "mine",
	}
	return f
}

// begin makes a host's files with kubeadm, and plays its programs from then on.
func (f *rotatingCluster) begin(t *testing.T, h *sitetest.Rooted) {
	t.Helper()
	controls := h.Name != "node1"
	h.Put(t, "/tmp/kubeadm.yaml",
		"apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {name: "+h.Name+
			", criSocket: unix:///none}\n---\n"+f.clusterConfig())
	if h.Name != "cp1" {
		for _, name := range []string{
			"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt",
			"etcd/ca.key", "sa.key", "sa.pub",
		} {
			h.Put(t, kube.PKIDir+"/"+name, f.site.Hosts["cp1"].Content(kube.PKIDir+"/"+name))
		}
	}
	for _, phase := range []string{"certs all", "kubeconfig all"} {
		args := append([]string{"init", "phase"}, strings.Fields(phase)...)
		if err := f.runKubeadm(t.Context(), h, io.Discard, append(args, "--config=/tmp/kubeadm.yaml")...); err != nil {
			t.Fatal(err)
		}
	}
	kubelet := h.Content("/etc/kubernetes/kubelet.conf")
	cert, key := userOf(t, kubelet)
	h.Put(t, "/var/lib/kubelet/pki/kubelet-client-2026.pem", cert+key)
	if err := os.Symlink("kubelet-client-2026.pem", filepath.Join(h.Root,
		"/var/lib/kubelet/pki/kubelet-client-current.pem")); err != nil {
		t.Fatal(err)
	}
	if controls {
		h.Put(t, "/etc/kubernetes/manifests/kube-controller-manager.yaml",
			"spec:\n  containers:\n  - command:\n    - kube-controller-manager\n"+
				"    - --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt\n    - --cluster-signing-key-file=/etc/kubernetes/pki/ca.key\n    - --root-ca-file=/etc/kubernetes/pki/ca.crt\n")
	} else {
		for _, name := range []string{"ca.key", "front-proxy-ca.key", "etcd/ca.key"} {
			if err := os.Remove(filepath.Join(h.Root, kube.PKIDir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.loaded(h, "control")
	f.loaded(h, "kubelet")
	for _, program := range []string{"kubectl", "kubeadm", "systemctl", "sh", "date"} {
		h.Answer(program, func(ctx context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.run(ctx, h, cmd)
		})
	}
}

func userOf(t *testing.T, kubeconfig string) (cert, key string) {
	t.Helper()
	for line := range strings.Lines(kubeconfig) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		data, _ := base64.StdEncoding.DecodeString(value)
		switch name {
		case "client-certificate-data":
			cert = string(data)
		case "client-key-data":
			key = string(data)
		}
	}
	if cert == "" || key == "" {
		t.Fatal("the kubeconfig has no user with a certificate")
	}
	return cert, key
}

// runKubeadm runs the genuine kubeadm in the host's root directory.
func (f *rotatingCluster) runKubeadm(ctx context.Context, h *sitetest.Rooted, out io.Writer, args ...string) error {
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, f.kubeadm, append(args, "--rootfs="+h.Root)...)
	cmd.Stdout, cmd.Stderr = out, &errs
	if err := cmd.Run(); err != nil {
		return &host.ExitError{Host: h.Name, Args: args, Code: 1, Stderr: errs.String()}
	}
	return nil
}

// loaded makes a program read its host's files.
func (f *rotatingCluster) loaded(h *sitetest.Rooted, program string) {
	if f.running[h.Name] == nil {
		f.running[h.Name] = map[string]string{}
	}
	prefixes := []string{"/var/lib/kubelet/pki/kubelet-client-current.pem", "/etc/kubernetes/kubelet.conf"}
	if program == "control" {
		prefixes = []string{
			"/etc/kubernetes/admin.conf", "/etc/kubernetes/scheduler.conf", "/etc/kubernetes/controller-manager.conf",
			"/etc/kubernetes/manifests/kube-controller-manager.yaml",
		}
		for _, name := range []string{
			"ca.crt", "front-proxy-ca.crt", "etcd/ca.crt", "apiserver.crt", "apiserver.key",
			"apiserver-kubelet-client.crt", "apiserver-kubelet-client.key", "front-proxy-client.crt",
			"front-proxy-client.key", "apiserver-etcd-client.crt", "apiserver-etcd-client.key", "etcd/server.crt",
			"etcd/server.key", "etcd/peer.crt", "etcd/peer.key",
		} {
			prefixes = append(prefixes, kube.PKIDir+"/"+name)
		}
	} else {
		f.running[h.Name]["kubelet's ca.crt"] = h.Content(kube.ClusterCA)
	}
	for _, path := range prefixes {
		f.running[h.Name][path] = h.Content(path)
	}
}

func (f *rotatingCluster) run(ctx context.Context, h *sitetest.Rooted, cmd host.Cmd) error {
	plain := &sitetest.Rooted{Name: h.Name, Root: h.Root, Stubs: h.Stubs}
	switch cmd.Args[0] {
	case "kubeadm":
		for _, a := range cmd.Args {
			// kubeadm refuses the loopback addresses of this test
			if path, ok := strings.CutPrefix(a, "--config="); ok {
				text := regexp.MustCompile(`advertiseAddress: \S+`).ReplaceAllString(h.Content(path),
					"advertiseAddress: 192.0.2.2")
				if err := os.WriteFile(filepath.Join(h.Root, path), []byte(text), 0o600); err != nil {
					return err
				}
			}
		}
		out := cmd.Stdout
		if out == nil {
			out = io.Discard
		}
		f.renewed = f.renewed || slices.Contains(cmd.Args, "renew")
		return f.runKubeadm(ctx, h, out, cmd.Args[1:]...)
	case "systemctl":
		if slices.Equal(cmd.Args[1:], []string{"restart", "kubelet.service"}) {
			f.loaded(h, "kubelet")
			f.restarted = append(f.restarted, "kubelet@"+h.Name)
		}
		return nil
	case "kubectl":
		return f.kubectl(cmd)
	case "sh":
		switch {
		case len(cmd.Args) > 3 && cmd.Args[3] == "restart-static.sh":
			f.renewed = false
			f.loaded(h, "control")
			f.root = f.running[h.Name][kube.ClusterCA] // the controller manager publishes its authorities
			f.restarted = append(f.restarted, strings.ReplaceAll(cmd.Args[7], " ", "+")+"@"+h.Name)
			return nil
		case len(cmd.Args) > 3 && cmd.Args[3] == "process-arguments.sh":
			for line := range strings.Lines(f.running[h.Name]["/etc/kubernetes/manifests/kube-controller-manager.yaml"]) {
				fmt.Fprintln(cmd.Stdout, strings.TrimPrefix(strings.TrimSpace(line), "- "))
			}
			return nil
		}
	}
	return plain.Run(ctx, cmd)
}

func (f *rotatingCluster) kubectl(cmd host.Cmd) error {
	line := strings.Join(slices.DeleteFunc(slices.Clone(cmd.Args),
		func(a string) bool { return strings.HasPrefix(a, "--kubeconfig") || strings.HasPrefix(a, "--server") }), " ")
	words := strings.Fields(line)
	var answer any
	switch {
	case strings.HasPrefix(line, "kubectl get configmaps --all-namespaces"):
		answer = map[string]any{"items": []any{map[string]any{
			"metadata": map[string]any{"namespace": "default"},
			"data":     map[string]string{"ca.crt": f.root},
		}}}
	case strings.HasPrefix(line, "kubectl get configmap "):
		answer = map[string]any{"data": f.configs[words[3]]}
	case strings.HasPrefix(line, "kubectl get lease"):
		answer = map[string]any{"spec": map[string]any{"renewTime": time.Now().Add(3 * time.Second).UTC().Format(
			"2006-01-02T15:04:05.000000Z07:00")}}
	case strings.HasPrefix(line, "kubectl get nodes"):
		answer = f.nodes()
	case strings.HasPrefix(line, "kubectl get pods"):
		answer = map[string]any{"items": []any{
			f.aPod("kube-system", "flannel", "DaemonSet"),
			f.aPod("shop", "web", "StatefulSet"),
		}}
	case strings.HasPrefix(line, "kubectl rollout restart"):
		f.restarted = append(f.restarted, words[3])
		_, name, _ := strings.Cut(words[3], "/")
		f.restarts[name]++
		f.pod = f.root
	case strings.HasPrefix(line, "kubectl patch configmap "):
		_, text, _ := strings.Cut(line, "--patch=")
		var patch struct{ Data map[string]string }
		if err := json.Unmarshal([]byte(text), &patch); err != nil {
			return err
		}
		maps.Copy(f.configs[words[3]], patch.Data)
	}
	if answer != nil && cmd.Stdout != nil {
		return json.NewEncoder(cmd.Stdout).Encode(answer)
	}
	return nil
}

func (f *rotatingCluster) nodes() any {
	var items []any
	for _, name := range []string{"cp1", "cp2", "node1"} {
		items = append(items, map[string]any{
			"metadata": map[string]any{"name": name},
			"status": map[string]any{
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
				"nodeInfo":   map[string]any{"kubeletVersion": f.site.Options.Cluster.Kubernetes.Version},
			},
		})
	}
	return map[string]any{"items": items}
}

func (f *rotatingCluster) aPod(namespace, name, kind string) any {
	return map[string]any{
		"metadata": map[string]any{
			"namespace": namespace, "name": name + "-0", "uid": fmt.Sprintf("%s-%d", name, f.restarts[name]),
			"ownerReferences": []any{map[string]any{"kind": kind, "name": name, "controller": true}},
		},
		"spec": map[string]any{"volumes": []any{map[string]any{"name": "token", "projected": map[string]any{
			"sources": []any{map[string]any{"configMap": map[string]any{"name": "kube-root-ca.crt"}}},
		}}}},
	}
}

// A party is one side of a connection: its certificate and the authorities that it trusts.
type party struct{ name, cert, key, trusts string }

// handshake connects client and server with TLS. A server without trusts asks for no certificate, a client without
// one has none.
func handshake(client, server party) error {
	pair, err := tls.X509KeyPair([]byte(server.cert), []byte(server.key))
	if err != nil {
		return err
	}
	pool := func(pemData string) *x509.CertPool {
		p := x509.NewCertPool()
		p.AppendCertsFromPEM([]byte(pemData))
		return p
	}
	sc := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if client.cert != "" {
		sc.ClientAuth, sc.ClientCAs = tls.RequireAndVerifyClientCert, pool(server.trusts)
	}
	cc := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool(client.trusts), ServerName: "localhost",
		InsecureSkipVerify: client.trusts == "",
	}
	if strings.HasPrefix(server.name, "API") {
		cc.ServerName = "kubernetes"
	}
	if client.cert != "" {
		own, err := tls.X509KeyPair([]byte(client.cert), []byte(client.key))
		if err != nil {
			return err
		}
		cc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		s := tls.Server(b, sc)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		} else {
			_ = b.Close()
		}
		done <- err
	}()
	c := tls.Client(a, cc)
	err = c.Handshake()
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	_ = a.Close()
	return errors.Join(err, <-done)
}

// parties returns the clients of each kind of server and the servers, as programs run, or as the files of a host are.
func (f *rotatingCluster) parties(t *testing.T, live bool) (clients, servers map[string][]party) {
	t.Helper()
	clients, servers = map[string][]party{}, map[string][]party{}
	const pki = kube.PKIDir + "/"
	for _, name := range []string{"cp1", "cp2", "node1"} {
		h := f.site.Hosts[name]
		get := func(path string) string {
			if live {
				return h.Content(path)
			}
			return f.running[name][path]
		}
		conf := func(path string) string {
			for line := range strings.Lines(get(path)) {
				if data, ok := strings.CutPrefix(strings.TrimSpace(line), "certificate-authority-data: "); ok {
					text, _ := base64.StdEncoding.DecodeString(data)
					return string(text)
				}
			}
			return ""
		}
		pem := get("/var/lib/kubelet/pki/kubelet-client-current.pem")
		clients["API"] = append(clients["API"], party{
			"kubelet of " + name, pem, pem,
			conf("/etc/kubernetes/kubelet.conf"),
		})
		kubeletTrusts := f.running[name]["kubelet's ca.crt"]
		if live {
			kubeletTrusts = get(pki + "ca.crt")
		}
		// the kubelet's own is not verified by API servers
		serving := f.site.Hosts["cp1"].Content(pki + "etcd/server.crt")
		servers["kubelet"] = append(servers["kubelet"], party{
			"kubelet of " + name, serving,
			f.site.Hosts["cp1"].Content(pki + "etcd/server.key"), kubeletTrusts,
		})
		if name == "node1" {
			continue
		}
		for _, file := range []string{"admin", "controller-manager", "scheduler"} {
			path := "/etc/kubernetes/" + file + ".conf"
			cert, key := userOf(t, get(path))
			clients["API"] = append(clients["API"], party{file + " of " + name, cert, key, conf(path)})
		}
		servers["API"] = append(servers["API"], party{
			"API server of " + name, get(pki + "apiserver.crt"),
			get(pki + "apiserver.key"), get(pki + "ca.crt"),
		})
		clients["kubelet"] = append(clients["kubelet"], party{
			"API server of " + name,
			get(pki + "apiserver-kubelet-client.crt"), get(pki + "apiserver-kubelet-client.key"), "",
		})
		clients["etcd"] = append(clients["etcd"], party{
			"API server of " + name, get(pki + "apiserver-etcd-client.crt"),
			get(pki + "apiserver-etcd-client.key"), get(pki + "etcd/ca.crt"),
		})
		servers["etcd"] = append(servers["etcd"], party{
			"etcd of " + name, get(pki + "etcd/server.crt"),
			get(pki + "etcd/server.key"), get(pki + "etcd/ca.crt"),
		})
		peer := party{
			"peer of " + name, get(pki + "etcd/peer.crt"), get(pki + "etcd/peer.key"),
			get(pki + "etcd/ca.crt"),
		}
		clients["peer"], servers["peer"] = append(clients["peer"], peer), append(servers["peer"], peer)
		// An aggregated API server trusts the authorities in its ConfigMap, to which each API server adds its own.
		trusts := f.configs["extension-apiserver-authentication"]["requestheader-client-ca-file"]
		for _, cp := range []string{"cp1", "cp2"} {
			trusts += f.running[cp][pki+"front-proxy-ca.crt"]
		}
		clients["aggregated"] = append(clients["aggregated"],
			party{
				"API server of " + name, get(pki + "front-proxy-client.crt"), get(pki + "front-proxy-client.key"),
				"",
			})
		servers["aggregated"] = append(servers["aggregated"],
			party{"aggregated server", serving, f.site.Hosts["cp1"].Content(pki + "etcd/server.key"), trusts})
	}
	clients["API"] = append(clients["API"], party{"pod", "", "", f.pod})
	return clients, servers
}

// check connects every client with each of its servers: running programs with each other, and with ones that read
// their files now.
func (f *rotatingCluster) check(t *testing.T, after string) {
	t.Helper()
	runningClients, runningServers := f.parties(t, false)
	liveClients, liveServers := f.parties(t, true)
	for kind, clients := range runningClients {
		for i, c := range clients {
			for j, s := range runningServers[kind] {
				pairs := [][2]party{{c, s}, {c, liveServers[kind][j]}}
				if !f.renewed {
					pairs = append(pairs, [2]party{liveClients[kind][i], s})
				}
				for _, pair := range pairs {
					if err := f.connect(pair[0], pair[1]); err != nil {
						t.Fatalf("%s: %s does not reach %s: %v", after, c.name, s.name, err)
					}
				}
			}
		}
	}
}

// connect is handshake for parties that may have met before.
func (f *rotatingCluster) connect(client, server party) error {
	key := strings.Join([]string{client.cert, client.trusts, server.name[:3], server.cert, server.trusts}, "|")
	err, ok := f.checked[key]
	if !ok {
		err = handshake(client, server)
		f.checked[key] = err
	}
	return err
}

// A watchedHost checks the connections after every command that can change something.
type watchedHost struct {
	host.Host
	after func(cmd host.Cmd)
}

func (h watchedHost) Run(ctx context.Context, cmd host.Cmd) error {
	err := h.Host.Run(ctx, cmd)
	h.after(cmd)
	return err
}

// rotate runs a step with each host wrapped.
func (f *rotatingCluster) rotate(ctx context.Context, t *testing.T, o AuthorityOptions,
	wrap func(host.Host) host.Host,
) error {
	t.Helper()
	r := f.site.Run(t, nil)
	for _, h := range r.Hosts {
		h.Conn = wrap(h.Conn)
	}
	r.LeadHost = r.Hosts[0]
	defer func() { _ = r.Dir.Close() }()
	rotation, err := kubeadm.FindRotation(ctx, r.Site)
	if err == nil {
		err = checkRotation(ctx, r, rotation, o)
	}
	if err != nil {
		return err
	}
	phases := slices.DeleteFunc(rotationSteps(r.Cluster, rotation, o),
		func(p task.Phase) bool { return p.Name == task.VerifyPhase })
	return r.Phases(ctx, phases)
}

// Every client trusts every server after each command of a rotation, of its rollback, and of its end. Then only new
// clients are trusted.
func TestEveryClientTrustsEveryServerDuringARotation(t *testing.T) {
	t.Parallel()
	f := newRotating(t)
	before, _ := f.parties(t, false)
	oldCA := f.site.Hosts["cp1"].Content(kube.ClusterCA)
	f.check(t, "before the rotation")
	watch := func(h host.Host) host.Host {
		return watchedHost{h, func(cmd host.Cmd) {
			words := strings.Join(host.WithoutText(cmd.Args), " ")
			if !slices.ContainsFunc([]string{
				"write-file.sh", "restart-static.sh", "use-client.sh", "kubeadm ",
				"systemctl ", "kubectl rollout", "kubectl patch", "rm ",
			}, func(w string) bool {
				return strings.HasPrefix(words, w)
			}) {
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.check(t, words)
		}}
	}
	restart := AuthorityOptions{Workloads: kubeadm.WorkloadChoice{Restart: true}}
	f.site.Hosts["cp1"].Put(t, marks.CopiesDir+"/v1.33.6/etc/kubernetes/pki/ca.key", "secret")
	for _, o := range []AuthorityOptions{restart, {Step: RotationRollback}, restart, {Step: RotationFinish}} {
		if err := f.rotate(t.Context(), t, o, watch); err != nil {
			t.Fatalf("%q: %v", o.Step, err)
		}
		f.check(t, "after the step "+string(o.Step))
		if ca := f.site.Hosts["node1"].Content(kube.ClusterCA); o.Step == RotationRollback && ca != oldCA {
			t.Errorf("after the rollback node1 trusts\n%s", ca)
		}
	}
	t.Logf("%d different handshakes", len(f.checked))
	_, servers := f.parties(t, false)
	for kind, clients := range before {
		for _, c := range clients {
			if c.name != "pod" && handshake(c, servers[kind][0]) == nil {
				t.Errorf("%s with its old certificate is trusted by the %s", c.name, servers[kind][0].name)
			}
		}
	}
	f.isEnded(t, oldCA)
}

// isEnded checks that nothing of a finished rotation is left.
func (f *rotatingCluster) isEnded(t *testing.T, oldCA string) {
	t.Helper()
	for name, h := range f.site.Hosts {
		if _, err := os.Stat(filepath.Join(h.Root, marks.RotationDir)); err == nil {
			t.Errorf("%s has %s", name, marks.RotationDir)
		}
		if _, err := os.Stat(filepath.Join(h.Root, marks.CopiesDir)); err == nil {
			t.Errorf("%s has copies with the old authorities", name)
		}
		if ca := h.Content(kube.ClusterCA); ca == oldCA || strings.Count(ca, "BEGIN") != 1 ||
			ca != f.site.Hosts["cp1"].Content(kube.ClusterCA) {
			t.Errorf("%s trusts\n%s", name, ca)
		}
	}
	manager := f.site.Hosts["cp2"].Content("/etc/kubernetes/manifests/kube-controller-manager.yaml")
	if !strings.Contains(manager, "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt\n") ||
		!strings.Contains(manager, "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key\n") {
		t.Errorf("the controller manager of cp2:\n%s", manager)
	}
	trusted := f.configs["extension-apiserver-authentication"]
	if block, _ := pem.Decode([]byte(oldCA)); strings.Contains(trusted["client-ca-file"],
		string(pem.EncodeToMemory(block))) || trusted["other"] != "mine" {
		t.Errorf("aggregated API servers learn\n%v", trusted)
	}
	var info struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal([]byte(f.configs["cluster-info"]["kubeconfig"]), &info); err != nil ||
		string(info.Clusters[0].Cluster.CA) != f.site.Hosts["cp1"].Content(kube.ClusterCA) {
		t.Errorf("joining nodes learn %v, %v", info, err)
	}
}

func asItIs(h host.Host) host.Host { return h }

func TestRotationOrder(t *testing.T) {
	t.Parallel()
	f := newRotating(t)
	o := AuthorityOptions{}
	var refused *kubeadm.RotationError
	if err := f.rotate(t.Context(), t, o, asItIs); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "shop/web-0") || !strings.Contains(refused.Hint(), "--restart-workloads") {
		t.Fatalf("want the pod that trusts the old authority only, got %v", err)
	}
	const control = "etcd+kube-apiserver+kube-controller-manager+kube-scheduler@"
	nodes := []string{control + "cp1", "kubelet@cp1", control + "cp2", "kubelet@cp2", "kubelet@node1"}
	if want := append(slices.Clone(nodes), "daemonset/flannel"); !slices.Equal(f.restarted, want) {
		t.Errorf("restarted for the trust\n%q, want\n%q", f.restarted, want)
	}
	f.restarted = nil
	o.Workloads.Restart = true
	if err := f.rotate(t.Context(), t, o, asItIs); err != nil {
		t.Fatal(err)
	}
	if want := append([]string{"statefulset/web"}, nodes...); !slices.Equal(f.restarted, want) {
		t.Errorf("restarted for new certificates\n%q, want\n%q", f.restarted, want)
	}
	f.restarted = nil
	if err := f.rotate(t.Context(), t, o, asItIs); err != nil || len(f.restarted) > 0 {
		t.Errorf("a rerun: %v, restarted %q", err, f.restarted)
	}
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationFinish}, asItIs); err != nil ||
		!slices.Equal(f.restarted, nodes) {
		t.Errorf("restarted at the end: %v\n%q, want\n%q", err, f.restarted, nodes)
	}
	f.restarted = nil
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationFinish}, asItIs); err != nil ||
		len(f.restarted) > 0 {
		t.Errorf("a finished rotation: %v, restarted %q", err, f.restarted)
	}
}

// The old authority is not removed while a node has a certificate of it.
func TestRotationIsNotFinishedTooEarly(t *testing.T) {
	t.Parallel()
	f := newRotating(t)
	if err := f.rotate(t.Context(), t, AuthorityOptions{}, asItIs); err == nil {
		t.Fatal("pods did not stop the rotation")
	}
	var refused *kubeadm.RotationError
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationFinish}, asItIs); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "was issued by the old authority") {
		t.Fatalf("want a refusal, got %v", err)
	}
	if err := f.rotate(t.Context(), t, AuthorityOptions{Workloads: kubeadm.WorkloadChoice{Leave: true}},
		asItIs); err != nil {
		t.Errorf("the rotation does not go on after the refusal: %v", err)
	}
}

// A rotation that is killed at some commands is continued by the same call, and so is its end.
func TestRotationContinues(t *testing.T) {
	t.Parallel()
	restart := AuthorityOptions{Workloads: kubeadm.WorkloadChoice{Restart: true}}
	for _, n := range []int{60, 150, 260} {
		f := newRotating(t)
		oldCA := f.site.Hosts["cp1"].Content(kube.ClusterCA)
		for _, o := range []AuthorityOptions{restart, {Step: RotationFinish}} {
			life := &sitetest.Lifetime{Left: n}
			killed := f.rotate(t.Context(), t, o,
				func(h host.Host) host.Host { return &sitetest.MortalHost{Host: h, Life: life} })
			f.check(t, fmt.Sprintf("%q killed at command %d", o.Step, n))
			if err := f.rotate(t.Context(), t, o, asItIs); err != nil {
				t.Fatalf("%q killed at command %d with %v, and then: %v", o.Step, n, killed, err)
			}
			f.check(t, fmt.Sprintf("%q continued after command %d", o.Step, n))
		}
		f.isEnded(t, oldCA)
	}
}

// A kill while the files of a rotation are made or removed leaves some of them.
func TestRestOfARotationIsRemoved(t *testing.T) {
	t.Parallel()
	f := newRotating(t)
	cp1 := f.site.Hosts["cp1"]
	cp1.Put(t, marks.RotationDir+"/old/ca.key", "secret")
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationRollback}, asItIs); err != nil ||
		len(f.restarted) > 0 {
		t.Errorf("the rest of a rotation that never began: %v, restarted %q", err, f.restarted)
	}
	if _, err := os.Stat(filepath.Join(cp1.Root, marks.RotationDir)); err == nil {
		t.Error("cp1 has the files of a rotation that never began")
	}
	oldCA := cp1.Content(kube.ClusterCA)
	if err := f.rotate(t.Context(), t, AuthorityOptions{Workloads: kubeadm.WorkloadChoice{Restart: true}},
		asItIs); err != nil {
		t.Fatal(err)
	}
	errKilled := errors.New("killed")
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationFinish}, func(h host.Host) host.Host {
		return halfRemover{h, f.site.Hosts, errKilled}
	}); !errors.Is(err, errKilled) {
		t.Fatalf("want the end in the middle of the removal, got %v", err)
	}
	if err := f.rotate(t.Context(), t, AuthorityOptions{Step: RotationFinish}, asItIs); err != nil {
		t.Errorf("the removal is not continued: %v", err)
	}
	f.isEnded(t, oldCA)
}

// A halfRemover ends in the middle of the removal of a rotation's files.
type halfRemover struct {
	host.Host
	hosts map[string]*sitetest.Rooted
	err   error
}

func (h halfRemover) Run(ctx context.Context, cmd host.Cmd) error {
	if !slices.Equal(cmd.Args, []string{"rm", "-rf", marks.RotationDir}) {
		return h.Host.Run(ctx, cmd)
	}
	for _, name := range []string{"cp1", "cp2"} {
		if err := os.RemoveAll(filepath.Join(h.hosts[name].Root, marks.RotationDir, "new")); err != nil {
			return err
		}
	}
	return h.err
}

// During a rotation only lost nodes are deleted, because it needs all nodes of the inventory.
func TestRotationExcludesOtherCommands(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	sitetest.NewFakeCluster(t, s)
	s.Join(t, "cp1", "node1")
	s.Hosts["cp1"].Put(t, marks.RotationDir+"/names", "kubernetes\n")
	s.Hosts["node1"].Put(t, kube.ClusterCA, sitetest.OtherAuthority(t))
	r := s.Run(t, nil)
	var refused *kubeadm.RotationError
	if err := begin.CheckMembers(t.Context(), r); !errors.As(err, &refused) {
		t.Errorf("want a refusal, got %v", err)
	}
	r.Gone = true
	if err := begin.CheckMembers(t.Context(), r); err != nil {
		t.Errorf("a lost node: %v", err)
	}
}
