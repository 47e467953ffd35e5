//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

func TestFilesArePlaced(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	b := sitetest.ClusterBundle(t, s.Options.Cluster)
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{
		cri.ContainerdTask(),
		kubeadm.KubeletTask(s.Options.Cluster),
	}}}
	states := func(want string) {
		t.Helper()
		if err := s.Run(t, b).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.States(), ", "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	states("containerd@cp1 changed, kubelet@cp1 changed")
	h := s.Hosts["cp1"]
	for path, want := range map[string]string{
		"/usr/local/bin/containerd": "member bin/containerd\n",
		"/opt/cni/bin/bridge":       "member bridge\n",
		"/usr/local/sbin/runc":      "#!/bin/sh\necho runc\n",
		"/usr/local/bin/kubelet":    "#!/bin/sh\necho kubelet\n",
	} {
		if got := h.Content(path); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	states("containerd@cp1 done, kubelet@cp1 done")
	h.Put(t, "/usr/local/sbin/runc", "damaged")
	states("containerd@cp1 changed, kubelet@cp1 done")
	if got := h.Content("/usr/local/sbin/runc"); got != "#!/bin/sh\necho runc\n" {
		t.Errorf("runc was not repaired: %q", got)
	}
	info, err := os.Stat(filepath.Join(h.Root, "/etc/containerd/certs.d/registry.k8s.io/hosts.toml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("hosts.toml with the password in it: %v, %v", info, err)
	}
}

func TestBundleLacksSomething(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster, "runc", "pause"))
	err := begin.CheckBundle(t.Context(), r)
	var missing *task.MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"file runc (https://github.com/opencontainers/runc/releases/download/",
		"for linux/amd64", "image pause (registry.k8s.io/pause:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n"); got != 1 {
		t.Errorf("each is named once, got:\n%v", err)
	}
	r.Hosts[0].Arch = "arm64"
	if err := begin.CheckBundle(t.Context(), r); err == nil || !strings.Contains(err.Error(), "file kubeadm") ||
		!strings.Contains(err.Error(), "for linux/arm64") {
		t.Errorf("another architecture: %v", err)
	}
}

// TestBundleOfEarlierRelease has containerd's dynamic archive, as bundles had before kkbundle took the static one.
func TestBundleOfEarlierRelease(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	c := s.Options.Cluster
	b := bundletest.NewBuilder(t)
	former := strings.Replace(fileRef(t, c, "containerd"), "containerd-static-", "containerd-", 1)
	b.File(former, "containerd", &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		sitetest.FileContent(t, c, "containerd"))
	r := s.Run(t, b.Bundle().Reader)
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

func TestAddonLacksItsChartOrValues(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	r.Values = func(path string) ([]byte, error) {
		return map[string][]byte{
			"a.yaml": []byte("x: {a: 1, b: 2}"), "b.yaml": []byte("x: {b: 3}"),
			"bad.yaml": []byte("x: ["),
		}[path], nil
	}
	if _, _, err := addon.ChartOptions(r.Site, manifest.Addon{Chart: "missing", Release: "shop"}); err == nil ||
		!strings.Contains(err.Error(), "demo") {
		t.Errorf("a missing chart: %v", err)
	}
	if _, _, err := addon.ChartOptions(r.Site, manifest.Addon{
		Chart: "demo", Release: "shop",
		Values: []string{"bad.yaml"},
	}); err == nil || !strings.Contains(err.Error(), "bad.yaml") {
		t.Errorf("bad values: %v", err)
	}
	o, item, err := addon.ChartOptions(r.Site, manifest.Addon{
		Chart: "demo", Release: "shop", Namespace: "shop",
		Values: []string{"a.yaml", "b.yaml"},
	})
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

func TestRegistryIsInstalledAndSeeded(t *testing.T) {
	t.Parallel()
	s, r, _ := sitetest.NewRegistrySite(t, 78)
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{
		siteregistry.CertificatesTask(),
		siteregistry.DistributionTask(), siteregistry.SeedTask(),
	}}}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{
		"certificates@ changed", "registry@cp1 changed",
		"seed-registry@cp1 changed",
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{
		"certificates@ done", "registry@cp1 done",
		"seed-registry@cp1 done",
	}); diff != "" {
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
	for password, want := range map[string]int{
		"wrong":                            http.StatusUnauthorized,
		sitetest.MustAccess(t, r).Password: http.StatusOK,
	} {
		access.Password = password
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+access.Address+
			"/v2/registry.k8s.io/pause/tags/list", nil)
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

// A host that an older version installed has a registry that runs as root. The next install gives content and secrets
// to a user that has nothing else, and the one after that changes nothing.
func TestRegistryOfOlderVersion(t *testing.T) {
	t.Parallel()
	s, r, h := sitetest.NewRegistrySite(t, 79)
	secrets := []string{
		sitetest.ConfigFile, siteregistry.ConfigDir + "/htpasswd", sitetest.PushConfigFile,
		siteregistry.ConfigDir + "/push-htpasswd", siteregistry.ConfigDir + "/tls.key",
	}
	for _, path := range append(secrets, siteregistry.DataDir+"/docker/registry/v2/old", "/etc/kubernetes/pki/ca.key") {
		h.Put(t, path, "old")
		if err := os.Chmod(filepath.Join(h.Root, path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.Put(t, task.UnitDir+siteregistry.Unit, "# Written by kkbundle.\n[Service]\nExecStart="+siteregistry.Binary+
		" serve "+siteregistry.ConfigDir+"/config.yaml\n")
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{
		siteregistry.CertificatesTask(),
		siteregistry.DistributionTask(),
	}}}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{"certificates@ changed", "registry@cp1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	want := []string{
		"chown root:" + siteregistry.Account + " " + strings.Join(secrets, " "),
		"chown -Rh " + siteregistry.Account + ":" + siteregistry.Account + " " + siteregistry.DataDir + "/",
	}
	ran := h.Said("")
	if diff := cmp.Diff(slices.DeleteFunc(slices.Clone(ran),
		func(line string) bool { return !strings.HasPrefix(line, "chown ") }), want); diff != "" {
		t.Errorf("the registry's user is given (-got +want):\n%s", diff)
	}
	user, restart := slices.Index(ran, "systemd-sysusers "+siteregistry.ConfigDir+"/user.conf"),
		slices.Index(ran, "systemctl restart "+siteregistry.Unit)
	if own := slices.Index(ran, want[0]); user < 0 || user > own || slices.Index(ran, want[1]) > restart {
		t.Errorf("the user is made before it is given anything, and has everything before the start: %q", ran)
	}
	for path, mode := range map[string]fs.FileMode{
		secrets[0]: 0o640, secrets[1]: 0o640, secrets[2]: 0o640,
		secrets[3]: 0o640, secrets[4]: 0o640, "/etc/kubernetes/pki/ca.key": 0o600,
		siteregistry.DataDir: fs.ModeDir | 0o750,
	} {
		if info, err := os.Stat(filepath.Join(h.Root, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, mode)
		}
	}
	unit := h.Content(task.UnitDir + siteregistry.Unit)
	for _, line := range []string{
		"User=" + siteregistry.Account, "NoNewPrivileges=yes", "CapabilityBoundingSet=",
		"TemporaryFileSystem=/etc:ro", "TemporaryFileSystem=/var/lib:ro", "BindReadOnlyPaths=" + siteregistry.DataDir,
	} {
		if !strings.Contains(unit, line+"\n") {
			t.Errorf("the unit has no %s:\n%s", line, unit)
		}
	}
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{"certificates@ done", "registry@cp1 done"}); diff != "" {
		t.Errorf("a second time (-got +want):\n%s", diff)
	}
}
