package kubeadm

import (
	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// systemVerification is kubeadm's check of the kernel and its control groups.
const systemVerification = "SystemVerification"

// IgnoredChecks returns kubeadm's checks that must not stop it. Since 1.35 SystemVerification refuses control groups of
// version 1 even if the kubelet is told to run with them; kubeadm then wants to be told to skip it
// (https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1). The precheck has what else it looks at.
func IgnoredChecks(c *manifest.Cluster) []string {
	fails, told := c.Kubernetes.Kubelet["failCgroupV1"].(bool)
	v, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil || !told || fails || v.Major() == 1 && v.Minor() < 35 {
		return nil
	}
	return []string{systemVerification}
}
