package clusterapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/Masterminds/semver/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	taskName = "cluster-api"
	// providerWait limits clusterctl's wait for one provider, as by default.
	providerWait = 5 * time.Minute
	// certManagerWait is clusterctl's own limit.
	certManagerWait = 10 * time.Minute
	// inventory is the kind of object by which clusterctl records a provider, after its components and before it waits.
	inventory = "providers.clusterctl.cluster.x-k8s.io"
	// label is on every object that clusterctl installs.
	label = "clusterctl.cluster.x-k8s.io"
	// certManagerVersion is an annotation of every object of the cert-manager that clusterctl has installed.
	certManagerVersion = "cert-manager.clusterctl.cluster.x-k8s.io/version"
)

// Tasks make the cluster a management cluster; none if its file does not ask for it.
func Tasks(c *manifest.Cluster) []task.Task {
	if !c.ClusterAPI.Installed() {
		return nil
	}
	all, err := parts(c) // an error of the catalog is one of the cluster file's check, too
	return []task.Task{repositoryTask(all, err), controllersTask(c, all, err)}
}

// controllersTask has clusterctl upgrade the providers of earlier versions, with cert-manager, and install those that
// are missing. All of them are available in the end.
func controllersTask(c *manifest.Cluster, all []part, unknown error) task.Task {
	want := providers(all)
	return task.Task{
		Name:   taskName,
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Where:  task.First,
		Images: Images(c),
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if unknown != nil {
				return false, unknown
			}
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			have, err := installed(ctx, t)
			if err != nil {
				return false, err
			}
			d := compare(want, have)
			for _, p := range d.later {
				t.Site.Tell(task.Event{
					Phase: "install", Task: taskName, Host: t.Name, State: task.Warned,
					Message: fmt.Sprintf("provider %s stays %s, which is later than %s of the bundle: Cluster API has no way back",
						p.dir, have[p.id()], p.Version),
				})
			}
			for _, p := range slices.Concat(d.older, d.missing) {
				task.Because(ctx, "provider %s is %s, want %s", p.dir, cmp.Or(have[p.id()], "missing"), p.Version)
			}
			there, err := look(ctx, t)
			if err != nil {
				return false, err
			}
			issuer, ill := there.earlierCertManager(all), there.unavailable()
			if issuer != "" {
				task.Because(ctx, "cert-manager is %s, want %s", issuer, issuerOf(all).Version)
			}
			for _, one := range ill {
				task.Because(ctx, "deployment %s/%s is not available", one.Namespace, one.Name)
			}
			return len(d.older)+len(d.missing)+len(ill) == 0 && issuer == "", nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			have, err := installed(ctx, t)
			if err != nil {
				return err
			}
			there, err := look(ctx, t)
			if err != nil {
				return err
			}
			d := compare(want, have)
			if there.earlierCertManager(all) != "" && len(d.older) == 0 {
				d.older = again(want[0], have)
			}
			if err := clusterctl(ctx, t, d.older, "upgrade", "apply"); err != nil {
				return err
			}
			if err := clusterctl(ctx, t, d.missing, "init"); err != nil {
				return err
			}
			return explain(ctx, t, await(ctx, t))
		},
	}
}

// again returns the core provider in the version that it has, if it is there: clusterctl upgrades cert-manager only
// together with a provider, and it puts one of the same version in again.
func again(core part, have map[string]string) []part {
	version, there := have[core.id()]
	if !there {
		return nil
	}
	core.Version = version
	return []part{core}
}

// An installation is what clusterctl has put into the namespaces of the parts. An operator's further providers do not
// count.
type installation struct {
	certManager bool // its namespace is there
	deployments []*appsv1.Deployment
}

func look(ctx context.Context, t *task.Host) (there installation, err error) {
	objects, err := t.Kube().List(ctx, "namespaces,deployments", "--all-namespaces", "--selector="+label)
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Namespace:
			there.certManager = there.certManager || o.Name == certManager
		case *appsv1.Deployment:
			if slices.ContainsFunc(layout(), func(p part) bool { return p.namespace == o.Namespace }) {
				there.deployments = append(there.deployments, o)
			}
		}
	}
	return there, err
}

// unavailable returns the Deployments that are not available.
func (i installation) unavailable() []*appsv1.Deployment {
	return slices.DeleteFunc(slices.Clone(i.deployments), func(d *appsv1.Deployment) bool {
		return slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
	})
}

// earlierCertManager returns the version of clusterctl's cert-manager if it is earlier than that of the parts, else "".
// It is missing after an upgrade that was cut off: clusterctl first removes all but namespace, CRDs and webhooks.
func (i installation) earlierCertManager(all []part) string {
	found := false
	for _, d := range i.deployments {
		if d.Namespace != certManager {
			continue
		}
		found = true
		if have := d.Annotations[certManagerVersion]; isLater(issuerOf(all).Version, have) {
			return have
		}
	}
	if i.certManager && !found {
		return "missing"
	}
	return ""
}

// await waits until no Deployment is unavailable: clusterctl waits for none whose provider it has recorded already.
func await(ctx context.Context, t *task.Host) error {
	there, err := look(ctx, t)
	if err != nil {
		return err
	}
	for _, d := range there.unavailable() {
		_, err := t.Kube().Kubectl(ctx, kube.Command{Patience: providerWait, Args: []string{
			"wait", "--for=condition=Available", fmt.Sprintf("--timeout=%.0fs", providerWait.Seconds()),
			"--namespace=" + d.Namespace, "deployment/" + d.Name,
		}})
		if err != nil {
			return fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
		}
	}
	return nil
}

// clusterctl runs a command that installs providers, and waits until they are available. Its home directory stays as it
// is: clusterctl makes that of its configuration.
func clusterctl(ctx context.Context, t *task.Host, list []part, command ...string) error {
	if len(list) == 0 {
		return nil
	}
	args := append([]string{"env", "XDG_CONFIG_HOME=" + task.ConfigDir, Program}, command...)
	args = append(args, "--kubeconfig", kube.AdminConf, "--wait-providers", "--wait-provider-timeout",
		strconv.Itoa(int(providerWait.Seconds())))
	for _, p := range list {
		args = append(args, p.flag, p.Name+":"+p.Version)
	}
	silent := certManagerWait + time.Duration(len(list))*providerWait
	return explain(ctx, t, t.Run(task.WithPatience(ctx, silent), args...))
}

// explain adds the likely cause to an error of clusterctl, from the first namespace with pods that are not ready.
func explain(ctx context.Context, t *task.Host, err error) error {
	if err == nil {
		return nil
	}
	ill := func(p corev1.Pod) bool { return !kube.IsPodOver(&p) && !kube.IsPodReady(&p) }
	for _, p := range slices.Backward(layout()) { // the providers need cert-manager
		pods, askErr := t.Kube().Pods(ctx, "--namespace="+p.namespace)
		if askErr == nil && slices.ContainsFunc(pods, ill) {
			return diagnose.ExplainPods(ctx, t, p.namespace, err)
		}
	}
	return err
}

// id tells providers of one name apart.
func (p part) id() string { return p.Kind + "/" + p.Name }

// A difference is the providers that the cluster lacks, and those with an earlier or a later version. Later ones are
// there after a rollback.
type difference struct{ missing, older, later []part }

func compare(want []part, have map[string]string) (d difference) {
	for _, p := range want {
		version, there := have[p.id()]
		switch {
		case !there:
			d.missing = append(d.missing, p)
		case isLater(version, p.Version):
			d.later = append(d.later, p)
		case version != p.Version:
			d.older = append(d.older, p)
		}
	}
	return d
}

// isLater reports whether a version is later than another one. Texts that are no versions are not.
func isLater(version, than string) bool {
	one, err := semver.NewVersion(version)
	if err != nil {
		return false
	}
	other, err := semver.NewVersion(than)
	return err == nil && one.GreaterThan(other)
}

// installed returns the versions of the providers that clusterctl has recorded, by type and name.
func installed(ctx context.Context, t *task.Host) (map[string]string, error) {
	known, err := t.Kubectl(ctx, "get", "crd", inventory, "--ignore-not-found", "--output=name")
	if err != nil || len(bytes.TrimSpace(known)) == 0 {
		return nil, err
	}
	var list struct {
		Items []struct{ Type, ProviderName, Version string }
	}
	if err := t.Kube().Get(ctx, &list, inventory, "--all-namespaces"); err != nil {
		return nil, err
	}
	have := map[string]string{}
	for _, one := range list.Items {
		have[one.Type+"/"+one.ProviderName] = one.Version
	}
	return have, nil
}
