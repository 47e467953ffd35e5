package begin

import (
	"context"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// CheckMembers refuses, before anything is changed, an inventory or cluster file that does not fit the existing
// cluster: hosts of another cluster, even one of the same name, of one that was handed over to Cluster API, and
// settings that would only be applied in part.
func CheckMembers(ctx context.Context, r *engine.Run) error {
	if err := r.FindLead(ctx); err != nil {
		return err
	}
	if err := RefuseHandedOver(ctx, r); err != nil {
		return err
	}
	first := r.FirstControlPlane()
	if first.Conn == nil || first.Err != nil {
		return nil // nothing to compare, and nothing will be done
	}
	settings, begun, err := member.Membership(ctx, first)
	if err != nil {
		return err
	}
	if !begun && !r.IsWanted(first) {
		return fmt.Errorf("%s is the first control plane and not a node yet: the first install needs it in --limit",
			first.Name)
	}
	var rotated *task.Host
	if begun {
		if rotated, err = RotatedOn(ctx, r); err != nil {
			return err
		}
	}
	if rotated != nil && !r.Gone { // a rotation goes on only after lost nodes are deleted
		return RotationRefusal(rotated)
	}
	want := fmt.Sprintf("%s, not yet installed on %s", member.Identity(r.Site), first.Name)
	authority := ""
	if begun {
		now, then := member.Changed(r.Site, settings)
		if is, some := member.VitalText(member.Identity(r.Site), then); some {
			want, _ := member.VitalText(member.Identity(r.Site), now)
			return &member.OtherClusterError{
				Host: first.Name, Is: is, Want: want,
				Movable: !HasOtherVital(r.Site, then),
			}
		}
		if authority, err = member.ClusterPin(ctx, first); err != nil {
			return err
		}
		want = fmt.Sprintf("%s with the authority %s of %s", member.Identity(r.Site), authority, first.Name)
	}
	return r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		if t == first || t.Err != nil {
			return nil
		}
		joined, err := member.IsMember(ctx, t)
		if err != nil || !joined {
			return err
		}
		has, err := member.ClusterPin(ctx, t)
		if err != nil || has == authority || rotated != nil {
			return err
		}
		return &member.OtherClusterError{Host: t.Name, Is: fmt.Sprintf("%s with the authority %s",
			member.Identity(r.Site), has), Want: want}
	})
}

// tellIgnored warns of settings of the cluster file that differ from the cluster and are not applied to it.
func tellIgnored(ctx context.Context, r *engine.Run) error {
	first := r.FirstControlPlane()
	settings, joined, err := member.Membership(ctx, first)
	if err != nil || !joined || r.Rule == task.OtherVersion { // an upgrade applies them
		return err
	}
	now, _ := member.Changed(r.Site, settings)
	if len(now) == 0 {
		return nil
	}
	var names []string
	for _, s := range now {
		names = append(names, s.Name)
	}
	r.Tell(task.Event{
		Phase: "precheck", Task: "precheck", Host: first.Name, State: task.Warned,
		Message: fmt.Sprintf("settings that differ from the cluster and are not applied to it: %s; kkbundle upgrade applies them, also with a bundle of the same version",
			strings.Join(names, ", ")),
	})
	return nil
}
