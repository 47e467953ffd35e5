package etcdops

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// revisionBump follows etcd's documentation for Kubernetes: it exceeds the revisions that a cluster can have
	// written since the snapshot, so that no watcher sees an old revision again.
	// https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump
	revisionBump = "1000000000"
	// stopPatience exceeds the grace period of pods, startPatience the kubelet's interval between looks at manifests.
	stopPatience  = 2 * time.Minute
	startPatience = 4 * time.Minute
)

// An RestoreOptions selects the snapshot and the hosts of a restore.
type RestoreOptions struct {
	// From is a snapshot on this machine. Identities decrypt it; they never reach a host.
	From       string
	Identities []age.Identity
	// Without are lost hosts: etcd is restored without them, and control planes among them are not stopped.
	Without []string
}

// An Restored is the result of a restore.
type Restored struct {
	Snapshot Snapshot
	// Members are the hosts that run the restored etcd.
	Members []string
	// Before are the directories with etcd's previous data, as HOST:PATH, also of earlier restores.
	Before []string
}

// Restore restores a snapshot as a new etcd on all hosts of etcd. Steps that can fail run before anything is
// stopped; data is moved aside, never deleted. An interrupted restore can be run again, also with another snapshot.
func Restore(ctx context.Context, o engine.Options, what RestoreOptions) (Restored, error) {
	var done Restored
	snapshot, err := ReadSnapshot(what.From, what.Identities...)
	if err != nil {
		return done, err
	}
	r, err := newRun(o)
	if err != nil {
		return done, err
	}
	for _, name := range what.Without {
		if !slices.ContainsFunc(r.Options.Inventory.Hosts(), func(h manifest.Host) bool { return h.Name == name }) {
			return done, fmt.Errorf("there is no host %q in the inventory", name)
		}
	}
	r.Excluded = what.Without
	done.Snapshot = snapshot
	_, err = r.Start(ctx, func(ctx context.Context) error {
		if err := begin.RefuseHandedOver(task.InTask(ctx, restorePhase), r); err != nil {
			return err
		}
		s := &restoring{run: r, snapshot: snapshot, identities: what.Identities, token: "kkbundle-" + task.RandomHex(8), before: marks.OldDataDir(r.Site)} //nolint:mnd // 64 bits
		if err := s.choose(task.InTask(ctx, restorePhase)); err != nil {
			return err
		}
		for _, t := range s.members {
			done.Members = append(done.Members, t.Name)
		}
		err := s.work(ctx)
		done.Before = s.kept(task.InTask(ctx, restorePhase))
		return err
	})
	return done, err
}

const restorePhase = "etcd-restore"

// A restoring is a restore in progress.
type restoring struct {
	run             *engine.Run
	snapshot        Snapshot
	identities      []age.Identity
	token, before   string
	members, planes []*task.Host
	at              map[string]memberPlace
}

// A memberPlace is a member's name, peer URL and data directory.
type memberPlace struct{ name, peer, data string }

// choose finds the hosts of the restore.
func (s *restoring) choose(ctx context.Context) error {
	r := s.run
	var lost []string
	var errs []error
	for _, t := range r.WithRole(r.Operation.Roles...) {
		if t.Conn == nil && !slices.Contains(r.Excluded, t.Name) {
			lost = append(lost, t.Name)
			errs = append(errs, t.Err)
		}
	}
	if len(lost) > 0 {
		return plain.Advise(
			fmt.Errorf("etcd is restored on all its hosts with all control planes stopped, and %s cannot be reached: %w", strings.Join(lost, ", "), errors.Join(errs...)),
			"bring them back; if they are lost for good, make sure that they are switched off and restore --without "+
				strings.Join(lost, ","))
	}
	s.members, s.planes = r.Connected(manifest.RoleEtcd), r.Connected(manifest.RoleControlPlane)
	if len(s.members) == 0 {
		return errors.New("no host of etcd is left to restore on")
	}
	s.at = map[string]memberPlace{}
	for _, t := range s.members {
		place, err := placeOf(ctx, t)
		if err != nil {
			return err
		}
		s.at[t.Name] = place
	}
	return nil
}

// placeOf reads a member's place from kubeadm's manifest or from install's configuration.
func placeOf(ctx context.Context, t *task.Host) (memberPlace, error) {
	if t.Site.Cluster.Etcd.Type == manifest.EtcdExternal {
		data, err := etcd.DataDir(t)
		return memberPlace{t.Name, etcd.PeerURL(t), data}, err
	}
	text, err := t.Read(ctx, kube.ManifestsDir+"/etcd.yaml")
	if errors.Is(err, fs.ErrNotExist) {
		text, err = t.Read(ctx, marks.HeldManifests+"/etcd.yaml") // of an interrupted restore
	}
	if errors.Is(err, fs.ErrNotExist) {
		return memberPlace{}, fmt.Errorf("%s has no etcd: %s/etcd.yaml does not exist", t.Name, kube.ManifestsDir)
	}
	if err != nil {
		return memberPlace{}, err
	}
	p := memberPlace{flagOf(text, "name"), flagOf(text, "initial-advertise-peer-urls"), flagOf(text, "data-dir")}
	if p.name == "" || p.peer == "" || !path.IsAbs(p.data) {
		return p, fmt.Errorf("%s/etcd.yaml on %s is not kubeadm's: it lacks --name, --initial-advertise-peer-urls or --data-dir", kube.ManifestsDir, t.Name)
	}
	return p, nil
}

// flagOf returns the value of a flag in a manifest.
func flagOf(manifest []byte, name string) string {
	for line := range strings.Lines(string(manifest)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "- --"+name+"="); ok {
			return value
		}
	}
	return ""
}

// A restoreStep runs on its hosts side by side. It ends before the next step begins.
type restoreStep struct {
	name string
	on   []*task.Host
	do   func(ctx context.Context, t *task.Host) error
}

func (s *restoring) work(ctx context.Context) error {
	steps := []restoreStep{
		{"tools", s.members, etcdTools},
		{"upload", s.members, s.upload},
		{"prepare", s.members, s.prepare},
		{"stop-control-plane", s.planes, stopControlPlane},
		{"stop-etcd", s.members, stopEtcd},
		{"replace-data", s.members, s.replace},
		{"start-etcd", s.members, s.startEtcd},
		{"etcd-health", s.members, s.healthy},
		{"encryption-keys", s.planes, kubeadm.AddRetiredKeys},
		{"start-control-plane", s.planes, startControlPlane},
		{"api-server", s.planes, apiServerBack},
	}
	for _, step := range steps {
		err := s.run.OnAll(step.on, func(_ int, t *task.Host) error {
			return s.run.TaskOn(ctx, restorePhase, task.Task{Name: step.name, Done: task.Never, Do: step.do}, t)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

//go:embed scripts/upload-snapshot.sh
var uploadSnapshotScript string

//go:embed scripts/replace-etcd-data.sh
var replaceEtcdDataScript string

//go:embed scripts/move-manifests.sh
var moveManifestsScript string

// upload copies the snapshot to a host that lacks it.
func (s *restoring) upload(ctx context.Context, t *task.Host) (err error) {
	f, err := openSnapshot(s.snapshot.Path, s.identities)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return t.Conn.Run(task.DescribedAs(ctx, "write "+marks.Snapshot+"/snapshot.db"), host.Cmd{
		Args: host.Script("upload-snapshot.sh", uploadSnapshotScript, marks.Snapshot, s.snapshot.SHA256), Stdin: f,
	})
}

// prepare creates the host's new data beside the old.
func (s *restoring) prepare(ctx context.Context, t *task.Host) error {
	at := s.at[t.Name]
	data := path.Join(at.data, marks.RestoredData)
	if _, err := t.Test(ctx, "pkill", "--exact", "etcdutl"); err != nil { // from a run that lost its session
		return err
	}
	if err := t.Run(ctx, "rm", "-rf", "--", data, path.Join(at.data, marks.DiscardedData)); err != nil {
		return err
	}
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0700", at.data); err != nil {
		return err
	}
	if _, err := statusOf(ctx, t, marks.Snapshot+"/snapshot.db"); err != nil {
		return err
	}
	var initial []string
	for _, m := range s.members {
		initial = append(initial, s.at[m.Name].name+"="+s.at[m.Name].peer)
	}
	if err := t.Run(ctx, "etcdutl", "snapshot", "restore", marks.Snapshot+"/snapshot.db", "--data-dir="+data,
		"--name="+at.name, "--initial-advertise-peer-urls="+at.peer, "--initial-cluster="+strings.Join(initial, ","),
		"--initial-cluster-token="+s.token, "--bump-revision="+revisionBump, "--mark-compacted"); err != nil {
		return err
	}
	return t.Run(ctx, "touch", path.Join(data, "member", marks.UnfinishedData))
}

// stopControlPlane removes the manifests of the host's control plane and its etcd, and waits until no API server is
// left that could write to the old etcd.
func stopControlPlane(ctx context.Context, t *task.Host) error {
	move := host.Script("move-manifests.sh", moveManifestsScript, kube.ManifestsDir, marks.HeldManifests)
	if err := t.Run(ctx, append(move, "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		"etcd")...); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "start", "kubelet.service"); err != nil { // only the kubelet stops the pods
		return err
	}
	return waitStopped(ctx, t, "kube-apiserver", "kube-controller", "kube-scheduler")
}

// stopEtcd stops the host's member. kubeadm's member stops without its manifest.
func stopEtcd(ctx context.Context, t *task.Host) error {
	if t.Site.Cluster.Etcd.Type == manifest.EtcdExternal {
		if err := t.Systemctl(ctx, "stop", etcd.Unit); err != nil {
			return err
		}
	}
	return waitStopped(ctx, t, "etcd")
}

// waitStopped waits until no process has one of the names. The kernel keeps 15 characters of a name.
func waitStopped(ctx context.Context, t *task.Host, names ...string) error {
	return task.Eventually(ctx, stopPatience, func(ctx context.Context) error {
		for _, name := range names {
			runs, err := t.Test(ctx, "pgrep", "--exact", name)
			if err == nil && runs {
				err = fmt.Errorf("%s: %s does not stop", t.Name, name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// replace renames the new data into their place. Data of an interrupted restore are deleted, all others are kept.
func (s *restoring) replace(ctx context.Context, t *task.Host) error {
	data := s.at[t.Name].data
	return t.Run(ctx, host.Script("replace-etcd-data.sh", replaceEtcdDataScript,
		data, marks.RestoredData, s.before, marks.UnfinishedData, marks.DiscardedData)...)
}

// startEtcd starts the host's member. It becomes ready with the others.
func (s *restoring) startEtcd(ctx context.Context, t *task.Host) error {
	if t.Site.Cluster.Etcd.Type == manifest.EtcdExternal {
		return etcd.Start(ctx, t)
	}
	return returnManifests(ctx, t, "etcd")
}

// returnManifests moves manifests back to the kubelet's directory.
func returnManifests(ctx context.Context, t *task.Host, names ...string) error {
	move := host.Script("move-manifests.sh", moveManifestsScript, marks.HeldManifests, kube.ManifestsDir)
	return t.Run(ctx, append(move, names...)...)
}

// healthy waits for the member. From then on the cluster uses the new data.
func (s *restoring) healthy(ctx context.Context, t *task.Host) error {
	if err := task.Eventually(ctx, etcd.LeaderTimeout,
		func(ctx context.Context) error { return etcd.CheckHealth(ctx, t) }); err != nil {
		if t.Site.Cluster.Etcd.Type == manifest.EtcdExternal {
			return t.WithUnitLog(ctx, etcd.Unit, err)
		}
		return err
	}
	return t.Run(ctx, "rm", "-rf", "--", path.Join(s.at[t.Name].data, "member", marks.UnfinishedData), marks.Snapshot)
}

// startControlPlane starts API server, controllers and scheduler anew: their memory of the cluster is obsolete.
func startControlPlane(ctx context.Context, t *task.Host) error {
	if err := returnManifests(ctx, t, "kube-apiserver", "kube-controller-manager", "kube-scheduler"); err != nil {
		return err
	}
	_, err := t.Test(ctx, "rmdir", marks.HeldManifests)
	return err
}

func apiServerBack(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, startPatience, t.ServerReady)
}

// kept lists the members' previous data. Members that do not answer are left out.
func (s *restoring) kept(ctx context.Context) []string {
	var list []string
	for _, t := range s.members {
		out, err := t.Output(context.WithoutCancel(ctx), "find", s.at[t.Name].data, "-maxdepth", "1", "-name",
			marks.OldData+"*")
		if err != nil {
			continue // the list is only shown to people
		}
		for line := range strings.Lines(string(out)) {
			list = append(list, t.Name+":"+strings.TrimSpace(line))
		}
	}
	slices.Sort(list)
	return list
}
