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
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const preloadName = "preload-images"

// PreloadTasks returns the tasks that send images to nodes which cannot pull them: those without a registry, and those
// with Docker, which supports mirrors of Docker Hub only.
func PreloadTasks(c *manifest.Cluster) []task.Task {
	if c.ImageRegistry.Type != manifest.RegistryNone && !UsesDocker(c) {
		return nil
	}
	return []task.Task{preloadTask()}
}

// PreloadPart disables the kubelet's deletion of images with Docker, which could not pull them again: it never starts
// at a threshold of 100 % (imageGCHighThresholdPercent). containerd's images are pinned instead.
func PreloadPart(s *task.Site) task.KubeadmPart {
	if !UsesDocker(s.Cluster) {
		return task.KubeadmPart{}
	}
	const never = 100
	return task.KubeadmPart{Kubelet: kube.Document{"imageGCHighThresholdPercent": never}}
}

// An imageStore loads images into a runtime that cannot pull them.
type imageStore interface {
	// missing returns the images that the runtime lacks, by name and digest.
	missing(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error)
	// Put streams images of the bundle into the runtime.
	Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error
}

// A NodeImage is an image of the bundle, reduced to the node's platform.
type NodeImage struct {
	bundle.Item
	// names are those in pods: with the tag, with the digest, or both.
	names []string
}

// preloadTask loads the images for each host's roles. It compares digests before and after, so no image is sent twice.
func preloadTask() task.Task {
	return task.Task{
		Name:        preloadName,
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			missing, err := missingImages(ctx, t)
			if t.Site.DryRun && errors.As(err, new(*host.ExitError)) {
				return false, nil // the runtime is not installed yet
			}
			return err == nil && len(missing) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			missing, err := missingImages(ctx, t)
			if err != nil {
				return err
			}
			for _, it := range missing {
				t.Site.NoteOpened(ctx, t.Name, it.Kind+" "+it.Ref)
			}
			e := task.Event{Phase: "install", Task: preloadName, Host: t.Name, State: task.Progress}
			if err := RuntimeOf(t.Site.Cluster).images.Put(ctx, t, missing, e); err != nil {
				return err
			}
			if missing, err = missingImages(ctx, t); err != nil || len(missing) == 0 {
				return err
			}
			return fmt.Errorf("the runtime loaded the images, but lacks %s", missing[0].Ref)
		},
	}
}

func missingImages(ctx context.Context, t *task.Host) ([]NodeImage, error) {
	images, err := Images(ctx, t)
	if err != nil {
		return nil, err
	}
	return RuntimeOf(t.Site.Cluster).images.missing(ctx, t, images)
}

// Images returns the bundle's images for the host: those that its roles' tasks declare, and undeclared ones, such as
// addons', whose pods may run on every node.
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

// imageRoles returns the roles that need each declared image, by its reference.
func imageRoles(s *task.Site) (map[string][]manifest.Role, error) {
	roles := map[string][]manifest.Role{}
	for _, d := range s.Demands {
		if d.Kind != manifest.ItemImage {
			continue
		}
		refs, err := catalog.Refs(s.Cluster, d.Need, "")
		if err != nil {
			return nil, err
		}
		for _, ref := range refs {
			roles[ref] = append(roles[ref], d.Roles...)
		}
	}
	return roles, nil
}

// imageNames returns the names of an image's reference. With a tag and a digest, the kubelet asks for the digest.
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

// stream runs a command with write's output as its input, and reports progress.
func stream(ctx context.Context, t *task.Host, e task.Event, write func(ctx context.Context, w io.Writer) error,
	args ...string,
) error {
	r, w := io.Pipe()
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := write(inner, w)
		_ = w.CloseWithError(err) // nil means EOF; the call never fails
		if errors.Is(err, errStreamEnded) {
			return nil // the command's error is the cause
		}
		return err
	})
	err := t.Conn.Run(inner, host.Cmd{Args: args, Stdin: &task.MeteredReader{ReadCloser: r, Site: t.Site, Event: &e}})
	_ = r.CloseWithError(errStreamEnded)
	if written := group.Wait(); written != nil {
		return written // the cause: after a read error of the bundle, the command received a truncated archive
	}
	return err
}

var errStreamEnded = errors.New("the host ended the transfer")

// ContainerdImages loads images into containerd, in the kubelet's namespace.
type ContainerdImages struct {
	Ctr []string // the command
}

// PinnedLabel protects an image from the kubelet's deletion when the disk fills: it could not be pulled again.
// https://github.com/containerd/containerd/blob/v2.1.4/internal/cri/labels/labels.go
const PinnedLabel = "io.cri-containerd.pinned=pinned"

func (c ContainerdImages) command(args ...string) []string {
	return slices.Concat(c.Ctr, []string{"--namespace=k8s.io"}, args)
}

// list returns the digests of containerd's images by name, and the names that are pinned.
func (c ContainerdImages) list(ctx context.Context,
	t *task.Host,
) (digests map[string]string, pinned map[string]bool, err error) {
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

func (c ContainerdImages) missing(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error) {
	digests, pinned, err := c.list(ctx, t)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(images), func(it NodeImage) bool {
		return !slices.ContainsFunc(it.names, func(name string) bool {
			return digests[name] != it.Descriptor.Digest.String() || !pinned[name]
		})
	}), nil
}

// Put sends all images as one archive, without blobs of an interrupted run, which ctr's lease keeps for a day.
// containerd checks every blob against its digest.
func (c ContainerdImages) Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error {
	digests, pinned, err := c.list(ctx, t)
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
	local, err := c.hasLocal(ctx, t)
	if err != nil {
		return err
	}
	if local {
		args = append(args, "--local")
	}
	return stream(ctx, t, e, func(ctx context.Context, w io.Writer) error {
		return ocilayout.ArchiveMissing(ctx, w, t.Site.Bundle, items, func(d digest.Digest) bool { return has[d] })
	}, append(args, "-")...)
}

// hasLocal reports whether ctr has --local, which imports without containerd's transfer service, as before 1.7. The
// transfer service requires all images of an index.
func (c ContainerdImages) hasLocal(ctx context.Context, t *task.Host) (bool, error) {
	help, err := t.Output(task.WithoutOutput(ctx), c.command("images", "import", "--help")...)
	return strings.Contains(string(help), "--local"), err
}

// dockerImages loads images into Docker.
type dockerImages struct{}

func (dockerImages) missing(ctx context.Context, t *task.Host, images []NodeImage) ([]NodeImage, error) {
	out, err := t.Output(task.WithoutOutput(ctx), "docker", "image", "list", "--no-trunc",
		"--format={{.Repository}}:{{.Tag}} {{.ID}}")
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, id, ok := strings.Cut(strings.TrimSpace(line), " ")
		if full, err := scalar.ImageName(name); ok && err == nil { // unnamed images are listed too
			ids[full] = id
		}
	}
	var missing []NodeImage
	for _, it := range images {
		one, err := PlatformImage(ctx, t, it.Item)
		if err != nil {
			return nil, err
		}
		config, err := configDigest(ctx, t.Site, one.Descriptor.Digest)
		if err != nil {
			return nil, err
		}
		name, err := dockerName(it)
		if err != nil {
			return nil, err
		}
		// Docker's image ID is the digest of the configuration, or of the manifest with containerd's image store.
		if id := ids[name]; id != config.String() && id != one.Descriptor.Digest.String() {
			missing = append(missing, it)
		}
	}
	return missing, nil
}

// dockerName returns the tag to load an image under.
func dockerName(it NodeImage) (string, error) {
	if name := it.names[0]; !strings.Contains(name, "@") {
		return name, nil
	}
	return "", fmt.Errorf("%s has no tag; Docker can only pull such images from a registry: give it a tag in the manifest, or use containerd", it.Ref)
}

func (dockerImages) Put(ctx context.Context, t *task.Host, images []NodeImage, e task.Event) error {
	for _, it := range images {
		one, err := PlatformImage(ctx, t, it.Item)
		if err != nil {
			return err
		}
		if err := stream(ctx, t, e, func(ctx context.Context, w io.Writer) error {
			return ocilayout.DockerArchive(ctx, w, t.Site.Bundle, one)
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

// configDigest returns the digest of an image's configuration.
func configDigest(ctx context.Context, s *task.Site, image digest.Digest) (digest.Digest, error) {
	data, err := s.Bundle.ReadBlob(ctx, image, task.MaxManifest)
	if err != nil {
		return "", err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("manifest %s: %w", image, err)
	}
	return m.Config.Digest, nil
}
