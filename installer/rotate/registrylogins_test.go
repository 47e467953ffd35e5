//go:build linux

package rotate

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

func registryPhases() []task.Phase {
	return []task.Phase{{Name: "install", Tasks: []task.Task{
		siteregistry.CertificatesTask(),
		siteregistry.DistributionTask(), siteregistry.SeedTask(),
	}}}
}

// pushAccess is the access for pushes on the first host.
func pushAccess(t *testing.T, r *engine.Run) task.RegistryAccess {
	t.Helper()
	access := sitetest.MustAccess(t, r)
	password, err := r.Dir.Read(task.PushPassFile)
	if err != nil {
		t.Fatal(err)
	}
	access.Address, access.Login = "127.0.0.1:5001", task.Login{
		Username: siteregistry.PushUser,
		Password: string(password),
	}
	return access
}

// startUpload begins an upload with the push login, and returns the path of its session.
func startUpload(t *testing.T, r *engine.Run) string {
	t.Helper()
	access := pushAccess(t, r)
	client, err := r.Hosts[0].Transport(access.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+access.Address+
		"/v2/registry.k8s.io/pause/blobs/uploads/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", access.Authorization())
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	location, err := resp.Location()
	if err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatal(resp.Status, err)
	}
	return location.RequestURI()
}

// ask sends a request (METHOD PATH) to the registry through the first host, and returns its status, its digest and
// its body.
func ask(t *testing.T, r *engine.Run, access task.RegistryAccess, request,
	body string,
) (status int, digest, text string) {
	t.Helper()
	client, err := r.Hosts[0].Transport(access.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	method, path, _ := strings.Cut(request, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+access.Address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", access.Authorization())
	req.Header.Set("Accept",
		"application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json")
	req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Docker-Content-Digest"), string(data)
}

// registryFiles lists the files below the registry's directory.
func registryFiles(h *sitetest.Rooted, t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(h.Root + siteregistry.DataDir + "/docker/registry/v2/repositories/*/*/*/*/*")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The registry is the CNCF distribution as a library, with the configuration that the task writes.
func TestNodesCanOnlyPullFromTheRegistry(t *testing.T) {
	t.Parallel()
	_, r, h := sitetest.NewRegistrySite(t, 80)
	nodesCanOnlyPull(t, r, h)
}

// The registry is upstream's program of the bundle, from the lab's cache.
func TestNodesCanOnlyPullFromTheRegistryProgram(t *testing.T) {
	t.Parallel()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(home, ".cache/kkbundle-lab", "registry-"+runtime.GOARCH+"-*", "registry"))
	if err != nil || len(found) == 0 {
		t.Skip("the lab's cache has no registry program: run make lab once")
	}
	_, r, h := sitetest.NewRegistrySiteOf(t, 86, func(ctx context.Context, t *testing.T, text string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
			return
		}
		cmd := exec.CommandContext(context.WithoutCancel(ctx), found[0], "serve", file)
		cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	})
	nodesCanOnlyPull(t, r, h)
}

func nodesCanOnlyPull(t *testing.T, r *engine.Run, h *sitetest.Rooted) {
	t.Helper()
	if err := r.Phases(t.Context(), registryPhases()); err != nil {
		t.Fatal(err)
	}
	nodes := sitetest.MustAccess(t, r)
	const manifest = "/v2/registry.k8s.io/pause/manifests/"
	tags, _, list := ask(t, r, nodes, http.MethodGet+" /v2/registry.k8s.io/pause/tags/list", "")
	_, tag, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(list), `"]}`), `"tags":["`)
	status, digest, image := ask(t, r, nodes, http.MethodGet+" "+manifest+tag, "")
	if tags != http.StatusOK || status != http.StatusOK || digest == "" {
		t.Fatalf("the nodes' login pulls %s: %d, %d %s", list, tags, status, image)
	}
	upload := startUpload(t, r)
	before := registryFiles(h, t)
	other := strings.Replace(image, "{", `{"annotations":{"evil":"yes"},`, 1)
	for _, one := range []struct{ method, path, body string }{
		{http.MethodPut, manifest + tag, other},
		{http.MethodDelete, manifest + tag, ""},
		{http.MethodDelete, manifest + digest, ""},
		{http.MethodDelete, "/v2/registry.k8s.io/pause/blobs/" + digest, ""},
		{http.MethodPost, "/v2/registry.k8s.io/pause/blobs/uploads/", ""},
		{http.MethodPost, "/v2/evil/blobs/uploads/?digest=" + digest, "x"},
		{http.MethodPost, "/v2/evil/blobs/uploads/?from=registry.k8s.io/pause&mount=" + digest, ""},
		{http.MethodPatch, upload, "x"},
		{http.MethodPut, upload + "&digest=" + digest, ""},
		{http.MethodDelete, upload, ""},
	} {
		if status, _, text := ask(t, r, nodes, one.method+" "+one.path,
			one.body); status != http.StatusMethodNotAllowed && status != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", one.method, one.path, status, text)
		}
	}
	if _, now, _ := ask(t, r, nodes, http.MethodGet+" "+manifest+tag, ""); now != digest {
		t.Errorf("the tag's digest is %s, and was %s", now, digest)
	}
	if diff := cmp.Diff(registryFiles(h, t), before); diff != "" {
		t.Errorf("something was written (-got +want):\n%s", diff)
	}
	// The port for pushes does not know the nodes' login, and cannot delete unless the cluster file says so.
	push := pushAccess(t, r)
	secret := push.Password
	push.Login = nodes.Login
	if status, _, _ := ask(t, r, push, http.MethodPut+" "+manifest+tag, other); status != http.StatusUnauthorized {
		t.Errorf("the nodes' login at the port for pushes: %d", status)
	}
	push = pushAccess(t, r)
	if status, _, _ := ask(t, r, push, http.MethodDelete+" "+manifest+digest,
		""); status != http.StatusMethodNotAllowed {
		t.Errorf("the push login deletes: %d", status)
	}
	nodes.Login = push.Login
	if status, _, _ := ask(t, r, nodes, http.MethodGet+" "+manifest+tag, ""); status != http.StatusUnauthorized {
		t.Errorf("the push login at the nodes' port: %d", status)
	}
	for _, file := range []string{sitetest.ConfigFile, sitetest.PushConfigFile, siteregistry.ConfigDir +
		"/push-htpasswd"} {
		if strings.Contains(h.Content(file), secret) {
			t.Errorf("the registry host has the push password in %s", file)
		}
	}
}

// A cluster that an older release installed keeps its password as the hosts' login.
func TestOlderRegistryGetsAPushLogin(t *testing.T) {
	t.Parallel()
	s, r, h := sitetest.NewRegistrySite(t, 81)
	if err := r.Dir.Write(task.RegistryPassFile, []byte("0123456789012345678901234567890123456789")); err != nil {
		t.Fatal(err)
	}
	if got := sitetest.MustAccess(t, r).Login; got != (task.Login{
		Username: "kkbundle",
		Password: "0123456789012345678901234567890123456789",
	}) {
		t.Errorf("the hosts' login is %v", got)
	}
	h.Put(t, sitetest.ConfigFile, "storage: {delete: {enabled: true}}\n")
	if err := r.Phases(t.Context(), registryPhases()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{
		"certificates@ done", "registry@cp1 changed",
		"seed-registry@cp1 changed",
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if status, _, _ := ask(t, r, sitetest.MustAccess(t, r), http.MethodPost+" /v2/evil/blobs/uploads/",
		""); status != http.StatusMethodNotAllowed {
		t.Errorf("the older password pushes: %d", status)
	}
	if push, err := r.Dir.Read(task.PushPassFile); err != nil || len(push) != 40 {
		t.Errorf("push password of %d bytes, %v", len(push), err)
	}
	if !slices.Contains(h.Said("systemctl"), "systemctl enable "+siteregistry.PushUnit) {
		t.Error("the service for pushes is not enabled")
	}
}

// rotatingSite has a registry and a node on one host. Played by the test: systemd, and ctr, which says that
// containerd works.
func rotatingSite(t *testing.T, second byte) (*sitetest.Site, *engine.Run, *sitetest.Rooted, []task.Phase) {
	t.Helper()
	s, r, h := sitetest.NewRegistrySite(t, second)
	h.Answer("ctr", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "io.containerd.grpc.v1   cri   linux/amd64   ok\n")
		return err
	})
	phases := registryPhases()
	phases[0].Tasks = append(phases[0].Tasks, cri.RuntimeOf(r.Cluster).Tasks(r.Cluster)...)
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	s.States()
	return s, r, h, phases
}

// nodeLogin is the login in the node's hosts.toml.
func nodeLogin(t *testing.T, h *sitetest.Rooted) task.Login {
	t.Helper()
	_, text, _ := strings.Cut(h.Content(cri.CertsDir+"/registry.k8s.io/hosts.toml"), `Authorization = ["Basic `)
	text, _, _ = strings.Cut(text, `"`)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	user, password, _ := strings.Cut(string(data), ":")
	return task.Login{Username: user, Password: password}
}

func tagStatus(t *testing.T, r *engine.Run, l task.Login) int {
	t.Helper()
	access := sitetest.MustAccess(t, r)
	access.Login = l
	status, _, _ := ask(t, r, access, http.MethodGet+" /v2/registry.k8s.io/pause/tags/list", "")
	return status
}

func TestRotateRegistryLogins(t *testing.T) {
	t.Parallel()
	s, r, h, install := rotatingSite(t, 82)
	oldPull, oldPush := nodeLogin(t, h), pushAccess(t, r)
	if len(h.Said("systemctl restart")) == 0 {
		t.Error("an installation without restarts")
	}
	whole := rotationPhases(r.Cluster, siteregistry.Logins{Pull: true, Push: true})
	// A run that is killed before the nodes have their login leaves both accepted.
	if err := r.Phases(t.Context(), whole[:2]); err != nil {
		t.Fatal(err)
	}
	next := sitetest.MustAccess(t, r).Login
	if next == oldPull || nodeLogin(t, h) != oldPull {
		t.Errorf("the new login %s, the node's %s", next.Username, nodeLogin(t, h).Username)
	}
	for _, l := range []task.Login{oldPull, next} {
		if status := tagStatus(t, r, l); status != http.StatusOK {
			t.Errorf("%s during the rotation: %d", l.Username, status)
		}
	}
	// The next run goes on with the same login, and every pull meanwhile is answered.
	ended := make(chan struct{})
	pulled := make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-ended:
				pulled <- n
				return
			default:
				if status := tagStatus(t, r, nodeLogin(t, h)); status != http.StatusOK {
					t.Errorf("a pull during the rotation: %d", status)
				}
			}
		}
	}()
	err := r.Phases(t.Context(), whole)
	close(ended)
	t.Logf("%d pulls", <-pulled)
	if err != nil {
		t.Fatal(err)
	}
	if got := nodeLogin(t, h); got != next || sitetest.MustAccess(t, r).Login != next {
		t.Errorf("the node's login is %s, want %s", got.Username, next.Username)
	}
	for l, want := range map[task.Login]int{oldPull: http.StatusUnauthorized, next: http.StatusOK} {
		if status := tagStatus(t, r, l); status != want {
			t.Errorf("%s after the rotation: %d", l.Username, status)
		}
	}
	if push := pushAccess(t, r); push.Password == oldPush.Password {
		t.Error("the push login stayed")
	} else if status, _, text := ask(t, r, push, http.MethodGet+" /v2/", ""); status != http.StatusOK {
		t.Errorf("the new push login: %d %s", status, text)
	} else if status, _, _ := ask(t, r, oldPush, http.MethodGet+" /v2/", ""); status != http.StatusUnauthorized {
		t.Errorf("the old push login: %d", status)
	}
	if _, err := r.Dir.Read(task.RegistryPassFile + ".old"); err == nil {
		t.Error("the work directory keeps the old login")
	}
	if got := h.Said("systemctl restart"); len(got) > 0 {
		t.Errorf("restarts: %q", got)
	}
	s.States()
	if err := r.Phases(t.Context(), install); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, " done") {
			t.Error("an installation afterwards:", state)
		}
	}
	// A second rotation gives the first user a new password.
	if err := r.Phases(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	if got := nodeLogin(t, h); got.Username != siteregistry.User || got.Password == oldPull.Password ||
		tagStatus(t, r, got) != http.StatusOK {
		t.Errorf("after a second rotation: %s", got.Username)
	}
}

func TestRotationRefusesAHostOfAnotherBundle(t *testing.T) {
	t.Parallel()
	_, r, h, _ := rotatingSite(t, 83)
	old := nodeLogin(t, h)
	h.Put(t, cri.ContainerdConfigFile, "version = 3 # of another bundle\n")
	err := r.Phases(t.Context(), rotationPhases(r.Cluster, siteregistry.Logins{Pull: true}))
	if err == nil || !strings.Contains(err.Error(), "run kkbundle install") {
		t.Errorf("got %v", err)
	}
	if got := nodeLogin(t, h); got != old || tagStatus(t, r, old) != http.StatusOK {
		t.Error("the node has no login that the registry accepts")
	}
}

// Harbor is package harbortest, a stand-in.
func TestHarborNodesCanOnlyPullAndRotate(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1, reg2", ", vip: 10.0.0.9", "")
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	s.States()
	old := sitetest.MustAccess(t, s.R)
	client, err := s.R.RegistryHosts()[0].Transport(old.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	var sample name.Digest
	for _, it := range s.R.Items {
		if strings.HasPrefix(it.Ref, "registry.k8s.io/pause") {
			if sample, err = name.NewDigest("10.0.0.2/registry.k8s.io/pause@" +
				it.Descriptor.Digest.String()); err != nil {
				t.Fatal(err)
			}
		}
	}
	as := func(l task.Login) []remote.Option {
		return []remote.Option{
			remote.WithTransport(client),
			remote.WithAuth(&authn.Basic{Username: l.Username, Password: l.Password}), remote.WithContext(t.Context()),
		}
	}
	if _, err := remote.Head(sample, as(old.Login)...); err != nil {
		t.Errorf("the robot pulls: %v", err)
	}
	if err := remote.Write(sample.Context().Tag("evil"), empty.Image, as(old.Login)...); err == nil {
		t.Error("the robot pushes")
	}
	if err := remote.Delete(sample, as(old.Login)...); err == nil {
		t.Error("the robot deletes")
	}
	phases := rotationPhases(s.R.Cluster, siteregistry.Logins{Pull: true})
	if err := s.R.Phases(t.Context(), phases[:2]); err != nil { // a run that is killed
		t.Fatal(err)
	}
	next := sitetest.MustAccess(t, s.R).Login
	for _, l := range []task.Login{old.Login, next} {
		if _, err := remote.Head(sample, as(l)...); err != nil {
			t.Errorf("%s during the rotation: %v", l.Username, err)
		}
	}
	if err := s.R.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if got := sitetest.MustAccess(t, s.R).Login; got != next || next.Username != "robot$kkbundle-nodes-2" {
		t.Errorf("the login is %s, and was %s", got.Username, next.Username)
	}
	for _, reg := range []string{"10.0.0.2", "10.0.0.3"} {
		one, err := name.NewDigest(reg + "/registry.k8s.io/pause@" + sample.DigestStr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(one, as(next)...); err != nil {
			t.Errorf("the new robot at %s: %v", reg, err)
		}
		if _, err := remote.Head(one, as(old.Login)...); err == nil {
			t.Errorf("the old robot at %s still pulls", reg)
		}
	}
	s.States()
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, " done") {
			t.Error("an installation afterwards:", state)
		}
	}
	s.Quiet(t)
}

// hides reports whether a unit's sandbox keeps a file from the service. The user is not root, and the file belongs to
// root only.
func hides(unit, file string) bool {
	user, hidden, bound := "", false, false
	for line := range strings.Lines(unit) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		below := strings.HasPrefix(file, strings.TrimSuffix(strings.TrimPrefix(value, "-"), ":ro")+"/")
		switch key {
		case "User":
			user = value
		case "ProtectHome":
			hidden = hidden || strings.HasPrefix(file, "/root/") || strings.HasPrefix(file, "/home/")
		case "InaccessiblePaths", "TemporaryFileSystem":
			hidden = hidden || below
		case "BindPaths", "BindReadOnlyPaths":
			bound = bound || below
		}
	}
	return user != "" && user != "root" && hidden && !bound
}

// The kernel's part is proved in the lab (TestThread): there the unit's own namespace and user try to read the files.
func TestRegistryServicesCannotReadKeys(t *testing.T) {
	t.Parallel()
	_, r, h := sitetest.NewRegistrySite(t, 84)
	if err := r.Phases(t.Context(), registryPhases()[:1]); err != nil {
		t.Fatal(err)
	}
	older := "[Service]\nExecStart=" + siteregistry.Binary + " serve " + sitetest.ConfigFile + "\nRestart=always\n"
	for _, file := range []string{
		"/etc/kubernetes/pki/ca.key", "/etc/kubernetes/pki/sa.key", "/etc/kubernetes/admin.conf",
		"/etc/ssl/private/site.key", "/etc/pki/tls/private/site.key",
		"/etc/kkbundle/etcd/ca.key", "/etc/ssh/ssh_host_ed25519_key", "/etc/containerd/certs.d/docker.io/hosts.toml",
		"/var/lib/kubelet/pki/kubelet.key",
		"/var/lib/rancher/k3s/server/tls/server-ca.key", "/var/lib/etcd/member/wal/0.wal", "/var/lib/kkbundle/before/x",
		"/root/.kube/config", "/home/op/.ssh/id",
	} {
		for _, unit := range []string{siteregistry.Unit, siteregistry.PushUnit} {
			if !hides(h.Content(task.UnitDir+unit), file) {
				t.Errorf("%s can read %s", unit, file)
			}
		}
		if hides(older, file) {
			t.Errorf("this test does not see that the unit of older releases reads %s", file)
		}
	}
	if text := h.Content(task.UnitDir + siteregistry.Unit); strings.Contains(text, "ReadWritePaths") ||
		strings.Contains(text, "\nBindPaths") {
		t.Errorf("the nodes' service can write:\n%s", text)
	}
}

func TestLimitedInstallDuringARotation(t *testing.T) {
	t.Parallel()
	s, r, _, _ := rotatingSite(t, 85)
	if err := r.Phases(t.Context(), rotationPhases(r.Cluster, siteregistry.Logins{Pull: true})[:2]); err != nil {
		t.Fatal(err)
	}
	s.States()
	s.Options.Limit = []string{"cp1"}
	limited := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	err := limited.Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{siteregistry.CertificatesTask()}}})
	if err == nil || !strings.Contains(err.Error(), "kkbundle registry rotate") {
		t.Errorf("got %v", err)
	}
}
