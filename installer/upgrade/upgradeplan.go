package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// kubeletsBehind is the number of minor releases that a kubelet may be behind an API server.
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const kubeletsBehind = 3

// An Plan is the work of an upgrade, derived from the running versions.
type Plan struct {
	// Cluster is the cluster's name, From the version of its oldest control plane and To the bundle's.
	Cluster, From, To string
	// Steps are the versions of the upgrade, one after the other; To is the last. There are none if no node needs work.
	Steps []string
	// Nodes are in the order of the upgrade: control planes, then workers.
	Nodes []Node
	// Batch is the number of workers that are upgraded at the same time, never of two zones.
	Batch int
	// Canary is the node that comes before the others, "" without one.
	Canary string
	// Fits is what Options.Window has time for in each step, as far as times of nodes are known.
	Fits []Fit
	// Settings are the cluster file's settings that differ from the cluster.
	Settings []string
	// Etcd has the versions of etcd that steps take because a later one must not be reached directly, by step.
	Etcd map[string]string
	// Changes are those of runtimes, of the kubelets' configuration, of the pod network and of external etcd.
	Changes []Change
	// Back means that the plan is of a rollback. Unknown are then objects of types that the release before does not
	// have, each as a number and a type.
	Back    bool
	Unknown []string

	etcd []string // the running versions of kubeadm's etcd; none if they are not known
}

// An Node is a node with its running versions.
type Node struct {
	Name         string
	ControlPlane bool
	// Kubelet and APIServer are the running versions; a worker has no API server.
	Kubelet, APIServer string
	// Recorded is the version of the node's last complete upgrade. After an interrupted one, programs may be newer.
	Recorded string
	// Zone is the node's failure domain, "" without one.
	Zone string
	// Current means that the node needs no upgrade, Cordoned that it is unschedulable, Left that the upgrade leaves
	// it as it is, and Later that Options.Nodes leaves it to another run.
	Current, Cordoned, Left, Later bool

	labels labels.Set
	mark   string // the release of the step in progress on the node, "" for none
}

// Empty reports whether nothing needs an upgrade.
func (p Plan) Empty() bool { return len(p.Steps) == 0 && len(p.Changes) == 0 }

// hasWork reports whether a node needs another release or other settings.
func (p Plan) hasWork() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return !n.Current && !n.Left })
}

// A RefusedError is an upgrade that is impossible, independent of the cluster's health.
type RefusedError struct {
	Cluster, To string
	Reason      string
	// Do is the remedy.
	Do string
}

// Error names the cluster, the version and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("cluster %s is not upgraded to %s: %s", e.Cluster, e.To, e.Reason)
}

// Hint returns the remedy.
func (e *RefusedError) Hint() string { return e.Do }

// look reads the running versions from the hosts and the API servers.
func (u *upgrade) look(ctx context.Context) (Plan, error) {
	p := Plan{Cluster: u.Cluster.Metadata.Name, To: u.Cluster.Kubernetes.Version}
	first := u.FirstControlPlane()
	settings, begun, err := member.Membership(ctx, first)
	if err != nil {
		return p, err
	}
	if !begun {
		return p, &RefusedError{
			p.Cluster, p.To, first.Name + " is not a node of a cluster that kkbundle has made",
			"install it first, or name the inventory of the cluster",
		}
	}
	now, _ := member.Changed(u.Run.Site, settings)
	for _, s := range now {
		p.Settings = append(p.Settings, s.Name)
	}
	if p.Nodes, err = u.nodesOf(ctx); err != nil {
		return p, err
	}
	p.Batch = u.how.Batch.of(len(u.workers()))
	u.gate.before = u.lastTimes().complete()
	if err := u.choose(&p); err != nil {
		return p, err
	}
	if err := checkExternalEtcd(ctx, u.Run); err != nil {
		return p, err
	}
	if u.Cluster.Etcd.Type == manifest.EtcdInternal {
		p.etcd = u.etcdVersions(ctx)
	}
	p.Steps, err = u.steps(p)
	p.Etcd = u.through
	if err == nil {
		p.From = p.oldest()
		p.Fits, err = u.fits(p)
	}
	return p, err
}

// controlPlanes returns the control planes, first the one where kubeadm upgrades the cluster.
func (w *nodeWalk) controlPlanes() []*task.Host {
	first := w.FirstControlPlane()
	others := slices.DeleteFunc(w.WithRole(manifest.RoleControlPlane),
		func(t *task.Host) bool { return t.Name == first.Name })
	return append([]*task.Host{first}, others...)
}

// workers returns the nodes to upgrade that are not control planes, in the order of the inventory.
func (w *nodeWalk) workers() []*task.Host {
	return slices.DeleteFunc(w.WithRole(manifest.RoleCluster), func(t *task.Host) bool {
		return t.Is(manifest.RoleControlPlane) || slices.Contains(w.Scope.Without, t.Name)
	})
}

// nodes returns the control planes, then the workers.
func (w *nodeWalk) nodes() []*task.Host { return slices.Concat(w.controlPlanes(), w.workers()) }

// states returns the nodes as the API has them. An interrupted run may have left the API server starting.
func (w *nodeWalk) states(ctx context.Context) (nodes []corev1.Node, err error) {
	err = task.Eventually(ctx, apiWait, func(ctx context.Context) (err error) {
		nodes, err = w.FirstControlPlane().Kube().Nodes(ctx)
		return err
	})
	return nodes, err
}

// nodesOf combines the hosts' records with the API's nodes. The inventory has to name exactly the cluster's nodes.
func (w *nodeWalk) nodesOf(ctx context.Context) ([]Node, error) {
	states, err := w.states(ctx)
	if err != nil {
		return nil, fmt.Errorf("the cluster's API does not answer: %w", err)
	}
	targets := w.nodes()
	nodes := make([]Node, len(targets))
	first := w.FirstControlPlane()
	err = w.OnAll(targets, func(i int, t *task.Host) error {
		n := &nodes[i]
		n.Name, n.ControlPlane = t.Name, t.Is(manifest.RoleControlPlane)
		state := kube.FindNode(states, t.Name)
		id, _, member, err := member.Recorded(ctx, t)
		if err != nil {
			return err
		}
		if state == nil || !member {
			return &RefusedError{
				w.Cluster.Metadata.Name, w.Cluster.Kubernetes.Version, t.Name +
					" of the inventory is not a node of the cluster",
				"add it first (kkbundle install with the bundle that the cluster was made from), or take it out of the inventory",
			}
		}
		n.Recorded = id.Version
		n.from(state)
		if n.ControlPlane {
			if err := task.Eventually(ctx, apiWait, func(ctx context.Context) (err error) {
				n.APIServer, err = apiVersion(ctx, first, t)
				return err
			}); err != nil {
				return noAPIServer(ctx, t, err)
			}
		}
		current, err := isCurrent(ctx, t)
		if err != nil || !current {
			return err
		}
		unfinished, err := marks.IsUnfinished(ctx, t)
		n.Current = !unfinished && n.mark == "" // a marked node still has to be uncordoned
		return err
	})
	for _, s := range states {
		if !slices.ContainsFunc(w.WithRole(manifest.RoleCluster), func(t *task.Host) bool { return t.Name == s.Name }) {
			err = errors.Join(err, &RefusedError{
				w.Cluster.Metadata.Name, w.Cluster.Kubernetes.Version, "node " + s.Name +
					" is not in the inventory and would not be upgraded",
				"add it to the inventory, or delete it from the cluster",
			})
		}
	}
	return append(nodes, w.leftNodes(states)...), err
}

// noAPIServer returns the error of a control plane whose API server does not answer, with the way out of an upgrade
// that stopped there.
func noAPIServer(ctx context.Context, t *task.Host, err error) error {
	err = fmt.Errorf("API server of %s: %w", t.Name, err)
	if _, kept, copyErr := marks.FindCopies(ctx, t); copyErr != nil || !kept {
		return err
	}
	return plain.Advise(err,
		"start it and run the same command again, or go back with kkbundle upgrade --rollback and the bundle before: "+
			t.Name+" has copies of that release")
}

// from reads the node's state in the API.
func (n *Node) from(s *corev1.Node) {
	n.mark, n.labels, n.Zone = s.Annotations[marks.UpgradingAnnotation], s.Labels, s.Labels[corev1.LabelTopologyZone]
	n.Kubelet, n.Cordoned = s.Status.NodeInfo.KubeletVersion, s.Spec.Unschedulable
}

// apiVersion returns the version of a control plane's API server.
func apiVersion(ctx context.Context, t *task.Host, of *task.Host) (string, error) {
	return readVersion(t.Kubectl(ctx, of.ServerFlag(), "get", "--raw=/version"))
}

// readVersion reads an API server's answer to /version.
func readVersion(data []byte, err error) (string, error) {
	if err != nil {
		return "", err
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return "", fmt.Errorf("answer to /version: %w", err)
	}
	return v.GitVersion, nil
}

// oldest returns the complete version of the oldest control plane. After an interrupted upgrade, parts of it are newer.
func (p Plan) oldest() string {
	oldest := ""
	for _, n := range p.Nodes {
		for _, v := range []string{n.APIServer, n.Recorded} {
			if n.ControlPlane && v != "" && (oldest == "" || versionLess(v, oldest)) {
				oldest = v
			}
		}
	}
	return oldest
}

// start returns the release that the first step begins at: that of the oldest control plane, or the minor release
// before an intermediate step that an interrupted run has left on a node. Such a node is unschedulable: pods of the
// next node to be drained may have no other place. A node that was left out since then goes to a later release
// directly: control planes do not go back. Where the step after the oldest control plane would leave a worker too far
// behind, as after runs in parts, the workers first take the control planes' release.
func (p Plan) start() string {
	start := p.oldest()
	if v, err := semver.NewVersion(start); err == nil && v.Minor() > 0 && majorMinor(start) != majorMinor(p.To) &&
		slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.isBehind(v.Minor()+1) && !n.isBehind(v.Minor()) }) {
		start = fmt.Sprintf("v%d.%d.0", v.Major(), v.Minor()-1)
	}
	for _, n := range p.Nodes {
		v, err := semver.NewVersion(n.mark)
		if err != nil || n.Left || v.Minor() == 0 || !versionLess(n.Recorded, n.mark) ||
			majorMinor(n.mark) == majorMinor(p.To) {
			continue // a rollback's mark is the older release
		}
		if versionLess(majorMinor(n.mark)+".0", majorMinor(p.newestServer())+".0") {
			continue
		}
		if before := fmt.Sprintf("v%d.%d.0", v.Major(), v.Minor()-1); versionLess(before, majorMinor(start)+".0") {
			start = before
		}
	}
	return start
}

// isBehind reports whether a worker of this run would have too old a kubelet for API servers of a minor release.
func (n Node) isBehind(minor uint64) bool {
	v, err := semver.NewVersion(n.Kubelet)
	return err == nil && !n.ControlPlane && !n.Left && !n.Later && minor > v.Minor()+kubeletsBehind
}

// steps returns the versions of the upgrade, or an error if the cluster cannot be upgraded to the bundle's version.
func (u *upgrade) steps(p Plan) ([]string, error) {
	refuse := func(do, format string, args ...any) error {
		return &RefusedError{p.Cluster, p.To, fmt.Sprintf(format, args...), do}
	}
	to, err := semver.NewVersion(p.To)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.version %q: %w", p.To, err)
	}
	for _, n := range p.Nodes {
		for what, v := range map[string]string{"the API server": n.APIServer, "the kubelet": n.Kubelet} {
			if v == "" {
				continue
			}
			is, err := semver.NewVersion(v)
			if err != nil {
				return nil, refuse("", "%s of %s reports the version %q", what, n.Name, v)
			}
			if is.GreaterThan(to) {
				return nil, refuse("use a bundle with a version that is not older; kkbundle upgrade --rollback goes back to the release before the last upgrade",
					"%s of %s is %s, and Kubernetes cannot be downgraded", what, n.Name, v)
			}
		}
	}
	if !p.hasWork() {
		return nil, nil
	}
	steps, err := u.way(p, to)
	if err != nil {
		return nil, err
	}
	for _, n := range p.Nodes {
		newest, do := steps[0], "upgrade that node first, with a bundle of the version that the control plane has"
		if n.Later {
			newest, do = p.To, "upgrade it with this run, too: leave out --nodes"
		}
		if n.Left {
			if n.Kubelet == "" {
				continue // no node of the cluster
			}
			newest, do = p.To, "bring that node back and upgrade it, too, or delete it for good: kkbundle nodes delete --unreachable "+n.Name
		}
		if is := semver.MustParse(n.Kubelet); semver.MustParse(newest).Minor() > is.Minor()+kubeletsBehind {
			return nil, refuse(do, "the kubelet of %s is %s, more than %d minor releases behind %s", n.Name, n.Kubelet,
				kubeletsBehind, newest)
		}
		if versionLess(p.newestServer(), n.Kubelet) {
			return nil, refuse("put the kubelet of the control plane's version back on that node",
				"the kubelet of %s is %s, newer than every API server (%s), which Kubernetes does not allow", n.Name,
				n.Kubelet, p.newestServer())
		}
	}
	return steps, nil
}

func (p Plan) newestServer() string {
	newest := ""
	for _, n := range p.Nodes {
		if n.APIServer != "" && (newest == "" || versionLess(newest, n.APIServer)) {
			newest = n.APIServer
		}
	}
	return newest
}

// way returns the releases from the running version to the bundle's, without the running one: the bundle's release of
// each minor release between them, because control planes cannot skip a minor release.
func (u *upgrade) way(p Plan, to *semver.Version) ([]string, error) {
	start := p.start()
	if semver.MustParse(start).Major() != to.Major() {
		return nil, &RefusedError{p.Cluster, p.To, start + " is another major release", ""}
	}
	c := *u.Cluster
	c.Kubernetes.UpgradeFrom = start
	between, err := catalog.Steps(&c, plan.Needed(u.Cluster))
	if err != nil {
		return nil, err
	}
	u.clusters = map[string]*manifest.Cluster{p.To: u.Cluster}
	u.demands, u.through, u.Between = map[string][]manifest.Demand{}, map[string]string{}, nil
	var steps []string
	for _, s := range between {
		version := s.Cluster.Kubernetes.Version
		if p.isOfRunningMinor(s) {
			if pass, err := p.mustPass(s, u.Cluster); err != nil {
				return nil, err
			} else if !pass {
				continue
			}
		}
		if s.Etcd != "" {
			u.through[version] = s.Etcd
		}
		u.clusters[version], u.demands[version] = s.Cluster, s.Demands
		u.Between = append(u.Between, s.Cluster)
		steps = append(steps, version)
		if newest := p.newestServer(); semver.MustParse(newest).Minor() == semver.MustParse(version).Minor() &&
			versionLess(version, newest) {
			return nil, &RefusedError{
				p.Cluster, p.To, fmt.Sprintf("an API server already runs %s, newer than the bundle's step %s", newest,
					version),
				"use the bundle that started the upgrade, or one with a newer " + majorMinor(version),
			}
		}
	}
	return append(steps, p.To), nil
}

// complete checks that the bundle has the needs of each step.
func (u *upgrade) complete(ctx context.Context, p Plan) error {
	if err := begin.CheckBundle(ctx, u.Run); err != nil {
		return err
	}
	var errs []error
	for _, version := range p.Steps {
		at := task.Site{Source: u.Source, Cluster: u.clusters[version]}
		for _, d := range u.demands[version] {
			for _, platform := range begin.Platforms(u.Run, task.Task{Roles: d.Roles}, d.Need) {
				if _, err := at.Components(d.Need, platform); err != nil {
					errs = append(errs, plain.Advise(fmt.Errorf("for the intermediate release %s: %w", version, err),
						"minor releases cannot be skipped, and neither can some versions of etcd: write kubernetes.upgradeFrom: "+p.From+" into the cluster file and build the bundle again, or upgrade with a bundle of each release in turn"))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// versionLess compares versions; a version that cannot be parsed is the oldest.
func versionLess(a, b string) bool {
	va, errA := semver.NewVersion(a)
	vb, errB := semver.NewVersion(b)
	if errA != nil || errB != nil {
		return errA != nil && errB == nil
	}
	return va.LessThan(vb)
}

func majorMinor(version string) string {
	v, err := semver.NewVersion(version)
	if err != nil {
		return version
	}
	return fmt.Sprintf("v%d.%d", v.Major(), v.Minor())
}

// A Batch limits the workers that are upgraded at the same time: a number, or a percentage. The zero value is 10 %.
type Batch struct{ count, percent int }

// ParseBatch parses 3 or 25%; the empty text is the default.
func ParseBatch(text string) (Batch, error) {
	number, isPart := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	switch {
	case text == "":
		return Batch{}, nil
	case err != nil || n < 1 || isPart && n > 100:
		return Batch{}, fmt.Errorf("%q is neither a number of hosts nor a percentage, such as 2 or 25%%", text)
	case isPart:
		return Batch{percent: n}, nil
	}
	return Batch{count: n}, nil
}

// of returns the number for so many workers, at least 1.
func (b Batch) of(workers int) int {
	const byDefault = 10 // percent
	switch {
	case b.count > 0:
		return b.count
	case b.percent > 0:
		return max(1, workers*b.percent/100)
	}
	return max(1, workers*byDefault/100)
}
