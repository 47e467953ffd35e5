package installer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/provision"
)

const (
	// provisionDir has the receipts of steps that were taken.
	provisionDir = stateDir + "/provision"
	// sentinelPath is what Cluster API's controllers wait for: everything before it has succeeded.
	// https://cluster-api.sigs.k8s.io/developer/providers/contracts/bootstrap-config
	sentinelPath = "/run/cluster-api/bootstrap-success.complete"
)

// Provision makes one host of the inventory what a program says, as Cluster API's infrastructure providers do with the
// bootstrap data of a machine. With a bundle the host is prepared first; the phases have the names of the operations of
// CAPKK's KKInstance. A step that succeeded is not taken again on that host for the same program; one that failed is, and
// those behind it. The sentinel is written after everything else.
func Provision(ctx context.Context, o Options, name string, p *provision.Program) (Report, error) {
	o.Limit = []string{name}
	r, err := newRun(o, provisioning())
	if err != nil {
		return Report{}, err
	}
	phases, err := instancePhases(r.cluster, o.Bundle != nil, p)
	if err != nil {
		return Report{}, errors.Join(err, r.dir.close())
	}
	for _, wanted := range o.Phases {
		if !slices.ContainsFunc(phases, func(p Phase) bool { return p.Name == wanted }) {
			return Report{}, errors.Join(fmt.Errorf("there is no phase %q; the phases are %s", wanted, phaseNames(phases)), r.dir.close())
		}
	}
	return r.start(ctx, func(ctx context.Context) error {
		err := r.phases(ctx, phases)
		if r.DryRun {
			err = errors.Join(err, r.onAll(r.connected(), func(_ int, t *Target) error { return t.forgetHelper(ctx) }))
		}
		return err
	})
}

// instancePhases are what CAPKK does with a KKInstance, in its order.
func instancePhases(c *manifest.Cluster, bundled bool, p *provision.Program) ([]Phase, error) {
	var phases []Phase
	if bundled {
		bootstrap := append(stepTasks("bootstrap", bootstrapSteps()), swapTask(c), kernelTask(c), routeTask(c))
		phases = []Phase{
			{Name: "bootstrap", Tasks: bootstrap},
			{Name: "repository", Tasks: []Task{osPackagesTask(c)}},
			{Name: "binary", Tasks: []Task{kubeletTask(c)}},
			{Name: "container-manager", Tasks: containerTasks(c)},
		}
	}
	id, err := digestOfProgram(p)
	if err != nil {
		return nil, err
	}
	tasks := append(stepTasks(id, p.Steps), sentinelTask())
	return append(phases, Phase{Name: "provisioning", Tasks: tasks}), nil
}

// bootstrapSteps are the directories that bootstrap data writes into. CAPKK gives them to a user kube, who could then
// replace the cluster's keys; here they stay root's.
func bootstrapSteps() []provision.Step {
	var steps []provision.Step
	for _, dir := range []string{
		"/usr/local/bin", "/etc/kubernetes", "/etc/kubernetes/manifests", "/etc/kubernetes/pki", "/etc/cni/net.d", "/opt/cni/bin",
		"/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
	} {
		steps = append(steps, provision.Directory{Path: dir, Mode: 0o755})
	}
	return steps
}

// digestOfProgram tells programs apart.
func digestOfProgram(p *provision.Program) (string, error) {
	sum := sha256.New()
	for _, s := range p.Steps {
		data, err := json.Marshal(s)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
		fmt.Fprintf(sum, "%T %s\n", s, data)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// stepTasks makes a task of each step. Its receipt says that it was taken; what the host's owner changes afterwards stays.
func stepTasks(id string, steps []provision.Step) []Task {
	var tasks []Task
	for i, s := range steps {
		receipt := path.Join(provisionDir, id, fmt.Sprintf("%04d", i+1))
		do := func(ctx context.Context, t *Target) error { return t.take(ctx, s, receipt) }
		task := Task{Name: s.String(), Do: do}
		if c, ok := s.(provision.Command); !ok || !c.Always {
			stamp := textFile{receipt, 0o600, []byte(s.String() + "\n")}
			task.Done = func(ctx context.Context, t *Target) (bool, error) { return t.has(ctx, stamp) }
			task.Do = func(ctx context.Context, t *Target) error {
				if err := do(ctx, t); err != nil {
					return err
				}
				return t.write(ctx, stamp)
			}
		}
		tasks = append(tasks, task)
	}
	return tasks
}

// sentinelTask says that everything was done. The directory is in memory: after a restart the sentinel is written again by
// the next run.
func sentinelTask() Task {
	return Task{
		Name: "sentinel",
		Done: func(ctx context.Context, t *Target) (bool, error) { return t.test(ctx, "test", "-e", sentinelPath) },
		Do: func(ctx context.Context, t *Target) error {
			return t.write(ctx, textFile{sentinelPath, 0o644, []byte("success\n")})
		},
	}
}

// take takes one step. What it leaves half done when it is interrupted is done again.
func (t *Target) take(ctx context.Context, s provision.Step, receipt string) error {
	switch s := s.(type) {
	case provision.File:
		return t.provisionFile(ctx, s, receipt)
	case provision.Directory:
		return t.provisionDirectory(ctx, s)
	case provision.Link:
		return t.provisionLink(ctx, s)
	case provision.Command:
		return t.provisionCommand(ctx, s, receipt)
	case provision.Hostname:
		return t.command(ctx, "hostnamectl", "set-hostname", "--", s.Name)
	case provision.Group:
		return t.provisionGroup(ctx, s)
	case provision.User:
		return t.provisionUser(ctx, s)
	case provision.Member:
		return t.command(ctx, "gpasswd", "--add", s.User, s.Group)
	case provision.Time:
		return t.provisionTime(ctx, s)
	case provision.Timezone:
		return t.provisionTimezone(ctx, s)
	case provision.Disk:
		return t.provisionDisk(ctx, s)
	case provision.Filesystem:
		return t.provisionFilesystem(ctx, s)
	case provision.Mount:
		return t.provisionMount(ctx, s)
	case provision.Unit:
		return t.provisionUnit(ctx, s)
	}
	return fmt.Errorf("no way is known to %s", s)
}
