package manifest

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Host returns one host. The error lists similar names.
func (inv *Inventory) Host(name string) (Host, error) {
	known := map[string]bool{}
	for _, h := range inv.Hosts() {
		if h.Name == name {
			return h, nil
		}
		known[h.Name] = true
	}
	return Host{}, fmt.Errorf("%s is not a host of the inventory%s", document.Shorten(name),
		document.DidYouMean(name, sortedKeys(known)))
}

// Resolved returns an inventory of the same hosts with complete entries, without ranges. Differences from the cluster
// file stay in vars, groupVars and hosts. Writing it as YAML omits secrets.
func (inv *Inventory) Resolved() *Inventory {
	r := &Inventory{APIVersion: APIVersion, Kind: KindInventory, Metadata: inv.Metadata, Groups: inv.Groups}
	// Hops outside of the inventory log in with the settings of vars.
	r.Vars = Vars{SSH: inv.Vars.SSH, Cluster: inv.Vars.Cluster}
	r.Vars.SSH.Bastion = ""
	groups := inv.GroupVars.all()
	for i, g := range r.GroupVars.all() {
		g.Cluster = groups[i].Cluster
	}
	settings := map[string]*HostSettings{}
	for i := range inv.HostSpecs {
		settings[document.Key("hosts", inv.HostSpecs[i].Name)] = inv.HostSpecs[i].Cluster
	}
	for _, h := range inv.Hosts() {
		r.HostSpecs = append(r.HostSpecs, h.spec(settings[h.entry]))
	}
	return r
}

// spec returns a complete entry for a host.
func (h *Host) spec(settings *HostSettings) HostSpec {
	s := HostSpec{
		Name: h.Name, Local: h.Local, Sudo: h.Sudo, Taints: h.Taints, Cluster: settings,
		Labels: asType[LabelValue](h.Labels), Annotations: asType[Annotation](h.Annotations),
	}
	if h.InternalIPv4.IsValid() {
		s.InternalIPv4 = h.InternalIPv4.String()
	}
	if h.InternalIPv6.IsValid() {
		s.InternalIPv6 = h.InternalIPv6.String()
	}
	if h.Local {
		return s
	}
	s.Address, s.SSH = h.Address, h.SSH
	var hops []string
	for _, hop := range h.Hops {
		hops = append(hops, hop.SSH.User+"@"+net.JoinHostPort(hop.Name, strconv.Itoa(hop.SSH.Port)))
	}
	s.SSH.Bastion = strings.Join(hops, ",")
	return s
}

func asType[T ~string](m map[string]string) map[string]T {
	if m == nil {
		return nil
	}
	values := make(map[string]T, len(m))
	for k, v := range m {
		values[k] = T(v)
	}
	return values
}
