package installer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

// StatusOptions say what is looked at.
type StatusOptions struct {
	Options
	// AnyCluster tells that Cluster is only what any cluster needs: nothing is compared with it.
	AnyCluster bool
}

func (o StatusOptions) rule() ClusterRule {
	if o.AnyCluster {
		return AnyCluster
	}
	return SameCluster
}

// Status looks at a cluster and makes nothing in it. Hosts that cannot be reached are part of what it finds, as is a cluster
// that does not answer; the error is what is wrong on this side, or that the context ended.
func Status(ctx context.Context, o StatusOptions) (report.Status, error) {
	out := report.Status{Version: 1}
	err := lookAt(ctx, o, func(ctx context.Context, r *run, from *Target) error {
		s, seen := r.survey(ctx, from)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if o.AnyCluster {
			s.version = ""
		}
		out.Time, out.Cluster = r.Now(), r.cluster.Metadata.Name
		list := s.findings()
		if seen != nil {
			list = append(list, judged(lookAPI, from.Name, seen))
		}
		if from == nil && !slices.ContainsFunc(list, func(f report.Finding) bool { return f.ID == lookMember }) {
			list = append(list, finding(lookMember, "", report.Failed, "no control plane that can be reached has a cluster of kkbundle's"))
		}
		for i := range list {
			list[i].Found = r.mask.mask(list[i].Found)
		}
		out.Findings, out.Healthy = list, list.Healthy()
		s.describe(&out)
		r.remembered(&out)
		return nil
	})
	return out, err
}

// lookAt connects to the hosts, those that it can, calls a function with a control plane that is a node (nil if there is none),
// and leaves no helper where nothing else of ours is.
func lookAt(ctx context.Context, o StatusOptions, do func(ctx context.Context, r *run, from *Target) error) error {
	o.DryRun = true
	r, err := newRun(o.Options, lookingAt(o.rule()))
	if err != nil {
		return err
	}
	r.journal = &journal{mask: r.mask, now: r.Now, w: discard{}}
	defer r.dir.close()
	defer r.disconnect()
	if err := r.findTargets(); err != nil {
		return err
	}
	ctx = inTask(ctx, "status")
	_ = r.onAll(r.needed(), func(_ int, t *Target) error {
		t.failure = r.connectTo(ctx, t)
		return nil // what is found says it
	})
	err = do(ctx, r, r.lookout(ctx))
	stopped := context.Cause(ctx)
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, stopped, r.onAll(r.connected(), func(_ int, t *Target) error {
		if err := t.forgetHelper(ctx); t.failure == nil && !isGone(err) {
			return err
		}
		return nil
	}))
}

// lookout is the first control plane that can be reached and is a node whose API server answers; if none answers, the first
// that is a node.
func (r *run) lookout(ctx context.Context) *Target {
	var members []*Target
	for _, t := range r.connected(manifest.RoleControlPlane) {
		if t.failure != nil {
			continue
		}
		if member, err := t.isMember(ctx); err != nil || !member {
			continue
		}
		if t.apiHealth(ctx) == nil {
			return t
		}
		members = append(members, t)
	}
	return firstOf(members)
}

// describe adds what is there to what was found.
func (s *survey) describe(out *report.Status) {
	for _, n := range s.nodes {
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
	for _, h := range s.hosts {
		out.Certificates = append(out.Certificates, h.certificates...)
		if h.asked {
			out.Etcd = append(out.Etcd, report.EtcdMember{
				Host: h.name, Healthy: h.etcdErr == nil && h.metrics.hasLeader, Leader: h.metrics.leader, Version: h.metrics.version, Bytes: h.metrics.bytes,
			})
		}
	}
}

// remembered adds what the last run from this work directory has left there; an older kkbundle's left nothing.
func (r *run) remembered(out *report.Status) {
	data, err := r.dir.read(reportJSONFile)
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
