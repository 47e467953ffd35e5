package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const preloadName = "preload-images"

// preloads tells whether nodes are given their images, instead of pulling them: where there is no registry, and with
// Docker, which takes no other registry for an upstream's names than the upstream (mirrors are for Docker Hub only).
func preloads(c *manifest.Cluster) bool {
	return c.ImageRegistry.Type == manifest.RegistryNone || UsesDocker(c)
}

// PreloadTasks give the nodes of such a cluster their images.
func PreloadTasks(c *manifest.Cluster) []task.Task {
	if !preloads(c) {
		return nil
	}
	return []task.Task{preloadTask()}
}

// PreloadPart keeps the kubelet from deleting images that it could not pull again, where the runtime cannot: at 100 % of a
// full disk it never begins (kubelet's ImageGCHighThresholdPercent). containerd's are pinned instead.
func PreloadPart(r *task.Site) task.KubeadmPart {
	if !UsesDocker(r.Cluster) {
		return task.KubeadmPart{}
	}
	const never = 100
	return task.KubeadmPart{Kubelet: kube.Document{"imageGCHighThresholdPercent": never}}
}

// An imageStore gives images to a runtime that does not pull them.
type imageStore interface {
	// lacks returns those of the images that the runtime does not have, by name and digest.
	lacks(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error)
	// put streams images of the bundle into the runtime.
	Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error
}

// A NodeImage is an image of the bundle as a node needs it: for its platform only.
type NodeImage struct {
	bundle.Item
	// names are what pods call it: with the tag, with the digest, or both.
	names []string
}

// preloadTask puts the images of each host's roles into its runtime. They are looked up by digest before and after, so what
// a host has is not sent again.
func preloadTask() task.Task {
	return task.Task{
		Name:        preloadName,
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			lacking, err := lackingImages(ctx, t)
			if t.Site.DryRun && errors.As(err, new(*host.ExitError)) {
				return false, nil // there is no runtime yet
			}
			return err == nil && len(lacking) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			lacking, err := lackingImages(ctx, t)
			if err != nil {
				return err
			}
			for _, it := range lacking {
				t.Site.NoteOpened(ctx, t.Name, it.Kind+" "+it.Ref)
			}
			e := task.Event{Phase: "install", Task: preloadName, Host: t.Name, State: task.Progress}
			if err := RuntimeOf(t.Site.Cluster).images.Put(ctx, t, lacking, e); err != nil {
				return err
			}
			if lacking, err = lackingImages(ctx, t); err != nil || len(lacking) == 0 {
				return err
			}
			return fmt.Errorf("the runtime took the images and does not have %s", lacking[0].Ref)
		},
	}
}

func lackingImages(ctx context.Context, t *task.Host) ([]NodeImage, error) {
	images, err := Images(ctx, t)
	if err != nil {
		return nil, err
	}
	return RuntimeOf(t.Site.Cluster).images.lacks(ctx, t, images)
}

// Images returns the Images of the bundle that the host needs: those of the tasks for its roles, and those that no task
// declares, of addons for one, whose pods may run on every node.
func Images(ctx context.Context, t *task.Host) ([]NodeImage, error) {
	roles, err := imageRoles(t.Site)
	if err != nil {
		return nil, err
	}
	wanted := task.ForArch(t.Arch)
	var list []NodeImage
	for _, it := range t.Site.Items {
		needed, declared := roles[it.Ref]
		if it.Kind != bundle.KindImage || declared && !slices.ContainsFunc(needed, t.Is) {
			continue
		}
		it, some, err := t.Site.Bundle.Narrow(ctx, it, wanted)
		if err != nil {
			return nil, err
		}
		if some {
			list = append(list, NodeImage{it, imageNames(it)})
		}
	}
	return list, nil
}

// imageRoles returns, by reference, the roles of the hosts that need the images which tasks declare.
func imageRoles(r *task.Site) (map[string][]manifest.Role, error) {
	roles := map[string][]manifest.Role{}
	for _, d := range r.Demands {
		if d.Kind != manifest.ItemImage {
			continue
		}
		refs, err := catalog.Refs(r.Cluster, d.Need, "")
		if err != nil {
			return nil, err
		}
		for _, ref := range refs {
			roles[ref] = append(roles[ref], d.Roles...)
		}
	}
	return roles, nil
}

// imageNames are the names that an image's reference stands for. With a tag and a digest the kubelet asks for the digest.
func imageNames(it bundle.Item) []string {
	name, sum, pinned := strings.Cut(it.Ref, "@")
	repository := name
	var names []string
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		repository, names = name[:i], []string{name}
	}
	if pinned {
		names = append(names, repository+"@"+sum)
	}
	return names
}

// stream runs a command that reads what write writes, and tells how far it is.
func stream(ctx context.Context, t *task.Host, e task.Event, write func(ctx context.Context, w io.Writer) error, args ...string) error {
	r, w := io.Pipe()
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := write(inner, w)
		_ = w.CloseWithError(err) // nil is the end; it never fails
		if errors.Is(err, errStreamEnded) {
			return nil // the command says why
		}
		return err
	})
	err := t.Conn.Run(inner, host.Cmd{Args: args, Stdin: &task.MeteredReader{ReadCloser: r, Site: t.Site, Event: &e}})
	_ = r.CloseWithError(errStreamEnded)
	if written := group.Wait(); written != nil {
		return written // the bundle could not be read: of that, the command only has the half of an archive
	}
	return err
}

var errStreamEnded = errors.New("the host reads no more")

// ContainerdImages gives images to containerd, in the kubelet's namespace.
type ContainerdImages struct {
	Ctr []string // the command
}

// PinnedLabel keeps the kubelet from deleting an image when the disk fills: nothing could bring it back.
// https://github.com/containerd/containerd/blob/v2.1.4/internal/cri/labels/labels.go
const PinnedLabel = "io.cri-containerd.pinned=pinned"

func (c ContainerdImages) command(args ...string) []string {
	return slices.Concat(c.Ctr, []string{"--namespace=k8s.io"}, args)
}

// held returns the digests of images by name, and which of them are pinned.
func (c ContainerdImages) held(ctx context.Context, t *task.Host) (digests map[string]string, pinned map[string]bool, err error) {
	out, err := t.Output(task.WithoutOutput(ctx), c.command("images", "list")...)
	if err != nil {
		return nil, nil, err
	}
	digests, pinned = map[string]string{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "sha256:") })
		if i > 0 {
			digests[fields[0]] = fields[i]
			pinned[fields[0]] = slices.Contains(strings.Split(fields[len(fields)-1], ","), PinnedLabel)
		}
	}
	return digests, pinned, nil
}

func (c ContainerdImages) lacks(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error) {
	digests, pinned, err := c.held(ctx, t)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(images), func(it NodeImage) bool {
		return !slices.ContainsFunc(it.names, func(name string) bool {
			return digests[name] != it.Descriptor.Digest.String() || !pinned[name]
		})
	}), nil
}

// Put sends one archive of all images, without the blobs that an interrupted run has brought already: those stay for a day
// (ctr's lease). containerd checks every blob against its digest.
func (c ContainerdImages) Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error {
	digests, pinned, err := c.held(ctx, t)
	if err != nil {
		return err
	}
	var items []bundle.Item
	var names []string
	for _, it := range images {
		for _, name := range it.names {
			if digests[name] != it.Descriptor.Digest.String() {
				one := it.Item
				one.Ref = name
				items = append(items, one)
			}
			if digests[name] != it.Descriptor.Digest.String() || !pinned[name] {
				names = append(names, name)
			}
		}
	}
	if len(items) > 0 {
		if err := c.send(ctx, t, items, e); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := t.Run(ctx, c.command("images", "label", name, PinnedLabel)...); err != nil {
			return err
		}
	}
	return nil
}

func (c ContainerdImages) send(ctx context.Context, t *task.Host, items []bundle.Item, e task.Event) error {
	out, err := t.Output(task.WithoutOutput(ctx), c.command("content", "list", "--quiet")...)
	if err != nil {
		return err
	}
	has := map[digest.Digest]bool{}
	for _, d := range strings.Fields(string(out)) {
		has[digest.Digest(d)] = true
	}
	args := c.command("images", "import", "--platform=linux/"+t.Arch)
	local, err := c.local(ctx, t)
	if err != nil {
		return err
	}
	if local {
		args = append(args, "--local")
	}
	return stream(ctx, t, e, func(ctx context.Context, w io.Writer) error {
		return t.Site.Bundle.WriteMissing(ctx, w, items, func(d digest.Digest) bool { return has[d] })
	}, append(args, "-")...)
}

// local tells whether ctr has to be told to import by itself, as it has done before 1.7: containerd's transfer service wants
// every image of an index.
func (c ContainerdImages) local(ctx context.Context, t *task.Host) (bool, error) {
	help, err := t.Output(task.WithoutOutput(ctx), c.command("images", "import", "--help")...)
	return strings.Contains(string(help), "--local"), err
}

// dockerImages gives images to Docker.
type dockerImages struct{}

func (dockerImages) lacks(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error) {
	out, err := t.Output(task.WithoutOutput(ctx), "docker", "image", "list", "--no-trunc", "--format={{.Repository}}:{{.Tag}} {{.ID}}")
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, id, ok := strings.Cut(strings.TrimSpace(line), " ")
		if full, err := manifest.ImageName(name); ok && err == nil { // it also lists images without a name
			ids[full] = id
		}
	}
	var lacking []NodeImage
	for _, it := range images {
		one, err := PlatformImage(ctx, t, it.Item)
		if err != nil {
			return nil, err
		}
		config, err := configOf(ctx, t.Site, one.Descriptor.Digest)
		if err != nil {
			return nil, err
		}
		name, err := dockerName(it)
		if err != nil {
			return nil, err
		}
		// What Docker calls an image's ID is the digest of its configuration, or with containerd's image store that of its manifest.
		if id := ids[name]; id != config.String() && id != one.Descriptor.Digest.String() {
			lacking = append(lacking, it)
		}
	}
	return lacking, nil
}

// dockerName returns the tag that an image is loaded under.
func dockerName(it NodeImage) (string, error) {
	if name := it.names[0]; !strings.Contains(name, "@") {
		return name, nil
	}
	return "", fmt.Errorf("%s has no tag, and Docker takes images without one from registries only: give it a tag in the manifest, or use containerd", it.Ref)
}

func (dockerImages) Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error {
	for _, it := range images {
		one, err := PlatformImage(ctx, t, it.Item)
		if err != nil {
			return err
		}
		if err := stream(ctx, t, e, func(ctx context.Context, w io.Writer) error {
			return t.Site.Bundle.WriteDockerArchive(ctx, w, one)
		}, "docker", "load", "--quiet"); err != nil {
			return err
		}
	}
	return nil
}

// PlatformImage returns the image for the host's platform.
func PlatformImage(ctx context.Context, t *task.Host, it bundle.Item) (bundle.Item, error) {
	return t.Site.Bundle.ForPlatform(ctx, it, task.ForArch(t.Arch))
}

// configOf returns the digest of an image's configuration.
func configOf(ctx context.Context, r *task.Site, image digest.Digest) (digest.Digest, error) {
	data, err := r.Bundle.ReadBlob(ctx, image, task.MaxManifest)
	if err != nil {
		return "", err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("manifest %s: %w", image, err)
	}
	return m.Config.Digest, nil
}
