package controllers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// A need is what a machine needs of its host.
type need struct {
	name            string // the only host that fits, if set
	selector        labels.Selector
	roles           []infrav1.Role
	failureDomain   string // of all hosts that fit, if set
	preferredDomain string // hosts there come first
	capacity        corev1.ResourceList
	owner           string // see ownerKey
}

// needOf returns what a KKMachine needs of its host, but for role and failure domain of its Machine.
func needOf(spec *infrav1.KKMachineSpec) (need, error) {
	n := need{name: spec.HostName, selector: labels.Everything(), roles: spec.Roles, capacity: spec.MinCapacity}
	if spec.HostSelector == nil {
		return n, nil
	}
	var err error
	n.selector, err = metav1.LabelSelectorAsSelector(spec.HostSelector)
	return n, err
}

// lacks returns why a host does not fit, whether it is free or not; "" if it fits.
func (n need) lacks(h *infrav1.KKHost) string {
	switch {
	case n.name != "" && h.Name != n.name:
		return "not the host that is asked for, " + n.name
	case !n.selector.Matches(labels.Set(h.Labels)):
		return "not selected by " + n.selector.String()
	}
	for _, role := range n.roles {
		if len(h.Spec.Roles) > 0 && !slices.Contains(h.Spec.Roles, role) {
			return "without the role " + string(role)
		}
	}
	if n.failureDomain != "" && h.Spec.FailureDomain != n.failureDomain {
		return "not in failure domain " + n.failureDomain
	}
	for _, name := range slices.Sorted(maps.Keys(n.capacity)) {
		if has, ok := h.Spec.Capacity[name]; !ok || has.Cmp(n.capacity[name]) < 0 {
			least := n.capacity[name]
			return fmt.Sprintf("with less than %s of %s", least.String(), name)
		}
	}
	return ""
}

// taken returns why nobody can take a host now; "" if it is free.
func taken(h *infrav1.KKHost) string {
	switch {
	case !h.DeletionTimestamp.IsZero():
		return "being deleted"
	case h.Annotations[infrav1.QuarantineAnnotation] != "":
		return "in quarantine"
	case h.Spec.Consumer != nil:
		return "in use"
	case h.Spec.Unschedulable:
		return "unschedulable"
	}
	return ""
}

// choose returns the best free host that fits, or why none does. In the preferred failure domain, and then elsewhere, a
// host that the same owner had last comes first: its images are there. Then come hosts that nobody had last.
func (n need) choose(all []infrav1.KKHost) (*infrav1.KKHost, string) {
	var fit []*infrav1.KKHost
	why := map[string]int{}
	for i := range all {
		h := &all[i]
		switch reason := cmp.Or(n.lacks(h), taken(h)); reason {
		case "":
			fit = append(fit, h)
		default:
			why[reason]++
		}
	}
	if len(fit) == 0 {
		return nil, tally(why)
	}
	rank := func(h *infrav1.KKHost) int {
		switch h.Annotations[infrav1.LastOwnerAnnotation] {
		case n.owner:
			return 0
		case "":
			return 1
		}
		return 2
	}
	distance := func(h *infrav1.KKHost) int {
		if n.preferredDomain == "" || h.Spec.FailureDomain == n.preferredDomain {
			return 0
		}
		return 1
	}
	return slices.MinFunc(fit, func(a, b *infrav1.KKHost) int {
		return cmp.Or(distance(a)-distance(b), rank(a)-rank(b), cmp.Compare(a.Name, b.Name))
	}), ""
}

// tally says how many hosts do not fit for each reason.
func tally(why map[string]int) string {
	if len(why) == 0 {
		return "there is no KKHost"
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		parts = append(parts, fmt.Sprintf("%d %s", why[reason], reason))
	}
	return strings.Join(parts, ", ")
}

func listing(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
