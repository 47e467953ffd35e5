//go:build linux

package installer

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

// A harborSite has Harbor on its registry hosts. Played by the test: Docker, systemd, keepalived, the script prepare and, behind the
// certificate that lies on the host, Harbor itself (package harbortest: its API by Harbor's own description, over a real registry).
// The installer's archive has Harbor's members with other contents.
type harborSite struct {
	*site
	r      *engine.Run
	stands map[string]*harbortest.Server
	log    strings.Builder

	mu       sync.Mutex
	leads    map[string]string // where an address and port lead to
	prepared map[string]int
}

func newHarborSite(t *testing.T, registryHosts, settings, password string) *harborSite {
	t.Helper()
	s := &harborSite{site: newSite(t, "cp1", "reg1", "reg2"), stands: map[string]*harbortest.Server{}, leads: map[string]string{}, prepared: map[string]int{}}
	inv, err := manifest.ParseInventory("i", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.5}, reg1: {address: 10.0.0.2}, reg2: {address: 10.0.0.3}}
groups: {kube_control_plane: [cp1], image_registry: [`+registryHosts+"]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.options.Inventory = inv
	s.options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: harbor"+settings+"}")
	s.r = s.run(t, clusterBundle(t, s.options.Cluster))
	s.r.Journal.Writer = &s.log
	secrets, err := siteregistry.Credentials(s.r.Site)
	if err != nil {
		t.Fatal(err)
	}
	if password == "" {
		password = secrets.HarborAdmin
	}
	for _, target := range s.r.RegistryHosts() {
		name, h := target.Name, s.hosts[target.Name]
		s.stands[name] = harbortest.Only(t, harbortest.Options{Password: password})
		h.put(t, siteregistry.KeepalivedBinary, "")
		if err := os.Chmod(filepath.Join(h.root, siteregistry.KeepalivedBinary), 0o755); err != nil {
			t.Fatal(err)
		}
		h.answer("env", func(_ context.Context, cmd host.Cmd) error { return s.env(t, name, cmd) })
		h.answer("ip", func(_ context.Context, cmd host.Cmd) error { return s.ip(name, cmd) })
		h.answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error { return s.helper(ctx, h, cmd) })
		h.answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "restart" && cmd.Args[2] == siteregistry.HarborUnit {
				s.prepare(t, h)
				s.serve(t, h, target.IP.String())
			}
			return nil
		})
	}
	return s
}

// helper leads connections to Harbor's port to where the test listens.
func (s *harborSite) helper(ctx context.Context, h *rooted, cmd host.Cmd) error {
	if cmd.Args[1] == "dial" {
		s.mu.Lock()
		if to := s.leads[cmd.Args[2]]; to != "" {
			cmd.Args = []string{cmd.Args[0], "dial", to}
		}
		s.mu.Unlock()
	}
	return h.helper(ctx, cmd)
}

// prepare is what the unit runs before Harbor's start.
func (s *harborSite) prepare(t *testing.T, h *rooted) {
	if !strings.Contains(h.content("/etc/systemd/system/"+siteregistry.HarborUnit), "\nExecStartPre=/bin/bash "+siteregistry.HarborDir+"/prepare\n") {
		t.Error("Harbor's unit does not prepare")
	}
	info, err := os.Stat(filepath.Join(h.root, siteregistry.HarborDir))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("prepare copies harbor.yml into a directory with mode %v, %v", info.Mode(), err)
	}
	s.mu.Lock()
	s.prepared[h.name]++
	s.mu.Unlock()
	h.put(t, siteregistry.HarborDir+"/docker-compose.yml", "services: {}\n")
}

// env is Docker.
func (s *harborSite) env(t *testing.T, name string, cmd host.Cmd) error {
	h := s.hosts[name]
	switch {
	case slices.Contains(cmd.Args, "load"):
		if h.content(siteregistry.HarborDir+"/images.tar.gz") != "member harbor/harbor.v2.14.2.tar.gz\n" {
			t.Error("the images that are loaded are not those of the archive")
		}
	default:
		t.Errorf("asked for %q", cmd.Args)
	}
	return nil
}

// ip says that reg1 has the address that two share.
func (s *harborSite) ip(name string, cmd host.Cmd) error {
	text := "2: eth0    inet 10.0.0.2/24 brd 10.0.0.255 scope global eth0\n"
	if slices.Contains(cmd.Args, "to") && name != "reg1" {
		text = ""
	}
	_, err := io.WriteString(cmd.Stdout, text)
	return err
}

// serve is Harbor's proxy, with the certificate on the host.
func (s *harborSite) serve(t *testing.T, h *rooted, address string) {
	if !strings.Contains(h.content(siteregistry.HarborDir+"/harbor.yml"), "hostname: "+address+"\n") || h.content(siteregistry.HarborDir+"/docker-compose.yml") == "" {
		t.Errorf("%s is started without its configuration", h.name)
	}
	pair, err := tls.X509KeyPair([]byte(h.content(siteregistry.ConfigDir+"/tls.crt")), []byte(h.content(siteregistry.ConfigDir+"/tls.key")))
	if err != nil {
		t.Error(err)
		return
	}
	to, err := url.Parse(s.stands[h.name].URL())
	if err != nil {
		t.Error(err)
		return
	}
	silence := log.New(io.Discard, "", 0) // clients go when they know enough
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		ErrorLog: silence,
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: func(r *http.Response) error { // clients get their tokens by the name that Harbor was given
			challenge := r.Header.Get("WWW-Authenticate")
			r.Header.Set("WWW-Authenticate", strings.Replace(challenge, s.stands[h.name].URL(), "https://"+address, 1))
			return nil
		},
	})
	server.Config.ErrorLog = silence
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads[address+":443"] = server.Listener.Addr().String()
	if h.name == "reg1" {
		s.leads["10.0.0.9:443"] = server.Listener.Addr().String()
	}
}

func (s *harborSite) install(t *testing.T) error {
	t.Helper()
	return s.r.Phases(t.Context(), []task.Phase{{Name: "install", Tasks: append([]task.Task{siteregistry.CertificatesTask()}, registryTasks(s.r.Cluster)...)}})
}

// quiet fails the test if one of Harbor's secrets is in a command's arguments or in the log.
func (s *harborSite) quiet(t *testing.T) {
	t.Helper()
	secrets, err := siteregistry.Credentials(s.r.Site)
	if err != nil {
		t.Fatal(err)
	}
	text := s.log.String()
	for _, h := range s.hosts {
		h.mu.Lock()
		text += strings.Join(h.ran, "\n")
		h.mu.Unlock()
	}
	for _, secret := range []string{secrets.HarborAdmin, secrets.HarborDatabase, secrets.HarborRobot} {
		if secret == "" || strings.Contains(text, secret) {
			t.Errorf("%q is in the log, or in a command", secret)
		}
	}
}

func TestHarbor(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1", "", "")
	h := s.hosts["reg1"]
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	want := []string{"certificates@ done", "docker-is-ours@reg1 done", "docker@reg1 changed", "harbor-login@reg1 changed", "harbor@reg1 changed", "seed-registry@reg1 changed"}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	secrets, err := siteregistry.Credentials(s.r.Site)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer(secrets.HarborAdmin, "ADMIN", secrets.HarborDatabase, "DATABASE").Replace(h.content(siteregistry.HarborDir + "/harbor.yml"))
	tasktest.Golden(t, "harbor.yml", []byte(config))
	tasktest.Golden(t, "harbor-docker.service", []byte(h.content("/etc/systemd/system/"+cri.DockerUnit)))
	info, err := os.Stat(filepath.Join(h.root, siteregistry.HarborDir, "harbor.yml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("harbor.yml with the passwords in it: %v, %v", info, err)
	}
	if p, ok := s.stands["reg1"].Project("registry.k8s.io"); !ok || p.Public {
		t.Errorf("project registry.k8s.io: %t, public %t", ok, p.Public)
	}
	if access := mustAccess(t, s.r); access.Address != "10.0.0.2" || access.Username != "robot$kkbundle-nodes" || access.Password == secrets.HarborAdmin {
		t.Errorf("nodes pull from %s as %s", access.Address, access.Username)
	}
	for _, program := range []string{"/usr/local/bin/docker", siteregistry.DockerDir + "/dockerd", siteregistry.DockerDir + "/containerd", siteregistry.ComposePlugin} {
		if h.content(program) == "" {
			t.Errorf("there is no %s", program)
		}
	}
	if got := h.content("/usr/local/bin/containerd") + h.content("/usr/local/bin/runc"); got != "" {
		t.Error("Docker's containerd and runc are where those of nodes are")
	}
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.states() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	h.put(t, siteregistry.HarborDir+"/harbor.yml", "hostname: other\n")
	if err := s.install(t); err != nil || s.prepared["reg1"] != 2 || !slices.Contains(s.states(), "harbor@reg1 changed") {
		t.Errorf("after somebody has changed harbor.yml: %v, prepared %d times", err, s.prepared["reg1"])
	}
	s.quiet(t)
}

// TestHarborCertificate holds that Harbor's certificate is valid for a year, that its host renews it by a timer, and that certs renew
// replaces it and has Harbor read it.
func TestHarborCertificate(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1", "", "")
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	file := siteregistry.CertificateFiles().Cert
	first := certificateOn(t, s.hosts["reg1"], file)
	if year := time.Now().AddDate(1, 0, 1).Format(time.DateOnly); first > year {
		t.Errorf("Harbor's certificate is valid until %s", first)
	}
	cluster := s.options.Cluster
	if err := s.r.Phases(t.Context(), []task.Phase{{Name: "timer", Tasks: leafTimerTasks(cluster)}, {Name: "certificates", Tasks: reissueTasks(cluster, 0)}}); err != nil {
		t.Fatal(err)
	}
	if script := s.hosts["reg1"].content(task.ProgramDir + "/bin/renew-leaf-certificates"); !strings.Contains(script, "--restart="+siteregistry.HarborUnit+" ") || !strings.Contains(script, file) {
		t.Errorf("the timer runs:\n%s", script)
	}
	if now := certificateOn(t, s.hosts["reg1"], file); now == first || s.prepared["reg1"] != 2 {
		t.Errorf("after certs renew: %s, before %s, prepared %d times", now, first, s.prepared["reg1"])
	}
}

// Harbor keeps the password that it was begun with: another work directory has another.
func TestHarborOfAnotherWorkDirectory(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1", "", "Another12345")
	var refused interface{ Hint() string }
	if err := s.install(t); !errors.As(err, &refused) || !strings.Contains(err.Error(), "the Harbor on reg1 ") || !strings.Contains(refused.Hint(), "registry/harbor-admin") {
		t.Errorf("got %v", err)
	}
}

// A changed pull configuration of a host is repaired.
func TestHarborLoginIsMended(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1", "", "")
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	s.states()
	client, connections, err := siteregistry.HarborClient(s.r.RegistryHosts()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer connections.CloseIdleConnections()
	if err := client.SetSecret(t.Context(), siteregistry.HarborRobot, "Somebody12345"); err != nil {
		t.Fatal(err)
	}
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	changed := slices.DeleteFunc(s.states(), func(state string) bool { return strings.HasSuffix(state, " done") })
	if diff := cmp.Diff(changed, []string{"harbor-login@reg1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestHarborPair(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1, reg2", ", vip: 10.0.0.9", "")
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	s.states()
	secrets, err := siteregistry.Credentials(s.r.Site)
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"reg1": "kkbundle-reg2 https://10.0.0.3 admin ", "reg2": "kkbundle-reg1 https://10.0.0.2 admin "} {
		if got := s.stands[name].Copies(); !slices.Equal(got, []string{to + secrets.HarborAdmin}) {
			t.Errorf("%s copies to %q", name, got)
		}
		if !strings.Contains(s.hosts[name].content(siteregistry.AddressDir+"/keepalived.conf"), ":443 ") {
			t.Errorf("%s is not asked at Harbor's port", name)
		}
	}
	if got := mustAccess(t, s.r).Address; got != "10.0.0.9" {
		t.Errorf("nodes pull from %s", got)
	}
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.states() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	s.stands["reg2"].DisablePolicies()
	if err := s.install(t); err != nil || !slices.Contains(s.states(), "harbor-copies@reg2 changed") || len(s.stands["reg2"].Copies()) != 1 {
		t.Errorf("after somebody has disabled it: %v", err)
	}
	s.quiet(t)
}

// Reset leaves what Harbor keeps, and nothing else; --with-data that neither.
func TestHarborReset(t *testing.T) {
	t.Parallel()
	s := newHarborSite(t, "reg1", "", "")
	if err := s.install(t); err != nil {
		t.Fatal(err)
	}
	h := s.hosts["reg1"]
	h.put(t, siteregistry.HarborData+"/registry/blob", "x")
	h.put(t, siteregistry.HarborLogs+"/core.log", "x")
	target := s.r.RegistryHosts()[0]
	for _, withData := range []bool{false, true} {
		s.r.WithData = withData
		if err := removeTasks(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if err := removeFiles(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{siteregistry.HarborDir, siteregistry.HarborLogs, siteregistry.DockerDir, siteregistry.ComposePlugin, "/usr/local/bin/docker", "/etc/systemd/system/" + siteregistry.HarborUnit, "/etc/systemd/system/" + cri.DockerUnit, "/etc/docker"} {
			if _, err := os.Stat(filepath.Join(h.root, path)); err == nil {
				t.Errorf("%s is left", path)
			}
		}
		if got := h.content(siteregistry.HarborData + "/registry/blob"); (got == "") != withData {
			t.Errorf("with data %t: %q", withData, got)
		}
	}
}
