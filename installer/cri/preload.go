package installer

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
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const preloadName = "preload-images"

// preloads tells whether nodes are given their images, instead of pulling them: where there is no registry, and with
// Docker, which takes no other registry for an upstream's names than the upstream (mirrors are for Docker Hub only).
func preloads(c *manifest.Cluster) bool {
	return c.ImageRegistry.Type == manifest.RegistryNone || usesDocker(c)
}

// preloadTasks give the nodes of such a cluster their images.
func preloadTasks(c *manifest.Cluster) []Task {
	if !preloads(c) {
		return nil
	}
	return []Task{preloadTask()}
}

// preloadPart keeps the kubelet from deleting images that it could not pull again, where the runtime cannot: at 100 % of a
// full disk it never begins (kubelet's ImageGCHighThresholdPercent). containerd's are pinned instead.
func (r *Site) preloadPart() configPart {
	if !usesDocker(r.cluster) {
		return configPart{}
	}
	const never = 100
	return configPart{kubelet: document{"imageGCHighThresholdPercent": never}}
}

// An imageStore gives images to a runtime that does not pull them.
type imageStore interface {
	// lacks returns those of the images that the runtime does not have, by name and digest.
	lacks(ctx context.Context, t *Target, images []nodeImage) ([]nodeImage, error)
	// put streams images of the bundle into the runtime.
	put(ctx context.Context, t *Target, images []nodeImage, e Event) error
}

// A nodeImage is an image of the bundle as a node needs it: for its platform only.
type nodeImage struct {
	bundle.Item
	// names are what pods call it: with the tag, with the digest, or both.
	names []string
}

// preloadTask puts the images of each host's roles into its runtime. They are looked up by digest before and after, so what
// a host has is not sent again.
func preloadTask() Task {
	return Task{
		Name:  preloadName,
		Apart: true,
		Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			lacking, err := t.lackingImages(ctx)
			if t.run.DryRun && errors.As(err, new(*host.ExitError)) {
				return false, nil // there is no runtime yet
			}
			return err == nil && len(lacking) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			lacking, err := t.lackingImages(ctx)
			if err != nil {
				return err
			}
			for _, it := range lacking {
				t.run.opened(ctx, t.Name, it.Kind+" "+it.Ref)
			}
			e := Event{Phase: "install", Task: preloadName, Host: t.Name, State: Progress}
			if err := runtimeOf(t.run.cluster).images.put(ctx, t, lacking, e); err != nil {
				return err
			}
			if lacking, err = t.lackingImages(ctx); err != nil || len(lacking) == 0 {
				return err
			}
			return fmt.Errorf("the runtime took the images and does not have %s", lacking[0].Ref)
		},
	}
}

func (t *Target) lackingImages(ctx context.Context) ([]nodeImage, error) {
	images, err := t.images(ctx)
	if err != nil {
		return nil, err
	}
	return runtimeOf(t.run.cluster).images.lacks(ctx, t, images)
}

// images returns the images of the bundle that the host needs: those of the tasks for its roles, and those that no task
// declares, of addons for one, whose pods may run on every node.
func (t *Target) images(ctx context.Context) ([]nodeImage, error) {
	roles, err := t.run.imageRoles()
	if err != nil {
		return nil, err
	}
	wanted := isFor(t.Arch)
	var list []nodeImage
	for _, it := range t.run.items {
		needed, declared := roles[it.Ref]
		if it.Kind != bundle.KindImage || declared && !slices.ContainsFunc(needed, t.Is) {
			continue
		}
		it, some, err := t.run.Bundle.Narrow(ctx, it, wanted)
		if err != nil {
			return nil, err
		}
		if some {
			list = append(list, nodeImage{it, imageNames(it)})
		}
	}
	return list, nil
}

// imageRoles returns, by reference, the roles of the hosts that need the images which tasks declare.
func (r *Site) imageRoles() (map[string][]manifest.Role, error) {
	roles := map[string][]manifest.Role{}
	for _, d := range r.demands {
		if d.Kind != manifest.ItemImage {
			continue
		}
		refs, err := catalog.Refs(r.cluster, d.Need, "")
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
func (t *Target) stream(ctx context.Context, e Event, write func(ctx context.Context, w io.Writer) error, args ...string) error {
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
	err := t.on.Run(inner, host.Cmd{Args: args, Stdin: &metered{ReadCloser: r, run: t.run, event: &e}})
	_ = r.CloseWithError(errStreamEnded)
	if written := group.Wait(); written != nil {
		return written // the bundle could not be read: of that, the command only has the half of an archive
	}
	return err
}

var errStreamEnded = errors.New("the host reads no more")

// containerdImages gives images to containerd, in the kubelet's namespace.
type containerdImages struct {
	ctr []string // the command
}

// pinnedLabel keeps the kubelet from deleting an image when the disk fills: nothing could bring it back.
// https://github.com/containerd/containerd/blob/v2.1.4/internal/cri/labels/labels.go
const pinnedLabel = "io.cri-containerd.pinned=pinned"

func (c containerdImages) command(args ...string) []string {
	return slices.Concat(c.ctr, []string{"--namespace=k8s.io"}, args)
}

// held returns the digests of images by name, and which of them are pinned.
func (c containerdImages) held(ctx context.Context, t *Target) (digests map[string]string, pinned map[string]bool, err error) {
	out, err := t.output(withoutOutput(ctx), c.command("images", "list")...)
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
			pinned[fields[0]] = slices.Contains(strings.Split(fields[len(fields)-1], ","), pinnedLabel)
		}
	}
	return digests, pinned, nil
}

func (c containerdImages) lacks(ctx context.Context, t *Target, images []nodeImage) ([]nodeImage, error) {
	digests, pinned, err := c.held(ctx, t)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(images), func(it nodeImage) bool {
		return !slices.ContainsFunc(it.names, func(name string) bool {
			return digests[name] != it.Descriptor.Digest.String() || !pinned[name]
		})
	}), nil
}

// put sends one archive of all images, without the blobs that an interrupted run has brought already: those stay for a day
// (ctr's lease). containerd checks every blob against its digest.
func (c containerdImages) put(ctx context.Context, t *Target, images []nodeImage, e Event) error {
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
		if err := t.command(ctx, c.command("images", "label", name, pinnedLabel)...); err != nil {
			return err
		}
	}
	return nil
}

func (c containerdImages) send(ctx context.Context, t *Target, items []bundle.Item, e Event) error {
	out, err := t.output(withoutOutput(ctx), c.command("content", "list", "--quiet")...)
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
	return t.stream(ctx, e, func(ctx context.Context, w io.Writer) error {
		return t.run.Bundle.WriteMissing(ctx, w, items, func(d digest.Digest) bool { return has[d] })
	}, append(args, "-")...)
}

// local tells whether ctr has to be told to import by itself, as it has done before 1.7: containerd's transfer service wants
// every image of an index.
func (c containerdImages) local(ctx context.Context, t *Target) (bool, error) {
	help, err := t.output(withoutOutput(ctx), c.command("images", "import", "--help")...)
	return strings.Contains(string(help), "--local"), err
}

// dockerImages gives images to Docker.
type dockerImages struct{}

func (dockerImages) lacks(ctx context.Context, t *Target, images []nodeImage) ([]nodeImage, error) {
	out, err := t.output(withoutOutput(ctx), "docker", "image", "list", "--no-trunc", "--format={{.Repository}}:{{.Tag}} {{.ID}}")
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
	var lacking []nodeImage
	for _, it := range images {
		one, err := t.platformImage(ctx, it.Item)
		if err != nil {
			return nil, err
		}
		config, err := t.run.configOf(ctx, one.Descriptor.Digest)
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
func dockerName(it nodeImage) (string, error) {
	if name := it.names[0]; !strings.Contains(name, "@") {
		return name, nil
	}
	return "", fmt.Errorf("%s has no tag, and Docker takes images without one from registries only: give it a tag in the manifest, or use containerd", it.Ref)
}

func (dockerImages) put(ctx context.Context, t *Target, images []nodeImage, e Event) error {
	for _, it := range images {
		one, err := t.platformImage(ctx, it.Item)
		if err != nil {
			return err
		}
		if err := t.stream(ctx, e, func(ctx context.Context, w io.Writer) error {
			return t.run.Bundle.WriteDockerArchive(ctx, w, one)
		}, "docker", "load", "--quiet"); err != nil {
			return err
		}
	}
	return nil
}

// platformImage returns the image for the host's platform.
func (t *Target) platformImage(ctx context.Context, it bundle.Item) (bundle.Item, error) {
	return t.run.Bundle.ForPlatform(ctx, it, isFor(t.Arch))
}

// configOf returns the digest of an image's configuration.
func (r *Site) configOf(ctx context.Context, image digest.Digest) (digest.Digest, error) {
	data, err := r.Bundle.ReadBlob(ctx, image, maxManifest)
	if err != nil {
		return "", err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("manifest %s: %w", image, err)
	}
	return m.Config.Digest, nil
}
