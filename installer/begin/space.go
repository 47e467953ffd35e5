package begin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// Growth from the bundle to a host: archives lie beside their content for a moment (those of Kubernetes and containerd
// unpack to about three times their size), and containerd keeps an image's compressed layers beside the unpacked ones
// (two to three times).
const (
	unpackedFile  = 4
	unpackedImage = 4
)

// space estimates the data still to be written on the host, without the data that an earlier run has written.
func space(ctx context.Context, t *task.Host) ([]precheck.Space, error) {
	if t.Site.Bundle == nil {
		return nil, nil
	}
	var list []precheck.Space
	add := func(what, dir string, bytes int64) error {
		have, err := Used(ctx, t, dir)
		if bytes -= have; bytes > 0 {
			list = append(list, precheck.Space{For: what, Dir: dir, Bytes: bytes})
		}
		return err
	}
	if done, err := member.IsMember(ctx, t); err != nil {
		return nil, err
	} else if !done {
		files, err := FileSpace(ctx, t)
		if err != nil {
			return nil, err
		}
		list = append(list, precheck.Space{For: "programs", Dir: "/usr/local", Bytes: files})
	}
	if t.Is(manifest.RoleCluster) {
		images, err := ImageSpace(ctx, t)
		if err == nil {
			err = add("images", cri.RuntimeOf(t.Site.Cluster).Data, images)
		}
		if err != nil {
			return nil, err
		}
	}
	if t.Site.IsRegistry(t) {
		size, err := RegistrySpace(ctx, t.Site)
		if err == nil {
			err = add("the registry", siteregistry.Of(t.Site.Cluster).Data, size)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Used returns the size of a directory, 0 if it does not exist.
func Used(ctx context.Context, t *task.Host, dir string) (int64, error) {
	there, err := t.Test(ctx, "test", "-d", dir)
	if err != nil || !there {
		return 0, err
	}
	out := &capped.Buffer{Most: task.MaxFile}
	// du fails if files vanish meanwhile, as they do below containerd, and still prints the size.
	if _, err := task.Succeeded(t.Conn.Run(ctx, host.Cmd{
		Args:   []string{"du", "--summarize", "--block-size=1", dir},
		Stdout: out,
	})); err != nil {
		return 0, err
	}
	number, _, _ := strings.Cut(out.String(), "\t")
	size, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: size of %s: %w", t.Name, dir, err)
	}
	return size, nil
}

func tasksHere(t *task.Host) []task.Task {
	var list []task.Task
	for _, phase := range plan.Plan(t.Site.Cluster) {
		for _, task := range phase.Tasks {
			if slices.Contains(engine.TargetsOf(t.Site, task), t) {
				list = append(list, task)
			}
		}
	}
	return list
}

// FileSpace returns the size of the files that tasks put on the host.
func FileSpace(ctx context.Context, t *task.Host) (int64, error) {
	var total int64
	for _, task := range tasksHere(t) {
		plan, err := t.Site.FilePlan(ctx, t, task.Files)
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

// ImageSpace returns the size of the images whose pods may run on the host.
func ImageSpace(ctx context.Context, t *task.Host) (int64, error) {
	blobs := map[digest.Digest]int64{}
	for _, task := range tasksHere(t) {
		for _, name := range task.Images {
			items, err := t.Site.Components(manifest.Need{Kind: manifest.ItemImage, Name: name}, "")
			if err != nil {
				return 0, err
			}
			for _, item := range items {
				if err := imageBlobs(ctx, t.Site, item.Descriptor, t.Arch, blobs); err != nil {
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

func imageBlobs(ctx context.Context, r *task.Site, d ocispec.Descriptor, arch string,
	into map[digest.Digest]int64,
) error {
	data, err := r.Bundle.ReadBlob(ctx, d.Digest, task.MaxManifest)
	if err != nil {
		return err
	}
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if err := bundle.DecodeManifest(data, &m); err != nil {
		return err
	}
	for _, l := range m.Layers {
		into[l.Digest] = l.Size
	}
	for _, child := range m.Manifests {
		_, there := r.Bundle.Stat(child.Digest)
		if arch != "" && there && child.Platform != nil && child.Platform.Architecture == arch {
			return imageBlobs(ctx, r, child, "", into) // nested indexes are not supported
		}
	}
	return nil
}

// RegistrySpace returns the size of the registry's content: all blobs but the contents of files that it has not.
func RegistrySpace(ctx context.Context, r *task.Site) (int64, error) {
	var total int64
	for _, b := range r.Bundle.Blobs() {
		total += b.Size
	}
	holds := siteregistry.Holds(r)
	for _, it := range r.Items {
		if it.Kind != bundle.KindFile || holds(it) {
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
