package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// healthWait bounds the wait for a healthy cluster.
const healthWait = time.Minute

// interruptedWait is healthWait after an upgrade that stopped in the middle of a node: kubeadm, which a killed run
// leaves behind, goes on with its components one after the other. A static pod that ended a few times meanwhile is
// started again five minutes later (MaxContainerBackOff of
// https://github.com/kubernetes/kubernetes/blob/v1.37.0/pkg/kubelet/kubelet.go).
const interruptedWait = 6 * time.Minute

// An UnfitError lists the reasons against an upgrade at this time.
type UnfitError struct {
	Reasons []error
	Back    bool // against a rollback
}

// Error lists the reasons.
func (e *UnfitError) Error() string {
	what := "be upgraded"
	if e.Back {
		what = "go back"
	}
	return "the cluster is not in a state to " + what + ":\n  " + strings.ReplaceAll(errors.Join(e.Reasons...).Error(),
		"\n", "\n  ")
}

// Unwrap returns the reasons.
func (e *UnfitError) Unwrap() []error { return e.Reasons }

// Hint returns the remedy.
func (e *UnfitError) Hint() string {
	if e.Back {
		return "remove these causes (--disable-eviction deletes pods in spite of a budget), and run the same command again; --force ignores them"
	}
	return "nothing was changed: remove these causes, and run the same command again; --force ignores them"
}

// A checkup looks for what would stop an upgrade or a rollback half way.
type checkup struct{ *nodeWalk }

// healthTask checks for faults that would stop an upgrade half way.
func (c checkup) healthTask(plan Plan) task.Task {
	return task.Task{
		Name: "cluster-health", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, InDryRun: true,
		Do: func(ctx context.Context, t *task.Host) error { return c.unfit(t, c.health(ctx, t, plan)) },
	}
}

// unfit returns err, or with --force warns of its reasons.
func (c checkup) unfit(t *task.Host, err error) error {
	unfit, ok := errors.AsType[*UnfitError](err)
	if !ok || !c.Force {
		return err
	}
	for _, reason := range unfit.Reasons {
		c.Tell(task.Event{
			Phase: "precheck", Task: "cluster-health", Host: t.Name, State: task.Warned,
			Message: c.Mask.Mask(reason.Error()),
		})
	}
	return nil
}

type healthCheck func(ctx context.Context, t *task.Host, plan Plan) []error

// health returns all reasons against an upgrade. It waits for transient ones first.
func (c checkup) health(ctx context.Context, t *task.Host, plan Plan) error {
	gather := func(ctx context.Context, checks ...healthCheck) (reasons []error) {
		for _, check := range checks {
			reasons = append(reasons, check(ctx, t, plan)...)
		}
		return reasons
	}
	reasons := lasting(ctx, c.healthWait(ctx), func(ctx context.Context) []error {
		return gather(ctx, c.serversAnswer, c.nodesReady, c.etcdHealthy, c.systemPods)
	})
	reasons = append(reasons, gather(ctx, c.budgets, c.lonePods, c.configReadable)...)
	reasons = append(reasons, c.onEach(c.nodes(), func(t *task.Host) []error {
		return slices.Concat(certificatesValid(ctx, t), c.roomFor(ctx, t, plan), quotaHolds(ctx, t))
	})...)
	reasons = append(reasons,
		c.onEach(c.etcdAlone(), func(t *task.Host) []error { return c.roomForSnapshot(ctx, t) })...)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(reasons) == 0:
		return nil
	}
	return &UnfitError{Reasons: reasons}
}

// healthWait is interruptedWait if an upgrade has begun on a node and is not complete there, or if that is unknown.
func (c checkup) healthWait(ctx context.Context) time.Duration {
	for _, t := range c.nodes() {
		if begun, err := marks.IsUnfinished(ctx, t); begun || err != nil {
			return interruptedWait
		}
	}
	return healthWait
}

// lasting looks until there are no reasons, and after the time most returns those of the last look that was not
// interrupted.
func lasting(ctx context.Context, most time.Duration, look func(ctx context.Context) []error) []error {
	err := task.Eventually(ctx, most, func(ctx context.Context) error { return errors.Join(look(ctx)...) })
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		return joined.Unwrap()
	}
	return nil
}

// onEach runs a check on hosts at the same time, and returns all reasons.
func (c checkup) onEach(hosts []*task.Host, check func(t *task.Host) []error) []error {
	found := make([][]error, len(hosts))
	_ = c.OnAll(hosts, func(i int, t *task.Host) error { // no error is returned below
		found[i] = check(t)
		return nil
	})
	return slices.Concat(found...)
}

// etcdAlone returns the hosts of external etcd that are no nodes.
func (c checkup) etcdAlone() []*task.Host {
	if c.Cluster.Etcd.Type != manifest.EtcdExternal {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Connected(manifest.RoleEtcd)),
		func(t *task.Host) bool { return t.Is(manifest.RoleCluster) })
}

// roomForSnapshot compares the space that a copy of etcd's data takes on one of its hosts with the free space.
func (c checkup) roomForSnapshot(ctx context.Context, t *task.Host) []error {
	data, err := begin.Used(ctx, t, c.Cluster.Etcd.DataDir)
	if err != nil {
		return []error{err}
	}
	return fits(ctx, t, map[string]int64{task.StateDir: data})
}

// serversAnswer checks that every API server is ready.
func (c checkup) serversAnswer(ctx context.Context, t *task.Host, _ Plan) []error {
	var errs []error
	for _, cp := range c.controlPlanes() {
		if _, err := t.Kubectl(ctx, task.ReadyQuestion(cp.ServerFlag())...); err != nil {
			errs = append(errs, fmt.Errorf("the API server of %s is not ready: %w", cp.Name, err))
		}
	}
	return errs
}

// nodesReady checks all nodes except those in the middle of an upgrade.
func (c checkup) nodesReady(ctx context.Context, t *task.Host, _ Plan) []error {
	states, err := t.Kube().Nodes(ctx)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, s := range states {
		marked := marks.InUpgrade(&s) || c.LeftOut(s.Name)
		if !kube.IsNodeReady(&s) && !marked && c.Cluster.CNI.Type.Installed() {
			reason := fmt.Sprintf("node %s is not ready: %s", s.Name, kube.NodeCondition(&s, corev1.NodeReady).Message)
			if slices.ContainsFunc(c.workers(), func(t *task.Host) bool { return t.Name == s.Name }) {
				reason += " (--without " + s.Name + " leaves it as it is)"
			}
			errs = append(errs, errors.New(reason))
		}
	}
	return errs
}

// etcdctlArgs runs etcdctl in the pod of kubeadm's etcd on a control plane, with its certificates for health checks.
func etcdctlArgs(on *task.Host, args ...string) []string {
	return slices.Concat([]string{
		"exec", "--namespace=kube-system", "etcd-" + on.Name, "--container=etcd", "--",
		"etcdctl", "--endpoints=https://" + net.JoinHostPort(task.Loopback(on.IP.String()), etcd.Port),
		"--cacert=/etc/kubernetes/pki/etcd/ca.crt",
		"--cert=/etc/kubernetes/pki/etcd/healthcheck-client.crt",
		"--key=/etc/kubernetes/pki/etcd/healthcheck-client.key",
	}, args)
}

// etcdHealthy asks every member of kubeadm's etcd. Each control plane must have one: if a member is missing, the
// restart of another can cost the quorum.
func (c checkup) etcdHealthy(ctx context.Context, t *task.Host, _ Plan) []error {
	if c.Cluster.Etcd.Type != manifest.EtcdInternal {
		return c.noAlarm(ctx)
	}
	out, askErr := t.Kubectl(task.WithoutOutput(ctx), etcdctlArgs(t, "endpoint", "health", "--cluster",
		"--write-out=json")...)
	var members []struct {
		Endpoint string `json:"endpoint"`
		Health   bool   `json:"health"`
		Error    string `json:"error"`
	}
	if err := capped.JSON(out, capped.MaxValues, &members); err != nil {
		return []error{fmt.Errorf("etcd's health is not known: %w", errors.Join(askErr, err))}
	}
	var errs []error
	for _, m := range members {
		switch {
		case m.Health:
		case strings.Contains(m.Error, etcd.NoSpace):
			errs = append(errs, fmt.Errorf("etcd's member %s takes no changes (%s): run kkbundle etcd defrag",
				m.Endpoint, m.Error))
		default:
			errs = append(errs, fmt.Errorf("etcd's member %s is not healthy: %s", m.Endpoint, m.Error))
		}
	}
	if want := len(c.controlPlanes()); len(members) != want {
		errs = append(errs, fmt.Errorf("etcd has %d members, and there are %d control planes", len(members), want))
	}
	return errs
}

// quotaHolds checks that the member of a control plane does not get a quota that a database has reached.
func quotaHolds(ctx context.Context, t *task.Host) []error {
	if !t.Is(manifest.RoleControlPlane) || t.Site.Cluster.Etcd.Type != manifest.EtcdInternal {
		return nil
	}
	if err := kubeadm.CheckUpgradeQuota(ctx, t); err != nil {
		return []error{err}
	}
	return nil
}

// noAlarm asks external etcd for alarms and for members that do not answer: API servers are ready with either.
func (c checkup) noAlarm(ctx context.Context) []error {
	hosts := c.Connected(manifest.RoleEtcd)
	if c.Cluster.Etcd.Type != manifest.EtcdExternal || len(hosts) == 0 {
		return nil
	}
	list, err := etcd.Databases(ctx, hosts[0], true)
	if err != nil {
		return []error{fmt.Errorf("etcd's health is not known: %w", err)}
	}
	var errs []error
	for _, d := range list {
		if d.NoSpace {
			errs = append(errs, fmt.Errorf("etcd's member %s has the alarm NOSPACE: run kkbundle etcd defrag",
				d.Endpoint))
		}
		if err := d.Fault(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// systemPods checks the pods of Kubernetes and of the pod network, except pods on nodes under upgrade and unscheduled
// ones.
func (c checkup) systemPods(ctx context.Context, t *task.Host, _ Plan) []error {
	states, err := t.Kube().Nodes(ctx)
	if err != nil {
		return []error{err}
	}
	marked, resumed := map[string]bool{}, false
	for _, s := range states {
		if marks.InUpgrade(&s) || c.LeftOut(s.Name) {
			marked[s.Name], resumed = true, true
		}
	}
	var errs []error
	for _, namespace := range addon.OwnNamespaces(t.Site.Cluster) {
		pods, err := t.Kube().Pods(ctx, "--namespace="+namespace)
		if err != nil {
			return []error{err}
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			return marked[p.Spec.NodeName] || resumed && p.Spec.NodeName == ""
		})
		errs = append(errs, notReady(pods)...)
	}
	return errs
}

// budgets finds PodDisruptionBudgets that would block a drain for ever: they allow no disruption of healthy pods.
func (c checkup) budgets(ctx context.Context, t *task.Host, plan Plan) []error {
	if len(plan.Nodes) == 1 || c.how.DisableEviction { // the node is not drained, or budgets do not apply
		return nil
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := t.Kube().Get(ctx, &budgets, "poddisruptionbudgets", "--all-namespaces"); err != nil {
		return []error{err}
	}
	var errs []error
	for _, b := range budgets.Items {
		if b.Status.ExpectedPods > 0 && b.Status.DesiredHealthy >= b.Status.ExpectedPods {
			errs = append(errs, fmt.Errorf(
				"PodDisruptionBudget %s/%s wants %d of its %d pods at all times, so no node with one of them can be drained",
				b.Namespace, b.Name, b.Status.DesiredHealthy, b.Status.ExpectedPods))
		}
	}
	return errs
}

// lonePods finds pods without a controller, which kubectl does not evict.
func (c checkup) lonePods(ctx context.Context, t *task.Host, plan Plan) []error {
	if len(plan.Nodes) == 1 {
		return nil
	}
	pods, err := t.Kube().Pods(ctx, "--all-namespaces")
	if err != nil {
		return []error{err}
	}
	todo := map[string]bool{}
	for _, n := range plan.Nodes {
		todo[n.Name] = !n.Current && !n.Left
	}
	var errs []error
	for _, p := range pods {
		if kube.IsLone(&p) && todo[p.Spec.NodeName] {
			errs = append(errs, fmt.Errorf(
				"pod %s/%s on %s has no controller and is not evicted: delete it, or use a Deployment",
				p.Namespace, p.Name, p.Spec.NodeName))
		}
	}
	return errs
}

// configReadable checks that the bundle's kubeadm reads the version of kubeadm's configuration in the cluster.
func (c checkup) configReadable(ctx context.Context, t *task.Host, _ Plan) []error {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "kubeadm-config")
	if err != nil {
		return []error{fmt.Errorf("kubeadm's configuration in the cluster: %w", err)}
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["ClusterConfiguration"]), &head); err != nil {
		return []error{fmt.Errorf("kubeadm's configuration in the cluster: %w", err)}
	}
	// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta3/ and v1beta4
	if known := []string{"kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4"}; !slices.Contains(known, head.APIVersion) {
		return []error{fmt.Errorf(
			"kubeadm's configuration in the cluster (ConfigMap kube-system/kubeadm-config) is of %s, and not %s: convert it with kubeadm config migrate of the version that the cluster has",
			task.OrDash(head.APIVersion), strings.Join(known, " or "))}
	}
	return nil
}

// certificatesValid checks a node's certificates: an upgrade renews kubeadm's, but cannot work with expired ones.
func certificatesValid(ctx context.Context, t *task.Host) []error {
	all, err := health.Certificates(ctx, t)
	if err != nil {
		return []error{fmt.Errorf("certificates of %s: %w", t.Name, err)}
	}
	var errs []error
	for _, c := range all {
		kind := c.Kind()
		if kind != node.KubeadmCertificate && kind != node.KubeletClientCertificate {
			continue
		}
		if err := validAt(c, t.Site.Now()); err != nil {
			errs = append(errs, fmt.Errorf("certificate %s of %s %w", c.Path, t.Name, err))
		}
	}
	return errs
}

func validAt(c node.Certificate, now time.Time) error {
	switch {
	case c.Problem != "":
		return fmt.Errorf("has no certificate in it that can be read: %s", c.Problem)
	case now.After(c.NotAfter):
		return fmt.Errorf("has expired on %s: renew it (kkbundle certs renew) first",
			c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// roomFor compares the space that an upgrade needs on a node with the free space.
func (c checkup) roomFor(ctx context.Context, t *task.Host, plan Plan) []error {
	if n := slices.IndexFunc(plan.Nodes, func(n Node) bool { return n.Name == t.Name }); n >= 0 &&
		plan.Nodes[n].Current && !t.Is(manifest.RoleRegistry) {
		return nil
	}
	steps := int64(len(plan.Steps))
	need := map[string]int64{}
	files, err := begin.FileSpace(ctx, t)
	if err != nil {
		return []error{err}
	}
	images, err := begin.ImageSpace(ctx, t)
	if err != nil {
		return []error{err}
	}
	need["/usr/local"], need[cri.RuntimeOf(c.Cluster).Data] = steps*files, steps*images
	if t.Is(manifest.RoleEtcd) && c.Cluster.Etcd.Type != manifest.EtcdProvided {
		data, err := begin.Used(ctx, t, c.Cluster.Etcd.DataDir)
		if err != nil {
			return []error{err}
		}
		need[task.StateDir] += data // the snapshot
		if c.Cluster.Etcd.Type == manifest.EtcdInternal {
			need["/etc/kubernetes"] += data * max(1, steps) // kubeadm copies it before changing it
		}
	}
	if c.IsRegistry(t) {
		if need[siteregistry.Of(c.Cluster).Data], err = registryLacks(ctx, t); err != nil {
			return []error{err}
		}
	}
	return fits(ctx, t, need)
}

// registryLacks returns the size of the content that the registry lacks.
func registryLacks(ctx context.Context, t *task.Host) (int64, error) {
	find := []string{
		"find", "-H", siteregistry.Of(t.Site.Cluster).Data, "-path", "*/blobs/sha256/*", "-name", "data",
		"-printf", `%h\n`,
	}
	out, err := t.Output(task.WithoutOutput(ctx), find...)
	if _, err := task.Succeeded(err); err != nil { // find fails on a host without the registry
		return 0, err
	}
	there := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		there[line[strings.LastIndexByte(line, '/')+1:len(line)-1]] = true
	}
	need, err := begin.RegistrySpace(ctx, t.Site)
	for _, b := range t.Site.Bundle.Blobs() {
		if there[b.Digest.Encoded()] {
			need -= b.Size
		}
	}
	return max(0, need), err
}

// fits adds up the need on each filesystem and compares it with the free space.
func fits(ctx context.Context, t *task.Host, need map[string]int64) []error {
	type filesystem struct{ need, free int64 }
	found := map[string]*filesystem{}
	for dir, bytes := range need {
		out, err := t.Output(ctx, "df", "--output=avail,target", "--block-size=1", dir)
		if there := err == nil; !there {
			continue // the upgrade creates the directory below another one of the list
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		fields := strings.Fields(lines[len(lines)-1])
		if len(fields) < 2 {
			return []error{fmt.Errorf("%s: unexpected output of df: %q", t.Name, out)}
		}
		free, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return []error{fmt.Errorf("%s: unexpected output of df: %q", t.Name, out)}
		}
		if found[fields[1]] == nil {
			found[fields[1]] = &filesystem{free: free}
		}
		found[fields[1]].need += bytes
	}
	var errs []error
	for mount, f := range found {
		if f.need > f.free {
			errs = append(errs, fmt.Errorf("%s has %d MiB free on %s, and up to %d MiB are written there", t.Name,
				f.free>>20, mount, f.need>>20))
		}
	}
	return errs
}
