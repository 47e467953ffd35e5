package cri

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const pullName = "pull-images"

// AheadTasks returns the tasks that bring images to nodes before anything runs them: those of PreloadTasks where nodes
// cannot pull, and otherwise one that has containerd pull from the site's registry what the tasks of a host's roles
// declare. Pulled images are not pinned: they can be pulled again. CRI-O has none.
func AheadTasks(c *manifest.Cluster) []task.Task {
	if tasks := PreloadTasks(c); len(tasks) > 0 || c.CRI.Type != manifest.RuntimeContainerd {
		return tasks
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

// toPull returns the names of declared images that containerd lacks. As for the kubelet, one of the same name will do.
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
	return names, nil
}
