package etcdops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// warnPercent of the quota is the size of a database from which status warns.
const warnPercent = 80

// A surveyedDatabase is an etcd host's database, if its member answers, and what is to be said of it and of its copies.
type surveyedDatabase struct {
	host     string
	database *etcd.Database
	Findings report.Findings
}

// SurveyDatabases asks the members of etcd that kkbundle runs.
func SurveyDatabases(ctx context.Context, r *engine.Run) []surveyedDatabase {
	if r.Cluster.Etcd.Type == manifest.EtcdProvided || r.Cluster.Kubernetes.Distribution.RunsEtcd() {
		return nil
	}
	targets := r.Connected(manifest.RoleEtcd)
	all := make([]surveyedDatabase, len(targets))
	_ = r.OnAll(targets, func(i int, t *task.Host) error {
		ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
		defer cancel()
		all[i].host = t.Name
		if !hasMember(ctx, t) {
			return nil
		}
		list, err := etcd.Databases(ctx, t, false)
		if err != nil {
			all[i].Findings = report.Findings{health.ErrorFinding(health.CheckDatabase, t.Name, err)}
		} else {
			all[i].database = &list[0]
			all[i].Findings = report.Findings{judgeDatabase(t.Name, list[0])}
		}
		all[i].Findings = append(all[i].Findings, judgeCopies(ctx, t)...)
		return nil
	})
	return all
}

// hasMember reports whether the host has a member of etcd that this machine can ask.
func hasMember(ctx context.Context, t *task.Host) bool {
	if t.Err != nil {
		return false
	}
	there, err := t.Test(ctx, "test", "-e", etcd.ClientFiles(t).Cert)
	if err == nil && there {
		there, err = t.HasCommands(ctx, "etcdctl")
	}
	return err == nil && there // unreachable hosts are findings of their own
}

// Describe completes the member's row, or adds it.
func (s surveyedDatabase) Describe(out *report.Status) {
	if s.database == nil {
		return
	}
	d := *s.database
	i := slices.IndexFunc(out.Etcd, func(m report.EtcdMember) bool { return m.Host == s.host })
	if i < 0 {
		i = len(out.Etcd)
		out.Etcd = append(out.Etcd, report.EtcdMember{
			Host: s.host, Healthy: d.Fault() == nil && !d.NoSpace,
			Leader: d.IsLeader(), Version: d.Version,
		})
	}
	out.Etcd[i].Bytes, out.Etcd[i].Used, out.Etcd[i].Quota = d.Size, d.Used, d.Quota
}

// judgeDatabase judges the size of a member's database, and its alarms.
func judgeDatabase(name string, d etcd.Database) report.Finding {
	size := fmt.Sprintf("the database has %s of its quota of %s, %s of it free", plain.Size(d.Size),
		plain.Size(d.Quota), plain.Size(d.Size-d.Used))
	switch err := d.Fault(); {
	case d.NoSpace:
		return health.NewFinding(health.CheckDatabase, name, report.Failed, "alarm NOSPACE: etcd takes no changes; "+
			size)
	case err != nil:
		return health.NewFinding(health.CheckDatabase, name, report.Failed, err.Error())
	case d.Size*percent >= d.Quota*warnPercent:
		return health.NewFinding(health.CheckDatabase, name, report.Warning, size)
	}
	return health.NewFinding(health.CheckDatabase, name, report.OK, "")
}

// judgeCopies judges the last copy of a host that saves copies.
func judgeCopies(ctx context.Context, t *task.Host) report.Findings {
	there, err := t.Test(ctx, "systemctl", "is-enabled", "--quiet", etcd.BackupTimer)
	if err != nil || !there {
		return nil
	}
	result, err := t.Output(ctx, "systemctl", "show", "--property=Result", "--value", etcd.BackupUnit)
	if err != nil {
		return nil
	}
	if text := strings.TrimSpace(string(result)); text != "success" && text != "" {
		return report.Findings{health.NewFinding(health.CheckCopies, t.Name, report.Warning,
			"the last copy of etcd was not saved or not sent ("+text+")")}
	}
	list, err := copiesOn(ctx, t)
	plan := t.Site.Cluster.Etcd.Backup
	if err != nil || len(list) == 0 || plan == nil {
		return nil // the first copy is saved a minute after the timer's start
	}
	newest := slices.MaxFunc(list, func(a, b Copy) int { return a.Time().Compare(b.Time()) })
	now, err := t.Clock(ctx)
	if age := now.Sub(newest.Time()); err == nil && t.Site.Rule != task.AnyCluster &&
		age > lateCopies*time.Duration(plan.Every) {
		return report.Findings{health.NewFinding(health.CheckCopies, t.Name, report.Warning,
			"the newest copy of etcd is "+newest.Name)}
	}
	return report.Findings{health.NewFinding(health.CheckCopies, t.Name, report.OK, "")}
}

// lateCopies is the number of intervals after which the newest copy is late.
const lateCopies = 3
