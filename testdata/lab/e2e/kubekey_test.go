package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// kubekey makes a cluster in KubeKey's layout, by its roles etcd, cri, native and kubernetes of August 2026. Its
// variables are: haproxy as the endpoint, iptables, no DNS cache, cgroups of version 1, networks of the lab.
type kubekey struct{ *adopted }

// kubekeyEndpoint is a name that each node finds in its /etc/hosts.
const kubekeyEndpoint = "lb.kubesphere.local"

func (kubekey) etcd() [3]string {
	const dir = "/etc/kubernetes/pki/etcd/"
	return [3]string{dir + "ca.crt", dir + "client.crt", dir + "client.key"}
}

func (kubekey) report() []string {
	return []string{
		"layout of KubeKey", "1 member, used as it is", kubekeyEndpoint + ":6443, as it is",
		"its members run as units with /etc/etcd.env and certificates below /etc/ssl/etcd/ssl",
		"k8s-certs-renew.timer on host1 is the other tool's", "static pod haproxy on host2",
		kubekeyEndpoint + " is a name in /etc/hosts of host1, host2",
	}
}

// newcomer gives a new host the endpoint's name.
func (k kubekey) newcomer(t *testing.T, number int) { k.names(t, number, k.lab.Hosts[0].Address) }

// names points the endpoint's name at an address on a host.
func (k kubekey) names(t *testing.T, number int, address string) {
	k.on(t, number, fmt.Sprintf(`sed -i '/# kubekey kubernetes control_plane_endpoint BEGIN/,/# kubekey kubernetes control_plane_endpoint END/d' /etc/hosts
		printf '# kubekey kubernetes control_plane_endpoint BEGIN\n%s %s\n# kubekey kubernetes control_plane_endpoint END\n' >>/etc/hosts`,
		address, kubekeyEndpoint))
}

func (k kubekey) host(t *testing.T, number int) {
	k.write(t, number, map[string]string{
		"/etc/containerd/config.toml": fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
  max_recv_message_size = 16777216
  max_send_message_size = 16777216
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
`, k.pause(t)),
		"/etc/systemd/system/containerd.service": toolContainerdUnit,
		"/etc/systemd/system/kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent
[Service]
CPUAccounting=true
MemoryAccounting=true
ExecStart=/usr/local/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
`,
		"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": fmt.Sprintf(`[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
Environment="KUBELET_EXTRA_ARGS=--node-ip=%s --hostname-override=host%d"
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`, k.lab.Hosts[number-1].Address, number),
		"/etc/kubekey/scripts/init-os.sh": "swapoff -a\n",
	})
	k.names(t, number, k.lab.Hosts[0].Address)
	k.on(t, number, `mkdir -p /etc/kubernetes/manifests /usr/local/bin/kube-scripts
		echo 'net.ipv4.ip_forward = 1' >>/etc/sysctl.conf; sysctl -q -p
		systemctl daemon-reload && systemctl enable --now containerd && systemctl enable kubelet`)
	if number == 1 {
		k.member(t)
		k.timers(t)
	}
}

// member runs the member of etcd on the first host.
func (k kubekey) member(t *testing.T) {
	const dir, client = "/etc/ssl/etcd/ssl/", "/etc/kubernetes/pki/etcd/"
	ca := newCompanyCA(t, "kubekey")
	k.sendFiles(t, 1, map[string][]byte{dir + "ca.crt": ca.pem, client + "ca.crt": ca.pem})
	k.issue(t, 1, ca, dir+"server.crt", dir+"server.key")
	k.issue(t, 1, ca, client+"client.crt", client+"client.key")
	k.write(t, 1, map[string]string{
		"/etc/systemd/system/etcd.service": toolEtcdUnit,
		"/etc/etcd.env": strings.ReplaceAll(`ETCD_ENABLE_SYSTEMD_NOTIFY=true
ETCD_DATA_DIR=/var/lib/etcd
ETCD_INITIAL_CLUSTER_STATE=new
ETCD_INITIAL_CLUSTER_TOKEN=k8s_etcd
ETCD_ADVERTISE_CLIENT_URLS=https://ADDRESS:2379
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://ADDRESS:2380
ETCD_LISTEN_CLIENT_URLS=https://localhost:2379,https://ADDRESS:2379
ETCD_LISTEN_PEER_URLS=https://ADDRESS:2380
ETCD_NAME=host1
ETCD_PROXY=off
ETCD_ENABLE_V2=true
ETCD_INITIAL_CLUSTER=host1=https://ADDRESS:2380
ETCD_ELECTION_TIMEOUT=5000
ETCD_HEARTBEAT_INTERVAL=250
ETCD_AUTO_COMPACTION_RETENTION=8
ETCD_SNAPSHOT_COUNT=10000
ETCD_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.crt
ETCD_CERT_FILE=/etc/ssl/etcd/ssl/server.crt
ETCD_KEY_FILE=/etc/ssl/etcd/ssl/server.key
ETCD_CLIENT_CERT_AUTH=true
ETCD_PEER_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.crt
ETCD_PEER_CERT_FILE=/etc/ssl/etcd/ssl/server.crt
ETCD_PEER_KEY_FILE=/etc/ssl/etcd/ssl/server.key
ETCD_PEER_CLIENT_CERT_AUTH=true
ETCDCTL_ENDPOINTS=https://localhost:2379
ETCDCTL_CACERT=/etc/ssl/etcd/ssl/ca.crt
ETCDCTL_CERT=/etc/ssl/etcd/ssl/server.crt
ETCDCTL_KEY=/etc/ssl/etcd/ssl/server.key
`, "ADDRESS", k.lab.Hosts[0].Address),
	})
	k.on(t, 1, "systemctl daemon-reload && systemctl enable --now etcd")
}

// timers are those that renew certificates and save etcd. Their programs do nothing here.
func (k kubekey) timers(t *testing.T) {
	files := map[string]string{
		"/usr/local/bin/kube-scripts/k8s-certs-renew.sh": "#!/bin/sh\n", "/usr/local/bin/kube-scripts/backup.sh": "#!/bin/sh\n",
	}
	for unit, script := range map[string]string{"k8s-certs-renew": "k8s-certs-renew.sh", "backup-etcd": "backup.sh"} {
		files["/etc/systemd/system/"+unit+".service"] = "[Service]\nType=oneshot\nExecStart=/bin/sh /usr/local/bin/kube-scripts/" + script + "\n"
		files["/etc/systemd/system/"+unit+".timer"] = "[Timer]\nOnCalendar=Mon *-*-1,2,3,4,5,6,7 03:00:00\nUnit=" + unit + ".service\n[Install]\nWantedBy=multi-user.target\n"
	}
	k.write(t, 1, files)
	k.on(t, 1, "systemctl daemon-reload && systemctl enable --now k8s-certs-renew.timer backup-etcd.timer")
}

func (k kubekey) cluster(t *testing.T) {
	first := k.lab.Hosts[0].Address
	k.write(t, 1, map[string]string{
		"/etc/kubernetes/kubeadm-config.yaml": strings.NewReplacer("ADDRESS", first, "OTHER", k.lab.Hosts[1].Address,
			"RELEASE", software.KubernetesVersion).Replace(kubekeyKubeadm) + toolProxy,
	})
	out := k.on(t, 1, "kubeadm init --config=/etc/kubernetes/kubeadm-config.yaml --ignore-preflight-errors=ImagePull,SystemVerification 2>&1")
	t.Logf("kubeadm init ended with\n%s", out[max(0, len(out)-600):])
	k.names(t, 1, "127.0.0.1")
	k.on(t, 1, "mkdir -p /root/.kube && cp /etc/kubernetes/admin.conf /root/.kube/config")
	k.dnsAtThree(t)
	k.write(t, 2, map[string]string{"/etc/kubernetes/kubeadm-config.yaml": k.kubeadmJoin(t, kubekeyEndpoint+":6443") + `nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  kubeletExtraArgs: [{name: cgroup-driver, value: systemd}]
`})
	k.on(t, 2, "kubeadm join --config=/etc/kubernetes/kubeadm-config.yaml --ignore-preflight-errors=FileExisting-crictl,ImagePull,SystemVerification 2>&1")
	k.kubectl(t, "label --overwrite node host2 node-role.kubernetes.io/worker=")
	k.write(t, 2, map[string]string{
		"/etc/kubekey/haproxy/haproxy.cfg":       fmt.Sprintf(toolBalancer, first),
		"/etc/kubernetes/manifests/haproxy.yaml": fmt.Sprintf(toolBalancerPod, "/etc/kubekey/haproxy"),
	})
	k.names(t, 2, "127.0.0.1")
	k.waitFor(t, 2*time.Minute, "the worker's kubelet has a balancer", 2, "curl -sk https://"+kubekeyEndpoint+":6443/readyz")
	k.kubectl(t, "wait node --all --for=condition=Ready --timeout=180s")
	k.kubectl(t, "rollout status daemonset/kube-proxy -n kube-system --timeout=120s")
}

// kubekeyKubeadm is what KubeKey gives kubeadm, without --pod-infra-container-image, which kubelets since 1.35 refuse.
const kubekeyKubeadm = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
etcd:
  external:
    endpoints: ["https://ADDRESS:2379"]
    caFile: /etc/kubernetes/pki/etcd/ca.crt
    certFile: /etc/kubernetes/pki/etcd/client.crt
    keyFile: /etc/kubernetes/pki/etcd/client.key
dns: {imageRepository: registry.k8s.io/coredns}
imageRepository: registry.k8s.io
kubernetesVersion: RELEASE
certificatesDir: /etc/kubernetes/pki
clusterName: kubekey
controlPlaneEndpoint: lb.kubesphere.local:6443
networking: {dnsDomain: cluster.local, podSubnet: 10.244.0.0/16, serviceSubnet: 10.233.0.0/18}
apiServer:
  extraArgs: [{name: bind-address, value: 0.0.0.0}]
  certSANs: [localhost, 127.0.0.1, "::1", kubernetes, kubernetes.default, kubernetes.default.svc, kubernetes.default.svc.kubekey,
    kubernetes.default.svc.kubekey.cluster.local, 10.233.0.1, lb.kubesphere.local, host1, host1.kubekey, host1.kubekey.cluster.local,
    ADDRESS, host2, host2.kubekey, host2.kubekey.cluster.local, OTHER]
controllerManager:
  extraArgs:
    - {name: node-cidr-mask-size-ipv4, value: "24"}
    - {name: bind-address, value: 0.0.0.0}
    - {name: cluster-signing-duration, value: 87600h}
  extraVolumes: [{name: host-time, hostPath: /etc/localtime, mountPath: /etc/localtime, readOnly: true}]
scheduler:
  extraArgs: [{name: bind-address, value: 0.0.0.0}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: ADDRESS, bindPort: 6443}
nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  kubeletExtraArgs: [{name: cgroup-driver, value: systemd}]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
clusterDomain: cluster.local
clusterDNS: [10.233.0.3]
maxPods: 110
podPidsLimit: 10000
rotateCertificates: true
kubeReserved: {cpu: 200m, memory: 250Mi}
systemReserved: {cpu: 200m, memory: 250Mi}
evictionHard: {memory.available: 5%, pid.available: 10%}
evictionSoft: {memory.available: 10%}
evictionSoftGracePeriod: {memory.available: 2m}
evictionMaxPodGracePeriod: 120
evictionPressureTransitionPeriod: 30s
cgroupDriver: systemd
containerLogMaxSize: 5Mi
containerLogMaxFiles: 3
`
