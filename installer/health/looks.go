package health

import (
	"slices"

	"github.com/kkbundle/kkbundle/installer/report"
)

// A look is one thing that is to be so of a cluster that works.
type look struct {
	// id is its name; it never changes its meaning. The tasks of the phase verify are looks of the same name.
	ID string
	// title is what is required, why what goes wrong otherwise, fix what to do.
	Title, Why, Fix string
}

// The looks that findings are made for by name.
const (
	lookReachable    = "host-reachable"
	LookMember       = "host-is-node"
	LookNodes        = "verify-nodes"
	lookVersions     = "node-version"
	LookPods         = "verify-pods"
	lookKubeadm      = "kubeadm-config"
	lookKubelet      = "kubelet-config"
	lookInfo         = "cluster-info"
	lookRoles        = "kubeadm-rbac"
	lookControl      = "control-plane-marks"
	lookRuntime      = "runtime-record"
	lookTokens       = "bootstrap-tokens"
	lookCoreDNS      = "coredns"
	lookProxy        = "kube-proxy"
	LookAPI          = "api-server-health"
	lookEtcd         = "etcd-health"
	lookAgreement    = "etcd-agreement"
	LookLeases       = "controller-leases"
	lookCertificates = "certificates"
	lookStorage      = "storage-class"
)

// Looks lists everything that is looked at, in the order of reports.
func Looks() []look {
	return slices.Concat(hostLooks(), registryLooks(), kubeadmLooks(), healthLooks(), proofLooks())
}

func hostLooks() []look {
	return []look{
		{
			lookReachable, "the host can be reached",
			"nothing on it can be looked at, and no run can work on it",
			"see that it runs, that its sshd answers, and that its entry in the inventory is right",
		},
		{
			LookMember, "the host is a node of this cluster",
			"its share of the pods runs elsewhere or not at all",
			"kkbundle install makes it one",
		},
		{
			LookNodes, "every host of the inventory is a node that is ready",
			"pods are not started on a node that is not ready, and those on it are moved away after five minutes",
			"look at the kubelet on that host: journalctl -u kubelet -u containerd",
		},
		{
			lookVersions, "every node runs the cluster's version of Kubernetes",
			"Kubernetes supports kubelets of some older versions only, and what is new works on some nodes only",
			"kkbundle upgrade brings all nodes to one version",
		},
		{
			LookPods, "the pods of Kubernetes and of the pod network are ready",
			"what they do for the cluster is not done",
			"kubectl describe pod and kubectl logs say why; kkbundle support-bundle collects both",
		},
	}
}

func kubeadmLooks() []look {
	return []look{
		{
			lookKubeadm, "kubeadm's configuration is in the cluster (ConfigMap kube-system/kubeadm-config)",
			"kubeadm join, upgrade and certs renew read it",
			"on a control plane: kubeadm init phase upload-config kubeadm --config FILE",
		},
		{
			lookKubelet, "the kubelets' configuration is in the cluster (ConfigMap kube-system/kubelet-config)",
			"kubeadm join and upgrade read it",
			"on a control plane: kubeadm init phase upload-config kubelet --config FILE",
		},
		{
			lookInfo, "the cluster says who it is to those that join (ConfigMap kube-public/cluster-info)",
			"nodes that join find the cluster by it",
			"on a control plane: kubeadm init phase bootstrap-token",
		},
		{
			lookRoles, "what kubeadm lets joining nodes do is allowed (its roles and bindings)",
			"nodes cannot join, or their certificates are not renewed",
			"on a control plane: kubeadm init phase bootstrap-token, and kubeadm init phase upload-config all",
		},
		{
			lookControl, "control planes have their label, and the taint unless they are workers too",
			"kubeadm upgrade finds control planes by the label; without the taint, workloads compete with the API server and etcd",
			"on a control plane: kubeadm init phase mark-control-plane --node-name NODE",
		},
		{
			lookRuntime, "the node has on record how its container runtime is reached",
			"kubeadm upgrade and reset do not find the runtime",
			"kubectl annotate node NODE kubeadm.alpha.kubernetes.io/cri-socket=SOCKET",
		},
		{
			lookTokens, "no bootstrap token is valid for ever",
			"whoever has it can make a machine a node of the cluster",
			"kubeadm token list shows them, kubeadm token delete removes one; kkbundle deletes its own after use",
		},
		{
			lookCoreDNS, "CoreDNS runs as often as it should",
			"names of services are not found",
			"kubectl --namespace kube-system describe deployment coredns",
		},
		{
			lookProxy, "kube-proxy runs on every node",
			"services are not reached from nodes without it",
			"kubectl --namespace kube-system describe daemonset kube-proxy",
		},
	}
}

func healthLooks() []look {
	return []look{
		{
			LookAPI, "every API server is live and ready",
			"clients and nodes that are led to it get errors",
			"on that host: the log of the API server's container below /var/log/pods, and journalctl -u kubelet",
		},
		{
			lookEtcd, "every member of etcd is healthy",
			"one member fewer may fail before the cluster stops taking changes",
			"the log of etcd on that host; a full disk and a slow one are the usual causes",
		},
		{
			lookAgreement, "the members of etcd agree on one leader",
			"members that are apart serve old data or none",
			"see that the members reach each other on TCP 2380, and that their clocks agree",
		},
		{
			LookLeases, "a scheduler and a controller manager are at work",
			"new pods stay Pending, and what is lost is not made again",
			"the logs of kube-scheduler and kube-controller-manager below /var/log/pods on the control planes",
		},
		{
			lookCertificates, "no certificate of the control plane ends within 30 days",
			"the API server, the kubelet or kubectl stop working on that day",
			"kkbundle certs renew, and see why the timer kkbundle-certificates on that host did not",
		},
		{
			lookStorage, "there is at most one default storage class",
			"Kubernetes takes the newest, whichever that is",
			"kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class-",
		},
	}
}

func proofLooks() []look {
	return []look{
		{
			"verify-dns", "the cluster's DNS answers on every node",
			"programs on that node do not find services by name",
			"see whether CoreDNS runs, and whether the hosts reach each other (UDP 8472 for flannel)",
		},
		{
			"verify-outside-names", "names outside the cluster are found where hosts have a nameserver",
			"pods do not find what is outside the cluster",
			"see that the nameservers of the hosts' /etc/resolv.conf answer from the nodes that CoreDNS runs on",
		},
		{
			"verify-network", "a pod on every node reaches a service on the next",
			"programs on these nodes do not reach each other",
			"let the pod network's port through between the hosts, and look at the pods of the pod network",
		},
		{
			"verify-join", "a new node would find the cluster and be let in",
			"no node can be added",
			"see that the endpoint is reached from the hosts, and that kube-controller-manager is at work: it signs the tokens",
		},
		{
			"verify-volumes", "a volume of each default storage class is bound, written and read back",
			"programs that store something stay Pending or lose it",
			"kubectl describe persistentvolumeclaim says what the provisioner is missing",
		},
		{
			"verify-hosts-security", "the node is as its level of security has it",
			"what the level promises does not hold on that node",
			"docs/site/security.md says what the level sets; install sets it again where a file was changed",
		},
		{
			"verify-security", "the cluster does what its level of security promises",
			"somebody can do what the level promises to refuse",
			"docs/site/security.md says what the level sets; a level is given to a cluster when it is made",
		},
		{
			"verify-images", "everything that runs came from the bundle",
			"it cannot be started again once the image is gone from the host",
			"see which pod runs it, and who changed it",
		},
	}
}

// Finding is what a look found.
func Finding(id, host string, state report.State, found string) report.Finding {
	f := report.Finding{ID: id, Host: host, State: state, Title: id, Found: found}
	list := Looks()
	if i := slices.IndexFunc(list, func(l look) bool { return l.ID == id }); i >= 0 {
		f.Title = list[i].Title
		if state != report.OK {
			f.Why, f.Fix = list[i].Why, list[i].Fix
		}
	}
	return f
}
