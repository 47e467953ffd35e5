package kubeadm

import (
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// KubeletSettings returns the files that kubeadm writes for a node's kubelet.
func KubeletSettings() []string {
	return []string{
		"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env",
		"/var/lib/kubelet/instance-config.yaml",
	}
}

// NodeSettings returns the files and directories with a node's settings of the runtime and the kubelet: their
// configuration and their units.
func NodeSettings(c *manifest.Cluster) []string {
	runtime := cri.RuntimeOf(c)
	list := []string{runtime.Config}
	for _, unit := range runtime.Units {
		list = append(list, task.UnitDir+unit)
	}
	list = append(list, task.UnitDir+KubeletUnit, task.UnitDir+KubeletUnit+".d")
	return append(list, KubeletSettings()...)
}

// KubeletUnit is the kubelet's unit.
const KubeletUnit = "kubelet.service"

// kubeletDropInPath has kubeadm's arguments of the kubelet.
const kubeletDropInPath = task.UnitDir + KubeletUnit + ".d/10-kubeadm.conf"
