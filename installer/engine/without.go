package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
)

// ErrWithout is the error of a host that the operator leaves as it is.
var ErrWithout = errors.New("left as it is (--without)")

// isWithout reports whether the operator leaves the host as it is.
func isWithout(t *task.Host) bool { return errors.Is(t.Err, ErrWithout) }

// Without returns the hosts that the operator leaves as they are, in the order of the inventory. The run has no
// connection to them.
func (r *Run) Without() []*task.Host {
	return slices.DeleteFunc(slices.Clone(r.Hosts), func(t *task.Host) bool { return !isWithout(t) })
}

// findOtherAddresses takes the addresses of hosts that are left as they are from the cluster, where the inventory
// names none: the other hosts keep their names in /etc/hosts.
func (r *Run) findOtherAddresses(ctx context.Context) error {
	others := slices.DeleteFunc(r.Without(), (*task.Host).HasAddresses)
	lead := r.FirstControlPlane()
	if len(others) == 0 || lead.Conn == nil || lead.Err != nil {
		return nil
	}
	nodes, err := lead.Kube().Nodes(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var errs []error
	for _, t := range others {
		if n := kube.FindNode(nodes, t.Name); err == nil && n != nil {
			setAddresses(t, n)
		}
		if !t.HasAddresses() {
			errs = append(errs, &task.AddressError{Host: t.Name, Six: t.IP.IsValid() || !r.Has4()})
		}
	}
	return errors.Join(errs...)
}

// setAddresses sets the addresses that the inventory does not name to those of the node.
func setAddresses(t *task.Host, n *corev1.Node) {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP {
			continue
		}
		second := t.Site.Has4() && ip.Is6()
		switch {
		case !second && !t.IP.IsValid():
			t.IP = ip
		case second && t.Site.Has6() && !t.IP6.IsValid():
			t.IP6 = ip
		}
	}
}
