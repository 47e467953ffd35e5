//go:build linux

package begin

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// mixedBundle has what a cluster needs for both architectures; programs say for which they are. The image of one
// component is there for amd64 only.
func mixedBundle(t *testing.T, c *manifest.Cluster, amd64Only string) *bundle.Reader {
	t.Helper()
	return mixedBuilder(t, c, amd64Only).Bundle().Reader
}

func mixedBuilder(t *testing.T, c *manifest.Cluster, amd64Only string) *bundletest.Builder {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Platforms = []string{"linux/amd64", "linux/arm64"}
	for i, need := range plan.Needs(c) {
		for _, arch := range []string{"amd64", "arm64"} {
			refs, err := catalog.Refs(c, need, "linux/"+arch)
			if err != nil {
				t.Fatal(err)
			}
			for j, ref := range refs {
				switch {
				case need.Kind == manifest.ItemFile:
					content := sitetest.FileContent(t, c, need.Name)
					if strings.HasPrefix(string(content), "#!") {
						content = append(content, "# "+arch+"\n"...)
					}
					b.File(ref, need.Name, &ocispec.Platform{OS: "linux", Architecture: arch}, content)
				case arch == "arm64": // it has been put in with amd64
				case need.Kind == manifest.ItemImage:
					var choose []func(v1.Descriptor) bool
					if need.Name == amd64Only {
						choose = append(choose, func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
					}
					b.ImageIndex(ref, bundletest.MultiImage(t, int64(10000*i+10*j+1)), choose...)
				default:
					b.Chart(ref, need.Name, "1.0.0", bundletest.ChartArchive(t, need.Name, "1.0.0"))
				}
			}
		}
	}
	b.Chart("https://charts.example/stable/demo:0.1.0", "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	return b
}

// TestMixedArchitectures has an amd64 control plane and an arm64 worker: each gets its own programs and its own images.
func TestMixedArchitectures(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, mixedBundle(t, s.Options.Cluster, ""))
	r.Hosts[1].Arch = "arm64"
	if err := CheckBundle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := r.Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.KubeletTask(r.Cluster)}}}); err != nil {
		t.Fatal(err)
	}
	sent := map[string][]string{} // host: the digests of images' manifests
	for name, arch := range map[string]string{"cp1": "amd64", "node1": "arm64"} {
		if got := s.Hosts[name].Content("/usr/local/bin/kubelet"); !strings.HasSuffix(got, "# "+arch+"\n") {
			t.Errorf("%s has %q", name, got)
		}
		target := r.HostNamed(name)
		images, err := cri.Images(t.Context(), target)
		if err != nil || len(images) == 0 {
			t.Fatalf("%s: %d images, %v", name, len(images), err)
		}
		for _, it := range images {
			one, err := cri.PlatformImage(t.Context(), target, it.Item)
			if err != nil || one.Descriptor.Platform.Architecture != arch || len(it.Absent) != 1 ||
				it.Absent[0] == one.Descriptor.Digest {
				t.Errorf("%s: %s is for %v, without %v: %v", name, it.Ref, one.Descriptor.Platform, it.Absent, err)
			}
		}
		sent[name] = preloadCommands(t, s.Hosts[name], target, images)
	}
	for name, arch := range map[string]string{"cp1": "amd64", "node1": "arm64"} {
		if !slices.ContainsFunc(sent[name],
			func(line string) bool { return strings.Contains(line, "import --platform=linux/"+arch+" ") }) {
			t.Errorf("%s was told %q", name, sent[name])
		}
	}
}

// preloadCommands gives a host images and returns what its containerd was told.
func preloadCommands(t *testing.T, h *sitetest.Rooted, target *task.Host, images []cri.NodeImage) []string {
	t.Helper()
	var mu sync.Mutex
	var lines []string
	h.Answer("ctr", func(_ context.Context, cmd host.Cmd) error {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, strings.Join(cmd.Args, " "))
		if cmd.Stdin == nil {
			return nil
		}
		_, err := io.Copy(io.Discard, cmd.Stdin)
		return err
	})
	if err := (cri.ContainerdImages{Ctr: []string{"ctr"}}).Put(t.Context(), target, images, task.Event{}); err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestMixedBundleLacksPlatform refuses a bundle that has an image for another architecture only: nodes would find
// that out when they pull it.
func TestMixedBundleLacksPlatform(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, mixedBundle(t, s.Options.Cluster, "pause"))
	if err := CheckBundle(t.Context(), r); err != nil {
		t.Errorf("all hosts are amd64: %v", err)
	}
	r.Hosts[1].Arch = "arm64"
	err := CheckBundle(t.Context(), r)
	var missing *task.MissingError
	if !errors.As(err, &missing) ||
		!strings.HasPrefix(err.Error(), "the bundle lacks the image pause (registry.k8s.io/pause:") ||
		!strings.HasSuffix(err.Error(), " for linux/arm64") {
		t.Errorf("got %v", err)
	}
}

// TestBundleLacksArchitecture has hosts for which the bundle was not built: one sentence names them, instead of one
// for each item.
func TestBundleLacksArchitecture(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	b := mixedBuilder(t, s.Options.Cluster, "")
	b.Index.Platforms = []string{"linux/amd64"}
	r := s.Run(t, b.Bundle().Reader)
	if err := CheckBundle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.Hosts[1].Arch, r.Hosts[2].Arch = "arm64", "arm64"
	err := CheckBundle(t.Context(), r)
	const want = "the bundle has nothing for arm64, the architecture of node1, node2: it was built for amd64"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	lacking, ok := errors.AsType[*ArchitectureError](err)
	if !ok || !strings.Contains(lacking.Hint(), "linux/arm64") {
		t.Errorf("the remedy does not name the platform: %v", err)
	}
}

// TestMixedBundleLacksPlatformOfOwnImages warns of the operator's images that cannot run on a node: an index without
// its architecture, and an image without an index of which the build says so. The cluster's own image of that kind is
// an error.
func TestMixedBundleLacksPlatformOfOwnImages(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	b := mixedBuilder(t, s.Options.Cluster, "")
	const first, last = 70001, 70003
	b.ImageIndex("docker.io/acme/both:1", bundletest.MultiImage(t, first))
	b.ImageIndex("docker.io/acme/some:1", bundletest.MultiImage(t, first+1),
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	b.Image("docker.io/acme/one:1", bundletest.RandomImage(t, last, 1, 100))
	lacks := &b.Index.Items[len(b.Index.Items)-1].Descriptor
	lacks.Annotations = map[string]string{bundle.AnnotationLacks: "linux/arm64"}
	r := s.Run(t, b.Bundle().Reader)
	for arch, want := range map[string][]string{
		"amd64": nil,
		"arm64": {"docker.io/acme/one:1", "docker.io/acme/some:1"},
	} {
		r.Hosts[1].Arch = arch
		in, err := input(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(slices.Values(in.Lacking[arch])); !slices.Equal(got, want) {
			t.Errorf("node1 has %s: got %q, want %q", arch, got, want)
		}
	}
	r.Hosts[1].Arch = "arm64"
	if err := CheckBundle(t.Context(), r); err != nil {
		t.Errorf("the operator's images are no error: %v", err)
	}
	i := slices.IndexFunc(r.Items, func(it bundle.Item) bool {
		return it.Kind == bundle.KindImage && strings.HasPrefix(it.Ref, "registry.k8s.io/pause:")
	})
	r.Items[i].Descriptor.Annotations = map[string]string{bundle.AnnotationLacks: "linux/arm64"}
	if err := CheckBundle(t.Context(), r); !errors.As(err, new(*task.MissingError)) {
		t.Errorf("an image of the cluster that the build did not get for arm64: got %v", err)
	}
}
