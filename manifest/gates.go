package manifest

import (
	"fmt"
	"strings"
)

// A FeatureGate is a feature gate that a cluster file sets for one program.
type FeatureGate struct {
	Program, Name string
	// Path is its place in the cluster file.
	Path string
}

// FeatureGates returns the feature gates that the cluster file sets for Kubernetes' programs.
func (k *Kubernetes) FeatureGates() []FeatureGate {
	var list []FeatureGate
	for _, one := range []struct {
		program, section string
		config           Config
	}{{"kubelet", kubeletSection, k.Kubelet}, {"kube-proxy", kubeProxySection, k.KubeProxy}} {
		at := join(join("kubernetes", one.section), "featureGates")
		gates, _ := one.config["featureGates"].(map[string]any)
		for _, name := range sortedKeys(gates) {
			list = append(list, FeatureGate{Program: one.program, Name: name, Path: join(at, name)})
		}
	}
	for _, one := range controlPlane() {
		for _, arg := range k.Kubeadm.find("kubernetes.kubeadm", one.section+".extraArgs.feature-gates") {
			for gate := range strings.SplitSeq(fmt.Sprint(arg.value), ",") {
				name, _, _ := strings.Cut(gate, "=")
				// The API server and others take gates of a component as COMPONENT:NAME.
				if _, after, has := strings.Cut(name, ":"); has {
					name = after
				}
				list = append(list, FeatureGate{Program: one.program, Name: strings.TrimSpace(name), Path: arg.at})
			}
		}
	}
	return list
}

// controlPlane returns the programs of the control plane and their sections of ClusterConfiguration.
func controlPlane() []struct{ section, program string } {
	return []struct{ section, program string }{
		{"apiServer", "kube-apiserver"}, {"controllerManager", "kube-controller-manager"}, {"scheduler", "kube-scheduler"},
	}
}
