package look

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// StatusOptions select the cluster of Status and WriteSupportBundle.
type StatusOptions struct {
	engine.Options
	// AnyCluster means that Cluster has no settings of the cluster: nothing is compared with it.
	AnyCluster bool
	// Wait is how long Status repeats its look while a check fails or a pod of Kubernetes is starting; 0 means one
	// look.
	Wait time.Duration
	// Waiting, if set, is called with the findings of each look that is repeated.
	Waiting func(report.Findings)
}

// statusPause is the time between two looks of a Status that waits.
const statusPause = 5 * time.Second

func (o StatusOptions) rule() task.ClusterRule {
	if o.AnyCluster {
		return task.AnyCluster
	}
	return task.SameCluster
}

// Status inspects a cluster without creating anything in it. Its findings include unreachable hosts and an API server
// that does not answer. The error is a fault on this machine, or the end of the context.
func Status(ctx context.Context, o StatusOptions) (report.Status, error) {
	end := time.NewTimer(o.Wait)
	defer end.Stop()
	for {
		out, settled, err := statusOnce(ctx, o)
		if err != nil || settled || o.Wait <= 0 {
			return out, err
		}
		if o.Waiting != nil {
			o.Waiting(out.Findings)
		}
		select {
		case <-ctx.Done():
			return out, context.Cause(ctx)
		case <-end.C:
			return out, nil
		case <-time.After(statusPause):
		}
	}
}

// statusOnce inspects a cluster once. settled means that it is healthy and that no pod of Kubernetes is starting.
func statusOnce(ctx context.Context, o StatusOptions) (out report.Status, settled bool, err error) {
	out = report.Status{Version: 1}
	err = lookAt(ctx, o, func(ctx context.Context, r *engine.Run, from *task.Host) error {
		s, seen := health.NewSurvey(ctx, r.Site, from)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if o.AnyCluster {
			s.Version = ""
		}
		out.Time, out.Cluster = r.Now(), r.Cluster.Metadata.Name
		list := s.Findings()
		databases := etcdops.SurveyDatabases(ctx, r)
		for _, one := range databases {
			list = append(list, one.Findings...)
		}
		if seen != nil {
			list = append(list, health.ErrorFinding(health.CheckAPI, from.Name, seen))
		}
		if from == nil && !slices.ContainsFunc(list,
			func(f report.Finding) bool { return f.ID == health.CheckMember }) {
			list = append(list, health.NewFinding(health.CheckMember, "", report.Failed,
				"no reachable control plane has a cluster of kkbundle"))
		}
		for i := range list {
			list[i].Found = r.Mask.Mask(list[i].Found)
		}
		out.Findings, out.Healthy = list, list.Healthy()
		settled = out.Healthy && !s.Starting()
		describe(s, &out)
		for _, one := range databases {
			one.Describe(&out)
		}
		addLastRun(r, &out)
		addWaysBack(ctx, r, &out)
		return nil
	})
	return out, settled, err
}

// lookAt connects to the reachable hosts, calls a function with a control plane that is a node (nil if there is none),
// and removes the helper from hosts without an installation.
func lookAt(ctx context.Context, o StatusOptions, do func(ctx context.Context, r *engine.Run,
	from *task.Host) error,
) error {
	o.DryRun = true
	r, err := begin.New(o.Options, engine.LookingAt(o.rule()))
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
		return nil // the findings report it
	})
	return begin.ForgetHelpers(ctx, r, do(ctx, r, firstAnswering(ctx, r)))
}

// firstAnswering returns the first reachable control plane that is a node and whose API server answers; if none
// answers, the first that is a node.
func firstAnswering(ctx context.Context, r *engine.Run) *task.Host {
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

// describe adds nodes, certificates and etcd members to the findings.
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
	certificates := func(host string, list []node.Certificate) {
		for _, c := range health.Needed(list) {
			days := int(c.NotAfter.Sub(s.Now).Hours() / 24)
			out.Certificates = append(out.Certificates, report.Certificate{
				Host: host, File: c.Path,
				Subject: c.CommonName, Expires: c.NotAfter, Days: days,
			})
		}
	}
	for _, h := range s.Registries {
		certificates(h.Name, h.Certificates)
	}
	for _, h := range s.Hosts {
		certificates(h.Name, h.Certificates)
		if h.Asked {
			out.Etcd = append(out.Etcd, report.EtcdMember{
				Host: h.Name, Healthy: h.EtcdErr == nil && h.Metrics.HasLeader, Leader: h.Metrics.Leader,
				Version: h.Metrics.Version, Bytes: h.Metrics.Bytes,
			})
		}
	}
}

// addLastRun adds the last run's report from the work directory. Older releases left none.
func addLastRun(r *engine.Run, out *report.Status) {
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

// addWaysBack adds the copies of the last upgrade to a status. Hosts that do not answer are in its findings.
func addWaysBack(ctx context.Context, r *engine.Run, out *report.Status) {
	nodes := r.Connected(manifest.RoleCluster)
	found := make([]*report.WayBack, len(nodes))
	_ = r.OnAll(nodes, func(i int, t *task.Host) error {
		if t.Err == nil {
			found[i], _ = health.WayBack(ctx, t)
		}
		return nil
	})
	for _, w := range found {
		if w != nil {
			out.WaysBack = append(out.WaysBack, *w)
		}
	}
}
