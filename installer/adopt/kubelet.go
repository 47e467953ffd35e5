package adopt

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// readKubelets takes the kubelet's settings that all nodes have in common from the files that their kubelets read: the
// ConfigMap kubelet-config is what kubeadm gave them once, and Kubespray's nodes have files of their own.
func (d *describer) readKubelets() {
	const instead = "write what all nodes are to have under kubernetes.kubelet"
	var (
		common  map[string]any
		differ  []string
		read    []string
		missing []string
	)
	for i := range d.e.Cluster.Nodes {
		h := d.e.host(d.e.Cluster.Nodes[i].Name)
		if h == nil {
			continue // refused by nodes
		}
		file := kubeletConfig
		if h.has(sprayConfig) {
			file = sprayConfig
		}
		config, err := parseConfig(h.Name+":"+file, h.Files[file], "KubeletConfiguration")
		switch {
		case err != nil:
			d.causes.add(h.Name+":"+file, "no configuration of the kubelet that can be read", "correct the file")
		case config == nil:
			missing = append(missing, h.Name)
		case len(read) == 0:
			common, read = config, append(read, h.Name)
		default:
			var more []string
			common, more = shared("", common, config)
			differ, read = append(differ, more...), append(read, h.Name)
		}
	}
	if len(missing) > 0 {
		d.gap("kubelet", strings.Join(missing, ", ")+": the kubelet's configuration is not where kubeadm or Kubespray has it",
			instead)
	}
	if slices.Sort(differ); len(differ) > 0 {
		d.gap("kubelet", "not the same on "+strings.Join(read, ", ")+", and not copied: "+listed(slices.Compact(differ)),
			instead)
	}
	d.kubeletArguments()
	switch {
	case d.kubelet == nil:
		d.gap("kubelet", "ConfigMap kube-system/kubelet-config is missing: kubeadm needs it for joins and upgrades",
			"make it with kubeadm init phase upload-config kubelet on a control plane")
	case common != nil:
		_, other := shared("", d.kubelet, common)
		// kubeadm writes it into each node's file only.
		// https://github.com/kubernetes/kubernetes/blob/v1.36.3/cmd/kubeadm/app/phases/kubelet/config.go
		other = slices.DeleteFunc(other, func(name string) bool { return name == "containerRuntimeEndpoint" })
		if len(other) > 0 {
			d.gap("kubelet", "ConfigMap kube-system/kubelet-config differs from the nodes' files, which count here: "+
				listed(other), "nodes that kkbundle adds get what is under kubernetes.kubelet, and an upgrade gives it to all")
		}
	}
	if common != nil {
		d.kubelet = common
	}
}

// shared returns the settings that two configurations of the kubelet have in common below a path, and the places in
// which they differ, in order. A value that the kubelet takes for its default is no difference.
func shared(at string, a, b map[string]any) (both map[string]any, differ []string) {
	both = map[string]any{}
	zeros := kubeletZeros()
	names := append(sortedKeys(a), sortedKeys(b)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		av, bv := a[name], b[name]
		am, isMap := av.(map[string]any)
		if bm, ok := bv.(map[string]any); isMap && ok {
			below, more := shared(document.Join(at, name), am, bm)
			both[name] = below
			differ = append(differ, more...)
			continue
		}
		av, someA := pruned(document.Join(at, name), av, zeros)
		bv, someB := pruned(document.Join(at, name), bv, zeros)
		switch {
		case someA == someB && (!someA || reflect.DeepEqual(av, bv)):
			both[name] = a[name]
		default:
			differ = append(differ, document.Join(at, name))
		}
	}
	return both, differ
}

// kubeletArguments reports the kubelet's arguments, by their names: some are secrets, most are of one node.
func (d *describer) kubeletArguments() {
	// What kubeadm writes there, and kkbundle as well.
	usual := []string{
		"bootstrap-kubeconfig", "config", "container-runtime", "container-runtime-endpoint", "hostname-override", "kubeconfig",
		"node-ip", "pod-infra-container-image",
	}
	hosts := map[string][]string{}
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		for _, file := range kubeletEnvs() {
			names := slices.DeleteFunc(argumentsOf(h.Files[file]), func(name string) bool {
				return slices.Contains(usual, name)
			})
			if len(names) > 0 {
				what := file + " has " + listed(names)
				hosts[what] = append(hosts[what], h.Name)
			}
		}
	}
	for _, what := range sortedKeys(hosts) {
		d.gap("kubelet", fmt.Sprintf("%s on %s: arguments of the kubelet are not copied", what,
			strings.Join(hosts[what], ", ")), "write them as settings under kubernetes.kubelet")
	}
}

// argumentsOf returns the names of the arguments --NAME and --NAME=VALUE in a file of variables, in order.
func argumentsOf(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(r rune) bool {
			return strings.ContainsRune(" \t\r\n\"'", r)
		}) {
			if at := strings.Index(word, "--"); at == 0 || at > 0 && word[at-1] == '=' {
				name, _, _ := strings.Cut(word[at+len("--"):], "=")
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
