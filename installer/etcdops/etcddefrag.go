package etcdops

import (
	"context"
	"errors"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Defragmentation pays for a database of at least minDefragSize of which at least minFreePercent are free: the limits
// of OpenShift's operator. https://github.com/openshift/cluster-etcd-operator (defragcontroller)
const (
	minDefragSize  = 100 << 20
	minFreePercent = 45
	percent        = 100
)

// An Defragged is the result of defragmentation for one member.
type Defragged struct {
	Endpoint      string
	Before, After int64
	Skipped       bool // its defragmentation would win little
}

// defragPays reports whether a member's database has much free room.
func defragPays(d etcd.Database) bool {
	return d.Size >= minDefragSize && (d.Size-d.Used)*percent >= d.Size*minFreePercent
}

// Defrag defragments members one by one, the leader last, each only while all members are healthy. Members for which
// it does not pay are skipped, unless always is set or etcd has the alarm NOSPACE. That alarm is taken back if every
// database is below its quota afterwards; before, the history is dropped.
func Defrag(ctx context.Context, o engine.Options, always bool) ([]Defragged, error) {
	var done []Defragged
	r, err := newRun(o)
	if err != nil {
		return nil, err
	}
	_, err = r.Start(ctx, func(ctx context.Context) (err error) {
		ctx = task.InTask(ctx, "etcd-defrag")
		if err := begin.RefuseHandedOver(ctx, r); err != nil { // its control plane provider removes and adds members
			return err
		}
		t, err := answeringMember(ctx, r)
		if err == nil {
			done, err = defragMembers(ctx, r, t, always)
		}
		return err
	})
	return done, err
}

// answeringMember returns a host whose member answers, also with an alarm.
func answeringMember(ctx context.Context, r *engine.Run) (*task.Host, error) {
	var errs []error
	for _, t := range r.Connected(manifest.RoleEtcd) {
		err := etcdTools(ctx, t)
		if err == nil {
			_, err = etcd.Databases(ctx, t, false)
		}
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no host has a working etcd: %w", errors.Join(errs...))
}

func defragMembers(ctx context.Context, r *engine.Run, t *task.Host, always bool) (done []Defragged, err error) {
	list, err := etcd.FitDatabases(ctx, t)
	if err != nil {
		return nil, plain.Advise(fmt.Errorf(
			"no member was defragmented, because another may have to serve meanwhile: %w", err),
			"bring all members back first; kkbundle status names them")
	}
	full := false
	for _, d := range list {
		full = full || d.NoSpace
	}
	if full {
		step := task.Task{
			Name: "compact", Done: task.Never,
			Do: func(ctx context.Context, t *task.Host) error { return etcd.Compact(ctx, t, list[0].Revision) },
		}
		if err := r.TaskOn(ctx, "etcd-defrag", step, t); err != nil {
			return nil, err
		}
	}
	for _, d := range list {
		one := Defragged{Endpoint: d.Endpoint, Before: d.Size, After: d.Size}
		if one.Skipped = !always && !full && !defragPays(d); !one.Skipped {
			step := task.Task{
				Name: "defrag", Done: task.Never,
				Do: func(ctx context.Context, t *task.Host) (err error) {
					one.After, err = defragOne(ctx, t, d.Endpoint)
					return err
				},
			}
			if err := r.TaskOn(ctx, "etcd-defrag", step, t); err != nil {
				return done, err
			}
		}
		done = append(done, one)
	}
	if full {
		return done, disarm(ctx, t)
	}
	return done, nil
}

// defragOne defragments a member and waits until all members are healthy again.
func defragOne(ctx context.Context, t *task.Host, endpoint string) (after int64, err error) {
	if err := etcd.Defrag(ctx, t, endpoint); err != nil {
		return 0, err
	}
	err = task.Eventually(ctx, etcd.LeaderTimeout, func(ctx context.Context) error {
		list, err := etcd.FitDatabases(ctx, t)
		for _, d := range list {
			if d.Endpoint == endpoint {
				after = d.Size
			}
		}
		return err
	})
	return after, err
}

// disarm takes back the alarm NOSPACE if every member has room.
func disarm(ctx context.Context, t *task.Host) error {
	list, err := etcd.FitDatabases(ctx, t)
	if err != nil {
		return err
	}
	for _, d := range list {
		if d.Size*percent >= d.Quota*warnPercent {
			return plain.Advise(fmt.Errorf("the database of %s still has %s of its quota of %s: etcd takes no changes",
				d.Endpoint, plain.Size(d.Size), plain.Size(d.Quota)),
				"delete objects that nobody needs with etcdctl, with the API servers stopped, or raise etcd.quota in the cluster file (kkbundle install), and run this command again")
		}
	}
	return etcd.Disarm(ctx, t)
}
