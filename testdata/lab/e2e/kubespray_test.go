package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// kubespray makes a cluster in Kubespray's layout, by its roles etcd, container-engine, kubernetes/node, control-plane
// and kubeadm of August 2026. Its variables are: haproxy as the balancer, iptables, no DNS cache, cgroups of version 1,
// networks of the lab.
type kubespray struct{ *adopted }

func (kubespray) etcd() [3]string {
	return [3]string{"/etc/ssl/etcd/ssl/ca.pem", "/etc/ssl/etcd/ssl/node-host1.pem", "/etc/ssl/etcd/ssl/node-host1-key.pem"}
}

func (kubespray) report() []string {
	return []string{
		"layout of Kubespray", "1 member, used as it is", "its members run as units with /etc/etcd.env and certificates below /etc/ssl/etcd/ssl",
		"/etc/kubernetes/kubelet.env has runtime-cgroups, v on host1, host2", "static pod haproxy on host2",
		"the runtime has mirrors of single registries (docker.io)",
	}
}

func (kubespray) newcomer(*testing.T, int) {}

func (k kubespray) host(t *testing.T, number int) {
	address := k.lab.Hosts[number-1].Address
	k.write(t, number, map[string]string{
		"/etc/containerd/config.toml": fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  max_recv_message_size = 16777216
  max_send_message_size = 16777216
[plugins."io.containerd.cri.v1.runtime"]
  max_container_log_line_size = 16384
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
  BinaryName = "/usr/local/bin/runc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "%s"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
`, k.pause(t)),
		"/etc/containerd/certs.d/docker.io/hosts.toml": `server = "https://docker.io"
[host."https://registry-1.docker.io"]
  capabilities = ["pull","resolve"]
  skip_verify = false
  override_path = false
`,
		"/etc/systemd/system/containerd.service": toolContainerdUnit,
		"/etc/sysctl.d/99-kubespray.conf": `net.ipv4.ip_forward=1
kernel.keys.root_maxbytes=25000000
kernel.keys.root_maxkeys=1000000
kernel.panic=10
kernel.panic_on_oops=1
vm.overcommit_memory=1
vm.panic_on_oom=0
`,
		"/etc/kubernetes/kubelet.env": fmt.Sprintf(`KUBE_LOG_LEVEL="--v=2"
KUBELET_ADDRESS="--node-ip=%s"
KUBELET_HOSTNAME="--hostname-override=host%d"
KUBELET_ARGS="--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--config=/etc/kubernetes/kubelet-config.yaml \
--kubeconfig=/etc/kubernetes/kubelet.conf \
--runtime-cgroups=/system.slice/containerd.service "
KUBELET_CLOUDPROVIDER=""
PATH=/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
`, address, number),
		"/etc/kubernetes/kubelet-config.yaml": kubesprayKubelet(address),
		"/etc/systemd/system/kubelet.service": `[Unit]
After=containerd.service
Wants=containerd.service
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=/usr/local/bin/kubelet $KUBE_LOGTOSTDERR $KUBE_LOG_LEVEL $KUBELET_API_SERVER $KUBELET_ADDRESS $KUBELET_HOSTNAME $KUBELET_ARGS $KUBELET_CLOUDPROVIDER
Restart=always
RestartSec=10s
[Install]
WantedBy=multi-user.target
`,
	})
	k.on(t, number, `mkdir -p /etc/kubernetes/ssl /etc/kubernetes/manifests && ln -s /etc/kubernetes/ssl /etc/kubernetes/pki
		sysctl -q -p /etc/sysctl.d/99-kubespray.conf
		systemctl daemon-reload && systemctl enable --now containerd && systemctl enable kubelet`)
	if number == 1 {
		k.member(t)
	}
}

// kubesprayKubelet are the settings of a node's kubelet.
func kubesprayKubelet(address string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
nodeStatusUpdateFrequency: "10s"
failSwapOn: True
authentication: {anonymous: {enabled: false}, webhook: {enabled: True}, x509: {clientCAFile: /etc/kubernetes/ssl/ca.crt}}
authorization: {mode: Webhook}
failCgroupV1: False
staticPodPath: /etc/kubernetes/manifests
cgroupDriver: systemd
containerLogMaxFiles: 5
containerLogMaxSize: 10Mi
containerRuntimeEndpoint : unix:///var/run/containerd/containerd.sock
maxPods: 110
podPidsLimit: -1
address: "%s"
readOnlyPort: 0
healthzPort: 10248
healthzBindAddress: "127.0.0.1"
kubeletCgroups: /system.slice/kubelet.service
clusterDomain: cluster.local
protectKernelDefaults: true
rotateCertificates: true
clusterDNS:
- 10.233.0.3
kubeReserved: {cpu: "100m", memory: "256Mi"}
systemReserved: {cpu: "100m", memory: "256Mi"}
resolvConf: "/etc/resolv.conf"
eventRecordQPS: 50
shutdownGracePeriod: 60s
shutdownGracePeriodCriticalPods: 20s
maxParallelImagePulls: 1
`, address)
}

// member runs the member of etcd on the first host.
func (k kubespray) member(t *testing.T) {
	const dir = "/etc/ssl/etcd/ssl/"
	address := k.lab.Hosts[0].Address
	ca := newCompanyCA(t, "etcd-ca")
	k.sendFiles(t, 1, map[string][]byte{dir + "ca.pem": ca.pem, dir + "ca-key.pem": ca.keyPEM})
	for _, who := range []string{"member", "admin", "node"} {
		k.issue(t, 1, ca, dir+who+"-host1.pem", dir+who+"-host1-key.pem")
	}
	k.write(t, 1, map[string]string{
		"/etc/systemd/system/etcd.service": toolEtcdUnit,
		"/etc/etcd.env": strings.ReplaceAll(`ETCD_DATA_DIR=/var/lib/etcd
ETCD_ADVERTISE_CLIENT_URLS=https://ADDRESS:2379
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://ADDRESS:2380
ETCD_INITIAL_CLUSTER_STATE=new
ETCD_METRICS=basic
ETCD_LISTEN_CLIENT_URLS=https://ADDRESS:2379,https://127.0.0.1:2379
ETCD_ELECTION_TIMEOUT=5000
ETCD_HEARTBEAT_INTERVAL=250
ETCD_INITIAL_CLUSTER_TOKEN=k8s_etcd
ETCD_LISTEN_PEER_URLS=https://ADDRESS:2380
ETCD_NAME=etcd1
ETCD_PROXY=off
ETCD_INITIAL_CLUSTER=etcd1=https://ADDRESS:2380
ETCD_AUTO_COMPACTION_RETENTION=8
ETCD_SNAPSHOT_COUNT=100000
ETCD_QUOTA_BACKEND_BYTES=2147483648
ETCD_MAX_REQUEST_BYTES=1572864
ETCD_LOG_LEVEL=info
ETCD_MAX_SNAPSHOTS=5
ETCD_MAX_WALS=5
ETCD_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.pem
ETCD_CERT_FILE=/etc/ssl/etcd/ssl/member-host1.pem
ETCD_KEY_FILE=/etc/ssl/etcd/ssl/member-host1-key.pem
ETCD_CLIENT_CERT_AUTH=true
ETCD_PEER_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.pem
ETCD_PEER_CERT_FILE=/etc/ssl/etcd/ssl/member-host1.pem
ETCD_PEER_KEY_FILE=/etc/ssl/etcd/ssl/member-host1-key.pem
ETCD_PEER_CLIENT_CERT_AUTH=True
ETCDCTL_ENDPOINTS=https://127.0.0.1:2379
ETCDCTL_CACERT=/etc/ssl/etcd/ssl/ca.pem
ETCDCTL_KEY=/etc/ssl/etcd/ssl/admin-host1-key.pem
ETCDCTL_CERT=/etc/ssl/etcd/ssl/admin-host1.pem
`, "ADDRESS", address),
	})
	k.on(t, 1, "systemctl daemon-reload && systemctl enable --now etcd")
}

func (k kubespray) cluster(t *testing.T) {
	first := k.lab.Hosts[0].Address
	k.write(t, 1, map[string]string{
		"/etc/kubernetes/kubescheduler-config.yaml": `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "/etc/kubernetes/scheduler.conf"}
leaderElection: {leaseDuration: 15s, renewDeadline: 10s}
`,
		"/etc/kubernetes/kubeadm-config.yaml": strings.NewReplacer("ADDRESS", first, "RELEASE", software.KubernetesVersion).Replace(kubesprayKubeadm) + toolProxy,
		"/root/dns.yaml": strings.NewReplacer("ADDRESS", first, "RELEASE", software.KubernetesVersion).Replace(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: "ADDRESS"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: RELEASE
certificatesDir: /etc/kubernetes/ssl
networking: {dnsDomain: cluster.local, serviceSubnet: 10.233.0.0/18, podSubnet: 10.244.0.0/16}
`),
	})
	out := k.on(t, 1, `kubeadm init --config=/etc/kubernetes/kubeadm-config.yaml --skip-phases=addon/coredns --ignore-preflight-errors=SystemVerification 2>&1
		kubeadm init phase addon coredns --config /root/dns.yaml 2>&1 && rm /root/dns.yaml`)
	t.Logf("kubeadm init ended with\n%s", out[max(0, len(out)-900):])
	k.dnsAtThree(t)
	join := k.kubeadmJoin(t, first+":6443") + `caCertPath: /etc/kubernetes/ssl/ca.crt
nodeRegistration: {name: host2, criSocket: "unix:///var/run/containerd/containerd.sock"}
`
	k.write(t, 2, map[string]string{
		"/etc/haproxy/haproxy.cfg":              fmt.Sprintf(toolBalancer, first),
		"/etc/kubernetes/manifests/haproxy.yml": fmt.Sprintf(toolBalancerPod, "/etc/haproxy"),
		"/etc/kubernetes/kubeadm-client.conf":   join,
	})
	k.on(t, 2, `kubeadm join --config /etc/kubernetes/kubeadm-client.conf --ignore-preflight-errors=DirAvailable--etc-kubernetes-manifests,SystemVerification 2>&1
		sed -i 's#server:.*#server: https://localhost:6443#' /etc/kubernetes/kubelet.conf && systemctl restart kubelet`)
	k.on(t, 1, `export KUBECACHEDIR=/tmp/kubectl KUBECONFIG=/etc/kubernetes/admin.conf
		kubectl get configmap kube-proxy -n kube-system -o yaml | sed 's#server:.*#server: https://127.0.0.1:6443#' | kubectl replace -f -
		kubectl delete pod -n kube-system -l k8s-app=kube-proxy --force --grace-period=0 2>/dev/null`)
	k.waitFor(t, 2*time.Minute, "the worker's kubelet has a balancer", 2, "curl -sk https://localhost:6443/readyz")
	k.kubectl(t, "wait node --all --for=condition=Ready --timeout=180s")
	k.kubectl(t, "rollout status daemonset/kube-proxy -n kube-system --timeout=120s")
}

// kubesprayKubeadm is what Kubespray gives kubeadm.
const kubesprayKubeadm = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: "ADDRESS", bindPort: 6443}
nodeRegistration:
  name: "host1"
  taints: [{effect: NoSchedule, key: node-role.kubernetes.io/control-plane}]
  criSocket: unix:///var/run/containerd/containerd.sock
  imagePullPolicy: IfNotPresent
  imagePullSerial: true
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: cluster.local
encryptionAlgorithm: RSA-2048
certificateValidityPeriod: 8760h
caCertificateValidityPeriod: 87600h
etcd:
  external:
    endpoints: ["https://ADDRESS:2379"]
    caFile: /etc/ssl/etcd/ssl/ca.pem
    certFile: /etc/ssl/etcd/ssl/node-host1.pem
    keyFile: /etc/ssl/etcd/ssl/node-host1-key.pem
dns: {disabled: true, imageRepository: registry.k8s.io/coredns}
networking: {dnsDomain: cluster.local, serviceSubnet: "10.233.0.0/18", podSubnet: "10.244.0.0/16"}
kubernetesVersion: RELEASE
controlPlaneEndpoint: "ADDRESS:6443"
certificatesDir: /etc/kubernetes/ssl
imageRepository: registry.k8s.io
apiServer:
  extraArgs:
    - {name: etcd-compaction-interval, value: "5m0s"}
    - {name: default-not-ready-toleration-seconds, value: "300"}
    - {name: default-unreachable-toleration-seconds, value: "300"}
    - {name: anonymous-auth, value: "True"}
    - {name: authorization-mode, value: "Node,RBAC"}
    - {name: bind-address, value: "::"}
    - {name: endpoint-reconciler-type, value: lease}
    - {name: service-node-port-range, value: "30000-32767"}
    - {name: service-cluster-ip-range, value: "10.233.0.0/18"}
    - {name: kubelet-preferred-address-types, value: "InternalDNS,InternalIP,Hostname,ExternalDNS,ExternalIP"}
    - {name: profiling, value: "False"}
    - {name: request-timeout, value: "1m0s"}
    - {name: enable-aggregator-routing, value: "False"}
    - {name: service-account-lookup, value: "True"}
    - {name: storage-backend, value: etcd3}
    - {name: allow-privileged, value: "true"}
    - {name: event-ttl, value: "1h0m0s"}
  extraVolumes: [{name: usr-share-ca-certificates, hostPath: /usr/share/ca-certificates, mountPath: /usr/share/ca-certificates, readOnly: true}]
  certSANs: [kubernetes, kubernetes.default, kubernetes.default.svc, kubernetes.default.svc.cluster.local, 10.233.0.1, localhost, 127.0.0.1, "::1", "ADDRESS", host1]
controllerManager:
  extraArgs:
    - {name: node-monitor-grace-period, value: 40s}
    - {name: node-monitor-period, value: 5s}
    - {name: cluster-cidr, value: "10.244.0.0/16"}
    - {name: service-cluster-ip-range, value: "10.233.0.0/18"}
    - {name: node-cidr-mask-size-ipv4, value: "24"}
    - {name: profiling, value: "False"}
    - {name: terminated-pod-gc-threshold, value: "12500"}
    - {name: bind-address, value: "::"}
    - {name: leader-elect-lease-duration, value: 15s}
    - {name: leader-elect-renew-deadline, value: 10s}
    - {name: configure-cloud-routes, value: "false"}
    - {name: flex-volume-plugin-dir, value: /usr/libexec/kubernetes/kubelet-plugins/volume/exec}
scheduler:
  extraArgs:
    - {name: bind-address, value: "::"}
    - {name: config, value: /etc/kubernetes/kubescheduler-config.yaml}
    - {name: profiling, value: "False"}
  extraVolumes: [{name: kubescheduler-config, hostPath: /etc/kubernetes/kubescheduler-config.yaml, mountPath: /etc/kubernetes/kubescheduler-config.yaml, readOnly: true}]
`
