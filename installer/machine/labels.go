package machine

import (
	"context"
	_ "embed" // scripts
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

//go:embed scripts/wrong-labels.sh
var wrongLabelsScript string

// labelledDirectories returns the directories of a node whose content inherits their SELinux label. Programs that
// know nothing of labels create them otherwise, kubeadm among them.
func labelledDirectories(c *manifest.Cluster) []string {
	list := []string{
		"/opt/cni", "/opt/cni/bin", "/opt/kkbundle", "/opt/kkbundle/bin", "/var/lib/cni",
		"/var/lib/kubelet",
	}
	if c.Kubernetes.Distribution == manifest.DistributionK3s {
		return append(list, "/etc/rancher", "/var/lib/rancher", "/var/lib/rancher/k3s")
	}
	list = append(list, "/etc/cni", "/etc/kubernetes")
	switch c.CRI.Type {
	case manifest.RuntimeDocker:
		return append(list, "/etc/docker", "/var/lib/docker")
	case manifest.RuntimeCRIO:
		return append(list, "/etc/crio", "/var/lib/containers")
	default:
		return append(list, "/etc/containerd", "/var/lib/containerd")
	}
}

// LabelsTask creates a node's directories with the labels of the host's SELinux policy, before others create them. It
// runs after the installation of packages, which bring the policy for containers. The content of existing directories
// keeps its labels.
func LabelsTask() task.Task {
	return task.Task{
		Name:        "selinux-labels",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			wrong, err := wrongLabels(ctx, t)
			for _, d := range wrong {
				task.Because(ctx, "%s lacks the label %s", d.path, d.label)
			}
			return len(wrong) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			wrong, err := wrongLabels(ctx, t)
			if err != nil {
				return err
			}
			for _, d := range wrong {
				if err := t.Run(ctx, "mkdir", "-p", "--", d.path); err != nil {
					return err
				}
				if err := t.Run(ctx, "chcon", "--", d.label, d.path); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// A labelled directory has the label that the policy wants.
type labelled struct{ label, path string }

func wrongLabels(ctx context.Context, t *task.Host) ([]labelled, error) {
	out, err := t.Output(ctx, host.Script("wrong-labels.sh", wrongLabelsScript,
		labelledDirectories(t.Site.Cluster)...)...)
	if err != nil {
		return nil, err
	}
	var list []labelled
	for line := range strings.Lines(string(out)) {
		if label, path, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			list = append(list, labelled{label, path})
		}
	}
	return list, nil
}
