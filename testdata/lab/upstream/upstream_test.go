package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

const asset = "/github.com/o/p/releases/download/v1/p.tgz"

// start serves one image, registry.k8s.io/pause:1, and two files.
func start(t *testing.T, small bool) *Server {
	t.Helper()
	content := t.TempDir()
	seed, err := registrytest.New(registrytest.Options{Dir: filepath.Join(content, "registry")})
	if err != nil {
		t.Fatal(err)
	}
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(seed.Host+"/registry.k8s.io/pause:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(remote.Write(tag, img), seed.Close()); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{asset: "0123456789", "/dl.k8s.io/release/v1/kubeadm": "kubeadm"} {
		to := filepath.Join(content, "files", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Start(Options{Content: content, State: t.TempDir(), Small: small})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := start(t, false)
	client := &http.Client{Transport: s.registry.Transport()}
	for _, c := range []struct {
		path, ranges, want string
		status             int
	}{
		{"/dl.k8s.io/release/v1/kubeadm", "", "kubeadm", 200},
		{"/dl.k8s.io/release/v1/kubeadm", "bytes=4-", "adm", 206},
		{"/dl.k8s.io/release/v1/kubeadm", "bytes=7-", "", 416},
		{asset, "bytes=2-3", "23", 206}, // by way of a redirect
		{"/" + assets + "/o/p/releases/download/v1/p.tgz", "", "", 403},
		{"/dl.k8s.io/release/v1", "", "", 404},
		{"/nowhere.example/x", "", "", 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.Addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.ranges != "" {
			req.Header.Set("Range", c.ranges)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.status || c.status < 300 && (string(body) != c.want || resp.Header.Get("ETag") == "") {
			t.Errorf("%s %s: %s %q %v; want %d %q and an ETag", c.path, c.ranges, resp.Status, body, resp.Header,
				c.status, c.want)
		}
	}
	got, err := s.Requests()
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{"GET", "/dl.k8s.io/release/v1/kubeadm", 200, 7, ""},
		{"GET", "/dl.k8s.io/release/v1/kubeadm", 206, 3, "bytes=4-"},
	}
	if diff := cmp.Diff(want, got[:2]); diff != "" {
		t.Errorf("log (-want +got)\n%s", diff)
	}
}

// TestRegistry pulls with nothing but what is in the state directory.
func TestRegistry(t *testing.T) {
	t.Parallel()
	s := start(t, false)
	ref, err := name.ParseReference(s.Addr + "/registry.k8s.io/pause:1")
	if err != nil {
		t.Fatal(err)
	}
	with := func(a authn.Authenticator) error {
		_, err := remote.Image(ref, remote.WithAuth(a), remote.WithTransport(s.registry.Transport()),
			remote.WithContext(t.Context()))
		return err
	}
	if err := with(authn.Anonymous); err == nil {
		t.Error("the registry let an unknown client in")
	}
	data, err := os.ReadFile(filepath.Join(s.State, "docker", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Auths map[string]authn.AuthConfig }
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	if err := with(authn.FromConfig(config.Auths[s.Addr])); err != nil {
		t.Error(err)
	}
}

// TestManifests holds that kkbundle understands what is written for it.
func TestManifests(t *testing.T) {
	t.Parallel()
	for _, small := range []bool{false, true} {
		s := start(t, small)
		data, err := os.ReadFile(filepath.Join(s.State, "manifest.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := manifest.ParseBundle("manifest.yaml", data)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%s/registry.k8s.io", s.Addr); b.Sources[0].Mirrors[0] != want {
			t.Errorf("mirror %q, want %q", b.Sources[0].Mirrors[0], want)
		}
		if _, err := os.Stat(filepath.Join(s.State, b.Sources[0].CA)); err != nil {
			t.Error(err)
		}
		if small {
			continue
		}
		data, err = os.ReadFile(filepath.Join(s.State, b.Cluster))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manifest.ParseCluster("cluster.yaml", data); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(data), "failCgroupV1: false") {
			t.Error("kubelet would refuse the lab's cgroups")
		}
	}
}
