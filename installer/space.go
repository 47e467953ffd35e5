package installer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// How much larger things are on a host than in the bundle: an archive lies beside what is unpacked from it for a moment
// (Kubernetes' and containerd's unpack to about three times their size); containerd keeps an image's compressed layers
// beside the unpacked ones (two to three times).
const (
	unpackedFile  = 4
	unpackedImage = 4
)

// space estimates what is still to be written on the host. What is there already is taken off: a second run must not be
// refused for lack of the space that the first one has filled.
func (t *Target) space(ctx context.Context) ([]precheck.Space, error) {
	if t.run.Bundle == nil {
		return nil, nil
	}
	var list []precheck.Space
	add := func(what, dir string, bytes int64) error {
		have, err := t.used(ctx, dir)
		if bytes -= have; bytes > 0 {
			list = append(list, precheck.Space{For: what, Dir: dir, Bytes: bytes})
		}
		return err
	}
	if done, err := t.isMember(ctx); err != nil {
		return nil, err
	} else if !done {
		files, err := t.fileSpace(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, precheck.Space{For: "programs", Dir: "/usr/local", Bytes: files})
	}
	if t.Is(manifest.RoleCluster) {
		images, err := t.imageSpace(ctx)
		if err == nil {
			err = add("images", runtimeOf(t.run.cluster).data, images)
		}
		if err != nil {
			return nil, err
		}
	}
	if t.run.isRegistry(t) {
		size, err := t.run.registrySpace(ctx)
		if err == nil {
			err = add("the registry", registryDataOf(t.run.cluster), size)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// used returns how much a directory holds, 0 if there is none.
func (t *Target) used(ctx context.Context, dir string) (int64, error) {
	there, err := t.test(ctx, "test", "-d", dir)
	if err != nil || !there {
		return 0, err
	}
	out := &capped.Buffer{Most: maxFile}
	// It fails when something goes away while it counts, as it does below containerd, and still says how much there is.
	if _, err := succeeded(t.on.Run(ctx, host.Cmd{Args: []string{"du", "--summarize", "--block-size=1", dir}, Stdout: out})); err != nil {
		return 0, err
	}
	number, _, _ := strings.Cut(out.String(), "\t")
	size, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: size of %s: %w", t.Name, dir, err)
	}
	return size, nil
}

// tasksHere returns the tasks that run on the host.
func (t *Target) tasksHere() []Task {
	var list []Task
	for _, phase := range Plan(t.run.cluster) {
		for _, task := range phase.Tasks {
			if slices.Contains(t.run.targetsOf(task), t) {
				list = append(list, task)
			}
		}
	}
	return list
}

// fileSpace is for the files that tasks put on the host.
func (t *Target) fileSpace(ctx context.Context) (int64, error) {
	var total int64
	for _, task := range t.tasksHere() {
		plan, err := t.run.filePlan(ctx, t, task.Files)
		if err != nil {
			return 0, err
		}
		for _, f := range plan.Files {
			size := f.Size
			if len(f.Unpack) > 0 {
				size *= unpackedFile
			}
			total += size
		}
	}
	return total, nil
}

// imageSpace is for the images whose pods may run on the host.
func (t *Target) imageSpace(ctx context.Context) (int64, error) {
	blobs := map[digest.Digest]int64{}
	for _, task := range t.tasksHere() {
		for _, name := range task.Images {
			items, err := t.run.components(manifest.Need{Kind: manifest.ItemImage, Name: name}, "")
			if err != nil {
				return 0, err
			}
			for _, item := range items {
				if err := t.run.imageBlobs(ctx, item.Descriptor, t.Arch, blobs); err != nil {
					return 0, fmt.Errorf("%s: %w", item, err)
				}
			}
		}
	}
	var total int64
	for _, size := range blobs {
		total += size
	}
	return total * unpackedImage, nil
}

// maxManifest bounds the manifests of images.
const maxManifest = 4 << 20

// imageBlobs adds the layers of an image for an architecture.
func (r *run) imageBlobs(ctx context.Context, d ocispec.Descriptor, arch string, into map[digest.Digest]int64) error {
	data, err := r.Bundle.ReadBlob(ctx, d.Digest, maxManifest)
	if err != nil {
		return err
	}
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	for _, l := range m.Layers {
		into[l.Digest] = l.Size
	}
	for _, child := range m.Manifests {
		_, there := r.Bundle.Stat(child.Digest)
		if there && child.Platform != nil && child.Platform.Architecture == arch {
			return r.imageBlobs(ctx, child, "", into) // an index in an index has no place here
		}
	}
	return nil
}

// registrySpace is for everything that the registry is seeded with: all blobs but the contents of files.
func (r *run) registrySpace(ctx context.Context) (int64, error) {
	var total int64
	for _, b := range r.Bundle.Blobs() {
		total += b.Size
	}
	for _, it := range r.items {
		if it.Kind != bundle.KindFile {
			continue
		}
		content, err := r.Bundle.ContentOf(ctx, it)
		if err != nil {
			return 0, err
		}
		total -= content.Size
	}
	return total, nil
}
