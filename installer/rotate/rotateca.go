package rotate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// rotationWait bounds the wait for the API server and the nodes before a rotation: an interrupted one may have left
// them starting.
const rotationWait = 2 * time.Minute

// A RotationStep selects a part of the rotation of authorities.
type RotationStep string

// The steps. Each continues an interrupted run of its own.
const (
	RotationBegin    RotationStep = ""         // new authorities, and certificates from them; the old ones stay trusted
	RotationFinish   RotationStep = "finish"   // the old authorities are removed
	RotationRollback RotationStep = "rollback" // certificates of the old authorities; the new ones are removed
)

// AuthorityOptions are the options of RotateAuthorities.
type AuthorityOptions struct {
	engine.Options
	// Authorities are replaced; none means all that kubeadm has made.
	Authorities []kubeadm.Authority
	Step        RotationStep
	Workloads   kubeadm.WorkloadChoice
	// Agree gets the changes in sentences, and its error ends the run. It is not called if there is nothing to do.
	Agree func([]string) error
}

// Authorities replaces the certificate authorities of a cluster of kubeadm while it serves. Old and new ones are
// trusted side by side until RotationFinish or RotationRollback removes one of them.
func Authorities(ctx context.Context, o AuthorityOptions) (engine.Report, error) {
	if o.Cluster.WithDefaults().Kubernetes.Distribution != manifest.DistributionKubernetes {
		return engine.Report{}, &kubeadm.RotationError{Reason: "this is k3s, whose authorities kkbundle does not replace", Advice: "use k3s certificate rotate-ca: https://docs.k3s.io/cli/certificate"}
	}
	r, err := begin.NewFitting(o.Options, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		looking := task.InTask(ctx, "connect")
		if err := begin.RefuseHandedOver(looking, r); err != nil {
			return err
		}
		rotation, err := kubeadm.FindRotation(looking, r.Site)
		if err != nil {
			return err
		}
		if err := checkRotation(looking, r, rotation, o); err != nil {
			return err
		}
		if rotation.Begun() || o.Step == RotationBegin {
			if err := o.Agree(rotationText(rotation, o.Step)); err != nil {
				return err
			}
		}
		return r.Phases(ctx, rotationSteps(r.Cluster, rotation, o))
	})
}

// checkRotation refuses a rotation that cannot work, and fills in the authorities of a new one.
func checkRotation(ctx context.Context, r *engine.Run, rotation *kubeadm.Rotation, o AuthorityOptions) error {
	if err := checkRotatedNodes(ctx, r); err != nil {
		return err
	}
	if rotation.Begun() {
		return checkContinued(rotation, o)
	}
	if o.Step != RotationBegin {
		return nil
	}
	made := kubeadm.Authorities(r.Cluster)
	if rotation.Names = o.Authorities; len(rotation.Names) == 0 {
		rotation.Names = made
	}
	for _, a := range rotation.Names {
		if !slices.Contains(made, a) {
			return &kubeadm.RotationError{
				Reason: fmt.Sprintf(
					"--ca %s: kubeadm has not made this authority, because etcd runs outside of its control planes", a),
				Advice: "name others of " + kubeadm.AuthorityNames(made),
			}
		}
	}
	if authority.HasOwnCA(r.Cluster) {
		return &kubeadm.RotationError{Reason: "the cluster file names authorities of your own (certificates), which kkbundle does not replace", Advice: "follow https://kubernetes.io/docs/tasks/tls/manual-rotation-of-ca-certificates/"}
	}
	return kubeadm.CheckAuthorities(ctx, r.Site, rotation.Names)
}

// checkContinued refuses a step that does not fit a rotation in progress.
func checkContinued(rotation *kubeadm.Rotation, o AuthorityOptions) error {
	removing := map[kubeadm.Generation]RotationStep{
		kubeadm.NewGeneration: RotationFinish,
		kubeadm.OldGeneration: RotationRollback,
	}
	if must, ok := removing[rotation.End]; ok && must != o.Step {
		return &kubeadm.RotationError{
			Reason: fmt.Sprintf(
				"an interrupted run with --%s has begun to remove authorities", must),
			Advice: fmt.Sprintf("complete it: kkbundle certs rotate-ca --%s", must),
		}
	}
	if len(o.Authorities) > 0 && !sameNames(o.Authorities, rotation.Names) {
		return &kubeadm.RotationError{Reason: "a rotation of other authorities is in progress: " +
			kubeadm.AuthorityNames(rotation.Names), Advice: "complete it without --ca, then begin the next one"}
	}
	return nil
}

func sameNames(a, b []kubeadm.Authority) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// checkRotatedNodes refuses a cluster with nodes that a rotation would not reach, or that another operation has left
// half done.
func checkRotatedNodes(ctx context.Context, r *engine.Run) error {
	err := r.OnAll(r.Connected(manifest.RoleCluster), func(_ int, t *task.Host) error {
		joined, err := member.IsMember(ctx, t)
		if err == nil && !joined {
			err = &kubeadm.RotationError{
				Reason: t.Name + " is in the inventory and is not a node",
				Advice: "run kkbundle install or kkbundle nodes add first, or remove it from the inventory",
			}
		}
		if err != nil {
			return err
		}
		begun, err := marks.Any(ctx, t, marks.UpgradeBegun, marks.ServerUpgraded, marks.EndpointMove)
		if err == nil && begun {
			err = &kubeadm.RotationError{
				Reason: "an upgrade or a move of the endpoint was interrupted on " + t.Name,
				Advice: "complete it first: run kkbundle upgrade or kkbundle endpoint move again",
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	first := r.FirstControlPlane()
	if err := task.Eventually(ctx, rotationWait,
		func(ctx context.Context) error { return health.NodesAreReady(ctx, first) }); err != nil {
		return &kubeadm.RotationError{
			Reason: err.Error(),
			Advice: "repair these nodes, or delete them: kkbundle nodes delete --unreachable, then remove them from the inventory",
		}
	}
	nodes, err := first.Kube().Nodes(ctx)
	for _, n := range nodes {
		if r.HostNamed(n.Name) == nil {
			err = errors.Join(err, &kubeadm.RotationError{
				Reason: "node " + n.Name +
					" is not in the inventory and would lose the cluster",
				Advice: "add it to the inventory, or delete it: kkbundle nodes delete " + n.Name,
			})
		}
	}
	return err
}

// rotationText describes a step in sentences.
func rotationText(rotation *kubeadm.Rotation, step RotationStep) []string {
	restarts := func(times string) string {
		return "the components of control planes and the kubelets restart " + times +
			", node by node; pods of applications run on"
	}
	switch step {
	case RotationFinish:
		return []string{
			fmt.Sprintf("the old authorities are removed (%s): kubeconfigs and certificates that they have issued are refused from then on", kubeadm.AuthorityNames(rotation.Names)),
			restarts("once"), "there is no way back afterwards, neither from this nor from the last upgrade",
		}
	case RotationRollback:
		return []string{fmt.Sprintf(
			"certificates are issued by the old authorities again, and the new ones are removed (%s)",
			kubeadm.AuthorityNames(rotation.Names)), restarts("up to twice")}
	}
	text := []string{
		fmt.Sprintf("new authorities are made and trusted beside the old ones, then they issue all certificates (%s)",
			kubeadm.AuthorityNames(rotation.Names)),
		restarts("twice"),
	}
	if rotation.Has(kubeadm.KubernetesAuthority) {
		text = append(text, "pods of Kubernetes and of the pod network are replaced, because a pod reads the authorities at its start")
	}
	return append(text, "the old authorities stay trusted until kkbundle certs rotate-ca --finish; --rollback leads back until then")
}

// rotationSteps returns the phases of a step. Every task needs the ones before on all hosts.
func rotationSteps(c *manifest.Cluster, r *kubeadm.Rotation, o AuthorityOptions) []task.Phase {
	look := task.Phase{Name: "look", Tasks: []task.Task{cluster.APITask()}}
	verify := task.Phase{Name: task.VerifyPhase, Tasks: plan.VerifyTasks(c)}
	local := func(tasks ...task.Task) []task.Task { return slices.Concat(tasks, endpoint.LocalEndpointTasks(c)) }
	trust := task.Phase{Name: "trust", Tasks: slices.Concat(
		local(kubeadm.KeepAuthoritiesTask(r), kubeadm.TrustTask(r)), kubeadm.ClusterAuthorityTasks(r, ""),
		[]task.Task{cluster.AdminConfTask()})}
	issue := func(to kubeadm.Generation) task.Phase {
		return task.Phase{Name: "issue", Tasks: append(local(kubeadm.IssueTask(r, to)), cluster.AdminConfTask())}
	}
	remove := func(to kubeadm.Generation) task.Phase {
		return task.Phase{Name: "remove", Tasks: slices.Concat(
			local(kubeadm.CheckIssuedTask(r, to), kubeadm.EndAuthoritiesTask(r, to), kubeadm.FinishTask(r, to)),
			kubeadm.ClusterAuthorityTasks(r, to), []task.Task{cluster.AdminConfTask()})}
	}
	forget := task.Phase{Name: "forget", Tasks: []task.Task{kubeadm.ForgetAuthoritiesTask()}}
	switch {
	case o.Step != RotationBegin && !r.Begun():
		return []task.Phase{forget} // an interrupted run may have left files
	case o.Step == RotationFinish:
		former := task.Phase{Name: "upgrade", Tasks: []task.Task{
			kubeadm.CheckIssuedTask(r, kubeadm.NewGeneration),
			formerUpgradeTask(),
		}}
		return []task.Phase{look, former, remove(kubeadm.NewGeneration), verify, forget}
	case o.Step == RotationRollback && r.End == kubeadm.OldGeneration:
		return []task.Phase{look, remove(kubeadm.OldGeneration), verify, forget}
	case o.Step == RotationRollback:
		return []task.Phase{look, trust, issue(kubeadm.OldGeneration), remove(kubeadm.OldGeneration), verify, forget}
	}
	begin := task.Phase{Name: "make", Tasks: []task.Task{kubeadm.MakeAuthoritiesTask(r)}}
	return []task.Phase{look, begin, trust, workloadPhase(c, r, o.Workloads), issue(kubeadm.NewGeneration), verify}
}

// formerUpgradeTask removes the copies that a rollback of the last upgrade would put back: they have certificates and
// the key of the old authorities.
func formerUpgradeTask() task.Task {
	return task.Task{
		Name: "former-upgrade", Roles: []manifest.Role{manifest.RoleCluster}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, marks.CopiesDir)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return marks.ForgetCopies(ctx, t)
		},
	}
}

// workloadPhase returns the phase in which pods learn the new authorities.
func workloadPhase(c *manifest.Cluster, r *kubeadm.Rotation, choice kubeadm.WorkloadChoice) task.Phase {
	p := task.Phase{Name: "workloads"}
	if !r.Has(kubeadm.KubernetesAuthority) {
		return p
	}
	system := func(namespace string) bool { return slices.Contains(addon.OwnNamespaces(c), namespace) }
	others := func(namespace string) bool { return !system(namespace) }
	p.Tasks = []task.Task{
		kubeadm.RestartPodsTask(r, "authority-pods", system, kubeadm.WorkloadChoice{Restart: true, Leave: true}),
		kubeadm.RestartPodsTask(r, "authority-workloads", others, choice),
	}
	return p
}
