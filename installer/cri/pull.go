package cri

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const pullName = "pull-images"

// AheadTasks returns the task that has containerd pull from the site's registry, before anything runs them, the images
// that the tasks of a host's roles declare. Pulled images are not pinned: they can be pulled again. There is none where
// nodes cannot pull, because images that are sent replace those of the same names under running pods, nor for CRI-O.
func AheadTasks(c *manifest.Cluster) []task.Task {
	if len(PreloadTasks(c)) > 0 || c.CRI.Type != manifest.RuntimeContainerd {
		return nil
	}
	return []task.Task{pullTask(ContainerdImages{Ctr: []string{"ctr"}})}
}

func pullTask(images ContainerdImages) task.Task {
	return task.Task{
		Name:        pullName,
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			names, err := images.toPull(ctx, t)
			if len(names) > 0 {
				task.Because(ctx, "the runtime lacks %s", strings.Join(names, ", "))
			}
			return len(names) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			names, err := images.toPull(ctx, t)
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := t.Run(ctx, images.command("images", "pull", "--hosts-dir="+CertsDir,
					"--platform=linux/"+t.Arch, name)...); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// toPull returns the names of declared images that containerd lacks and that its settings lead to the site's registry.
// As for the kubelet, one of the same name will do. Images of another registry are pulled once an upgrade has added it.
func (c ContainerdImages) toPull(ctx context.Context, t *task.Host) ([]string, error) {
	roles, err := imageRoles(t.Site)
	if err != nil {
		return nil, err
	}
	there, _, err := c.list(ctx, t)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, it := range t.Site.Items {
		if it.Kind != bundle.KindImage || !slices.ContainsFunc(roles[it.Ref], t.Is) {
			continue
		}
		for _, name := range imageNames(it) {
			if there[name] == "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	known := map[string]bool{}
	for _, name := range names {
		registry, _, _ := strings.Cut(name, "/")
		if _, looked := known[registry]; looked {
			continue
		}
		if known[registry], err = t.Test(ctx, "test", "-f", path.Join(CertsDir, registry, "hosts.toml")); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		registry, _, _ := strings.Cut(name, "/")
		return !known[registry]
	}), nil
}
