package deploy

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
)

const (
	leaseName = "kkbundle.deploy"
	leaseTime = time.Minute
)

// errLost means another run took the lease, because this one could not renew it in time.
var errLost = errors.New("the lock was lost to another run; run the same command again")

// lock holds the cluster's lease of deploy until unlock. The returned context ends if the lease is lost.
func (c *cluster) lock(ctx context.Context, who string) (held context.Context, unlock func(), err error) {
	lease, err := c.takeLease(ctx, who)
	if err != nil {
		return nil, nil, err
	}
	held, lose := context.WithCancelCause(ctx)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(leaseTime / 4):
			}
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			next, err := c.leases().Update(ctx, lease, metav1.UpdateOptions{})
			switch {
			case apierrors.IsConflict(err), apierrors.IsNotFound(err):
				lose(errLost)
				return
			case err == nil:
				lease = next
			}
		}
	}()
	return held, func() {
		close(stop)
		<-stopped
		lose(nil)
		lease.Spec.HolderIdentity = nil
		// Best effort: the lease ends by itself.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = c.leases().Update(end, lease, metav1.UpdateOptions{})
	}, nil
}

type leaseClient interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

func (c *cluster) leases() leaseClient { return c.kube.CoordinationV1().Leases(Namespace) }

// takeLease takes a lease that nobody holds, or whose holder has not renewed it for its duration.
func (c *cluster) takeLease(ctx context.Context, who string) (*coordinationv1.Lease, error) {
	const attempts = 3 // after a lost race, the lease names the winner
	for range attempts {
		lease, err := c.tryLease(ctx, who)
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			continue
		}
		var locked *LockedError
		if err != nil && !errors.As(err, &locked) {
			err = &ObjectError{"Lease " + Namespace + "/" + leaseName, err}
		}
		return lease, err
	}
	return nil, &LockedError{"another run", time.Now().Format(time.DateTime)}
}

func (c *cluster) tryLease(ctx context.Context, who string) (*coordinationv1.Lease, error) {
	now, seconds := metav1.NowMicro(), int32(leaseTime/time.Second)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &who, LeaseDurationSeconds: &seconds, AcquireTime: &now,
		RenewTime: &now,
	}
	lease, err := c.leases().Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.leases().Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: leaseName, Namespace: Namespace,
				Labels: map[string]string{ManagedLabel: managedBy},
			}, Spec: spec,
		}, metav1.CreateOptions{FieldManager: kube.FieldManager})
	}
	if err != nil {
		return nil, err
	}
	if holder, renewed := kube.Holder(lease); holder != "" && time.Since(renewed) < leaseTime {
		since := renewed
		if lease.Spec.AcquireTime != nil {
			since = lease.Spec.AcquireTime.Time
		}
		return nil, &LockedError{holder, since.Local().Format(time.DateTime)}
	}
	lease.Spec = spec
	return c.leases().Update(ctx, lease, metav1.UpdateOptions{FieldManager: kube.FieldManager})
}
