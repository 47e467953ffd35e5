package upgrade

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Selection selects workers by their names or by their labels. The zero value selects all.
type Selection struct {
	text     string
	selector labels.Selector
}

// ParseSelection parses names of workers, separated by commas, or a label selector of Kubernetes. Which of them it is
// shows with the inventory. The empty text selects all.
func ParseSelection(text string) (Selection, error) {
	if text == "" {
		return Selection{}, nil
	}
	s, err := labels.Parse(text)
	if err != nil {
		return Selection{}, fmt.Errorf(
			"%q is neither a list of names nor a label selector, such as node1,node2 or zone=a: %w", text, err)
	}
	return Selection{text, s}, nil
}

// choose marks the workers that Options.Nodes leaves to another run, and checks that the canary can be one.
func (u *upgrade) choose(p *Plan) error {
	p.Canary = u.how.Canary
	if err := u.checkCanary(*p); err != nil || u.how.Nodes.selector == nil {
		return err
	}
	text := u.how.Nodes.text
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	isName := func(name string) bool { return u.HostNamed(name) != nil }
	byName := !slices.ContainsFunc(names, func(name string) bool { return !isName(name) })
	found := false
	u.later = map[string]bool{}
	for i, n := range p.Nodes {
		chosen := u.how.Nodes.selector.Matches(n.labels)
		if byName {
			chosen = slices.Contains(names, n.Name)
		}
		if chosen && byName && n.ControlPlane {
			return &RefusedError{
				p.Cluster, p.To,
				"--nodes " + text + ": " + n.Name + " is a control plane, and all of them come before the workers",
				"name workers only",
			}
		}
		if n.ControlPlane || n.Left {
			continue
		}
		found = found || chosen
		// What an earlier run has begun is completed.
		u.later[n.Name] = !chosen && n.mark == ""
		p.Nodes[i].Later = u.later[n.Name]
	}
	if !found {
		return &RefusedError{
			p.Cluster, p.To, "--nodes " + text + " selects no worker, neither by name nor by label",
			"use names of the inventory's workers, separated by commas, or a label: kubectl get nodes --show-labels",
		}
	}
	return nil
}

// checkCanary refuses a canary that is no node, that cannot be the first, or that is upgraded and needs no check.
func (u *upgrade) checkCanary(p Plan) error {
	name := u.how.Canary
	if name == "" {
		return nil
	}
	n := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Name == name })
	first := u.FirstControlPlane().Name
	switch h := u.HostNamed(name); {
	case h == nil:
		return &engine.LimitError{Flag: "--canary", Host: name}
	case n < 0 || p.Nodes[n].Left:
		return &RefusedError{
			p.Cluster, p.To, "--canary " + name + ": it is no node that this run upgrades",
			"name the first control plane or a worker",
		}
	case h.Is(manifest.RoleControlPlane) && name != first:
		return &RefusedError{
			p.Cluster, p.To,
			"--canary " + name + ": kubeadm upgrades a cluster from one control plane, and that is " + first,
			"name that one, or a worker",
		}
	case p.Nodes[n].Current && u.how.Check == nil:
		return &RefusedError{
			p.Cluster, p.To, "--canary " + name + ": it is upgraded already",
			"run the same command without --canary for the other nodes",
		}
	}
	return nil
}
