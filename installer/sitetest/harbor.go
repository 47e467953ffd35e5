//go:build linux

package sitetest

import (
	"context"
	"crypto/tls"
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

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

// A harborSite has Harbor on its registry hosts. Played by the test: Docker, systemd, keepalived, the script prepare
// and, behind the certificate that lies on the host, Harbor itself (package harbortest: its API by Harbor's own
// description, over a real registry). The installer's archive has Harbor's members with other contents.
type harborSite struct {
	*Site
	R      *engine.Run
	Stands map[string]*harbortest.Server
	log    strings.Builder

	mu       sync.Mutex
	leads    map[string]string // where an address and port lead to
	Prepared map[string]int
}

// NewHarborSite makes a site whose registry is Harbor.
func NewHarborSite(t *testing.T, registryHosts, settings, password string) *harborSite {
	t.Helper()
	s := &harborSite{
		Site: NewSite(t, "cp1", "reg1", "reg2"), Stands: map[string]*harbortest.Server{},
		leads: map[string]string{}, Prepared: map[string]int{},
	}
	inv, err := manifest.ParseInventory("i", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.5}, reg1: {address: 10.0.0.2}, reg2: {address: 10.0.0.3}}
groups: {kube_control_plane: [cp1], image_registry: [`+registryHosts+"]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: harbor"+settings+"}")
	s.R = s.Run(t, ClusterBundle(t, s.Options.Cluster))
	s.R.Journal.Writer = &s.log
	secrets, err := siteregistry.Credentials(s.R.Site)
	if err != nil {
		t.Fatal(err)
	}
	if password == "" {
		password = secrets.HarborAdmin
	}
	for _, target := range s.R.RegistryHosts() {
		name, h := target.Name, s.Hosts[target.Name]
		s.Stands[name] = harbortest.Only(t, harbortest.Options{Password: password})
		h.Put(t, siteregistry.KeepalivedBinary, "")
		if err := os.Chmod(filepath.Join(h.Root, siteregistry.KeepalivedBinary), 0o755); err != nil {
			t.Fatal(err)
		}
		h.Answer("env", func(_ context.Context, cmd host.Cmd) error { return s.env(t, name, cmd) })
		h.Answer("ip", func(_ context.Context, cmd host.Cmd) error { return s.ip(name, cmd) })
		h.Answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error { return s.helper(ctx, h, cmd) })
		h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
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
func (s *harborSite) helper(ctx context.Context, h *Rooted, cmd host.Cmd) error {
	if cmd.Args[1] == "dial" {
		s.mu.Lock()
		if to := s.leads[cmd.Args[2]]; to != "" {
			cmd.Args = []string{cmd.Args[0], "dial", to}
		}
		s.mu.Unlock()
	}
	return h.Helper(ctx, cmd)
}

// prepare is what the unit runs before Harbor's start.
func (s *harborSite) prepare(t *testing.T, h *Rooted) {
	if !strings.Contains(h.Content("/etc/systemd/system/"+siteregistry.HarborUnit), "\nExecStartPre=/bin/bash "+
		siteregistry.HarborDir+"/prepare\n") {
		t.Error("Harbor's unit does not prepare")
	}
	info, err := os.Stat(filepath.Join(h.Root, siteregistry.HarborDir))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("prepare copies harbor.yml into a directory with mode %v, %v", info.Mode(), err)
	}
	s.mu.Lock()
	s.Prepared[h.Name]++
	s.mu.Unlock()
	h.Put(t, siteregistry.HarborDir+"/docker-compose.yml", "services: {}\n")
}

// env is Docker.
func (s *harborSite) env(t *testing.T, name string, cmd host.Cmd) error {
	h := s.Hosts[name]
	switch {
	case slices.Contains(cmd.Args, "load"):
		if h.Content(siteregistry.HarborDir+"/images.tar.gz") != "member harbor/harbor.v2.14.2.tar.gz\n" {
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
func (s *harborSite) serve(t *testing.T, h *Rooted, address string) {
	if !strings.Contains(h.Content(siteregistry.HarborDir+"/harbor.yml"), "hostname: "+address+"\n") ||
		h.Content(siteregistry.HarborDir+"/docker-compose.yml") == "" {
		t.Errorf("%s is started without its configuration", h.Name)
	}
	pair, err := tls.X509KeyPair([]byte(h.Content(siteregistry.ConfigDir+"/tls.crt")),
		[]byte(h.Content(siteregistry.ConfigDir+"/tls.key")))
	if err != nil {
		t.Error(err)
		return
	}
	to, err := url.Parse(s.Stands[h.Name].URL())
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
			r.Header.Set("WWW-Authenticate", strings.Replace(challenge, s.Stands[h.Name].URL(), "https://"+address, 1))
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
	if h.Name == "reg1" {
		s.leads["10.0.0.9:443"] = server.Listener.Addr().String()
	}
}

// Install runs the tasks of the registry.
func (s *harborSite) Install(t *testing.T) error {
	t.Helper()
	return s.R.Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: append([]task.Task{siteregistry.CertificatesTask()},
			plan.RegistryTasks(s.R.Cluster)...)}})
}

// Quiet fails the test if one of Harbor's secrets is in a command's arguments or in the log.
func (s *harborSite) Quiet(t *testing.T) {
	t.Helper()
	secrets, err := siteregistry.Credentials(s.R.Site)
	if err != nil {
		t.Fatal(err)
	}
	text := s.log.String()
	for _, h := range s.Hosts {
		h.Mu.Lock()
		text += strings.Join(h.Ran, "\n")
		h.Mu.Unlock()
	}
	for _, secret := range []string{secrets.HarborAdmin, secrets.HarborDatabase, secrets.HarborRobot} {
		if secret == "" || strings.Contains(text, secret) {
			t.Errorf("%q is in the log, or in a command", secret)
		}
	}
}
