package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
)

// tagGroups returns the tags and their tasks. A name that ends in a dash is a prefix.
func tagGroups() []tagGroup {
	return []tagGroup{
		{"hooks", []string{"pre_install", "post_install"}},
		{"precheck", []string{"precheck"}},
		{"hosts", []string{
			"hosts-file", "clock", "swap", "kernel", "service-route", "packages", "os-",
			"selinux-labels",
		}},
		{"registry", []string{
			"certificates", "registry", "registry-", "existing-registry", "seed-registry", "harbor",
			"harbor-", "preload-images",
		}},
		{"cri", []string{"containerd", "docker", "docker-", "runtime-tools", "crio", "cri-", "crictl", "nerdctl"}},
		{"etcd", []string{"etcd", "etcd-", "provided-etcd"}},
		{"endpoint", []string{
			"kube-vip", "kube-vip-", "haproxy", "endpoint", "endpoint-", "proxy-endpoint",
			"external-endpoint",
		}},
		{"kubernetes", []string{
			"security", "kubelet", "kubelet-", "kubeadm-", "api-server", "join-", "node-",
			"admin-conf", "k3s", "k3s-", "encryption-", "audit-",
		}},
		{"security", []string{
			"security", "security-", "encrypt-secrets", "encryption-", "audit-", "certs-",
			"certificates-",
		}},
		{"network", append(network.All().Names(), "cni-", "network-", "pod-links")},
		{"dns", []string{"cluster-dns", "dns-spread", "node-local-dns"}},
		{"storage", []string{"nfs-", "localpv-provisioner", "storage-"}},
		{"addons", []string{
			"addon-", "addons-", "removed-addons", "metrics-server", "localpv-provisioner",
			"nfs-subdir-external-provisioner", "manifests-", "clusterctl", "cluster-api", "spegel", "spegel-",
		}},
		{"verify", []string{"verify-"}},
	}
}

type tagGroup struct {
	tag   string
	tasks []string
}

// TagGroups returns the tags that Options.Tags accepts beside the names of tasks.
func TagGroups() []string {
	var names []string
	for _, g := range tagGroups() {
		names = append(names, g.tag)
	}
	return names
}

// Tags returns the tags of a task.
func Tags(t task.Task) []string {
	var tags []string
	for _, g := range tagGroups() {
		if slices.ContainsFunc(g.tasks, func(name string) bool {
			return name == t.Name || strings.HasSuffix(name, "-") && strings.HasPrefix(t.Name, name)
		}) {
			tags = append(tags, g.tag)
		}
	}
	return tags
}

// Selected returns the selected tasks in their phases, without empty phases.
func (o TaskSelection) Selected(phases []task.Phase) ([]task.Phase, error) {
	if err := o.checkSelection(phases); err != nil {
		return nil, err
	}
	begun := o.From == ""
	var list []task.Phase
	for _, p := range phases {
		begun = begun || p.Name == o.From
		var tasks []task.Task
		for _, t := range p.Tasks {
			begun = begun || t.Name == o.From
			tagged := len(o.Tags) == 0 || slices.Contains(o.Tags, t.Name) ||
				slices.ContainsFunc(Tags(t), func(tag string) bool { return slices.Contains(o.Tags, tag) })
			if begun && tagged && (len(o.Phases) == 0 || slices.Contains(o.Phases, p.Name)) {
				tasks = append(tasks, t)
			}
		}
		if len(tasks) > 0 {
			list = append(list, task.Phase{Name: p.Name, Tasks: tasks})
		}
	}
	if len(list) == 0 {
		return nil, &SelectionError{What: "phases, tags and start exclude each other: no task is left"}
	}
	return list, nil
}

// checkSelection refuses names that are not in the cluster's phases.
func (o TaskSelection) checkSelection(phases []task.Phase) error {
	var tasks []string
	for _, p := range phases {
		for _, t := range p.Tasks {
			tasks = append(tasks, t.Name)
		}
	}
	isPhase := func(name string) bool {
		return slices.ContainsFunc(phases, func(p task.Phase) bool { return p.Name == name })
	}
	for _, name := range o.Phases {
		if !isPhase(name) {
			return &SelectionError{What: fmt.Sprintf("there is no phase %q; the phases are %s", name,
				PhaseNames(phases))}
		}
	}
	if o.From != "" && !isPhase(o.From) && !slices.Contains(tasks, o.From) {
		return &SelectionError{What: fmt.Sprintf("there is no phase or task %q to start at", o.From)}
	}
	for _, name := range o.Tags {
		if !slices.Contains(TagGroups(), name) && !slices.Contains(tasks, name) {
			return &SelectionError{What: fmt.Sprintf("no task of this cluster has the tag or name %q; the tags are %s",
				name, strings.Join(TagGroups(), ", "))}
		}
	}
	return nil
}

// A SelectionError means that phases, tags or a start match nothing.
type SelectionError struct{ What string }

// Error returns the reason.
func (e *SelectionError) Error() string { return e.What }

// Hint returns the remedy.
func (e *SelectionError) Hint() string {
	return "install --list prints the phases, tasks and tags of this cluster"
}

// PhaseNames returns the phases' names, separated by commas.
func PhaseNames(phases []task.Phase) string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
