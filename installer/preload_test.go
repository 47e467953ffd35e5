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
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// A fakeContainerd stands for ctr and containerd's stores on a host: it reads the archives that it is given, checks
// blobs against their digests as containerd does, and needs all of an image for its platform. The lab has a real one
// (TestPreload).
type fakeContainerd struct {
	mu     sync.Mutex
	blobs  map[string][]byte
	images map[string]string // name to digest
	pinned map[string]bool
	got    []string // digests that were sent
	fail   bool     // the import ends after half of the blobs
}

func newFakeContainerd(h *sitetest.Rooted, prefix ...string) *fakeContainerd {
	f := &fakeContainerd{blobs: map[string][]byte{}, images: map[string]string{}, pinned: map[string]bool{}}
	before := len(prefix) - 1
	h.Answer(prefix[0], func(_ context.Context, cmd host.Cmd) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if before > 0 && cmd.Args[1] != prefix[1] {
			return nil
		}
		if err := f.run(cmd, cmd.Args[before+2:]); err != nil {
			return &host.ExitError{Host: h.Name, Args: cmd.Args, Code: 1, Stderr: err.Error()}
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
			fmt.Fprintf(cmd.Stdout, "%s application/vnd.oci.image.index.v1+json %s 1.2 MiB linux/amd64 %s\n", name,
				digest, label)
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

// preloadBundle has a cluster's images, and three that no task knows: one for two platforms, one by its digest, and
// both.
func preloadBundle(t *testing.T, c *manifest.Cluster) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for i, need := range plan.Needs(c) {
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
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: none}")
	b := preloadBundle(t, s.Options.Cluster)
	stores := map[string]*fakeContainerd{}
	for name, h := range s.Hosts {
		stores[name] = newFakeContainerd(h, "ctr")
	}
	phases := []task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.Options.Cluster)}}
	run := func() error { return s.Run(t, b).Phases(t.Context(), phases) }

	// The stream to the worker ends in the middle: the next run brings the missing images only.
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
	s.States()

	has := func(name, part string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(stores[name].images)),
			func(ref string) bool { return strings.HasPrefix(ref, part) })
	}
	for part, hosts := range map[string][2]bool{
		"registry.k8s.io/kube-apiserver:": {true, false}, "registry.k8s.io/kube-proxy:": {true, true},
		"registry.k8s.io/coredns/coredns:": {true, true}, "docker.io/shop/app:1": {true, true},
		"docker.io/shop/app@sha256:": {true, true}, "docker.io/shop/db:2": {true, true},
		"docker.io/shop/db@sha256:": {true, true},
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
	if got := strings.Join(s.States(), ", "); got != "preload-images@cp1 done, preload-images@node1 done" {
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
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "imageRegistry: {type: none}")
	s.Hosts["cp1"].Answer("ctr", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Stdin != nil {
			_, err := io.Copy(io.Discard, cmd.Stdin)
			return err
		}
		return nil
	})
	err := s.Run(t, preloadBundle(t, s.Options.Cluster)).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.Options.Cluster)}})
	if err == nil || !strings.Contains(err.Error(), "the runtime loaded the images, but lacks ") {
		t.Errorf("got %v", err)
	}
}

// Docker gets one archive for each image, as docker load reads it. The program is a stand-in.
func TestPreloadDocker(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "cri: {type: docker}")
	b := bundletest.NewBuilder(t)
	b.Image("docker.io/library/web:1", bundletest.RandomImage(t, 1, 1, 1000))
	b.Image("docker.io/shop/app:1", bundletest.RandomImage(t, 2, 1, 1000))
	ids := map[string]string{}
	loads := 0
	s.Hosts["cp1"].Answer("docker", func(_ context.Context, cmd host.Cmd) error {
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
			// as Docker shows it
			name := strings.TrimPrefix(strings.TrimPrefix(images[0].RepoTags[0], "docker.io/"), "library/")
			ids[name] = "sha256:" + strings.TrimPrefix(images[0].Config, "blobs/sha256/")
		}
	})
	phases := []task.Phase{{Name: "install", Tasks: cri.PreloadTasks(s.Options.Cluster)}}
	reader := b.Bundle().Reader
	for range 2 {
		if err := s.Run(t, reader).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(ids)), []string{"shop/app:1", "web:1"}); diff != "" || loads != 2 {
		t.Errorf("%d loads of (-got +want):\n%s", loads, diff)
	}
}
