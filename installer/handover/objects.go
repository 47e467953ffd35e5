package handover

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/manifest"
)

// Groups and versions of the objects.
const (
	core           = "cluster.x-k8s.io"
	coreAPI        = core + "/v1beta2"
	controlPlane   = "controlplane." + core
	bootstrap      = "bootstrap." + core
	infrastructure = "infrastructure.kkbundle.io"
	infraAPI       = infrastructure + "/v1alpha1"
)

// Names in metadata. The label of a MachineSet has a hash where Cluster API makes one; any value will do.
const (
	clusterLabel    = core + "/cluster-name"
	planeLabel      = core + "/control-plane"
	planeNameLabel  = core + "/control-plane-name"
	deploymentLabel = core + "/deployment-name"
	hashLabel       = "machine-template-hash"
	adoptedHash     = "adopted"
	clonedName      = core + "/cloned-from-name"
	clonedKind      = core + "/cloned-from-groupkind"
	moveLabel       = "clusterctl." + core + "/move"
	adopted         = infrastructure + "/adopted"
	hostFinalizer   = infrastructure + "/host"
)

// A set is the machines of one role: names are those of the provider's templates for clusterctl.
type set struct {
	name     string
	role     string
	template string // kind of the template of KubeadmConfigs, "" for control planes
	labels   map[string]string
	nodes    []node
}

func (f *found) sets() (planes, workers set) {
	name := f.cluster.Metadata.Name
	planes = set{name: name + "-cp", role: "control-plane"}
	planes.labels = map[string]string{clusterLabel: name, planeLabel: "", planeNameLabel: planes.name}
	workers = set{name: name + "-md-0", role: "worker", template: "KubeadmConfigTemplate"}
	workers.labels = map[string]string{clusterLabel: name, deploymentLabel: workers.name, hashLabel: adoptedHash}
	for _, n := range f.nodes {
		if n.isControlPlane() {
			planes.nodes = append(planes.nodes, n)
		} else {
			workers.nodes = append(workers.nodes, n)
		}
	}
	return planes, workers
}

// objects returns all objects as YAML. The Cluster is paused, so that no controller sees a part of them.
func (f *found) objects() ([]byte, error) {
	planes, workers := f.sets()
	list := append(f.secrets(), f.clusterObjects()...)
	list = append(list, f.machineTemplate(planes), f.controlPlane(planes),
		f.machineTemplate(workers), f.configTemplate(workers), f.deployment(workers))
	if len(workers.nodes) > 0 {
		list = append(list, f.machineSet(workers))
	}
	for _, of := range []set{planes, workers} {
		for _, n := range of.nodes {
			list = append(list, f.kkHost(n), f.kubeadmConfig(of, n), f.kkMachine(of, n), f.machine(of, n))
		}
	}
	data, err := kube.Documents(list...)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Cluster %s for Cluster API, as kkbundle handover has found it. It has the keys of its authorities.\n", f.cluster.Metadata.Name)
	fmt.Fprintf(&b, "# kubectl create -f this file, look at the objects, then: kubectl patch -n %s cluster %s --type=merge -p '{\"spec\": {\"paused\": false}}'\n",
		f.to.Namespace, f.cluster.Metadata.Name)
	b.Write(data)
	return b.Bytes(), nil
}

// meta returns the metadata of an object.
func (f *found) meta(name string, labels, annotations map[string]string) kube.Document {
	m := kube.Document{"name": name, "namespace": f.to.Namespace}
	if len(labels) > 0 {
		m["labels"] = labels
	}
	if len(annotations) > 0 {
		m["annotations"] = annotations
	}
	return m
}

func (f *found) ofCluster() map[string]string {
	return map[string]string{clusterLabel: f.cluster.Metadata.Name}
}

func reference(group, kind, name string) kube.Document {
	return kube.Document{"apiGroup": group, "kind": kind, "name": name}
}

// secrets are the authorities, in the names and the form of Cluster API's own, the keys of the hosts, and the files of
// control planes.
func (f *found) secrets() []map[string]any {
	secret := func(name, kind string, data map[string]string) map[string]any {
		d := kube.Document{"apiVersion": "v1", "kind": "Secret", "metadata": f.meta(f.cluster.Metadata.Name+"-"+name, f.ofCluster(), nil), "stringData": data}
		if kind != "" {
			d["type"] = kind
		}
		return d
	}
	var list []map[string]any
	files := authorities()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		end := ends(files[name])
		list = append(list, secret(name, core+"/secret", map[string]string{
			"tls.crt": f.authorities[files[name]+end[0]], "tls.key": f.authorities[files[name]+end[1]],
		}))
	}
	if f.to.HostKeys == "" {
		var known strings.Builder
		for _, n := range f.nodes {
			at := n.host.Address
			if port := n.port(); port != sshPort {
				at = "[" + at + "]:" + strconv.Itoa(port)
			}
			for _, key := range n.hostKeys {
				known.WriteString(at + " " + key + "\n")
			}
		}
		list = append(list, secret(hostKeys, "", map[string]string{"known_hosts": known.String()}))
	}
	if of := append(slices.Clone(f.files), f.patches...); len(of) > 0 {
		data := map[string]string{}
		for i, one := range of {
			data[secretKey(i, one)] = one.data
		}
		one := secret(planeFiles, core+"/secret", data)
		labels := f.ofCluster()
		labels[moveLabel] = "" // nothing owns it
		one["metadata"] = f.meta(f.cluster.Metadata.Name+"-"+planeFiles, labels, nil)
		list = append(list, one)
	}
	return list
}

const (
	hostKeys   = "host-keys"
	planeFiles = "files"
	sshPort    = 22
)

func (n node) port() int {
	if n.host.SSH.Port == 0 {
		return sshPort
	}
	return n.host.SSH.Port
}

// secretKey is the key of the Secret with a file: its number keeps files of one name apart.
func secretKey(i int, one file) string {
	return strconv.Itoa(i) + "-" + regexp.MustCompile(`[^-._a-zA-Z0-9]`).ReplaceAllString(path.Base(one.path), "_")
}

// clusterObjects are the Cluster and its infrastructure.
func (f *found) clusterObjects() []map[string]any {
	name := f.cluster.Metadata.Name
	host, port := f.hostPort()
	at := kube.Document{"host": host, "port": port}
	networking := object(f.config, "networking")
	networks := func(key string) kube.Document {
		text, _ := networking[key].(string)
		return kube.Document{"cidrBlocks": strings.Split(text, ",")}
	}
	network := kube.Document{"pods": networks("podSubnet"), "services": networks("serviceSubnet")}
	if domain, ok := networking["dnsDomain"].(string); ok {
		network["serviceDomain"] = domain
	}
	return []map[string]any{
		{
			"apiVersion": coreAPI, "kind": "Cluster", "metadata": f.meta(name, nil, nil),
			"spec": kube.Document{
				"paused": true, "clusterNetwork": network, "controlPlaneEndpoint": at,
				"infrastructureRef": reference(infrastructure, "KKCluster", name),
				"controlPlaneRef":   reference(controlPlane, "KubeadmControlPlane", name+"-cp"),
			},
		},
		{
			"apiVersion": infraAPI, "kind": "KKCluster", "metadata": f.meta(name, f.ofCluster(), nil),
			"spec": kube.Document{
				"controlPlaneEndpoint": at, "bundleRef": kube.Document{"name": f.to.Bundle},
				"registry": kube.Document{"address": f.registry(), "secretRef": kube.Document{"name": f.to.RegistrySecret}},
			},
		},
	}
}

func (f *found) machineTemplate(s set) map[string]any {
	return kube.Document{
		"apiVersion": infraAPI, "kind": "KKMachineTemplate", "metadata": f.meta(s.name, f.ofCluster(), nil),
		"spec": kube.Document{"template": kube.Document{"spec": f.machineSpec(s)}},
	}
}

func (f *found) machineSpec(s set) kube.Document {
	return kube.Document{"roles": []string{s.role}, "containerManager": kube.Document{"type": string(f.cluster.CRI.Type)}}
}

func (f *found) controlPlane(s set) map[string]any {
	return kube.Document{
		"apiVersion": controlPlane + "/v1beta2", "kind": "KubeadmControlPlane", "metadata": f.meta(s.name, f.ofCluster(), nil),
		"spec": kube.Document{
			"replicas": len(s.nodes), "version": f.cluster.Kubernetes.Version, "kubeadmConfigSpec": f.configSpec(s),
			"machineTemplate": kube.Document{"spec": kube.Document{"infrastructureRef": reference(infrastructure, "KKMachineTemplate", s.name)}},
		},
	}
}

// configSpec is the kubeadm part of a set's machines. That of a control plane and that of its machines must be the
// same, or Cluster API replaces them.
func (f *found) configSpec(s set) kube.Document {
	registration := kube.Document{
		"name": "{{ ds.meta_data.local_hostname }}", "criSocket": f.socket,
		"kubeletExtraArgs": []any{kube.Document{"name": "node-ip", "value": strings.Join(f.localAddresses(), ",")}},
	}
	if len(f.ignored) > 0 {
		registration["ignorePreflightErrors"] = f.ignored
	}
	join := kube.Document{"nodeRegistration": registration}
	spec := kube.Document{"joinConfiguration": join}
	var files []file
	if s.template == "" {
		if !isTainted(s.nodes[0].live) {
			registration["taints"] = []any{}
		}
		join["controlPlane"] = kube.Document{"localAPIEndpoint": kube.Document{"advertiseAddress": f.localAddresses()[0]}}
		spec["clusterConfiguration"] = f.clusterConfiguration()
		files = append(slices.Clone(f.files), f.patches...)
	} else {
		for _, one := range f.patches {
			if strings.HasPrefix(path.Base(one.path), "kubeletconfiguration") {
				files = append(files, one)
			}
		}
	}
	if slices.ContainsFunc(files, func(one file) bool { return slices.Contains(f.patches, one) }) {
		join["patches"] = kube.Document{"directory": kubeadm.PatchesDir}
	}
	all := append(slices.Clone(f.files), f.patches...)
	var list []any
	for _, one := range files {
		list = append(list, kube.Document{
			"path": one.path, "owner": "root:root", "permissions": "0600",
			"contentFrom": kube.Document{"secret": kube.Document{
				"name": f.cluster.Metadata.Name + "-" + planeFiles, "key": secretKey(slices.Index(all, one), one),
			}},
		})
	}
	if len(list) > 0 {
		spec["files"] = list
	}
	return spec
}

// localAddresses are the addresses of a host in the provider's variables, in the order of the cluster's families.
func (f *found) localAddresses() (list []string) {
	for _, a := range f.nodes[0].addresses {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Is6() {
			list = append(list, "{{ ds.meta_data.local_ipv6 }}")
		} else {
			list = append(list, "{{ ds.meta_data.local_ipv4 }}")
		}
	}
	return list
}

func (f *found) configTemplate(s set) map[string]any {
	return kube.Document{
		"apiVersion": bootstrap + "/v1beta2", "kind": s.template, "metadata": f.meta(s.name, f.ofCluster(), nil),
		"spec": kube.Document{"template": kube.Document{"spec": f.configSpec(s)}},
	}
}

// machineOf is the template of a worker's Machine.
func (f *found) machineOf(s set, labels map[string]string) kube.Document {
	return kube.Document{
		"metadata": kube.Document{"labels": labels},
		"spec": kube.Document{
			"clusterName": f.cluster.Metadata.Name, "version": f.cluster.Kubernetes.Version,
			"bootstrap":         kube.Document{"configRef": reference(bootstrap, s.template, s.name)},
			"infrastructureRef": reference(infrastructure, "KKMachineTemplate", s.name),
		},
	}
}

func (f *found) deployment(s set) map[string]any {
	labels := maps.Clone(s.labels)
	delete(labels, hashLabel)
	return kube.Document{
		"apiVersion": coreAPI, "kind": "MachineDeployment", "metadata": f.meta(s.name, f.ofCluster(), nil),
		"spec": kube.Document{
			"clusterName": f.cluster.Metadata.Name, "replicas": len(s.nodes), "selector": kube.Document{"matchLabels": labels},
			"template": f.machineOf(s, labels),
		},
	}
}

// machineSet is the one that the MachineDeployment takes for its own, because it has its labels and its template.
func (f *found) machineSet(s set) map[string]any {
	return kube.Document{
		"apiVersion": coreAPI, "kind": "MachineSet", "metadata": f.meta(s.name+"-"+adoptedHash, s.labels, nil),
		"spec": kube.Document{
			"clusterName": f.cluster.Metadata.Name, "replicas": len(s.nodes), "selector": kube.Document{"matchLabels": s.labels},
			"template": f.machineOf(s, s.labels),
		},
	}
}

func (f *found) kkHost(n node) map[string]any {
	known := f.to.HostKeys
	if known == "" {
		known = f.cluster.Metadata.Name + "-" + hostKeys
	}
	ssh := kube.Document{"secretRef": kube.Document{"name": f.to.Login}, "knownHostsRef": kube.Document{"name": known}}
	if n.host.SSH.User != "" {
		ssh["user"] = n.host.SSH.User
	}
	if n.port() != sshPort {
		ssh["port"] = n.port()
	}
	spec := kube.Document{
		"address": n.host.Address, "ssh": ssh, "roles": n.roles(), "arch": n.live.Status.NodeInfo.Architecture,
		"consumer": kube.Document{"cluster": f.cluster.Metadata.Name, "machine": n.host.Name},
	}
	for _, a := range n.addresses {
		switch ip := net.ParseIP(a); {
		case a == n.host.Address:
		case ip.To4() != nil:
			spec["internalIPv4"] = a
		default:
			spec["internalIPv6"] = a
		}
	}
	meta := f.meta(n.host.Name, nil, nil)
	meta["finalizers"] = []string{hostFinalizer}
	return kube.Document{"apiVersion": infraAPI, "kind": "KKHost", "metadata": meta, "spec": spec}
}

func (n node) roles() []string {
	var list []string
	if n.isControlPlane() {
		list = append(list, "control-plane")
	}
	if n.host.Is(manifest.RoleWorker) {
		list = append(list, "worker")
	}
	return list
}

func (f *found) kubeadmConfig(s set, n node) map[string]any {
	var from map[string]string
	if s.template != "" {
		from = map[string]string{clonedName: s.name, clonedKind: s.template + "." + bootstrap}
	}
	return kube.Document{
		"apiVersion": bootstrap + "/v1beta2", "kind": "KubeadmConfig", "metadata": f.meta(n.host.Name, s.labels, from), "spec": f.configSpec(s),
	}
}

func (f *found) kkMachine(s set, n node) map[string]any {
	spec := f.machineSpec(s)
	spec["hostName"] = n.host.Name
	return kube.Document{
		"apiVersion": infraAPI, "kind": "KKMachine",
		"metadata": f.meta(n.host.Name, s.labels, map[string]string{
			adopted: n.host.Name, clonedName: s.name, clonedKind: "KKMachineTemplate." + infrastructure,
		}),
		"spec": spec,
	}
}

// machine is the Machine of a node. The name of its bootstrap data, which nobody needs any more, keeps Cluster API from
// making some.
func (f *found) machine(s set, n node) map[string]any {
	return kube.Document{
		"apiVersion": coreAPI, "kind": "Machine", "metadata": f.meta(n.host.Name, s.labels, nil),
		"spec": kube.Document{
			"clusterName": f.cluster.Metadata.Name, "version": f.cluster.Kubernetes.Version,
			"bootstrap": kube.Document{
				"configRef": reference(bootstrap, "KubeadmConfig", n.host.Name), "dataSecretName": n.host.Name,
			},
			"infrastructureRef": reference(infrastructure, "KKMachine", n.host.Name),
		},
	}
}
