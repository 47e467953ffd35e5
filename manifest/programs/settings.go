package programs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A FeatureGate is a feature gate that a cluster file sets for one program.
type FeatureGate struct {
	Program, Name, Value string
	// Path is its place in the cluster file.
	Path string
}

// FeatureGates returns the feature gates that the configurations in a cluster file set for Kubernetes' programs.
func FeatureGates(kubeadm, kubelet, kubeProxy map[string]any) []FeatureGate {
	var list []FeatureGate
	for _, one := range []struct {
		program string
		section Section
		config  map[string]any
	}{{"kubelet", Kubelet, kubelet}, {"kube-proxy", KubeProxy, kubeProxy}} {
		at := document.Join(document.Join("kubernetes", string(one.section)), "featureGates")
		gates, _ := one.config["featureGates"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(gates)) {
			list = append(list, FeatureGate{
				Program: one.program, Name: name, Value: fmt.Sprint(gates[name]),
				Path: document.Join(at, name),
			})
		}
	}
	for _, a := range Arguments(kubeadm) {
		if a.Name != "feature-gates" {
			continue
		}
		for gate := range strings.SplitSeq(a.Value, ",") {
			name, value, _ := strings.Cut(gate, "=")
			if _, after, has := strings.Cut(name, ":"); has { // COMPONENT:NAME
				name = after
			}
			list = append(list, FeatureGate{
				Program: a.Program, Name: strings.TrimSpace(name), Value: value,
				Path: a.Path,
			})
		}
	}
	return list
}

// An Argument is one that a cluster file gives to a program of the control plane.
type Argument struct {
	Program, Name, Value string
	// Path is its place in the cluster file.
	Path string
}

// Arguments returns the arguments that kubeadm's configuration in a cluster file gives to the programs of the control
// plane. null, which takes an argument of kkbundle away, is none.
func Arguments(kubeadm map[string]any) []Argument {
	var list []Argument
	for _, one := range []struct{ section, program string }{
		{"apiServer", "kube-apiserver"},
		{"controllerManager", "kube-controller-manager"},
		{"scheduler", "kube-scheduler"},
	} {
		section, _ := kubeadm[one.section].(map[string]any)
		at := document.Join("kubernetes.kubeadm."+one.section, "extraArgs")
		add := func(path string, name, value any) {
			if value != nil {
				list = append(list, Argument{
					Program: one.program, Name: fmt.Sprint(name), Value: fmt.Sprint(value),
					Path: path,
				})
			}
		}
		switch args := section["extraArgs"].(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(args)) {
				add(document.Join(at, name), name, args[name])
			}
		case []any:
			for i, entry := range args {
				if m, ok := entry.(map[string]any); ok {
					add(document.Index(at, i), m["name"], m["value"])
				}
			}
		}
	}
	return list
}
