package rotate

import (
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const secretsPhase = "secrets"

// EncryptionKey replaces the key that encrypts Secrets in etcd, and rewrites all Secrets with the new one. An
// interrupted rotation is continued.
func EncryptionKey(ctx context.Context, o engine.Options) (engine.Report, error) {
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		return rotateEncryptionKey(task.InTask(ctx, secretsPhase),
			r)
	})
}

func rotateEncryptionKey(ctx context.Context, r *engine.Run) error {
	if err := begin.RefuseHandedOver(ctx, r); err != nil {
		return err
	}
	planes := r.WithRole(manifest.RoleControlPlane)
	for _, t := range planes {
		is, err := member.IsMember(ctx, t)
		if err == nil && !is {
			err = fmt.Errorf("%s is not a control plane yet: run kkbundle install first", t.Name)
		}
		if err != nil {
			return err
		}
	}
	each := func(ctx context.Context, step task.Task) error {
		for _, t := range planes {
			if err := r.TaskOn(ctx, secretsPhase, step, t); err != nil {
				return err
			}
		}
		return nil
	}
	if r.Cluster.Kubernetes.Distribution == manifest.DistributionK3s {
		return k3s.RotateKey(ctx, r.Site, each)
	}
	return kubeadm.RotateKey(ctx, r.Site, each)
}
