package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const phaseAdopt = "adopt"

// Take makes the hosts of a described cluster nodes of kkbundle. found is the cluster as it was described; the options'
// cluster may differ from it in what an upgrade changes, else the error is a *DiffersError. Take copies the files
// that an upgrade replaces, for the operator, and records the cluster on each node. It changes nothing else. A stopped
// one is continued by the same call.
func Take(ctx context.Context, o engine.Options, found *manifest.Cluster) (engine.Report, error) {
	r, err := begin.NewFitting(o, engine.Adopting())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		record := member.File(r.Site.With(func(s *task.Site) { r.SetCluster(s, found) }))
		err := differs(r.Site, record)
		if err == nil {
			err = r.Phases(ctx, []task.Phase{{Name: phaseAdopt, Tasks: []task.Task{
				isFree(record), keepTask(r.Cluster), recordTask(record),
			}}})
		}
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
				return leave(task.InTask(ctx, phaseAdopt), t)
			}))
		}
		return err
	})
}

// A DiffersError is a cluster file that says something else of the cluster than what it is.
type DiffersError struct{ File, Cluster string }

// Error names both.
func (e *DiffersError) Error() string {
	return fmt.Sprintf("the cluster file has %s; the cluster is %s", e.File, e.Cluster)
}

// Hint returns the remedy.
func (*DiffersError) Hint() string {
	return "nothing was changed; correct the cluster file, or remove it to have it written anew"
}

// differs compares a cluster file with the record of the cluster that was found.
func differs(s *task.Site, record task.File) error {
	is, settings := member.Split(record.Data)
	now, then := member.Changed(s, settings)
	want, some := member.VitalText(member.Identity(s), now)
	have, _ := member.VitalText(is, then)
	if some || is != member.Identity(s) {
		return &DiffersError{File: want, Cluster: have}
	}
	return nil
}

// isFree refuses hosts of Cluster API and of another cluster of kkbundle.
func isFree(record task.File) task.Task {
	return task.Task{
		Name: "free", Roles: []manifest.Role{manifest.RoleCluster}, AllOrNone: true,
		Do: func(ctx context.Context, t *task.Host) error {
			if _, err := begin.RefuseOwned(ctx, t); err != nil {
				return err
			}
			has, err := t.Read(ctx, member.Path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			is, _ := member.Split(has)
			want, _ := member.Split(record.Data)
			if is != want {
				return &member.OtherClusterError{Host: t.Name, Is: is.String(), Want: want.String()}
			}
			return nil
		},
	}
}

// leave makes a host that is no node of kkbundle what it was.
func leave(ctx context.Context, t *task.Host) error {
	if nothing, err := begin.NotInstalled(ctx, t); err != nil || !nothing {
		return err
	}
	return forgetHost(ctx, t)
}

// keepTask copies what kkbundle replaces on a node. Copies of a node with a record stay: since then, an installation
// may have replaced the files.
func keepTask(c *manifest.Cluster) task.Task {
	copies := marks.AdoptionOf(c.Kubernetes.Version)
	return task.Task{
		Name: "keep", Roles: []manifest.Role{manifest.RoleCluster}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return t.Test(ctx, "test", "-e", member.Path) },
		Do: func(ctx context.Context, t *task.Host) error {
			if err := copies.Keep(ctx, t, replacedPrograms(c), replacedSettings(c)); err != nil {
				return err
			}
			return copies.Complete(ctx, t)
		},
	}
}

func recordTask(record task.File) task.Task {
	return task.Task{
		Name: "record", Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) { return t.Test(ctx, "test", "-e", member.Path) },
		Do:   func(ctx context.Context, t *task.Host) error { return t.Write(ctx, record) },
	}
}

// replacedPrograms returns the programs that kkbundle's tasks put on nodes.
func replacedPrograms(c *manifest.Cluster) []string {
	var list []string
	for _, phase := range plan.Plan(c) {
		for _, step := range phase.Tasks {
			for _, f := range step.Files {
				list = append(list, f.Path)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// replacedSettings returns the settings that kkbundle replaces on nodes, and the manifests of static pods.
func replacedSettings(c *manifest.Cluster) []string {
	return append(kubeadm.NodeSettings(c), kube.ManifestsDir)
}
