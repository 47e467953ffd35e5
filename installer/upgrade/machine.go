package upgrade

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/bootstrap"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// kubeletConf is the kubelet's login, which each node has.
const kubeletConf = "/etc/kubernetes/kubelet.conf"

// Machine brings one machine of Cluster API, a host of the inventory, to the release of the bundle in place: its static
// pods if it is a control plane, its runtime and its kubelet. What a cluster has once is not its matter: the control
// plane's provider writes the version into kubeadm-config before, which kubeadm reads. Nothing is drained here. A
// repeated run continues.
func Machine(ctx context.Context, o engine.Options, name string, p Patches) (engine.Report, error) {
	return onMachine(ctx, o, name, func(ctx context.Context, r *engine.Run) error {
		return r.Phases(ctx, machinePhases(r.Cluster, p))
	})
}

// Patches are what kubeadm changes in the kubelet's configuration and in static pods of a host.
type Patches struct {
	// Dir is a directory on the host, "" for kkbundle's own, if the host has it: a node that was handed over has its own
	// settings there.
	Dir string
	// Files are written before kubeadm runs.
	Files []provision.File
}

// tasks write the files, with their modes and owners.
func (p Patches) tasks() []task.Task {
	var tasks []task.Task
	for _, f := range p.Files {
		tasks = append(tasks, task.Task{
			Name: f.String(), Done: task.Never,
			Do: func(ctx context.Context, t *task.Host) error { return bootstrap.Apply(ctx, t, f, "") },
		})
	}
	return tasks
}

// CheckMachine returns the error by which Machine would refuse a host, or not reach it. The host stays as it is.
func CheckMachine(ctx context.Context, o engine.Options, name string) (engine.Report, error) {
	return onMachine(ctx, o, name, func(context.Context, *engine.Run) error { return nil })
}

// onMachine does some work on a host that may be upgraded.
func onMachine(ctx context.Context, o engine.Options, name string,
	do func(context.Context, *engine.Run) error,
) (engine.Report, error) {
	o.Limit = []string{name}
	if o.Cluster != nil { // nothing installs the pods of peers in a cluster that is declared
		c := *o.Cluster
		c.ImageDistribution = manifest.ImageDistribution{}
		o.Cluster = &c
	}
	r, err := begin.New(o, engine.Provisioning())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		if err := r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
			return mayUpgradeMachine(task.InTask(ctx, "connect"), t)
		}); err != nil {
			return err
		}
		return do(ctx, r)
	})
}

// machinePhases are the steps of a node in an upgrade, in its order: no kubelet may be newer than its API server.
func machinePhases(c *manifest.Cluster, p Patches) []task.Phase {
	node := task.Task{
		Name: "kubeadm", Files: kubeadmFiles(c, "kubeadm"), Done: task.Never,
		Do: func(ctx context.Context, t *task.Host) error {
			upgrade := upgradeOther
			if p.Dir != "" {
				upgrade = func(ctx context.Context, t *task.Host) error { return kubeadmUpgradeWith(ctx, t, p.Dir, "node") }
			}
			if err := upgrade(ctx, t); err != nil {
				return err
			}
			plane, err := runsServer(ctx, t)
			if err != nil || !plane {
				return err
			}
			return task.Eventually(ctx, task.NodeReadyTimeout,
				func(ctx context.Context) error { return serverIsReady(ctx, t) })
		},
	}
	return []task.Phase{
		{Name: "files", Tasks: p.tasks()},
		{Name: "node", Tasks: []task.Task{node}},
		{Name: "container-manager", Tasks: plan.ContainerTasks(c)},
		{Name: "kubelet", Tasks: []task.Task{restarted(kubeadm.KubeletTask(c)), {
			Name: "kubelet-stays", Done: task.Never,
			Do: func(ctx context.Context, t *task.Host) error {
				return task.Eventually(ctx, task.NodeReadyTimeout,
					func(ctx context.Context) error { return kubeletStays(ctx, t) })
			},
		}}},
	}
}

// kubeletStays returns an error unless the kubelet stays up. One that ends at its start, as it does not take its
// settings, is started again after 10 s, and its Node is called ready for some time longer.
func kubeletStays(ctx context.Context, t *task.Host) error {
	was, err := kubeletPID(ctx, t)
	if err != nil {
		return err
	}
	if err := t.Run(ctx, "sleep", "15"); err != nil {
		return err
	}
	is, err := kubeletPID(ctx, t)
	if err == nil && (is == "0" || is != was) {
		err = fmt.Errorf("the kubelet of %s ends again and again, as if it did not take its settings: journalctl -u %s on the host says why",
			t.Name, kubeadm.KubeletUnit)
	}
	return err
}

// kubeletPID returns the process of the kubelet, "0" for none.
func kubeletPID(ctx context.Context, t *task.Host) (string, error) {
	out, err := t.Output(ctx, "systemctl", "show", "--property=MainPID", kubeadm.KubeletUnit)
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "MainPID="), err
}

// mayUpgradeMachine refuses a host that is no node, that is another machine's, or that the release must not be brought
// to, before it is changed.
func mayUpgradeMachine(ctx context.Context, t *task.Host) error {
	same, err := begin.RefuseOwned(ctx, t)
	if err != nil {
		return err
	}
	if !same && t.Site.Owner != "" {
		return &begin.OwnedError{Host: t.Name, Want: t.Site.Owner}
	}
	paths := []string{kubeletConf}
	if !same {
		paths = append(paths, task.ProvisionDir)
	}
	for _, path := range paths {
		if there, err := t.AnyExists(ctx, path); err != nil {
			return err
		} else if !there {
			return refuseMachine(t, "kkbundle provision has to make it one before",
				"%s is no node that kkbundle provision has made: it has no %s", t.Name, path)
		}
	}
	if err := mayBring(ctx, t); err != nil {
		return err
	}
	return mayFollow(ctx, t)
}

func refuseMachine(t *task.Host, do, format string, args ...any) error {
	c := t.Site.Cluster
	return &RefusedError{c.Metadata.Name, c.Kubernetes.Version, fmt.Sprintf(format, args...), do}
}

// mayBring refuses the way from the node's release to the bundle's.
func mayBring(ctx context.Context, t *task.Host) error {
	out, err := t.Output(ctx, "kubelet", "--version")
	if err != nil {
		return err
	}
	has := strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes ")
	is, err := semver.NewVersion(has)
	if err != nil {
		return refuseMachine(t, "", "the kubelet of %s says that it is %q", t.Name, has)
	}
	to, err := semver.NewVersion(t.Site.Cluster.Kubernetes.Version)
	if err != nil {
		return fmt.Errorf("kubernetes.version %q: %w", t.Site.Cluster.Kubernetes.Version, err)
	}
	const replace = "replace the machine instead"
	switch {
	case is.GreaterThan(to):
		return refuseMachine(t, replace, "the kubelet of %s is %s, and Kubernetes cannot be downgraded", t.Name, has)
	case is.Major() != to.Major() || to.Minor() > is.Minor()+1:
		return refuseMachine(t, replace, "the kubelet of %s is %s, and minor releases cannot be skipped", t.Name, has)
	}
	return nil
}

// mayFollow refuses a kubelet that would be newer than the API servers: of a control plane, than the version that its
// API server is about to get.
func mayFollow(ctx context.Context, t *task.Host) error {
	plane, err := runsServer(ctx, t)
	if err != nil {
		return err
	}
	want := t.Site.Cluster.Kubernetes.Version
	if plane {
		version, err := declaredVersion(ctx, t)
		if err != nil {
			return err
		}
		if version != want {
			return refuseMachine(t, "set that version first, as the control plane provider of Cluster API does",
				"kubeadm-config of the cluster has the version %s", version)
		}
		return nil
	}
	version, err := readVersion(t.Output(ctx, "kubectl", "--kubeconfig="+kubeletConf, "get", "--raw=/version"))
	if err != nil {
		return err
	}
	if versionLess(version, want) {
		return refuseMachine(t, "upgrade all control planes first",
			"the API server is %s, and a kubelet must not be newer", version)
	}
	return nil
}

// declaredVersion returns the version that kubeadm upgrades a control plane to.
func declaredVersion(ctx context.Context, t *task.Host) (string, error) {
	data, err := t.Kubectl(ctx, "get", "configmap", "kubeadm-config", "--namespace="+kube.SystemNamespace,
		"--output=jsonpath={.data.ClusterConfiguration}")
	if err != nil {
		return "", err
	}
	var config struct {
		Version string `json:"kubernetesVersion"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return "", fmt.Errorf("ConfigMap kubeadm-config: %w", err)
	}
	if config.Version == "" {
		return "", errors.New("the ConfigMap kubeadm-config has no kubernetesVersion")
	}
	return config.Version, nil
}

// runsServer reports whether the host is a control plane. Its inventory does not tell: the manager of Cluster API's
// provider gives a host both roles.
func runsServer(ctx context.Context, t *task.Host) (bool, error) {
	return t.Test(ctx, "test", "-e", kube.ManifestsDir+"/kube-apiserver.yaml")
}
