package mirror_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/registry/mirror"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestContainerdAsksPeers has a real containerd take content from a peer, with its login, and the meaning of a tag from
// the registry alone: the peer has another image under the tag. What the peer lacks comes from the registry.
func TestContainerdAsksPeers(t *testing.T) {
	t.Parallel()
	ctr := startContainerd(t)
	site := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	peer := registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthBasic})
	shared, alone, old := image(t), image(t), image(t)
	push(t, site, "registry.k8s.io/shared:1", shared)
	push(t, site, "registry.k8s.io/alone:1", alone)
	push(t, peer, "shared:of-nodes", shared)
	push(t, peer, "shared:1", old)
	push(t, peer, "alone:1", old)
	const tag = "/manifests/1$"
	pushed := peer.Count("", tag)
	ca, err := os.ReadFile(site.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	r := mirror.Registry{
		Host: site.Host, Username: site.Username, Password: site.Password,
		Peers: []mirror.Peer{
			{URL: "http://127.0.0.1:1"}, // a node whose pod does not run
			{URL: "http://" + peer.Host, Username: peer.Username, Password: peer.Password},
		},
	}
	authority := filepath.Join(root, "ca.crt")
	if err := os.WriteFile(authority, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	pull := pullBy(t, ctr, root, mirror.Hosts(r, []string{"registry.k8s.io"}, authority))
	for ref, img := range map[string]v1.Image{"registry.k8s.io/shared:1": shared, "registry.k8s.io/alone:1": alone} {
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		pulled(t, ctr, digest, append(pull, ref)...)
	}
	const blobs = "/blobs/sha256:"
	if n := site.Count("GET", "^/v2/registry.k8s.io/shared"+blobs); n != 0 {
		t.Errorf("the registry has sent %d blobs that the peer has", n)
	}
	if peer.Count("GET", "^/v2/shared"+blobs) == 0 || site.Count("GET", "^/v2/registry.k8s.io/alone"+blobs) == 0 {
		t.Error("nothing came from the peer, or nothing from the registry")
	}
	if n := peer.Count("", tag); n != pushed {
		t.Errorf("the peer was asked %d times what a tag is", n-pushed)
	}
}

// A real containerd asks the first of a registry's hosts for tags and content, the next one if that is away or lacks
// an image, and the shared address last.
func TestContainerdAsksReplicas(t *testing.T) {
	t.Parallel()
	ctr := startContainerd(t)
	start := func() *registrytest.Server { return registrytest.Start(t, registrytest.Options{}) }
	first, second, shared := start(), start(), start()
	all, late := image(t), image(t)
	for _, s := range []*registrytest.Server{first, second, shared} {
		push(t, s, "registry.k8s.io/all:1", all)
	}
	push(t, second, "registry.k8s.io/late:1", late) // it was pushed to one host only
	r := mirror.Registry{
		Host: shared.Host, PlainHTTP: true,
		Replicas: []string{"127.0.0.1:1", first.Host, second.Host}, // a host that is away
	}
	pull := pullBy(t, ctr, t.TempDir(), mirror.Hosts(r, []string{"registry.k8s.io"}, ""))
	const asked = "^/v2/registry.k8s.io/all/(blobs|manifests)/"
	before := [2]int{second.Count("GET", asked), shared.Count("GET", asked)}
	for ref, img := range map[string]v1.Image{"registry.k8s.io/all:1": all, "registry.k8s.io/late:1": late} {
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		pulled(t, ctr, digest, append(pull, ref)...)
	}
	if first.Count("GET", "^/v2/registry.k8s.io/all/blobs/") == 0 {
		t.Error("the first host that answers has sent nothing")
	}
	if after := [2]int{second.Count("GET", asked), shared.Count("GET", asked)}; after != before {
		t.Errorf("others were asked for an image that the first has: %v requests, before %v", after, before)
	}
}

// pullBy writes the directories below root, and returns ctr's arguments that pull by them.
func pullBy(t *testing.T, ctr func(args ...string) (string, error), root string, list []mirror.Host) []string {
	t.Helper()
	for _, h := range list {
		dir := filepath.Join(root, h.Name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"), h.TOML, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	pull := []string{"images", "pull", "--hosts-dir", root, "--snapshotter", "native"}
	if help, err := ctr("images", "pull", "--help"); err == nil && strings.Contains(help, "--local") {
		pull = append(pull, "--local")
	}
	return pull
}

// image returns an image that containerd runs here.
func image(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(1<<10, 2)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{
			OS: "linux", Architecture: runtime.GOARCH, RootFS: rootFS(t, img),
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func push(t *testing.T, s *registrytest.Server, path string, img v1.Image) {
	t.Helper()
	var options []name.Option
	if s.CAFile == "" {
		options = append(options, name.Insecure)
	}
	ref, err := name.NewTag(s.Host+"/"+path, options...)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(s.Transport()),
		remote.WithAuthFromKeychain(s.Keychain())); err != nil {
		t.Fatal(err)
	}
}
