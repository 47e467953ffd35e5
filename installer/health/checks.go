package health

import (
	"slices"

	"github.com/kkbundle/kkbundle/installer/report"
)

// A check is one requirement for a working cluster.
type check struct {
	// ID names the check and never changes its meaning. A task of the phase verify has the ID of its check.
	ID string
	// Title is the requirement, Why the effect of a failure, Fix the remedy.
	Title, Why, Fix string
}

// IDs of the checks.
const (
	checkAutostart    = "autostart"
	checkReachable    = "host-reachable"
	CheckMember       = "host-is-node"
	CheckNodes        = "verify-nodes"
	checkVersions     = "node-version"
	CheckPods         = "verify-pods"
	checkKubeadm      = "kubeadm-config"
	checkKubelet      = "kubelet-config"
	checkInfo         = "cluster-info"
	checkRoles        = "kubeadm-rbac"
	checkControl      = "control-plane-marks"
	checkRuntime      = "runtime-record"
	checkTokens       = "bootstrap-tokens"
	checkComponents   = "control-plane-pods"
	checkCoreDNS      = "coredns"
	checkProxy        = "kube-proxy"
	CheckAPI          = "api-server-health"
	checkEtcd         = "etcd-health"
	checkAgreement    = "etcd-agreement"
	CheckDatabase     = "etcd-database"
	CheckCopies       = "etcd-copies"
	CheckLeases       = "controller-leases"
	checkCertificates = "certificates"
	checkStorage      = "storage-class"
)

// Checks returns all checks in the order of reports.
func Checks() []check {
	return slices.Concat(hostChecks(), registryChecks(), kubeadmChecks(), healthChecks(), proofChecks())
}

func hostChecks() []check {
	return []check{
		{
			checkReachable, "the host can be reached",
			"nothing on it can be looked at, and no run can work on it",
			"see that it runs, that its sshd answers, and that its entry in the inventory is right",
		},
		{
			CheckMember, "the host is a node of this cluster",
			"its share of the pods runs elsewhere or not at all",
			"kkbundle install makes it one",
		},
		{
			CheckNodes, "every host of the inventory is a node that is ready",
			"pods are not started on a node that is not ready, and those on it are moved away after five minutes",
			"look at the kubelet on that host: journalctl -u kubelet -u containerd",
		},
		{
			checkVersions, "every node runs the cluster's version of Kubernetes",
			"Kubernetes supports kubelets of some older versions only, and new features work on some nodes only",
			"kkbundle upgrade brings all nodes to one version",
		},
		{
			checkAutostart, "container runtime, kubelet and time service are started at boot",
			"the node does not come back by itself after a restart of the host",
			"on that host: systemctl enable UNIT; for a masked one, systemctl unmask UNIT first",
		},
		{
			CheckPods, "the pods of Kubernetes and of the pod network are ready",
			"the cluster lacks the services of these pods",
			"kubectl describe pod and kubectl logs say why; kkbundle support-bundle collects both",
		},
	}
}

func kubeadmChecks() []check {
	return []check{
		{
			checkKubeadm, "kubeadm's configuration is in the cluster (ConfigMap kube-system/kubeadm-config)",
			"kubeadm join, upgrade and certs renew read it",
			"on a control plane: kubeadm init phase upload-config kubeadm --config FILE",
		},
		{
			checkKubelet, "the kubelets' configuration is in the cluster (ConfigMap kube-system/kubelet-config)",
			"kubeadm join and upgrade read it",
			"on a control plane: kubeadm init phase upload-config kubelet --config FILE",
		},
		{
			checkInfo, "the cluster publishes its endpoint and authority to joining nodes (ConfigMap kube-public/cluster-info)",
			"joining nodes find the cluster by it",
			"on a control plane: kubeadm init phase bootstrap-token",
		},
		{
			checkRoles, "kubeadm's roles and bindings for joining nodes exist",
			"nodes cannot join, or their certificates are not renewed",
			"on a control plane: kubeadm init phase bootstrap-token, and kubeadm init phase upload-config all",
		},
		{
			checkControl, "control planes have their label, and the taint unless they are workers too",
			"kubeadm upgrade finds control planes by the label; without the taint, workloads compete with the API server and etcd",
			"on a control plane: kubeadm init phase mark-control-plane --node-name NODE",
		},
		{
			checkComponents, "every control plane has the pods of API server, controller manager, scheduler and its etcd",
			"the cluster has one instance less of that component than it should, or none",
			"see that its manifest is in /etc/kubernetes/manifests on that host, and why the kubelet does not start it: journalctl -u kubelet",
		},
		{
			checkRuntime, "the node has on record how its container runtime is reached",
			"kubeadm upgrade and reset do not find the runtime",
			"kubectl annotate node NODE kubeadm.alpha.kubernetes.io/cri-socket=SOCKET",
		},
		{
			checkTokens, "no bootstrap token is valid for ever",
			"every holder of the token can join a machine to the cluster",
			"kubeadm token list shows them, kubeadm token delete removes one; kkbundle deletes its own after use",
		},
		{
			checkCoreDNS, "CoreDNS has as many ready pods as it should",
			"names of services are not found",
			"kubectl --namespace kube-system describe deployment coredns, and kubectl logs of its pods",
		},
		{
			checkProxy, "kube-proxy is ready on every node that is ready",
			"services are not reached from nodes without it",
			"kubectl --namespace kube-system describe daemonset kube-proxy",
		},
	}
}

func healthChecks() []check {
	return []check{
		{
			CheckAPI, "every API server is live and ready",
			"clients and nodes that are led to it get errors",
			"on that host: the log of the API server's container below /var/log/pods, and journalctl -u kubelet",
		},
		{
			checkEtcd, "every member of etcd is healthy",
			"one member fewer may fail before the cluster stops taking changes",
			"the log of etcd on that host; a full disk and a slow one are the usual causes",
		},
		{
			CheckDatabase, "etcd's database is below 80 % of its quota, and etcd has no alarm",
			"at its quota, etcd takes no changes: no pod is started, moved or removed",
			"kkbundle etcd defrag gives free room back; with the alarm NOSPACE it also drops the history and takes the alarm back. Where the database is full of objects, find their owner: kubectl get --raw /metrics | grep apiserver_storage_objects",
		},
		{
			CheckCopies, "etcd hosts save and send their copies",
			"after a loss of etcd, the newest copy is old",
			"on that host: journalctl -u kkbundle-etcd-backup says why; systemctl start kkbundle-etcd-backup saves at once",
		},
		{
			checkAgreement, "the members of etcd agree on one leader",
			"members that are apart serve old data or none",
			"see that the members reach each other on TCP 2380, and that their clocks agree",
		},
		{
			CheckLeases, "a scheduler and a controller manager are at work",
			"new pods stay Pending, and lost pods are not replaced",
			"the logs of kube-scheduler and kube-controller-manager below /var/log/pods on the control planes",
		},
		{
			checkCertificates, "no certificate of the cluster ends within 30 days, or within 90 with certificates.renew: manual",
			"the API server, the kubelet or kubectl stop working on that day",
			"kkbundle certs renew; unless renewal is manual, see why the timers kkbundle-certificates and kkbundle-leaf-certificates on that host did not",
		},
		{
			checkStorage, "there is at most one default storage class",
			"Kubernetes takes the newest, whichever that is",
			"kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class-",
		},
	}
}

func proofChecks() []check {
	return []check{
		{
			"verify-dns", "the cluster's DNS answers on every node",
			"programs on that node do not find services by name",
			"see whether CoreDNS runs, and whether the hosts reach each other (UDP 8472 for flannel)",
		},
		{
			"verify-outside-names", "names outside the cluster are found where hosts have a nameserver",
			"pods cannot resolve names outside the cluster",
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
			"kubectl describe persistentvolumeclaim shows the provisioner's error",
		},
		{
			"verify-hosts-security", "the node is as its level of security has it",
			"the node lacks protections that the level promises",
			"docs/site/security.md lists the settings of each level; install sets it again where a file was changed",
		},
		{
			"verify-security", "the cluster enforces its level of security",
			"actions succeed that the level promises to refuse",
			"docs/site/security.md lists the settings of each level; a level is given to a cluster when it is made",
		},
		{
			"verify-images", "everything that runs came from the bundle",
			"it cannot be started again once the image is gone from the host",
			"find the pod that runs it, and the reason of the change",
		},
	}
}

// NewFinding returns the finding of a check on a host.
func NewFinding(id, host string, state report.State, found string) report.Finding {
	f := report.Finding{ID: id, Host: host, State: state, Title: id, Found: found}
	list := Checks()
	if i := slices.IndexFunc(list, func(c check) bool { return c.ID == id }); i >= 0 {
		f.Title = list[i].Title
		if state != report.OK {
			f.Why, f.Fix = list[i].Why, list[i].Fix
		}
	}
	return f
}
