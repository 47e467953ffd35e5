package upgrade

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// A Rehearsal is what an upgrade would do and what would be in its way, beyond the plan and the checks of health.
type Rehearsal struct {
	// Steps have the components of each step of the plan.
	Steps []RehearsedStep
	// Nodes name the programs that each node gets, by the tasks that install them.
	Nodes []RehearsedNode
	// RegistryLacks is the size of the bundle's content that the registry lacks.
	RegistryLacks int64
	// Deprecated are requested APIs that the new release no longer serves, and Webhooks those that can stop a drain.
	Deprecated, Webhooks []string
	// Estimate is 0 without a complete upgrade from this work directory before.
	Estimate time.Duration
}

// A RehearsedStep is a step of an upgrade with the components that it replaces.
type RehearsedStep struct {
	Version    string
	Components []Replaced
	// Images and Files are those of the bundle for the step.
	Images, Files int
}

// A Replaced component goes from one version to another. From is "" if unknown.
type Replaced struct{ Name, From, To string }

// A RehearsedNode is a node with the tasks that replace its programs.
type RehearsedNode struct {
	Name     string
	Replaces []string
	// Lacks are the tasks of Stage that have something to bring to the node.
	Lacks []string
}

// rehearse asks the cluster and the hosts, and changes nothing.
func (u *upgrade) rehearse(ctx context.Context, p Plan) (*Rehearsal, error) {
	var r Rehearsal
	var err error
	if r.Steps, err = u.rehearseSteps(ctx, p); err != nil {
		return nil, err
	}
	nodes := u.nodes()
	r.Nodes = make([]RehearsedNode, len(nodes))
	if err := u.OnAll(nodes, func(i int, t *task.Host) error {
		r.Nodes[i].Name = t.Name
		for _, step := range nodePrograms(u.Cluster) {
			ok, err := u.IsDone(ctx, step, t)
			if err != nil {
				return err
			}
			if !ok {
				r.Nodes[i].Replaces = append(r.Nodes[i].Replaces, step.Name)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	lacks, err := u.lacking(ctx, p)
	if err != nil {
		return nil, err
	}
	for i := range r.Nodes {
		r.Nodes[i].Lacks = lacks[r.Nodes[i].Name]
	}
	for _, t := range u.Connected(manifest.RoleRegistry) {
		if !u.IsRegistry(t) || siteregistry.Of(u.Cluster).Data == "" {
			continue
		}
		lacks, err := registryLacks(ctx, t)
		if err != nil {
			return nil, err
		}
		r.RegistryLacks = max(r.RegistryLacks, lacks)
	}
	if r.Deprecated, err = u.deprecated(ctx, p); err != nil {
		return nil, err
	}
	if r.Webhooks, err = u.webhooks(ctx); err != nil {
		return nil, err
	}
	if known := u.gate.before; !known.isUnknown() {
		r.Estimate = estimate(known, p)
	}
	return &r, nil
}

// rehearseSteps names what each step replaces: CoreDNS and kubeadm's etcd come with the release. Etcd on hosts of its
// own goes to the bundle's version before the first step.
func (u *upgrade) rehearseSteps(ctx context.Context, p Plan) ([]RehearsedStep, error) {
	first := u.FirstControlPlane()
	etcd, err := u.runningEtcd(ctx)
	if err != nil {
		return nil, err
	}
	names, now := []string{"etcd", "coredns"}, map[string]string{"etcd": etcd}
	if u.Cluster.Etcd.Type == manifest.EtcdProvided {
		names = names[1:]
	}
	var dns appsv1.Deployment
	if err := first.Kube().Get(ctx, &dns, "deployment", "coredns", "--namespace="+kube.SystemNamespace,
		"--ignore-not-found"); err != nil {
		return nil, err
	}
	for _, c := range dns.Spec.Template.Spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		now["coredns"] = image[strings.LastIndexByte(image, ':')+1:]
	}
	var steps []RehearsedStep
	for _, version := range p.Steps {
		s := RehearsedStep{Version: version}
		for _, name := range names {
			of := u.clusters[version]
			if name == "etcd" && u.Cluster.Etcd.Type == manifest.EtcdExternal {
				of = u.Cluster
			}
			to, err := catalog.Version(of, name)
			if err != nil {
				return nil, err
			}
			release, _, _ := strings.Cut(to, "-")
			if from := now[name]; strings.TrimPrefix(from, "v") != strings.TrimPrefix(release, "v") {
				s.Components = append(s.Components, Replaced{name, from, release})
			}
			now[name] = release
		}
		demands := u.demands[version]
		if version == p.To {
			demands = u.Demands
		}
		for _, d := range demands {
			switch d.Need.Kind {
			case manifest.ItemImage:
				s.Images++
			case manifest.ItemFile:
				s.Files++
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// runningEtcd returns the version of the cluster's etcd, the oldest of external etcd, and "" where it is unknown or
// provided.
func (u *upgrade) runningEtcd(ctx context.Context) (string, error) {
	switch u.Cluster.Etcd.Type {
	case manifest.EtcdExternal:
		return u.oldestExternalEtcd(ctx)
	case manifest.EtcdInternal:
		if m, err := health.EtcdMember(ctx, u.FirstControlPlane()); err == nil {
			return m.Version, nil
		}
	case manifest.EtcdProvided: // upgrade leaves it alone
	}
	return "", nil
}

//go:embed scripts/deprecated-apis.sh
var deprecatedAPIsScript string

// deprecated lists the APIs that clients have requested since each API server started, and that the plan's release no
// longer serves. The API servers themselves know the release of the removal.
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/
func (u *upgrade) deprecated(ctx context.Context, p Plan) ([]string, error) {
	var list []string
	for _, t := range u.controlPlanes() {
		out, err := t.Output(task.WithoutOutput(ctx), append(host.Script("deprecated-apis.sh", deprecatedAPIsScript),
			append(slices.Clone(t.Site.Distribution.Kubectl), t.ServerFlag())...)...)
		if err != nil {
			return nil, fmt.Errorf("metrics of the API server of %s: %w", t.Name, err)
		}
		for _, text := range removedAPIs(string(out), p.To) {
			if !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

// removedAPIs reads counters such as
// apiserver_requested_deprecated_apis{group="policy",removed_release="1.25",resource="poddisruptionbudgets",subresource="",version="v1beta1"}
// 1 and returns those that a release no longer serves.
func removedAPIs(metrics, to string) []string {
	release, err := semver.NewVersion(to)
	if err != nil {
		return nil
	}
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	var list []string
	for line := range strings.Lines(metrics) {
		labels := map[string]string{}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			labels[m[1]] = m[2]
		}
		removed, err := semver.NewVersion(labels["removed_release"])
		if err != nil || removed.Major() > release.Major() || removed.Major() == release.Major() &&
			removed.Minor() > release.Minor() {
			continue
		}
		list = append(list, fmt.Sprintf("%s of %s/%s is requested, and gone since v%d.%d",
			labels["resource"], cmp.Or(labels["group"], "core"), labels["version"], removed.Major(), removed.Minor()))
	}
	return list
}

// webhooks lists those that every new or evicted pod needs and that a drain can make unavailable: the failure policy
// is Fail, and the service has fewer than two ready endpoints.
func (u *upgrade) webhooks(ctx context.Context) ([]string, error) {
	api := u.FirstControlPlane().Kube()
	var validating admissionv1.ValidatingWebhookConfigurationList
	if err := api.Get(ctx, &validating, "validatingwebhookconfigurations"); err != nil {
		return nil, err
	}
	var mutating admissionv1.MutatingWebhookConfigurationList
	if err := api.Get(ctx, &mutating, "mutatingwebhookconfigurations"); err != nil {
		return nil, err
	}
	var hooks []podHook
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			hooks = append(hooks, podHook{
				"ValidatingWebhookConfiguration " + c.Name, w.FailurePolicy, w.Rules,
				w.ClientConfig.Service,
			})
		}
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			hooks = append(hooks, podHook{
				"MutatingWebhookConfiguration " + c.Name, w.FailurePolicy, w.Rules,
				w.ClientConfig.Service,
			})
		}
	}
	var list []string
	for _, h := range hooks {
		if !h.stopsPods() {
			continue
		}
		var endpoints discoveryv1.EndpointSliceList
		if err := api.Get(ctx, &endpoints, "endpointslices", "--namespace="+h.service.Namespace,
			"--selector=kubernetes.io/service-name="+h.service.Name); err != nil {
			return nil, err
		}
		ready := readyEndpoints(endpoints)
		const enough = 2
		if ready < enough {
			list = append(list, fmt.Sprintf(
				"%s: Service %s/%s has %d ready endpoints; without one, no pod can be created or evicted", h.name,
				h.service.Namespace, h.service.Name, ready))
		}
	}
	return list, nil
}

// A podHook is a webhook of either kind.
type podHook struct {
	name    string
	policy  *admissionv1.FailurePolicyType
	rules   []admissionv1.RuleWithOperations
	service *admissionv1.ServiceReference
}

// stopsPods reports whether pods cannot be created or evicted while the webhook's service does not answer.
func (h podHook) stopsPods() bool {
	if h.service == nil || h.policy != nil && *h.policy == admissionv1.Ignore {
		return false
	}
	return slices.ContainsFunc(h.rules, func(r admissionv1.RuleWithOperations) bool {
		core := slices.Contains(r.APIGroups, "") || slices.Contains(r.APIGroups, "*")
		pods := slices.ContainsFunc(r.Resources, func(name string) bool {
			return slices.Contains([]string{"*", "*/*", "pods", "pods/*", "pods/eviction", "*/eviction"}, name)
		})
		creates := slices.Contains(r.Operations, admissionv1.Create) ||
			slices.Contains(r.Operations, admissionv1.OperationAll)
		return core && pods && creates
	})
}

func readyEndpoints(list discoveryv1.EndpointSliceList) int {
	n := 0
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n++
			}
		}
	}
	return n
}
