package clusterapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
)

// Tasks make the cluster a management cluster; none if its file does not ask for it.
func Tasks(c *manifest.Cluster) []task.Task {
	if !c.ClusterAPI.Installed() {
		return nil
	}
	all, err := parts(c) // an error of the catalog is one of the cluster file's check, too
	return []task.Task{repositoryTask(all, err), controllersTask(c, providers(all), err)}
}

// controllersTask has clusterctl upgrade the providers of earlier versions, with cert-manager, and install those that
// are missing. All of them are available in the end.
func controllersTask(c *manifest.Cluster, want []part, unknown error) task.Task {
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
			ill, err := unavailable(ctx, t)
			for _, one := range ill {
				task.Because(ctx, "deployment %s/%s is not available", one.Namespace, one.Name)
			}
			return len(d.older)+len(d.missing)+len(ill) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			have, err := installed(ctx, t)
			if err != nil {
				return err
			}
			d := compare(want, have)
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

// unavailable returns the Deployments of the providers, and of the cert-manager that clusterctl has installed, that are
// not available. Those of an operator's further providers do not count.
func unavailable(ctx context.Context, t *task.Host) ([]appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := t.Kube().Get(ctx, &list, "deployments", "--all-namespaces", "--selector="+label); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(d appsv1.Deployment) bool {
		ours := slices.ContainsFunc(layout(), func(p part) bool { return p.namespace == d.Namespace })
		return !ours || slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
	}), nil
}

// await waits until no Deployment is unavailable: clusterctl waits for none whose provider it has recorded already.
func await(ctx context.Context, t *task.Host) error {
	ill, err := unavailable(ctx, t)
	if err != nil {
		return err
	}
	for _, d := range ill {
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
	data, err := t.Kubectl(ctx, "get", inventory, "--all-namespaces", "--output=json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct{ Type, ProviderName, Version string }
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("clusterctl's records of providers: %w", err)
	}
	have := map[string]string{}
	for _, one := range list.Items {
		have[one.Type+"/"+one.ProviderName] = one.Version
	}
	return have, nil
}
