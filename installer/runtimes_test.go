//go:build linux

package installer

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// written lists files of a host as one text, for golden files.
func (h *rooted) written(t *testing.T, paths ...string) []byte {
	t.Helper()
	var b strings.Builder
	for _, path := range paths {
		info, err := os.Stat(filepath.Join(h.root, path))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "==> %s %04o\n%s", path, info.Mode().Perm(), h.content(path))
	}
	return []byte(b.String())
}

// Docker and CRI-O are installed with systemctl recorded: neither can be built here. What they read is in golden files.
func TestRuntimesAreInstalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, secret, programs, units []string }{
		"docker": {
			files:    []string{cri.DockerConfig, "/etc/systemd/system/docker.service", "/etc/systemd/system/cri-docker.service"},
			secret:   []string{cri.KubeletLogins},
			programs: []string{"/usr/local/bin/dockerd", "/usr/local/bin/cri-dockerd", "/opt/cni/bin/bridge", "/etc/docker/certs.d/10.0.0.3:5000/ca.crt"},
			units:    []string{"docker.service", "cri-docker.service"},
		},
		"crio": {
			files:    []string{"/etc/crio/crio.conf.d/10-kkbundle.conf", cri.CRIOPolicy, "/etc/systemd/system/crio.service", "/etc/containers/registries.conf.d/50-kkbundle.conf"},
			secret:   []string{"/etc/kkbundle/mirror-auth.json"},
			programs: []string{"/usr/local/bin/crio", "/opt/kkbundle/crio/bin/conmon", "/opt/kkbundle/crio/bin/crun", "/opt/cni/bin/bridge"},
			units:    []string{"crio.service"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			s.dialing("")
			b, h := clusterBundle(t, s.options.Cluster), s.hosts["cp1"]
			phases := []task.Phase{{Name: "install", Tasks: containerTasks(s.options.Cluster)}}
			if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			ran := strings.Join(h.said("systemctl"), "\n")
			for _, unit := range c.units {
				if !strings.Contains(ran, "systemctl restart "+unit) {
					t.Errorf("%s was not started:\n%s", unit, ran)
				}
			}
			tasktest.Golden(t, "runtime-"+name+".txt", h.written(t, c.files...))
			for _, path := range c.secret {
				info, err := os.Stat(filepath.Join(h.root, path))
				if err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s with the login: %v, %v", path, info, err)
				}
			}
			for _, path := range c.programs {
				if h.content(path) == "" {
					t.Errorf("there is no %s", path)
				}
			}
			s.states()
			if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			if changed := strings.Join(s.states(), ", "); strings.Contains(changed, "changed") {
				t.Errorf("a rerun: %s", changed)
			}
			resetLeavesNothing(t, s, append(c.files, c.programs...))
		})
	}
}

// Operators get programs that are ready for the runtime, where the cluster file names them.
func TestRuntimeTools(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.dialing("")
	s.options.Cluster = tasktest.Cluster(t, "cri: {tools: [crictl, nerdctl]}")
	h := s.hosts["cp1"]
	if err := s.run(t, clusterBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: cri.ToolTasks(s.options.Cluster)}}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.content(cri.CrictlConfig), "runtime-endpoint: unix:///run/containerd/containerd.sock\n") ||
		h.content("/usr/local/bin/crictl") != "member crictl\n" || h.content("/usr/local/bin/nerdctl") != "member nerdctl\n" {
		t.Errorf("crictl.yaml is %q, crictl %q", h.content(cri.CrictlConfig), h.content("/usr/local/bin/crictl"))
	}
	resetLeavesNothing(t, s, []string{cri.CrictlConfig, "/etc/nerdctl", "/usr/local/bin/crictl"})
	for _, text := range []string{
		"cri: {type: docker, tools: [nerdctl]}", "cri: {type: crio}\nimageRegistry: {type: none}",
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\ncri: {type: crio}",
	} {
		if tasktest.Cluster(t, text).CheckInstall() == nil {
			t.Errorf("install takes %s", text)
		}
	}
}

// resetLeavesNothing resets the site and looks for paths.
func resetLeavesNothing(t *testing.T, s *site, paths []string) {
	t.Helper()
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	for name, h := range s.hosts {
		for _, path := range paths {
			if _, err := os.Lstat(filepath.Join(h.root, path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s still has %s (%v)", name, path, err)
			}
		}
	}
}

// A Docker of others is found before anything of it is touched.
func TestForeignDockerIsRefused(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"a package": "/usr/bin/dockerd", "static programs": "/usr/local/bin/dockerd", "a configuration": cri.DockerConfig,
		"a unit of others": "/etc/systemd/system/docker.service",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: docker}")
			h := s.hosts["cp1"]
			h.put(t, path, "theirs\n")
			err := s.run(t, clusterBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: containerTasks(s.options.Cluster)}})
			var foreign interface{ Hint() string }
			if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "("+path+")") || foreign.Hint() == "" {
				t.Errorf("got %v", err)
			}
			if h.content(path) != "theirs\n" || h.content("/usr/local/bin/cri-dockerd") != "" {
				t.Error("the host was changed all the same")
			}
		})
	}
}

// A fakeContainerd stands for ctr and containerd's stores on a host: it reads the archives that it is given, checks blobs
// against their digests as containerd does, and needs all of an image for its platform. The lab has a real one (TestPreload).
type fakeContainerd struct {
	mu     sync.Mutex
	blobs  map[string][]byte
	images map[string]string // name to digest
	pinned map[string]bool
	got    []string // digests that were sent
	fail   bool     // the import ends after half of the blobs
}

func newFakeContainerd(h *rooted, prefix ...string) *fakeContainerd {
	f := &fakeContainerd{blobs: map[string][]byte{}, images: map[string]string{}, pinned: map[string]bool{}}
	before := len(prefix) - 1
	h.answer(prefix[0], func(_ context.Context, cmd host.Cmd) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if before > 0 && cmd.Args[1] != prefix[1] {
			return nil
		}
		if err := f.run(cmd, cmd.Args[before+2:]); err != nil {
			return &host.ExitError{Host: h.name, Args: cmd.Args, Code: 1, Stderr: err.Error()}
		}
		return nil
	})
	return f
}

func (f *fakeContainerd) run(cmd host.Cmd, args []string) error {
	switch strings.Join(args[:2], " ") {
	case "images list":
		for name, digest := range f.images {
			label := "-"
			if f.pinned[name] {
				label = "io.cri-containerd.image=managed," + cri.PinnedLabel
			}
			fmt.Fprintf(cmd.Stdout, "%s application/vnd.oci.image.index.v1+json %s 1.2 MiB linux/amd64 %s\n", name, digest, label)
		}
	case "content list":
		for digest := range f.blobs {
			fmt.Fprintln(cmd.Stdout, digest)
		}
	case "images label":
		f.pinned[args[2]] = true
	case "images import":
		if args[2] == "--help" {
			fmt.Fprintln(cmd.Stdout, "   --local  Run import locally")
			return nil
		}
		return f.load(cmd.Stdin)
	}
	return nil
}

// load reads an OCI layout.
func (f *fakeContainerd) load(r io.Reader) error {
	var index ocispec.Index
	f.got = nil
	for tr := tar.NewReader(r); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		if header.Name == "index.json" {
			if err := json.Unmarshal(data, &index); err != nil {
				return err
			}
		}
		if sum, blob := strings.CutPrefix(header.Name, "blobs/sha256/"); blob {
			if digest.FromBytes(data).Encoded() != sum {
				return fmt.Errorf("%s is damaged", sum)
			}
			f.blobs["sha256:"+sum] = data
			f.got = append(f.got, "sha256:"+sum)
		}
		if f.fail && len(f.got) > 2 {
			return errors.New("connection lost")
		}
	}
	for _, d := range index.Manifests {
		if err := f.complete(d); err != nil {
			return err
		}
		f.images[d.Annotations["io.containerd.image.name"]] = d.Digest.String()
	}
	return nil
}

// complete looks for everything below a manifest, or below an index for amd64.
func (f *fakeContainerd) complete(d ocispec.Descriptor) error {
	data, ok := f.blobs[d.Digest.String()]
	if !ok {
		return fmt.Errorf("blob %s is missing", d.Digest)
	}
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    ocispec.Descriptor   `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	for _, child := range m.Manifests {
		if child.Platform.Architecture == "amd64" {
			if err := f.complete(child); err != nil {
				return err
			}
		}
	}
	for _, blob := range append(m.Layers, m.Config) {
		if _, ok := f.blobs[blob.Digest.String()]; !ok && blob.Digest != "" {
			return fmt.Errorf("blob %s is missing", blob.Digest)
		}
	}
	return nil
}

// preloadBundle has a cluster's images, and three that no task knows: one for two platforms, one by its digest, and both.
func preloadBundle(t *testing.T, c *manifest.Cluster) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for i, need := range Needs(c) {
		if need.Kind != manifest.ItemImage {
			continue
		}
		refs, err := catalog.Refs(c, need, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		for j, ref := range refs {
			b.Image(ref, bundletest.RandomImage(t, int64(100*i+j+1), 1, 1000))
		}
	}
	img := bundletest.RandomImage(t, 7777, 1, 1000)
	sum, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	b.Image("docker.io/shop/app:1", bundletest.RandomImage(t, 8888, 2, 1000))
	b.Image("docker.io/shop/app@"+sum.String(), img)
	b.Image("docker.io/shop/db:2@"+sum.String(), img)
	return b.Bundle().Reader
}

func TestPreloadImages(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	s.options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: none}")
	b := preloadBundle(t, s.options.Cluster)
	stores := map[string]*fakeContainerd{}
	for name, h := range s.hosts {
		stores[name] = newFakeContainerd(h, "ctr")
	}
	phases := []task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.options.Cluster)}}
	run := func() error { return s.run(t, b).Phases(t.Context(), phases) }

	// The stream to the worker ends in the middle: the next run brings the rest, and not again what is there.
	stores["node1"].fail = true
	if err := run(); err == nil || !strings.Contains(err.Error(), "connection lost") {
		t.Fatalf("got %v", err)
	}
	before := slices.Collect(maps.Keys(stores["node1"].blobs))
	stores["node1"].fail = false
	if err := run(); err != nil {
		t.Fatal(err)
	}
	for _, sum := range before {
		if slices.Contains(stores["node1"].got, sum) {
			t.Errorf("%s was sent twice", sum)
		}
	}
	s.states()

	has := func(name, part string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(stores[name].images)), func(ref string) bool { return strings.HasPrefix(ref, part) })
	}
	for part, hosts := range map[string][2]bool{
		"registry.k8s.io/kube-apiserver:": {true, false}, "registry.k8s.io/kube-proxy:": {true, true},
		"registry.k8s.io/coredns/coredns:": {true, true}, "docker.io/shop/app:1": {true, true},
		"docker.io/shop/app@sha256:": {true, true}, "docker.io/shop/db:2": {true, true}, "docker.io/shop/db@sha256:": {true, true},
	} {
		if got := [2]bool{has("cp1", part), has("node1", part)}; got != hosts {
			t.Errorf("%s: on cp1 and node1: %v, want %v", part, got, hosts)
		}
	}
	for name, store := range stores {
		for ref := range store.images {
			if !store.pinned[ref] {
				t.Errorf("%s: %s is not pinned: the kubelet would delete it", name, ref)
			}
		}
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.states(), ", "); got != "preload-images@cp1 done, preload-images@node1 done" {
		t.Errorf("a rerun: %s", got)
	}
	// An image of that name with another content is replaced, and one that is not pinned is pinned without being sent.
	stores["cp1"].images["docker.io/shop/app:1"] = "sha256:" + strings.Repeat("0", 64)
	stores["node1"].pinned["docker.io/shop/app:1"] = false
	stores["cp1"].got, stores["node1"].got = nil, nil
	if err := run(); err != nil {
		t.Fatal(err)
	}
	it, _ := b.Find(bundle.KindImage, "docker.io/shop/app:1", "")
	if got := stores["cp1"].images["docker.io/shop/app:1"]; got != it.Descriptor.Digest.String() {
		t.Errorf("cp1 has %s", got)
	}
	if !stores["node1"].pinned["docker.io/shop/app:1"] || len(stores["node1"].got) > 0 {
		t.Errorf("node1: pinned %v, sent %v", stores["node1"].pinned["docker.io/shop/app:1"], stores["node1"].got)
	}
}

// A runtime that says yes and keeps nothing is found out.
func TestPreloadIsVerified(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: none}")
	s.hosts["cp1"].answer("ctr", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Stdin != nil {
			_, err := io.Copy(io.Discard, cmd.Stdin)
			return err
		}
		return nil
	})
	err := s.run(t, preloadBundle(t, s.options.Cluster)).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.options.Cluster)}})
	if err == nil || !strings.Contains(err.Error(), "the runtime loaded the images, but lacks ") {
		t.Errorf("got %v", err)
	}
}

// Docker gets one archive for each image, as docker load reads it. The program is a stand-in.
func TestPreloadDocker(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.options.Cluster = tasktest.Cluster(t, "cri: {type: docker}")
	b := bundletest.NewBuilder(t)
	b.Image("docker.io/library/web:1", bundletest.RandomImage(t, 1, 1, 1000))
	b.Image("docker.io/shop/app:1", bundletest.RandomImage(t, 2, 1, 1000))
	ids := map[string]string{}
	loads := 0
	s.hosts["cp1"].answer("docker", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "image" {
			for name, id := range ids {
				fmt.Fprintln(cmd.Stdout, name+" "+id)
			}
			fmt.Fprintln(cmd.Stdout, "<none>:<none> sha256:0")
			return nil
		}
		loads++
		for tr := tar.NewReader(cmd.Stdin); ; {
			header, err := tr.Next()
			if err != nil {
				return nil //nolint:nilerr // the end
			}
			if header.Name != "manifest.json" {
				continue
			}
			var images []struct {
				Config   string
				RepoTags []string
			}
			if err := json.NewDecoder(tr).Decode(&images); err != nil {
				return err
			}
			name := strings.TrimPrefix(strings.TrimPrefix(images[0].RepoTags[0], "docker.io/"), "library/") // as Docker shows it
			ids[name] = "sha256:" + strings.TrimPrefix(images[0].Config, "blobs/sha256/")
		}
	})
	phases := []task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.options.Cluster)}}
	reader := b.Bundle().Reader
	for range 2 {
		if err := s.run(t, reader).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(ids)), []string{"shop/app:1", "web:1"}); diff != "" || loads != 2 {
		t.Errorf("%d loads of (-got +want):\n%s", loads, diff)
	}
}

// A fakeK3s stands for k3s on a site's hosts, which cannot be built here: its unit, once started, makes what k3s makes, and
// `k3s kubectl` knows the nodes. What k3s reads is in golden files.
type fakeK3s struct {
	mu    sync.Mutex
	nodes map[string]bool
}

const k3sAdmin = `apiVersion: v1
clusters:
- cluster: {certificate-authority-data: Q0E=, server: 'https://127.0.0.1:6443'}
  name: default
contexts:
- context: {cluster: default, user: default}
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}
`

func newFakeK3s(t *testing.T, s *site) *fakeK3s {
	t.Helper()
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeK3s{nodes: map[string]bool{}}
	for name, h := range s.hosts {
		h.answer("ip", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Stdout != nil {
				fmt.Fprintf(cmd.Stdout, "2: eth1    inet %s/24 brd 10.0.0.255 scope global eth1\n", cmd.Args[len(cmd.Args)-1])
			}
			return nil
		})
		h.answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
			unit := cmd.Args[len(cmd.Args)-1]
			if cmd.Args[1] != "restart" || !strings.HasPrefix(unit, "k3s") {
				return nil
			}
			h.put(t, k3s.CA, string(ca))
			if unit == "k3s.service" {
				h.put(t, k3s.ServerToken, "K10"+strings.Repeat("ab", 32)+"::server:"+h.content(k3s.TokenFile))
				h.put(t, k3s.Kubeconfig, k3sAdmin)
			}
			h.put(t, cri.K3sData+"/storage/pvc-1/data", "a user's")
			f.mu.Lock()
			defer f.mu.Unlock()
			f.nodes[name] = true
			return nil
		})
		h.answer("k3s", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if i := slices.Index(cmd.Args, "node"); cmd.Args[1] == "kubectl" && i > 0 && !f.nodes[cmd.Args[i+1]] {
				return &host.ExitError{Host: h.name, Args: cmd.Args, Code: 1, Stderr: "not found"}
			}
			return nil
		})
	}
	return f
}

// newK3sSite has three servers, of which one is a worker too, and an agent.
func newK3sSite(t *testing.T, more string) (*site, *bundle.Reader) {
	t.Helper()
	s := newSite(t, "cp1", "cp2", "cp3", "node1")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.3}, cp2: {address: 10.0.0.4}, cp3: {address: 10.0.0.5}, node1: {address: 10.0.0.6}}
groups: {kube_control_plane: [cp1, cp2, cp3], kube_worker: [cp2, node1], image_registry: [cp1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.options.Inventory = inv
	if !strings.Contains(more, "kubernetes:") {
		more = "kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\n" + more
	}
	s.options.Cluster = tasktest.Cluster(t, more)
	newFakeK3s(t, s)
	s.dialing("")
	return s, clusterBundle(t, s.options.Cluster)
}

func TestK3sIsInstalled(t *testing.T) {
	t.Parallel()
	s, b := newK3sSite(t, "")
	// verify-nodes and the labels need a real API; they are common to all clusters.
	phases := []task.Phase{{Name: "install", Tasks: slices.DeleteFunc(k3sTasks(s.options.Cluster), func(task task.Task) bool { return task.Name == "node-labels" })}}
	if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	s.states()
	tasktest.Golden(t, "k3s-first.txt", s.hosts["cp1"].written(t, k3s.ConfigFile, "/etc/systemd/system/k3s.service"))
	tasktest.Golden(t, "k3s-second.txt", s.hosts["cp2"].written(t, k3s.ConfigFile))
	tasktest.Golden(t, "k3s-agent.txt", s.hosts["node1"].written(t, k3s.ConfigFile, "/etc/systemd/system/k3s-agent.service"))

	secret := strings.TrimSpace(s.hosts["cp1"].content(k3s.TokenFile))
	pin := "K10" + strings.Repeat("ab", 32)
	if got := s.hosts["cp2"].content(k3s.TokenFile); got != pin+"::server:"+secret+"\n" {
		t.Errorf("the second server joins with %s", got)
	}
	node := s.hosts["node1"].content(k3s.TokenFile)
	if !strings.HasPrefix(node, pin+"::node:") || strings.Contains(node, secret) {
		t.Errorf("the agent joins with %s", node)
	}
	for name, h := range s.hosts {
		for _, path := range []string{k3s.TokenFile, k3s.ConfigFile, k3s.Dir + "/registries.yaml"} {
			if info, err := os.Stat(filepath.Join(h.root, path)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s: %v, %v", name, path, info, err)
			}
		}
		if h.content(cri.K3sData+"/agent/images/k3s-airgap-images.tar.zst") == "" || h.content(k3s.Binary) == "" {
			t.Errorf("%s lacks k3s or its images", name)
		}
		if ran := strings.Join(h.said(""), "\n"); strings.Contains(ran, secret) {
			t.Errorf("%s: the token is in a command's arguments:\n%s", name, ran)
		}
	}
	admin, err := os.ReadFile(filepath.Join(s.options.WorkDir, task.AdminConfFile))
	if err != nil || !strings.Contains(string(admin), "server: https://10.0.0.3:6443") || kube.CheckKubeconfig(admin) != nil {
		t.Errorf("admin.conf: %v\n%s", err, admin)
	}
	if err := s.run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.states(), ", "); strings.Contains(got, "changed") {
		t.Errorf("a rerun: %s", got)
	}
	resetLeavesNothing(t, s, []string{
		k3s.Dir, cri.K3sData + "/server", cri.K3sData + "/agent", k3s.Binary, "/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s-agent.service",
		"/usr/local/bin/kubectl", "/usr/local/bin/ctr",
	})
	if s.hosts["node1"].content(cri.K3sData+"/storage/pvc-1/data") == "" {
		t.Error("reset took the pods' volumes without --with-data")
	}
	s.options.WithData = true
	resetLeavesNothing(t, s, nil)
	if s.hosts["node1"].content(cri.K3sData+"/storage/pvc-1/data") != "" {
		t.Error("reset --with-data left the pods' volumes")
	}
}

// Nothing joins before the first server has said who it is, and a token that is none is not passed on.
func TestK3sNeedsTheFirstServer(t *testing.T) {
	t.Parallel()
	s, b := newK3sSite(t, "")
	r := s.run(t, b)
	if _, err := k3s.Tokens(t.Context(), r.Hosts[3], false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before the first server is up: %v", err)
	}
	s.hosts["cp1"].put(t, k3s.ServerToken, "password\n")
	if _, err := k3s.Tokens(t.Context(), r.Hosts[3], false); err == nil || !strings.Contains(err.Error(), "does not begin with K10") {
		t.Errorf("a token without a hash: %v", err)
	}
	s.options.DryRun = true
	if err := s.run(t, b).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: k3sTasks(s.options.Cluster)[:1]}}); err != nil {
		t.Errorf("a dry run on fresh hosts: %v", err)
	}
}

func TestK3sVariants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ more, want, not string }{
		"an etcd of the user's": {
			"etcd: {type: provided, endpoints: ['https://10.9.0.1:2379', 'https://10.9.0.2:2379'], ca: ca, cert: cert, key: key}",
			"datastore-endpoint: https://10.9.0.1:2379,https://10.9.0.2:2379\n", "cluster-init",
		},
		"another network":            {"cni: {type: none}", "flannel-backend: none\n", "flannel-iface"},
		"what k3s brings":            {"metrics: true\nstorage: {local: true}", "disable:\n- traefik\n- servicelb\ndisable-default", "metrics-server"},
		"a balancer's endpoint":      {"controlPlaneEndpoint: {type: external, address: 'api.example:8443'}", "tls-san:\n- api.example\n", "10.0.0.4"},
		"no registry":                {"imageRegistry: {type: none}", "cluster-init: true", "registries"},
		"parts of the pods' network": {"cni: {ipv4MaskSize: 25}", "kube-controller-manager-arg:\n- node-cidr-mask-size-ipv4=25\n", "ipv6"},
		"a DNS cache":                {"dns: {nodeLocal: true}", "- max-pods=110\nnode-ip", kube.NodeDNSAddress},
		"a DNS cache of pods":        {"dns: {nodeLocal: true}\nkubernetes: {distribution: k3s, version: v1.34.3+k3s1, proxyMode: ipvs}", "- cluster-dns=" + kube.NodeDNSAddress + "\n", "iptables"},
		"a network below multus":     {"cni: {type: multus, with: flannel}", "flannel-backend: none\n", "flannel-iface"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := newK3sSite(t, c.more)
			s.options.Values = func(path string) ([]byte, error) { return []byte(path), nil }
			d, err := k3s.Setting(t.Context(), s.run(t, b).Hosts[0], k3s.Unit(true))
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, f := range d.Files {
				fmt.Fprintf(&all, "%s\n%s", f.Path, f.Data)
			}
			if text := all.String(); !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
				t.Errorf("want %q and not %q in\n%s", c.want, c.not, text)
			}
		})
	}
}

// An upgrade keeps the files of the cluster's runtime, and a failure collects its logs.
func TestRuntimeIsKeptAndAsked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ files, logs []string }{
		"containerd": {[]string{cri.ContainerdConfigFile, "/etc/systemd/system/containerd.service"}, []string{"kubelet", "containerd"}},
		"docker":     {[]string{cri.DockerConfig, "/etc/systemd/system/docker.service", "/etc/systemd/system/cri-docker.service"}, []string{"kubelet", "docker", "cri-docker"}},
		"crio":       {[]string{cri.CRIOConfigFile, "/etc/systemd/system/crio.service"}, []string{"kubelet", "crio"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1")
			s.options.Cluster = tasktest.Cluster(t, "cri: {type: "+name+"}")
			target, h := s.run(t, nil).Hosts[0], s.hosts["cp1"]
			for _, file := range c.files {
				h.put(t, file, "before "+file)
			}
			if err := keepTask(s.options.Cluster).Do(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			kept := h.tree(t)
			for _, file := range c.files {
				if !strings.Contains(kept, kubeadm.UpgradeBackupDir+file+" ") {
					t.Errorf("%s is not kept:\n%s", file, kept)
				}
			}
			h.said("")
			failed := diagnose.Explain(t.Context(), target, time.Now(), &host.ExitError{Host: "cp1", Args: []string{"kubeadm"}, Code: 1})
			if failed == nil {
				t.Fatal("the failure is gone")
			}
			asked := strings.Join(h.said("journalctl"), "\n")
			for _, unit := range c.logs {
				if !strings.Contains(asked, "--unit="+unit+" ") {
					t.Errorf("%s is not asked for:\n%s", unit, asked)
				}
			}
			if n := strings.Count(asked, "--unit="); n != len(c.logs) {
				t.Errorf("%d logs, want %q:\n%s", n, c.logs, asked)
			}
		})
	}
}
