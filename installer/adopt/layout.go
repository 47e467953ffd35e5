package adopt

// A Layout is whose paths and units a cluster has.
type Layout string

// The layouts.
const (
	LayoutKubeadm   Layout = "kubeadm"
	LayoutKubeKey   Layout = "kubekey"
	LayoutKubespray Layout = "kubespray"

	layoutUnknown Layout = ""
)

func (l Layout) title() string {
	switch l {
	case LayoutKubeKey:
		return "KubeKey"
	case LayoutKubespray:
		return "Kubespray"
	default:
		return "kubeadm"
	}
}

// layoutOf returns the layout of a node. KubeKey leaves scripts and a directory, Kubespray files of the kubelet of its
// own.
func layoutOf(h *Host) Layout {
	switch {
	case h.has(sprayConfig) || h.has(sprayKubelet):
		return LayoutKubespray
	case h.has(keyDir) || h.has(keyScripts):
		return LayoutKubeKey
	case h.has(kubeletConfig):
		return LayoutKubeadm
	default:
		return layoutUnknown
	}
}
