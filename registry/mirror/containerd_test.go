package mirror_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/registry/mirror"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestContainerdPulls has a real containerd pull upstream's names from a registry with TLS and a login, by the files of
// Configure and nothing else.
func TestContainerdPulls(t *testing.T) {
	t.Parallel()
	ctr := startContainerd(t)
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	img := image(t)
	push(t, s, "site/registry.k8s.io/pause:3.10", img)
	push(t, s, "site/registry.lab_5000/team/app:1", img)
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	r := mirror.Registry{Host: s.Host, Prefix: "site", CA: ca, Username: s.Username, Password: s.Password}
	config, err := mirror.Configure(mirror.RuntimeContainerd, r, []string{"registry.k8s.io", "registry.lab:5000"})
	if err != nil {
		t.Fatal(err)
	}
	o := hostfile.Options{Root: root}
	changes, err := hostfile.Check(o, config.Files)
	if err == nil {
		err = hostfile.Apply(o, changes)
	}
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(root, "etc/containerd/certs.d")
	pull := []string{"images", "pull", "--hosts-dir", hosts, "--snapshotter", "native"}
	if help, err := ctr("images", "pull", "--help"); err == nil && strings.Contains(help, "--local") {
		// since 1.7; without it containerd unpacks with the snapshotter of its own configuration
		pull = append(pull, "--local")
	}
	for _, ref := range []string{"registry.k8s.io/pause:3.10", "registry.lab:5000/team/app:1", s.Host +
		"/site/registry.k8s.io/pause:3.10"} {
		pulled(t, ctr, digest, append(pull, ref)...)
	}
	// What the bundle had nothing of is looked for in the registry only.
	out, err := ctr(append(pull, "quay.io/none/app:1")...)
	if err == nil || !strings.Contains(out, "not found") {
		t.Errorf("an upstream that is not mirrored: %v\n%s", err, out)
	}
	if s.Count("", "^/v2/site/not-in-the-bundle/none/app/manifests/1$") == 0 {
		t.Error("the registry was not asked for it")
	}
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c.RootFS
}

// pulled pulls an image and compares its digest.
func pulled(t *testing.T, ctr func(args ...string) (string, error), want v1.Hash, args ...string) {
	t.Helper()
	out, err := ctr(args...)
	if err != nil {
		t.Errorf("%s: %v\n%s", args[len(args)-1], err, out)
		return
	}
	list, err := ctr("images", "list", "name=="+args[len(args)-1])
	if err != nil || !strings.Contains(list, want.String()) {
		t.Errorf("%s: %v\n%s", args[len(args)-1], err, list)
	}
}

// programs finds containerd and ctr: in PATH, or as the lab built them.
func programs(t *testing.T) (containerd, ctr string) {
	t.Helper()
	dirs := filepath.SplitList(os.Getenv("PATH"))
	dirs = append(dirs, "/usr/sbin", "/sbin")
	if cache, err := os.UserCacheDir(); err == nil {
		built, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "containerd-*"))
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, built...)
	}
	for _, dir := range dirs {
		containerd, ctr = filepath.Join(dir, "containerd"), filepath.Join(dir, "ctr")
		if exec.Command(containerd, "--version").Run() == nil && exec.Command(ctr, "--version").Run() == nil {
			return containerd, ctr
		}
	}
	t.Skip("containerd and ctr are not there: install Debian's containerd, or run make lab")
	return "", ""
}

// startContainerd runs containerd with directories of its own until the test ends, and returns its client.
func startContainerd(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containerd wants root")
	}
	containerd, ctr := programs(t)
	dir := t.TempDir() // short enough: a socket's path has room for 107 characters
	config := filepath.Join(dir, "config.toml")
	text := "version = 2\nroot = \"" + dir + "/root\"\nstate = \"" + dir +
		"/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.images\", " +
		"\"io.containerd.cri.v1.runtime\", \"io.containerd.internal.v1.opt\", \"io.containerd.nri.v1.nri\"]\n[grpc]\n  address = \"" + dir + "/s\"\n[ttrpc]\n  address = \"" + dir + "/t\"\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(containerd, "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // by the signal
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		_ = log.Close()
	})
	client := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), ctr, append([]string{"--address", dir + "/s"},
			args...)...).CombinedOutput()
		return string(out), err
	}
	for { // the test's time limit is the real one
		if _, err := os.Stat(dir + "/s"); err == nil {
			if _, err := client("version"); err == nil {
				return client
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		select {
		case <-ended:
			data, err := os.ReadFile(log.Name())
			t.Fatalf("containerd has ended: %v\n%s", err, data)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// nerdctl looks for registry.k8s.io in the directory registry.k8s.io:443, then in _default, and only then in
// registry.k8s.io (https://github.com/containerd/nerdctl/issues/3047).
func TestContainerdHostsOfNerdctl(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"quay.io": true, "registry.lab:5000": false, "[fd00::3]": true, "[fd00::3]:5000": false,
	} {
		servers := map[string]string{}
		for _, h := range mirror.Hosts(mirror.Registry{Host: host}, []string{"docker.io"}, "") {
			servers[h.Name] = string(h.TOML)
		}
		for name, with := range map[string]bool{host: want, "docker.io": true} {
			if got := servers[name+":443"]; (got != "") != with || with && got != servers[name] {
				t.Errorf("%s has with its port\n%s\nand without\n%s", name, got, servers[name])
			}
		}
	}
}
