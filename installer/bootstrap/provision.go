package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
)

// DirectorySteps create the directories that bootstrap data writes to. CAPKK gives them to the user kube, which can
// then replace the cluster's keys; here root owns them.
func DirectorySteps() []provision.Step {
	var steps []provision.Step
	for _, dir := range []string{
		"/usr/local/bin", "/etc/kubernetes", "/etc/kubernetes/manifests", "/etc/kubernetes/pki", "/etc/cni/net.d",
		"/opt/cni/bin",
		"/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
	} {
		steps = append(steps, provision.Directory{Path: dir, Mode: 0o755})
	}
	return steps
}

// ProgramDigest returns a digest of the program's steps.
func ProgramDigest(p *provision.Program) (string, error) {
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

// StepTasks returns a task for each step. A receipt records the step: later changes by the host's owner stay.
func StepTasks(id string, steps []provision.Step) []task.Task {
	var tasks []task.Task
	for i, s := range steps {
		receipt := marks.Receipt(id, i+1)
		do := func(ctx context.Context, t *task.Host) error { return Apply(ctx, t, s, receipt) }
		step := task.Task{Name: s.String(), Do: do}
		if c, ok := s.(provision.Command); !ok || !c.Always {
			stamp := task.File{Path: receipt, Mode: 0o600, Data: []byte(s.String() + "\n")}
			step.Done = func(ctx context.Context, t *task.Host) (bool, error) { return t.HasFiles(ctx, stamp) }
			step.Do = func(ctx context.Context, t *task.Host) error {
				if err := do(ctx, t); err != nil {
					return err
				}
				return t.Write(ctx, stamp)
			}
		}
		tasks = append(tasks, step)
	}
	return tasks
}

// SentinelTask writes the sentinel. Its directory is in memory: after a reboot the next run writes it again.
func SentinelTask() task.Task {
	return task.Task{
		Name: "sentinel",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			return t.Test(ctx, "test", "-e", marks.Sentinel)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return t.Write(ctx, task.File{Path: marks.Sentinel, Mode: 0o644, Data: []byte("success\n")})
		},
	}
}

// Apply applies one step. An interrupted step is applied again from its start.
func Apply(ctx context.Context, t *task.Host, s provision.Step, receipt string) error {
	switch s := s.(type) {
	case provision.File:
		return provisionFile(ctx, t, s, receipt)
	case provision.Directory:
		return provisionDirectory(ctx, t, s)
	case provision.Link:
		return provisionLink(ctx, t, s)
	case provision.Command:
		return provisionCommand(ctx, t, s, receipt)
	case provision.Hostname:
		return t.Run(ctx, "hostnamectl", "set-hostname", "--", s.Name)
	case provision.Group:
		return provisionGroup(ctx, t, s)
	case provision.User:
		return provisionUser(ctx, t, s)
	case provision.Member:
		return t.Run(ctx, "gpasswd", "--add", s.User, s.Group)
	case provision.Time:
		return provisionTime(ctx, t, s)
	case provision.Timezone:
		return provisionTimezone(ctx, t, s)
	case provision.Disk:
		return provisionDisk(ctx, t, s)
	case provision.Filesystem:
		return provisionFilesystem(ctx, t, s)
	case provision.Mount:
		return provisionMount(ctx, t, s)
	case provision.Unit:
		return provisionUnit(ctx, t, s)
	}
	return fmt.Errorf("step %q (%T) is not supported", s, s)
}
