// Package webhooks has the defaults and the validation of the provider's objects, and refuses versions of Kubernetes
// that a cluster's bundle does not have. A message names the field, the problem and the remedy.
package webhooks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// Setup adds the webhooks to a manager. user is the provider's own name at the API server.
func Setup(mgr ctrl.Manager, user string) error {
	for _, add := range []func() error{
		func() error {
			h := Host{Reader: mgr.GetAPIReader(), Manager: user}
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKHost{}).WithDefaulter(h).WithValidator(h).Complete()
		},
		func() error {
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKBundle{}).WithValidator(Bundle{}).Complete()
		},
		func() error {
			c := Cluster{Reader: mgr.GetClient()}
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKCluster{}).WithDefaulter(c).WithValidator(c).Complete()
		},
		func() error {
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKClusterTemplate{}).
				WithValidator(ClusterTemplate{}).Complete()
		},
		func() error {
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKMachine{}).WithValidator(Machine{}).Complete()
		},
		func() error {
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKMachineTemplate{}).
				WithValidator(MachineTemplate{}).Complete()
		},
		func() error {
			return ctrl.NewWebhookManagedBy(mgr, &infrav1.KKInstance{}).
				WithValidator(Instance{Manager: user}).Complete()
		},
	} {
		if err := add(); err != nil {
			return err
		}
	}
	mgr.GetWebhookServer().Register(VersionPath, &webhook.Admission{Handler: &Versions{Reader: mgr.GetClient()}})
	return nil
}

// invalid returns the problems of an object as the API server prints them.
func invalid(kind, name string, problems field.ErrorList) error {
	if len(problems) == 0 {
		return nil
	}
	return apierrors.NewInvalid(infrav1.GroupVersion.WithKind(kind).GroupKind(), name, problems)
}

func spec(names ...string) *field.Path {
	p := field.NewPath("spec")
	for _, n := range names {
		p = p.Child(n)
	}
	return p
}

// Host validates a KKHost.
type Host struct {
	Reader client.Reader
	// Manager is the user that takes and frees hosts: nobody else knows whether a host is clean.
	Manager string
}

// Default implements admission.Defaulter.
func (Host) Default(_ context.Context, h *infrav1.KKHost) error {
	if len(h.Spec.Roles) == 0 {
		h.Spec.Roles = []infrav1.Role{infrav1.RoleControlPlane, infrav1.RoleWorker}
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (w Host) ValidateCreate(ctx context.Context, h *infrav1.KKHost) (admission.Warnings, error) {
	problems := hostProblems(h)
	if len(problems) == 0 {
		twins, err := w.twins(ctx, h)
		if err != nil {
			return nil, err
		}
		problems = twins
	}
	return nil, invalid("KKHost", h.Name, problems)
}

// ValidateUpdate implements admission.Validator. A host is taken and let go as it is, even if today's rules would
// refuse it.
func (w Host) ValidateUpdate(ctx context.Context, old, h *infrav1.KKHost) (admission.Warnings, error) {
	var problems field.ErrorList
	was, is := old.Spec.Consumer, h.Spec.Consumer
	if was != nil && is != nil && *was != *is {
		problems = append(problems, field.Forbidden(spec("consumer"), fmt.Sprintf("KKMachine %s of cluster %s has the host; it is free once that machine is deleted", was.Machine, was.Cluster)))
	}
	if was != nil && is == nil && !byUser(ctx, w.Manager) {
		problems = append(problems, field.Forbidden(spec("consumer"), fmt.Sprintf("the host was not cleaned after KKMachine %s of cluster %s; delete its Machine, and the host is cleaned and free", was.Machine, was.Cluster)))
	}
	if freed(old, h) && !onlyFreed(old, h) {
		problems = append(problems, field.Forbidden(field.NewPath("metadata", "annotations").Key(infrav1.QuarantineAnnotation),
			"the host is in quarantine; clean it, then remove the annotation by itself: kubectl annotate kkhost "+h.Name+" "+infrav1.QuarantineAnnotation+"-"))
	}
	if was == nil && is != nil && old.Annotations[infrav1.QuarantineAnnotation] != "" {
		problems = append(problems, field.Forbidden(spec("consumer"), "the host is in quarantine; clean it, then remove the annotation "+infrav1.QuarantineAnnotation))
	}
	if was != nil && is != nil && (old.Spec.Address != h.Spec.Address || old.Spec.SSH.Port != h.Spec.SSH.Port) {
		problems = append(problems, field.Forbidden(spec("address"), fmt.Sprintf("KKMachine %s runs at %s, and that host has to be cleaned; make another KKHost, or delete the Machine first", was.Machine, old.Spec.Address)))
	}
	before, after := old.Spec, h.Spec
	before.Consumer, after.Consumer = nil, nil
	if !reflect.DeepEqual(before, after) {
		problems = append(problems, hostProblems(h)...)
	}
	if len(problems) == 0 && !reflect.DeepEqual(identity(old), identity(h)) {
		twins, err := w.twins(ctx, h)
		if err != nil {
			return nil, err
		}
		problems = twins
	}
	return nil, invalid("KKHost", h.Name, problems)
}

// byUser reports whether a request is that of a user.
func byUser(ctx context.Context, name string) bool {
	req, err := admission.RequestFromContext(ctx)
	return err == nil && name != "" && req.UserInfo.Username == name
}

// freed reports whether an update ends a quarantine.
func freed(old, h *infrav1.KKHost) bool {
	return old.Annotations[infrav1.QuarantineAnnotation] != "" && h.Annotations[infrav1.QuarantineAnnotation] == ""
}

// onlyFreed reports whether nothing else is changed: who replaces a whole object from a file does not mean to end a
// quarantine.
func onlyFreed(old, h *infrav1.KKHost) bool {
	before, after := maps.Clone(old.Annotations), maps.Clone(h.Annotations)
	delete(before, infrav1.QuarantineAnnotation)
	delete(after, infrav1.QuarantineAnnotation)
	return maps.Equal(before, after) && maps.Equal(old.Labels, h.Labels) &&
		slices.Equal(old.Finalizers, h.Finalizers) && reflect.DeepEqual(old.Spec, h.Spec)
}

// ValidateDelete implements admission.Validator.
func (Host) ValidateDelete(_ context.Context, h *infrav1.KKHost) (admission.Warnings, error) {
	if c := h.Spec.Consumer; c != nil {
		return admission.Warnings{fmt.Sprintf("KKMachine %s of cluster %s has the host: it goes once that machine is deleted and the host is clean", c.Machine, c.Cluster)}, nil
	}
	return nil, nil
}

func hostProblems(h *infrav1.KKHost) (problems field.ErrorList) {
	problems = append(problems, addressProblems(spec("address"), h.Spec.Address)...)
	for _, a := range []struct {
		name, value string
		v4          bool
	}{{"internalIPv4", h.Spec.InternalIPv4, true}, {"internalIPv6", h.Spec.InternalIPv6, false}} {
		if ip, err := netip.ParseAddr(a.value); a.value != "" && (err != nil || ip.Is4() != a.v4 || ip.Zone() != "") {
			problems = append(problems, field.Invalid(spec(a.name), a.value, "want an address such as "+map[bool]string{true: "10.0.0.7", false: "fd00::7"}[a.v4]))
		}
	}
	if _, err := netip.ParseAddr(h.Spec.Address); err != nil && h.Spec.InternalIPv4 == "" && h.Spec.InternalIPv6 == "" {
		problems = append(problems, field.Required(spec("internalIPv4"), "address is a name; give the node's address in the cluster, here or in internalIPv6"))
	}
	if h.Spec.SSH.KnownHostsRef == nil && !h.Spec.SSH.TrustOnFirstUse {
		problems = append(problems, field.Required(spec("ssh", "knownHostsRef"),
			"the host's key could not be checked; name a Secret with the key known_hosts, or set trustOnFirstUse: true"))
	}
	if h.Spec.SSH.KnownHostsRef != nil && h.Spec.SSH.TrustOnFirstUse {
		problems = append(problems, field.Forbidden(spec("ssh", "trustOnFirstUse"), "knownHostsRef is set; remove one of both"))
	}
	for i, b := range h.Spec.SSH.Bastions {
		problems = append(problems, addressProblems(spec("ssh", "bastions").Index(i).Child("address"), b.Address)...)
	}
	return problems
}

func addressProblems(p *field.Path, address string) field.ErrorList {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Zone() == "" {
		return nil
	}
	if len(validation.IsDNS1123Subdomain(address)) > 0 {
		return field.ErrorList{field.Invalid(p, address, "want an IPv4 or IPv6 address, or a name in lower case, without a port")}
	}
	return nil
}

// An at is what tells one host from others.
type at struct {
	address, v4, v6 string
	port            int32
	hops            []hop // behind others, an address may be another host
}

type hop struct {
	address string
	port    int32
}

func identity(h *infrav1.KKHost) at {
	id := at{
		address: h.Spec.Address, v4: h.Spec.InternalIPv4, v6: h.Spec.InternalIPv6,
		port: cmp.Or(h.Spec.SSH.Port, 22),
	}
	for _, b := range h.Spec.SSH.Bastions {
		id.hops = append(id.hops, hop{b.Address, cmp.Or(b.Port, 22)})
	}
	return id
}

// shared returns the field and the address that two hosts share, if they are the same host. A port of SSH tells hosts
// behind an address apart that is not a node's; no port tells nodes apart.
func (a at) shared(b at) (name, address string) {
	if !slices.EqualFunc(a.hops, b.hops,
		func(x, y hop) bool { return same(x.address, y.address) && x.port == y.port }) {
		return "", ""
	}
	if same(a.address, b.address) && a.port == b.port {
		return "address", a.address
	}
	nodes := hosts.InternalAddresses(b.address, b.v4, b.v6)
	for _, mine := range hosts.InternalAddresses(a.address, a.v4, a.v6) {
		if !slices.ContainsFunc(nodes, func(other string) bool { return same(mine, other) }) {
			continue
		}
		switch mine {
		case a.v4:
			return "internalIPv4", mine
		case a.v6:
			return "internalIPv6", mine
		}
		return "address", mine
	}
	return "", ""
}

// twins looks for the same host in all namespaces: two objects of one host would let two clusters have it.
func (w Host) twins(ctx context.Context, h *infrav1.KKHost) (problems field.ErrorList, err error) {
	var all infrav1.KKHostList
	if err := w.Reader.List(ctx, &all); err != nil {
		return nil, err
	}
	for _, other := range all.Items {
		if other.Namespace == h.Namespace && other.Name == h.Name {
			continue
		}
		if name, address := identity(h).shared(identity(&other)); name != "" {
			where := fmt.Sprintf("KKHost %s in namespace %s", other.Name, other.Namespace)
			problems = append(problems, field.Invalid(spec(name), address, where+" is the same host; a host is in one pool only"))
		}
	}
	return problems, nil
}

// same reports whether two addresses are the same, however they are written.
func same(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap() || a == b
}

// Bundle validates a KKBundle.
type Bundle struct{}

// ValidateCreate implements admission.Validator.
func (Bundle) ValidateCreate(_ context.Context, b *infrav1.KKBundle) (admission.Warnings, error) {
	return nil, invalid("KKBundle", b.Name, bundleProblems(b))
}

// ValidateUpdate implements admission.Validator.
func (Bundle) ValidateUpdate(_ context.Context, _, b *infrav1.KKBundle) (admission.Warnings, error) {
	return nil, invalid("KKBundle", b.Name, bundleProblems(b))
}

// ValidateDelete implements admission.Validator.
func (Bundle) ValidateDelete(context.Context, *infrav1.KKBundle) (admission.Warnings, error) {
	return nil, nil
}

func bundleProblems(b *infrav1.KKBundle) (problems field.ErrorList) {
	const want = "want oci://HOST/PATH:TAG, https://HOST/PATH/NAME.kkb, or file:///NAME.kkb"
	u, err := url.Parse(b.Spec.Source)
	switch {
	case err != nil || u.User != nil || strings.ContainsAny(b.Spec.Source, " \t\r\n") || u.RawQuery != "" || u.Fragment != "":
		problems = append(problems, field.Invalid(spec("source"), "", want+", without a login")) // the value could be one
	case u.Scheme == "file" && (u.Host != "" || !filepath.IsLocal(strings.TrimPrefix(u.Path, "/"))),
		(u.Scheme == "oci" || u.Scheme == "https") && (u.Host == "" || len(u.Path) < 2), !slices.Contains([]string{"file", "oci", "https"}, u.Scheme):
		problems = append(problems, field.Invalid(spec("source"), b.Spec.Source, want))
	}
	return problems
}

// Cluster validates a KKCluster.
type Cluster struct{ Reader client.Reader }

const defaultAPIPort = 6443

// Default implements admission.Defaulter.
func (Cluster) Default(_ context.Context, c *infrav1.KKCluster) error {
	if e := &c.Spec.ControlPlaneEndpoint; e.Host != "" && e.Port == 0 {
		e.Port = defaultAPIPort
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (w Cluster) ValidateCreate(ctx context.Context, c *infrav1.KKCluster) (admission.Warnings, error) {
	var warnings admission.Warnings
	if h := endpointHost(ctx, w.Reader, c); h != nil {
		warnings = append(warnings, fmt.Sprintf("spec.controlPlaneEndpoint.host: %s is the address of KKHost %s: the cluster is reached as long as its control plane is there, and cannot be upgraded; a balancer's address can stay, or one that moves (kube-vip)",
			c.Spec.ControlPlaneEndpoint.Host, h.Name))
	}
	return warnings, invalid("KKCluster", c.Name, clusterProblems(spec(), &c.Spec))
}

// ValidateUpdate implements admission.Validator. Hosts know the endpoint by its address: it never changes.
func (w Cluster) ValidateUpdate(ctx context.Context, old, c *infrav1.KKCluster) (admission.Warnings, error) {
	problems := clusterProblems(spec(), &c.Spec)
	if was := old.Spec.ControlPlaneEndpoint; was.Host != "" && was != c.Spec.ControlPlaneEndpoint {
		problems = append(problems, field.Forbidden(spec("controlPlaneEndpoint"), fmt.Sprintf("hosts and certificates have %s:%d; make another cluster for another endpoint", was.Host, was.Port)))
	}
	var warnings admission.Warnings
	if old.Spec.BundleRef != c.Spec.BundleRef {
		warnings = w.lacking(ctx, c)
	}
	return warnings, invalid("KKCluster", c.Name, problems)
}

// lacking warns of Machines whose version is not in the cluster's bundle: those that replace them would do nothing.
// Errors count as ignorance, as for Versions.
func (w Cluster) lacking(ctx context.Context, c *infrav1.KKCluster) (warnings admission.Warnings) {
	var b infrav1.KKBundle
	var all clusterv1.MachineList
	key := client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.BundleRef.Name}
	if w.Reader.Get(ctx, key, &b) != nil || len(b.Status.Versions) == 0 {
		return nil
	}
	ofCluster := client.MatchingLabels{clusterv1.ClusterNameLabel: c.Labels[clusterv1.ClusterNameLabel]}
	if w.Reader.List(ctx, &all, client.InNamespace(c.Namespace), ofCluster) != nil {
		return nil
	}
	of := map[string]int{}
	for _, m := range all.Items {
		if v := m.Spec.Version; v != "" && !slices.Contains(b.Status.Versions, canonical(v)) {
			of[v]++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(of)) {
		warnings = append(warnings, fmt.Sprintf("%d Machines have version %s, which is not in KKBundle %s (%s): Machines that replace them wait until the KKCluster names a bundle with it; kubernetes.upgradeFrom: %s in the cluster file of the bundle brings it",
			of[v], v, b.Name, strings.Join(b.Status.Versions, ", "), v))
	}
	return warnings
}

// ValidateDelete implements admission.Validator.
func (Cluster) ValidateDelete(context.Context, *infrav1.KKCluster) (admission.Warnings, error) {
	return nil, nil
}

func clusterProblems(p *field.Path, s *infrav1.KKClusterSpec) (problems field.ErrorList) {
	if e := s.ControlPlaneEndpoint; e.Host != "" {
		problems = append(problems, addressProblems(p.Child("controlPlaneEndpoint", "host"), e.Host)...)
	} else if e.Port != 0 {
		problems = append(problems, field.Required(p.Child("controlPlaneEndpoint", "host"), "port is set; set host, too"))
	}
	address := s.Registry.Address
	if u, err := url.Parse("https://" + address); err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(address, " \t\r\n") || strings.Contains(address, "://") {
		problems = append(problems, field.Invalid(p.Child("registry", "address"), address, "want HOST[:PORT][/PATH], such as registry.site:5000"))
	}
	return problems
}

// ClusterTemplate validates a KKClusterTemplate.
type ClusterTemplate struct{}

// ValidateCreate implements admission.Validator.
func (ClusterTemplate) ValidateCreate(_ context.Context, t *infrav1.KKClusterTemplate) (admission.Warnings, error) {
	return nil, invalid("KKClusterTemplate", t.Name, clusterProblems(spec("template", "spec"), &t.Spec.Template.Spec))
}

// ValidateUpdate implements admission.Validator.
func (ClusterTemplate) ValidateUpdate(ctx context.Context,
	old, t *infrav1.KKClusterTemplate,
) (admission.Warnings, error) {
	problems := clusterProblems(spec("template", "spec"), &t.Spec.Template.Spec)
	problems = append(problems, changed(ctx, t, old.Spec.Template.Spec, t.Spec.Template.Spec)...)
	return nil, invalid("KKClusterTemplate", t.Name, problems)
}

// ValidateDelete implements admission.Validator.
func (ClusterTemplate) ValidateDelete(context.Context, *infrav1.KKClusterTemplate) (admission.Warnings, error) {
	return nil, nil
}

// changed returns the problem of a template that was changed. The dry runs of Cluster API's topology controller may
// change it.
func changed(ctx context.Context, o metav1.Object, old, now any) field.ErrorList {
	req, err := admission.RequestFromContext(ctx)
	if reflect.DeepEqual(old, now) || err == nil && topology.IsDryRunRequest(req, o) {
		return nil
	}
	return field.ErrorList{field.Forbidden(spec("template", "spec"), "a template never changes; make another one and name it where this one is named")}
}

// Machine validates a KKMachine.
type Machine struct{}

// ValidateCreate implements admission.Validator.
func (Machine) ValidateCreate(_ context.Context, m *infrav1.KKMachine) (admission.Warnings, error) {
	return nil, invalid("KKMachine", m.Name, machineProblems(spec(), &m.Spec))
}

// ValidateUpdate implements admission.Validator. The provider sets hostName and providerID once.
func (Machine) ValidateUpdate(_ context.Context, old, m *infrav1.KKMachine) (admission.Warnings, error) {
	was := old.Spec
	if was.HostName == "" {
		was.HostName = m.Spec.HostName
	}
	if was.ProviderID == "" {
		was.ProviderID = m.Spec.ProviderID
	}
	if reflect.DeepEqual(was, m.Spec) {
		return nil, nil
	}
	return nil, invalid("KKMachine", m.Name, field.ErrorList{field.Forbidden(spec(), "the host is chosen for this spec; replace the Machine instead, with another template")})
}

// ValidateDelete implements admission.Validator.
func (Machine) ValidateDelete(context.Context, *infrav1.KKMachine) (admission.Warnings, error) {
	return nil, nil
}

func machineProblems(p *field.Path, s *infrav1.KKMachineSpec) (problems field.ErrorList) {
	if s.HostSelector != nil {
		if _, err := metav1.LabelSelectorAsSelector(s.HostSelector); err != nil {
			problems = append(problems, field.Invalid(p.Child("hostSelector"), metav1.FormatLabelSelector(s.HostSelector), err.Error()))
		}
	}
	return problems
}

// MachineTemplate validates a KKMachineTemplate.
type MachineTemplate struct{}

// ValidateCreate implements admission.Validator.
func (MachineTemplate) ValidateCreate(_ context.Context, t *infrav1.KKMachineTemplate) (admission.Warnings, error) {
	return nil, invalid("KKMachineTemplate", t.Name, machineTemplateProblems(t))
}

// ValidateUpdate implements admission.Validator.
func (MachineTemplate) ValidateUpdate(ctx context.Context,
	old, t *infrav1.KKMachineTemplate,
) (admission.Warnings, error) {
	problems := append(machineTemplateProblems(t), changed(ctx, t, old.Spec.Template.Spec, t.Spec.Template.Spec)...)
	return nil, invalid("KKMachineTemplate", t.Name, problems)
}

// ValidateDelete implements admission.Validator.
func (MachineTemplate) ValidateDelete(context.Context, *infrav1.KKMachineTemplate) (admission.Warnings, error) {
	return nil, nil
}

func machineTemplateProblems(t *infrav1.KKMachineTemplate) field.ErrorList {
	p, s := spec("template", "spec"), &t.Spec.Template.Spec
	problems := machineProblems(p, s)
	for name, value := range map[string]string{"providerID": s.ProviderID, "hostName": s.HostName} {
		if value != "" {
			problems = append(problems, field.Forbidden(p.Child(name), "the machines of a template would all be the same one; use hostSelector"))
		}
	}
	return problems
}

// Instance validates a KKInstance: the provider makes it, and nobody changes it but for an update in place.
type Instance struct {
	// Manager is the user that asks for updates in place: what they name is done on hosts as root, and a login of the
	// registry is sent to its address.
	Manager string
}

// ValidateCreate implements admission.Validator.
func (Instance) ValidateCreate(context.Context, *infrav1.KKInstance) (admission.Warnings, error) {
	return nil, nil
}

// ValidateUpdate implements admission.Validator. Until an update is done, its bundle and registry can be corrected.
func (w Instance) ValidateUpdate(ctx context.Context, old, i *infrav1.KKInstance) (admission.Warnings, error) {
	var problems field.ErrorList
	was, to, ours := old.Spec, i.Spec.Update, byUser(ctx, w.Manager)
	another := to != nil && (was.Update == nil || was.Update.ID != to.ID)
	if another {
		was.Update, was.Version = to, i.Spec.Version
	}
	if another || ours && controllers.ToUpdate(old) {
		was.BundleRef, was.Registry = i.Spec.BundleRef, i.Spec.Registry
	}
	if another && !ours {
		problems = append(problems, field.Forbidden(spec("update"), "only the provider asks for an update in place; give the KubeadmControlPlane or the MachineDeployment the new version"))
	}
	if !reflect.DeepEqual(was, i.Spec) {
		problems = append(problems, field.Forbidden(spec(), "the host was made for this spec and is cleaned by it; replace the Machine instead"))
	}
	return nil, invalid("KKInstance", i.Name, problems)
}

// ValidateDelete implements admission.Validator.
func (Instance) ValidateDelete(context.Context, *infrav1.KKInstance) (admission.Warnings, error) {
	return nil, nil
}

var (
	_ admission.Validator[*infrav1.KKHost] = Host{}
	_ admission.Defaulter[*infrav1.KKHost] = Host{}
	_ runtime.Object                       = &infrav1.KKHost{}
)
