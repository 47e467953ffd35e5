package diagnose

import (
	"regexp"
	"slices"
)

// A knownCause is a cause that makes kubeadm, the kubelet or a pod fail, with a pattern of its messages.
type knownCause struct {
	pattern *regexp.Regexp
	// cause is a sentence; $1 and so on stand for the pattern's groups.
	cause, fix string
}

// causes returns all known causes, the most specific first: a pull that fails because of the clock is also a failed
// pull. The messages are those of kubeadm, Kubernetes 1.28 to 1.36, containerd 1.7 and 2, runc and etcd 3.5 and 3.6.
func causes() []knownCause {
	var list []knownCause
	for _, c := range slices.Concat(pullCauses(), kubeletCauses(), clusterCauses()) {
		list = append(list, knownCause{regexp.MustCompile(c[0]), c[1], c[2]})
	}
	return list
}

// pullCauses returns the causes of failed pulls and similar faults, each as pattern, cause and remedy.
func pullCauses() [][3]string {
	return [][3]string{
		{
			`no space left on device`,
			"a disk of the host is full", "free space on the host: df -h says which file system; then run again",
		},
		{
			`x509: certificate has expired or is not yet valid: current time (\S+) is (before|after) (\S+)`,
			"the host's clock and a certificate do not agree: the clock says $1, which is $2 $3",
			"set the clock of that host, and let chrony keep it",
		},
		{
			`(?:failed to (?:pull|resolve)[^\n]*|Failed to pull image[^\n]*|ErrImagePull[^\n]*)x509: certificate signed by unknown authority`,
			"the host does not trust the registry's certificate",
			"give the registry's authority in imageRegistry.ca, or run install without --limit, which renews the hosts' trusted certificates",
		},
		{
			`(?:failed to (?:get|pull) sandbox image|failed to start sandbox[^\n]*image) \\*"([^"\\]+)`,
			"the image of the pods' sandboxes, $1, cannot be pulled",
			"push the bundle to the registry again: kkbundle push, or kkbundle install, which does",
		},
		{
			`(?:failed to resolve (?:reference|image)|failed to pull (?:and unpack )?image|Failed to pull image) \\*"([^"\\]+)[^\n]*(?:401 Unauthorized|403 Forbidden|pull access denied|authorization failed|no basic auth credentials|insufficient_scope)`,
			"the registry refuses the host's login for $1",
			"run install without --limit: it gives all hosts the login that the registry has now; for a registry of your own, check its user and password",
		},
		{
			`(?:failed to resolve (?:reference|image)|failed to pull (?:and unpack )?image|Failed to pull image) \\*"([^"\\]+)[^\n]*(?:connection refused|no route to host|i/o timeout|no such host|network is unreachable)`,
			"the host does not reach the registry for $1",
			"see that the registry runs and that no firewall is between the host and its port",
		},
		{
			`(?:failed to resolve (?:reference|image)|failed to pull (?:and unpack )?image|Failed to pull image) \\*"([^"\\]+)[^\n]*(?:not found|404|manifest unknown|name unknown)`,
			"the registry does not have $1",
			"build the bundle with this cluster file, or push it to the registry again",
		},
		{
			`no match for platform in manifest|exec format error`,
			"an image or a program is for another architecture than the host's",
			"build the bundle with the host's platform",
		},
	}
}

// kubeletCauses returns the causes that keep the kubelet or a container from starting.
func kubeletCauses() [][3]string {
	return [][3]string{
		{
			`kubelet is configured to not run on a host using cgroup v1|cgroup v1 support is (?:in maintenance mode and )?(?:unsupported|disabled)`,
			"the host has control groups of version 1, and this kubelet does not start with them",
			"boot with systemd.unified_cgroup_hierarchy=1, or set kubernetes.kubelet.failCgroupV1 to false",
		},
		{
			`expected cgroupsPath to be of format "slice:prefix:name"|kubelet cgroup driver: \\*"(\w+)\\*" is different from`,
			"the kubelet and the container runtime use different cgroup drivers",
			"let the runtime use systemd, as the kubelet does: SystemdCgroup = true in containerd's configuration",
		},
		{
			`running with swap on is not supported`,
			"swap is on, and the kubelet does not start with it",
			"swapoff -a, and take swap out of /etc/fstab; or set kubernetes.kubelet.failSwapOn to false",
		},
		{
			`(?:oom_score_adj[^\n]*permission denied|can't get final child's PID from pipe)`,
			"the runtime may not set oom_score_adj for containers: the host is itself a container with too few rights",
			"give it CAP_SYS_RESOURCE, or use a machine of its own",
		},
		{
			`error loading seccomp filter|seccomp (?:is )?not (?:supported|enabled)`,
			"the host's kernel or its runc has no seccomp, which the control plane's pods ask for",
			"use a kernel with CONFIG_SECCOMP_FILTER",
		},
		{
			`failed to parse kubelet flag[^\n]*?(unknown (?:shorthand )?flag: ?'?-*[\w'-]+)`,
			"the kubelet does not know one of its options: $1",
			"look at kubernetes.kubelet and KUBELET_EXTRA_ARGS in /etc/default/kubelet or /etc/sysconfig/kubelet: the option is gone in this version, or mistyped",
		},
		{
			`(?:failed to load kubelet config file|error unmarshaling[^\n]*KubeletConfiguration|strict decoding error)[^\n]*?(unknown field \\*"[^"\\]+)`,
			"the kubelet's configuration has a field that this version does not know: $1",
			"correct kubernetes.kubelet in the cluster file",
		},
		{
			`(?:failed to validate kubelet configuration, error: |invalid configuration: )([^\n"]{1,300})`,
			"the kubelet rejects its configuration: $1", "correct kubernetes.kubelet in the cluster file",
		},
		{
			`unrecognized feature gate: (\w+)`,
			"the feature gate $1 does not exist in this version of Kubernetes", "remove it from the cluster file",
		},
		{
			`[Ee]rror: (unknown flag: --[\w-]+)`,
			"a component of the control plane does not know one of its options: $1",
			"correct kubernetes.kubeadm (extraArgs) in the cluster file",
		},
		{
			`(invalid argument \\*"[^"\\]*\\*" for \\*"--[\w-]+[^"]*)`,
			"a component of the control plane rejects the value of an option: $1",
			"correct kubernetes.kubeadm (extraArgs) in the cluster file",
		},
	}
}

// clusterCauses returns the causes that keep a host from joining the cluster.
func clusterCauses() [][3]string {
	return [][3]string{
		{
			`\[ERROR Port-(\d+)\]|listen tcp [^\s]*:(\d+): bind: address already in use`,
			"port $1$2 is in use on the host", "ss -ltnp says by whom; stop that program",
		},
		{
			`validate CRI v1 runtime API for endpoint \\*"([^"\\]+)|(unix:///?\S*containerd\.sock)[^\n]*(?:connect: no such file or directory|connection refused)`,
			"the container runtime does not answer at $1$2",
			"systemctl status of the runtime's unit on that host (containerd, crio, or docker and cri-docker); kkbundle install starts it again",
		},
		{
			`none of the public keys "?(sha256:\w+)"? are pinned`,
			"the cluster's endpoint presents a certificate of another authority than this cluster's",
			"see whose machine has the endpoint's address",
		},
		{
			`could not find a JWS signature in the cluster-info ConfigMap`,
			"the cluster does not know the token that the host joins with: nobody signs for it",
			"see that kube-controller-manager runs on a control plane",
		},
		{
			`a Node with name "?([\w.-]+)"? and status "?Ready"? already exists`,
			"another machine is a node of the name $1",
			"give the host another name in the inventory, or delete that node",
		},
		{
			`(cluster ID mismatch|member \w+ has already been bootstrapped|the member has been permanently removed from the cluster)`,
			"etcd's data on the host is another cluster's, or of a member that was removed: $1",
			"kkbundle reset on that host, then install",
		},
		{
			`(?:rafthttp|peer)[^\n]*(?:tls: bad certificate|certificate signed by unknown authority|certificate required)`,
			"the members of etcd do not trust each other's certificates",
			"the host has certificates of another cluster: kkbundle reset on it, then install",
		},
		{
			`etcdserver: (no leader|request timed out)|etcd cluster is not healthy|can only promote a learner member which is in sync`,
			"etcd has no majority or is too slow to agree",
			"see that its members reach each other on TCP 2379 and 2380, and that their disks are fast enough (kkbundle precheck --only etcd)",
		},
		{
			`lookup ([\w.-]+)(?: on \S+)?: no such host`,
			"the host does not find the name $1", "see that /etc/hosts or the site's DNS has it on that host",
		},
		{
			`(?:failed to request the cluster-info ConfigMap|couldn't validate the identity of the API Server|could not reach the API [Ss]erver)[^\n]*?(?:dial tcp ([^\s:]+:\d+))`,
			"the host does not reach the cluster's endpoint $1",
			"let TCP 6443 through between the hosts; with a balancer, see that it forwards to a control plane",
		},
		{
			`(?i)(out of memory: killed process \d+ \([\w-]+\)|OOMKilled)`,
			"the kernel killed a process because memory ran out: $1", "give the host more memory",
		},
		{
			`(too many open files|no space left on inotify|inotify_init: too many)`,
			"the host's limit of open or watched files is reached: $1",
			"raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
		},
		{
			`\[ERROR ([\w-]+)\]: ([^\n]{1,300})`,
			"kubeadm's own check $1: $2", "correct the reported fault, and run again",
		},
		{
			`\[kubelet-check\][^\n]*(?:not healthy|connection refused)|The kubelet is not (?:running|healthy)`,
			"the kubelet does not run", "read kubelet.log among the collected logs; its first error is the reason",
		},
		{
			`(kube-apiserver|kube-controller-manager|kube-scheduler) (?:is not healthy|check failed)`,
			"$1 does not become healthy", "read its container's log in containers.log among the collected logs",
		},
	}
}
