package installer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// StatusOptions say what is looked at.
type StatusOptions struct {
	engine.Options
	// AnyCluster tells that Cluster is only what any cluster needs: nothing is compared with it.
	AnyCluster bool
}

func (o StatusOptions) rule() task.ClusterRule {
	if o.AnyCluster {
		return task.AnyCluster
	}
	return task.SameCluster
}

// Status looks at a cluster and makes nothing in it. Hosts that cannot be reached are part of what it finds, as is a cluster
// that does not answer; the error is what is wrong on this side, or that the context ended.
func Status(ctx context.Context, o StatusOptions) (report.Status, error) {
	out := report.Status{Version: 1}
	err := lookAt(ctx, o, func(ctx context.Context, r *engine.Run, from *task.Host) error {
		s, seen := health.Look(ctx, r.Site, from)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if o.AnyCluster {
			s.Version = ""
		}
		out.Time, out.Cluster = r.Now(), r.Cluster.Metadata.Name
		list := s.Findings()
		if seen != nil {
			list = append(list, health.Judged(health.LookAPI, from.Name, seen))
		}
		if from == nil && !slices.ContainsFunc(list, func(f report.Finding) bool { return f.ID == health.LookMember }) {
			list = append(list, health.Finding(health.LookMember, "", report.Failed, "no control plane that can be reached has a cluster of kkbundle's"))
		}
		for i := range list {
			list[i].Found = r.Mask.Mask(list[i].Found)
		}
		out.Findings, out.Healthy = list, list.Healthy()
		describe(s, &out)
		remembered(r, &out)
		return nil
	})
	return out, err
}

// lookAt connects to the hosts, those that it can, calls a function with a control plane that is a node (nil if there is none),
// and leaves no helper where nothing else of ours is.
func lookAt(ctx context.Context, o StatusOptions, do func(ctx context.Context, r *engine.Run, from *task.Host) error) error {
	o.DryRun = true
	r, err := newRun(o.Options, engine.LookingAt(o.rule()))
	if err != nil {
		return err
	}
	r.Journal = &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: task.Discard{}}
	defer r.Dir.Close()
	defer r.Disconnect()
	if err := r.FindTargets(); err != nil {
		return err
	}
	ctx = task.InTask(ctx, "status")
	_ = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		t.Err = r.ConnectTo(ctx, t)
		return nil // what is found says it
	})
	err = do(ctx, r, lookout(ctx, r))
	stopped := context.Cause(ctx)
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, stopped, r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
		if err := forgetHelper(ctx, t); t.Err == nil && !task.IsUnresponsive(err) {
			return err
		}
		return nil
	}))
}

// lookout is the first control plane that can be reached and is a node whose API server answers; if none answers, the first
// that is a node.
func lookout(ctx context.Context, r *engine.Run) *task.Host {
	var members []*task.Host
	for _, t := range r.Connected(manifest.RoleControlPlane) {
		if t.Err != nil {
			continue
		}
		if member, err := member.IsMember(ctx, t); err != nil || !member {
			continue
		}
		if health.APIHealth(ctx, t) == nil {
			return t
		}
		members = append(members, t)
	}
	return task.FirstOf(members)
}

// describe adds what is there to what was found.
func describe(s *health.Survey, out *report.Status) {
	for _, n := range s.Nodes {
		one := report.Node{Name: n.Name, Version: n.Status.NodeInfo.KubeletVersion, Ready: kube.IsNodeReady(&n)}
		for label := range n.Labels {
			if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
				one.Roles = append(one.Roles, role)
			}
		}
		slices.Sort(one.Roles)
		if !one.Ready {
			one.Problem = kube.NodeCondition(&n, corev1.NodeReady).Message
		}
		out.Nodes = append(out.Nodes, one)
	}
	for _, h := range s.Hosts {
		out.Certificates = append(out.Certificates, h.Certificates...)
		if h.Asked {
			out.Etcd = append(out.Etcd, report.EtcdMember{
				Host: h.Name, Healthy: h.EtcdErr == nil && h.Metrics.HasLeader, Leader: h.Metrics.Leader, Version: h.Metrics.Version, Bytes: h.Metrics.Bytes,
			})
		}
	}
}

// remembered adds what the last run from this work directory has left there; an older kkbundle's left nothing.
func remembered(r *engine.Run, out *report.Status) {
	data, err := r.Dir.Read(engine.ReportJSONFile)
	if err != nil {
		return
	}
	var last report.Run
	if json.Unmarshal(data, &last) != nil || last.Version != 1 {
		return
	}
	out.Installed = last.Bundle
	out.Cluster = cmp.Or(out.Cluster, last.Cluster)
	out.Last = &report.Last{Time: last.Start, Outcome: last.Outcome, Changed: last.Changed}
}
