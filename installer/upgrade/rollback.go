package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// shortAPIWait bounds the wait for an API server before a rollback, which can bring a dead one back itself.
const shortAPIWait = 20 * time.Second

// A NoWayBackError is a rollback that is impossible.
type NoWayBackError struct {
	Cluster, To string
	Reason      string
	// Do is the remedy.
	Do string
}

// Error names the cluster, the version and the reason.
func (e *NoWayBackError) Error() string {
	return fmt.Sprintf("cluster %s is not rolled back to %s: %s", e.Cluster, e.To, e.Reason)
}

// Hint returns the remedy.
func (e *NoWayBackError) Hint() string { return e.Do }

// A rollback is a rollback in progress.
type rollback struct {
	*nodeWalk
	checkup
	saving
	// approved means that the operator has agreed.
	approved bool
}

func newRollback(r *engine.Run, o Options) *rollback {
	w := &nodeWalk{
		Run: r, how: o, lenient: true, kept: map[string]marks.Copies{}, member: health.EtcdMember,
		patience: shortAPIWait,
	}
	return &rollback{nodeWalk: w, checkup: checkup{w}, saving: saving{w}}
}

// Rollback brings a cluster back to the release and the settings of the bundle before its last upgrade, which may
// have stopped anywhere or be complete. The data of etcd stay: an API server reads what its successor of one minor
// release has written (https://kubernetes.io/docs/reference/using-api/deprecation-policy/, rule 4b). kubelets go back
// first, because none may be newer than an API server, then control planes one by one. The work follows from running
// versions and from the copies on nodes, so the same call continues a stopped rollback, and Upgrade completes the
// upgrade instead. If there is no way back, the error is a *NoWayBackError; at most, a control plane without an API
// server has its manifests of before then.
func Rollback(ctx context.Context, o Options) (engine.Report, error) {
	r, err := upgradeRun(&o)
	if err != nil {
		return engine.Report{}, err
	}
	b := newRollback(r, o)
	b.settle, b.servicesWait = settleTime, servicesWait
	r.Finish = r.KeepReport
	return r.Start(ctx, b.work)
}

func (b *rollback) work(ctx context.Context) (err error) {
	ctx = task.InTask(ctx, "look")
	if err := b.checkWithout(); err != nil {
		return err
	}
	if err := begin.CheckMembers(ctx, b.Run); err != nil {
		return err
	}
	if err := b.find(ctx); err != nil { // which may choose a release between
		return err
	}
	if err := begin.CheckBundle(ctx, b.Run); err != nil {
		return err
	}
	if err := b.rescue(ctx); err != nil {
		return err
	}
	plan, err := b.look(ctx)
	if err != nil {
		return err
	}
	if b.how.Planned != nil {
		b.how.Planned(plan)
	}
	if !plan.Empty() {
		if err := b.Phases(ctx, []task.Phase{{Name: "precheck", Tasks: []task.Task{b.fitTask(plan)}}}); err != nil {
			return err
		}
	}
	if b.DryRun {
		return nil
	}
	if !plan.Empty() {
		if err := b.approve(plan); err != nil {
			return err
		}
	}
	before, after := around(b.Cluster)
	defer func() {
		if err == nil {
			begin.TellLeft(b.Run, plan.Left())
		}
	}()
	if plan.Empty() {
		if err := b.saved(); err != nil { // a run may have been killed just before
			return err
		}
		return b.Phases(ctx, []task.Phase{before, after, b.forgetPhase()})
	}
	if err := b.Phases(ctx, []task.Phase{{Name: "save", Tasks: []task.Task{b.saveTask(plan)}}, before}); err != nil {
		return err
	}
	phase := "rollback " + plan.To
	if err := begin.InPhase(b.Run, phase, func() error { return b.back(ctx, phase, plan) }); err != nil {
		err = b.stopped(ctx, plan.To, err)
		if stopped, ok := errors.AsType[*StoppedError](err); ok {
			stopped.Back = true
		}
		return err
	}
	if err := b.saved(); err != nil {
		return err
	}
	return b.Phases(ctx, []task.Phase{after, b.forgetPhase()})
}

// fitTask checks for what would stop a rollback half way: nodes that cannot be drained, and no room for the copy of
// etcd. A cluster that is not healthy is no reason, since the rollback may be its remedy.
func (b *rollback) fitTask(plan Plan) task.Task {
	return task.Task{
		Name: "cluster-health", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, InDryRun: true,
		Do: func(ctx context.Context, t *task.Host) error {
			todo, err := b.toDrain(ctx, plan)
			if err != nil {
				return err
			}
			var reasons []error
			if todo.hasWork() {
				reasons = slices.Concat(b.budgets(ctx, t, todo), b.lonePods(ctx, t, todo))
			}
			if b.Cluster.Etcd.Type != manifest.EtcdProvided {
				reasons = append(reasons, b.onEach(b.Connected(manifest.RoleEtcd),
					func(t *task.Host) []error { return b.roomForSnapshot(ctx, t) })...)
			}
			if len(reasons) == 0 {
				return nil
			}
			return b.unfit(t, &UnfitError{Reasons: reasons, Back: true})
		},
	}
}

// toDrain returns the plan with nodes as current that a stopped rollback has drained already.
func (b *rollback) toDrain(ctx context.Context, plan Plan) (Plan, error) {
	plan.Nodes = slices.Clone(plan.Nodes)
	for i, n := range plan.Nodes {
		if n.Left {
			continue
		}
		old, err := b.kubeletIsOld(ctx, b.HostNamed(n.Name))
		if err != nil {
			return plan, err
		}
		plan.Nodes[i].Current = old
	}
	return plan, nil
}

// approve asks the operator once.
func (b *rollback) approve(plan Plan) error {
	if b.approved || b.how.Approve == nil {
		return nil
	}
	b.approved = true
	return b.how.Approve(plan)
}

// forgetPhase removes the copies, which lead nowhere after a rollback.
func (b *rollback) forgetPhase() task.Phase {
	return task.Phase{Name: "tidy", Tasks: []task.Task{tidyTask(), forgetTask()}}
}

// back brings the nodes back: objects that kubeadm has changed, kubelets of workers and of control planes, control
// planes.
func (b *rollback) back(ctx context.Context, phase string, plan Plan) error {
	return b.pass(ctx, phase, b.backward(plan.Batch))
}

// find reads which copies nodes have, chooses the release of the bundle to which they lead, and checks that its
// settings are the same.
func (b *rollback) find(ctx context.Context) error {
	nodes := b.nodes()
	found := make([]marks.Copies, len(nodes))
	has := make([]bool, len(nodes))
	if err := b.OnAll(nodes, func(i int, t *task.Host) (err error) {
		found[i], has[i], err = marks.FindCopies(ctx, t)
		return err
	}); err != nil {
		return err
	}
	if has[0] {
		if err := b.chooseStep(found[0].Release()); err != nil {
			return err
		}
	}
	nodes = b.nodes() // of the chosen release
	if err := b.OnAll(nodes, func(i int, t *task.Host) error {
		if !has[i] {
			return nil
		}
		return b.leadsHere(ctx, t, found[i])
	}); err != nil {
		return err
	}
	for i, t := range nodes {
		if has[i] && found[i].Release() == b.Cluster.Kubernetes.Version {
			b.kept[t.Name] = found[i]
		}
	}
	return nil
}

// chooseStep makes the rollback one to an intermediate release of the bundle, if that is where the copies lead: the
// upgrade with this bundle stopped in a later step, or is complete. A step that changes etcd alone has the release of
// its start, and is none to go back to.
func (b *rollback) chooseStep(release string) error {
	steps, err := catalog.Steps(b.Cluster, plan.Needed(b.Cluster))
	if err != nil {
		return err
	}
	for _, s := range steps {
		if s.Cluster.Kubernetes.Version == release && s.Etcd == "" {
			b.ChangeSite(func(site *task.Site) { b.SetCluster(site, s.Cluster) })
		}
	}
	return nil
}

func (b *rollback) refuse(do, format string, args ...any) error {
	return &NoWayBackError{b.Cluster.Metadata.Name, b.Cluster.Kubernetes.Version, fmt.Sprintf(format, args...), do}
}

// leadsHere checks a node's copies against the bundle. A worker keeps the copies of an earlier step until its own turn.
func (b *rollback) leadsHere(ctx context.Context, t *task.Host, kept marks.Copies) error {
	is := kept.Release()
	if is != b.Cluster.Kubernetes.Version {
		if !t.Is(manifest.RoleControlPlane) {
			return nil
		}
		return b.refuse("give the bundle of that release, or that of an upgrade over it",
			"the copies of %s lead back to %s", t.Name, is)
	}
	data, err := t.Read(ctx, kept.Path(member.Path))
	if err != nil {
		return fmt.Errorf("copies of %s: %w", t.Name, err)
	}
	_, settings, _ := strings.Cut(string(data), "\n")
	var names []string
	now, _ := member.Changed(b.Run.Site, settings)
	for _, s := range now {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return nil
	}
	if t.Is(manifest.RoleControlPlane) { // no bundle helps then
		if err := b.etcdAllows(ctx, t, kept); err != nil {
			return err
		}
	}
	return b.refuse("give the bundle that the cluster had before its upgrade. After an upgrade whose first step changed etcd alone there is none, for that step took the new settings along: continue the upgrade",
		"before its last step %s had other settings than the bundle: %s", t.Name, strings.Join(names, ", "))
}

// rescue puts the control plane of the release before in place where the API server does not answer, as after an
// upgrade that failed there.
func (b *rollback) rescue(ctx context.Context) error {
	if b.DryRun {
		return nil
	}
	for _, t := range b.controlPlanes() {
		kept, is := b.kept[t.Name]
		if !is {
			continue
		}
		if task.Eventually(ctx, b.patience, t.ServerReady) == nil {
			continue
		}
		if err := b.approve(Plan{
			Cluster: b.Cluster.Metadata.Name, To: b.Cluster.Kubernetes.Version,
			Back: true,
		}); err != nil {
			return err
		}
		if err := b.etcdAllows(ctx, t, kept); err != nil {
			return err
		}
		for _, step := range []task.Task{
			b.beginTask("rescue"),
			{Name: "control-plane", Done: task.Never, Do: b.putManifests},
		} {
			if err := b.TaskOn(ctx, "rescue", step, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// look reads the running versions, and checks that the cluster can go back.
func (b *rollback) look(ctx context.Context) (Plan, error) {
	p := Plan{
		Cluster: b.Cluster.Metadata.Name, To: b.Cluster.Kubernetes.Version, Back: true,
		Batch: b.how.Batch.of(len(b.workers())),
	}
	var err error
	if p.Nodes, err = b.nodesOf(ctx); err != nil {
		return p, err
	}
	p.From = p.newestPart()
	planes := b.controlPlanes()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.ControlPlane {
			continue
		}
		at, err := b.isBack(ctx, planes[i])
		if err != nil {
			return p, err
		}
		n.Current = n.Current && at
		if _, kept := b.kept[n.Name]; !kept && n.APIServer != p.To {
			return p, b.refuse("only the upgrade from that release keeps a way back to it",
				"%s runs %s and has no copies of %s", n.Name, n.APIServer, p.To)
		}
	}
	if err := b.possible(ctx, p); err != nil {
		return p, err
	}
	if !p.hasWork() {
		return p, nil
	}
	p.Steps = []string{p.To}
	// an API server that has just started knows no rights yet
	err = task.Eventually(ctx, apiWait, func(ctx context.Context) (err error) {
		p.Unknown, err = b.unknownObjects(ctx)
		return err
	})
	if err == nil && len(p.Unknown) > 0 && !b.Force {
		return p, b.refuse("delete these objects, or leave them to the next upgrade with --force: they stay in etcd",
			"%s does not know %s, and cannot show or delete them", p.To, strings.Join(p.Unknown, ", "))
	}
	return p, err
}

// newestPart returns the newest version of an API server, kubelet or record.
func (p Plan) newestPart() string {
	newest := ""
	for _, n := range p.Nodes {
		for _, v := range []string{n.APIServer, n.Kubelet, n.Recorded} {
			if v != "" && (newest == "" || versionLess(newest, v)) {
				newest = v
			}
		}
	}
	return newest
}

// possible checks what forbids a rollback: more than one minor release, and an etcd whose storage has moved on.
func (b *rollback) possible(ctx context.Context, p Plan) error {
	from, err := semver.NewVersion(p.From)
	if err != nil {
		return b.refuse("", "a node reports the version %q", p.From)
	}
	to := semver.MustParse(p.To)
	if from.LessThan(to) {
		return b.refuse("kkbundle upgrade brings it forward", "the cluster runs %s, which is older", p.From)
	}
	if from.Major() != to.Major() || from.Minor() > to.Minor()+1 {
		return b.refuse("go back one release at a time, each with its bundle",
			"the cluster runs %s, and only one minor release can be rolled back", p.From)
	}
	for _, n := range p.Nodes {
		if n.Left && versionLess(p.To, n.Kubelet) {
			return b.refuse("bring that node back and run the command without --without "+n.Name+
				", or delete it for good: kkbundle nodes delete --unreachable "+n.Name,
				"the kubelet of %s is %s, and would be newer than every API server", n.Name, n.Kubelet)
		}
	}
	for _, t := range b.controlPlanes() {
		kept, is := b.kept[t.Name]
		if !is {
			continue
		}
		if err := b.etcdAllows(ctx, t, kept); err != nil {
			return err
		}
	}
	return b.externalAllows(ctx)
}

// etcdAllows refuses a rollback to an etcd that cannot read the data: the cluster's storage has a newer minor release.
func (b *rollback) etcdAllows(ctx context.Context, t *task.Host, kept marks.Copies) error {
	if b.Cluster.Etcd.Type != manifest.EtcdInternal {
		return nil
	}
	was, err := etcdRelease(ctx, t, kept.Path(kube.ManifestsDir+"/etcd.yaml"))
	if err != nil {
		return err
	}
	is, err := etcdRelease(ctx, t, memberManifest()[0])
	if err != nil || majorMinor(is) == majorMinor(was) {
		return err
	}
	m, err := b.member(ctx, t)
	if err != nil {
		return plain.Advise(fmt.Errorf("version of etcd's data on %s: %w", t.Name, err),
			"etcd "+was+" may not read the data of "+is+", so the rollback needs an answer: start etcd of "+t.Name+
				" and run the same command again, or continue the upgrade")
	}
	if versionLess(was, m.Storage+".0") && majorMinor(m.Storage+".0") != majorMinor(was) {
		return b.refuse("continue the upgrade; the only other way is etcd's copy in the work directory (kkbundle etcd restore), which loses all changes since",
			"the data of etcd on %s have moved on to %s, which etcd %s cannot read", t.Name, m.Storage, was)
	}
	return nil
}

// etcdRelease returns the release of etcd in a manifest of kubeadm: 3.6.5 of the image's tag 3.6.5-0.
func etcdRelease(ctx context.Context, t *task.Host, file string) (string, error) {
	text, err := t.Read(ctx, file)
	if err != nil {
		return "", err
	}
	image, _, _ := strings.Cut(imageOf(string(text)), "@")
	release, _, _ := strings.Cut(image[strings.LastIndexByte(image, ':')+1:], "-")
	if _, err := semver.NewVersion(release); err == nil {
		return strings.TrimPrefix(release, "v"), nil
	}
	return "", fmt.Errorf("%s on %s names no release of etcd's image", file, t.Name)
}

// externalAllows refuses a rollback over a minor release of etcd beside the cluster, whose tasks would replace its
// program.
func (b *rollback) externalAllows(ctx context.Context) error {
	if b.Cluster.Etcd.Type != manifest.EtcdExternal {
		return nil
	}
	want, err := catalog.Version(b.Cluster, "etcd")
	if err != nil {
		return err
	}
	was, _, _ := strings.Cut(want, "-")
	for _, t := range b.Connected(manifest.RoleEtcd) {
		is, err := externalEtcdVersion(ctx, t)
		if err != nil {
			return err
		}
		if majorMinor(is) != majorMinor(was) {
			return b.refuse("continue the upgrade; etcd itself has a procedure for a downgrade: https://etcd.io/docs/v3.6/downgrades/",
				"etcd on %s is %s, and the bundle has %s", t.Name, is, was)
		}
	}
	return nil
}

// unknownObjects counts the objects of types that the release before does not have. Types of
// CustomResourceDefinitions and of other API servers do not depend on the release.
func (b *rollback) unknownObjects(ctx context.Context) ([]string, error) {
	first := b.FirstControlPlane()
	var known []byte
	for _, t := range b.controlPlanes() {
		kept, ok := b.kept[t.Name]
		if !ok {
			continue
		}
		data, err := t.Read(ctx, kept.Types())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			known = data
			break
		}
	}
	if known == nil {
		return nil, nil // of an earlier release of kkbundle
	}
	now, err := apiTypes(ctx, first)
	if err != nil {
		return nil, err
	}
	served, err := first.Kubectl(ctx, "get", "apiservices",
		"--output=jsonpath={range .items[?(@.spec.service)]}{.spec.group}{\"\\n\"}{end}")
	if err != nil {
		return nil, err
	}
	custom, err := first.Kubectl(ctx, "get", "customresourcedefinitions",
		"--output=jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}")
	if err != nil {
		return nil, err
	}
	old, others, own := strings.Fields(string(known)), strings.Fields(string(served)), strings.Fields(string(custom))
	var list []string
	for _, name := range now {
		_, group, _ := strings.Cut(name, ".")
		if slices.Contains(old, name) || slices.Contains(own, name) || slices.Contains(others, group) {
			continue
		}
		out, err := first.Kubectl(task.WithoutOutput(ctx), "get", name, "--all-namespaces", "--output=name",
			"--ignore-not-found")
		if err != nil {
			return nil, err
		}
		if n := len(strings.Fields(string(out))); n > 0 {
			list = append(list, fmt.Sprintf("%d of %s", n, name))
		}
	}
	return list, nil
}
