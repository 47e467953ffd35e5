//go:build linux

package installer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"

	"github.com/distribution/distribution/v3/configuration"
	distribution "github.com/distribution/distribution/v3/registry"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// clusterBundle makes a bundle with everything that a cluster needs, each thing tiny, and an addon's chart.
func clusterBundle(t *testing.T, c *manifest.Cluster, without ...string) *bundle.Reader {
	t.Helper()
	return bundleWith(t, c, func(name string) []byte { return fileContent(t, c, name) }, without...)
}

// bundleWith has files with that content.
func bundleWith(t *testing.T, c *manifest.Cluster, content func(name string) []byte, without ...string) *bundle.Reader {
	t.Helper()
	return builtWith(t, c, content, without...).Reader
}

func builtWith(t *testing.T, c *manifest.Cluster, content func(name string) []byte, without ...string) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for i, need := range Needs(c) {
		if slices.Contains(without, need.Name) {
			continue
		}
		refs, err := catalog.Refs(c, need, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		for j, ref := range refs {
			switch need.Kind {
			case manifest.ItemFile:
				b.File(ref, need.Name, &ocispec.Platform{OS: "linux", Architecture: "amd64"}, content(need.Name))
			case manifest.ItemImage:
				b.Image(ref, bundletest.RandomImage(t, int64(100*i+j+1), 1, 1000))
			default:
				b.Chart(ref, need.Name, "1.0.0", bundletest.ChartArchive(t, need.Name, "1.0.0"))
			}
		}
	}
	b.Chart("https://charts.example/stable/demo:0.1.0", "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	return b.Bundle()
}

// fileContent is a program, or an archive with the members that tasks want.
func fileContent(t *testing.T, c *manifest.Cluster, component string) []byte {
	t.Helper()
	var members []string
	for _, phase := range Plan(c) {
		for _, task := range phase.Tasks {
			for _, f := range task.Files {
				if f.Component == component && f.Member != "" {
					members = append(members, f.Member)
				}
			}
		}
	}
	if len(members) == 0 {
		return []byte("#!/bin/sh\necho " + component + "\n")
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for _, name := range members {
		content := "member " + name + "\n"
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFilesArePlaced(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	b := clusterBundle(t, s.options.Cluster)
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask(), kubeadm.KubeletTask(s.options.Cluster)}}}
	states := func(want string) {
		t.Helper()
		if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.states(), ", "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	states("containerd@cp1 changed, kubelet@cp1 changed")
	h := s.hosts["cp1"]
	for path, want := range map[string]string{
		"/usr/local/bin/containerd": "member bin/containerd\n",
		"/opt/cni/bin/bridge":       "member bridge\n",
		"/usr/local/sbin/runc":      "#!/bin/sh\necho runc\n",
		"/usr/local/bin/kubelet":    "#!/bin/sh\necho kubelet\n",
	} {
		if got := h.content(path); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	states("containerd@cp1 done, kubelet@cp1 done")
	h.put(t, "/usr/local/sbin/runc", "damaged")
	states("containerd@cp1 changed, kubelet@cp1 done")
	if got := h.content("/usr/local/sbin/runc"); got != "#!/bin/sh\necho runc\n" {
		t.Errorf("runc was not repaired: %q", got)
	}
	info, err := os.Stat(filepath.Join(h.root, "/etc/containerd/certs.d/registry.k8s.io/hosts.toml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("hosts.toml with the password in it: %v, %v", info, err)
	}
}

func TestBundleLacksSomething(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, clusterBundle(t, s.options.Cluster, "runc", "pause"))
	err := checkBundle(t.Context(), r)
	var missing *task.MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"file runc (https://github.com/opencontainers/runc/releases/download/", "for linux/amd64", "image pause (registry.k8s.io/pause:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n"); got != 1 {
		t.Errorf("each is named once, got:\n%v", err)
	}
	r.Hosts[0].Arch = "arm64"
	if err := checkBundle(t.Context(), r); err == nil || !strings.Contains(err.Error(), "file kubeadm") || !strings.Contains(err.Error(), "for linux/arm64") {
		t.Errorf("another architecture: %v", err)
	}
}

// TestBundleOfEarlierRelease has containerd's dynamic archive, as bundles had before kkbundle took the static one.
func TestBundleOfEarlierRelease(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	c := s.options.Cluster
	b := bundletest.NewBuilder(t)
	former := strings.Replace(fileRef(t, c, "containerd"), "containerd-static-", "containerd-", 1)
	b.File(former, "containerd", &ocispec.Platform{OS: "linux", Architecture: "amd64"}, fileContent(t, c, "containerd"))
	r := s.run(t, b.Bundle().Reader)
	item, err := r.Component(manifest.Need{Kind: manifest.ItemFile, Name: "containerd"}, "linux/amd64")
	if err != nil || item.Ref != former {
		t.Errorf("got %q, %v; want %q", item.Ref, err, former)
	}
	_, err = r.Component(manifest.Need{Kind: manifest.ItemFile, Name: "containerd"}, "linux/arm64")
	if err == nil || !strings.Contains(err.Error(), "containerd-static-2.3.7-linux-arm64.tar.gz") {
		t.Errorf("an architecture that the bundle lacks: %v", err)
	}
}

func fileRef(t *testing.T, c *manifest.Cluster, name string) string {
	t.Helper()
	ref, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: name}, "linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestSpace(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	kinds := func(t2 *task.Host) string {
		t.Helper()
		list, err := space(t.Context(), t2)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, one := range list {
			found = append(found, one.For)
		}
		return strings.Join(found, ", ")
	}
	if got := kinds(r.Hosts[0]); got != "programs, images, the registry" {
		t.Errorf("cp1 needs space for %s", got)
	}
	if got := kinds(r.Hosts[1]); got != "programs, images" {
		t.Errorf("node1 needs space for %s", got)
	}
	h := s.hosts["cp1"]
	h.put(t, member.Path, "site v1.34.3\n")
	h.put(t, siteregistry.DataDir+"/blob", strings.Repeat("x", 1<<20))
	h.put(t, "/var/lib/containerd/blob", strings.Repeat("x", 1<<20))
	h.answer("du", func(_ context.Context, cmd host.Cmd) error { // something went away while it counted
		_, _ = cmd.Stdout.Write([]byte("1048576\t" + cmd.Args[len(cmd.Args)-1] + "\n"))
		return &host.ExitError{Code: 1}
	})
	if got := kinds(r.Hosts[0]); got != "" {
		t.Errorf("after everything was written, cp1 needs space for %s", got)
	}
}

func TestAddonLacksItsChartOrValues(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	r.Values = func(path string) ([]byte, error) {
		return map[string][]byte{"a.yaml": []byte("x: {a: 1, b: 2}"), "b.yaml": []byte("x: {b: 3}"), "bad.yaml": []byte("x: [")}[path], nil
	}
	if _, _, err := addon.ChartOptions(r.Site, manifest.Addon{Chart: "missing", Release: "shop"}); err == nil || !strings.Contains(err.Error(), "demo") {
		t.Errorf("a missing chart: %v", err)
	}
	if _, _, err := addon.ChartOptions(r.Site, manifest.Addon{Chart: "demo", Release: "shop", Values: []string{"bad.yaml"}}); err == nil || !strings.Contains(err.Error(), "bad.yaml") {
		t.Errorf("bad values: %v", err)
	}
	o, item, err := addon.ChartOptions(r.Site, manifest.Addon{Chart: "demo", Release: "shop", Namespace: "shop", Values: []string{"a.yaml", "b.yaml"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o.Values, map[string]any{"x": map[string]any{"a": 1.0, "b": 3.0}}); diff != "" {
		t.Errorf("values (-got +want):\n%s", diff)
	}
	if c, err := addon.Chart(t.Context(), r.Site, item); err != nil || c.Name() != "demo" {
		t.Errorf("chart %v, %v", c, err)
	}
}

// newRegistrySite has a registry host with an address of this machine's loopback network that no other process has, nor another test with
// its own second number. The registry is the real one, with the configuration, certificate and password that the task writes; only
// systemd's part is played by the test. It is reached through the host's helper.
func newRegistrySite(t *testing.T, second byte) (*site, *engine.Run, *rooted) {
	t.Helper()
	return newRegistrySiteOf(t, second, runRegistry)
}

// newRegistrySiteOf has a registry that run starts with a configuration.
func newRegistrySiteOf(t *testing.T, second byte, run func(ctx context.Context, t *testing.T, text string)) (*site, *engine.Run, *rooted) {
	t.Helper()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	r.Hosts[0].IP = netip.AddrFrom4([4]byte{127, second, byte(os.Getpid() >> 8), byte(os.Getpid())})
	own, push := r.Hosts[0].IP.String()+":5001", "127.0.0.1:5001"
	leadPushes(h, push, own)
	h.answer("systemctl", func(ctx context.Context, cmd host.Cmd) error {
		switch {
		case cmd.Args[1] != "restart":
		case cmd.Args[2] == siteregistry.PushUnit:
			run(ctx, t, registryText(t, h, pushConfigFile, push, own))
		case cmd.Args[2] == siteregistry.Unit:
			run(ctx, t, registryText(t, h, configFile, "", ""))
		}
		return nil
	})
	return s, r, h
}

const (
	configFile     = siteregistry.ConfigDir + "/config.yaml"
	pushConfigFile = siteregistry.ConfigDir + "/push.yaml"
)

// leadPushes leads connections from a host to its loopback address, which all hosts of a test share, to another one.
func leadPushes(h *rooted, push, to string) {
	h.answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error {
		if len(cmd.Args) > 2 && cmd.Args[1] == "dial" && cmd.Args[2] == push {
			cmd.Args = []string{cmd.Args[0], "dial", to}
		}
		return h.helper(ctx, cmd)
	})
}

func TestRegistryIsInstalledAndSeeded(t *testing.T) {
	t.Parallel()
	s, r, _ := newRegistrySite(t, 78)
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{siteregistry.CertificatesTask(), siteregistry.DistributionTask(), siteregistry.SeedTask()}}}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.states(), []string{"certificates@ changed", "registry@cp1 changed", "seed-registry@cp1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.states(), []string{"certificates@ done", "registry@cp1 done", "seed-registry@cp1 done"}); diff != "" {
		t.Errorf("a second time (-got +want):\n%s", diff)
	}
	access, err := r.Access()
	if err != nil {
		t.Fatal(err)
	}
	access.Password = "wrong"
	client, err := r.Hosts[0].Transport(access.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for password, want := range map[string]int{"wrong": http.StatusUnauthorized, mustAccess(t, r).Password: http.StatusOK} {
		access.Password = password
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+access.Address+"/v2/registry.k8s.io/pause/tags/list", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", access.Authorization())
		resp, err := client.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
	}
}

// A host that an older version installed has a registry that runs as root. The next install gives content and secrets to a user that has
// nothing else, and the one after that changes nothing.
func TestRegistryOfOlderVersion(t *testing.T) {
	t.Parallel()
	s, r, h := newRegistrySite(t, 79)
	secrets := []string{configFile, siteregistry.ConfigDir + "/htpasswd", pushConfigFile, siteregistry.ConfigDir + "/push-htpasswd", siteregistry.ConfigDir + "/tls.key"}
	for _, path := range append(secrets, siteregistry.DataDir+"/docker/registry/v2/old", "/etc/kubernetes/pki/ca.key") {
		h.put(t, path, "old")
		if err := os.Chmod(filepath.Join(h.root, path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.put(t, task.UnitDir+siteregistry.Unit, "# Written by kkbundle.\n[Service]\nExecStart="+siteregistry.Binary+" serve "+siteregistry.ConfigDir+"/config.yaml\n")
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{siteregistry.CertificatesTask(), siteregistry.DistributionTask()}}}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.states(), []string{"certificates@ changed", "registry@cp1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	want := []string{
		"chown root:" + siteregistry.Account + " " + strings.Join(secrets, " "),
		"chown -Rh " + siteregistry.Account + ":" + siteregistry.Account + " " + siteregistry.DataDir + "/",
	}
	ran := h.said("")
	if diff := cmp.Diff(slices.DeleteFunc(slices.Clone(ran), func(line string) bool { return !strings.HasPrefix(line, "chown ") }), want); diff != "" {
		t.Errorf("the registry's user is given (-got +want):\n%s", diff)
	}
	user, restart := slices.Index(ran, "systemd-sysusers "+siteregistry.ConfigDir+"/user.conf"), slices.Index(ran, "systemctl restart "+siteregistry.Unit)
	if own := slices.Index(ran, want[0]); user < 0 || user > own || slices.Index(ran, want[1]) > restart {
		t.Errorf("the user is made before it is given anything, and has everything before the start: %q", ran)
	}
	for path, mode := range map[string]fs.FileMode{secrets[0]: 0o640, secrets[1]: 0o640, secrets[2]: 0o640, secrets[3]: 0o640, secrets[4]: 0o640, "/etc/kubernetes/pki/ca.key": 0o600, siteregistry.DataDir: fs.ModeDir | 0o750} {
		if info, err := os.Stat(filepath.Join(h.root, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, mode)
		}
	}
	unit := h.content(task.UnitDir + siteregistry.Unit)
	for _, line := range []string{"User=" + siteregistry.Account, "NoNewPrivileges=yes", "CapabilityBoundingSet=", "TemporaryFileSystem=/etc:ro", "TemporaryFileSystem=/var/lib:ro", "BindReadOnlyPaths=" + siteregistry.DataDir} {
		if !strings.Contains(unit, line+"\n") {
			t.Errorf("the unit has no %s:\n%s", line, unit)
		}
	}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.states(), []string{"certificates@ done", "registry@cp1 done"}); diff != "" {
		t.Errorf("a second time (-got +want):\n%s", diff)
	}
}

func mustAccess(t *testing.T, r *engine.Run) task.RegistryAccess {
	t.Helper()
	access, err := r.Access()
	if err != nil {
		t.Fatal(err)
	}
	return access
}

// registryText returns a configuration that lies on the host, for this machine's directories and another address.
func registryText(t *testing.T, h *rooted, file, address, own string) string {
	t.Helper()
	text := h.content(file)
	if !strings.Contains(text, "addr: "+address) {
		t.Errorf("%s does not listen at %s:\n%s", h.name, address, text)
	}
	if address != "" {
		text = strings.Replace(text, "addr: "+address+"\n", "addr: "+own+"\n", 1)
	}
	for _, dir := range []string{siteregistry.ConfigDir, siteregistry.DataDir} {
		text = strings.ReplaceAll(text, dir, h.root+dir)
	}
	return text
}

// runRegistry runs the registry as a library.
func runRegistry(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	config, err := configuration.Parse(strings.NewReader(text))
	if err != nil {
		t.Errorf("the registry refuses its configuration: %v", err)
		return
	}
	config.Log.Level = "panic"
	server, err := distribution.NewRegistry(context.WithoutCancel(ctx), config)
	if err != nil {
		t.Error(err)
		return
	}
	go func() { _ = server.ListenAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
}
