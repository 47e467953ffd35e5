package deploy

import (
	"cmp"
	"context"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
)

// A preview is a part as it would be deployed.
type preview struct {
	step *step
	// rendered and renderedHooks are the YAML with upstream's images; objects and hooks have the registry's.
	rendered, renderedHooks []byte
	objects, hooks          *rewritten
	definitions             []string // API versions that its custom resource definitions define
	operated                []string // namespaces in which others make pods that need a pull secret

	// The rest is about charts.
	version, was string // of the chart; was is deployed
	before       string // YAML of the deployed revision
	foreign      bool
	pending      string // the state of the revision that the helm command is making; "" if there is none
	crds         []byte
}

// render renders a step.
func (r *run) render(ctx context.Context, s *step, definitions []string) (*preview, error) {
	p := &preview{step: s}
	if s.Chart == "" {
		p.rendered = s.yaml
		p.definitions = charts.APIVersions(s.yaml)
		return p, nil
	}
	chart, err := s.load(ctx, r.bundle)
	if err != nil {
		return nil, &PartError{s.name(), err}
	}
	p.version, p.crds = chart.Version(), chart.CRDs()
	o := r.install(s)
	look, err := charts.PreviewInstall(ctx, chart, o, definitions)
	if err != nil {
		return nil, &PartError{s.name(), err}
	}
	p.rendered, p.renderedHooks = []byte(look.Manifest), []byte(look.Hooks)
	p.definitions = append(charts.APIVersions(p.crds), charts.APIVersions(p.rendered)...)
	p.was, p.before, p.foreign, p.pending = look.Version, look.Before, look.Foreign, look.Pending
	return p, nil
}

// rewrite leads the images to the registry.
func (p *preview) rewrite(m *images) error {
	var err error
	if p.objects, err = m.rewrite(p.rendered); err != nil {
		return err
	}
	p.hooks, err = m.rewrite(p.renderedHooks)
	return err
}

// how returns the change of the rendered objects for charts.Install.
func (p *preview) how(m *images) *charts.Rewrite {
	return &charts.Rewrite{
		Mark: p.objects.mark(m.secret) + p.hooks.mark(m.secret),
		YAML: func(text []byte) ([]byte, error) {
			r, err := m.rewrite(text)
			if err != nil {
				return nil, err
			}
			found, err := m.unled(r.text) // other objects than in the preview
			if err == nil && len(found.lacking) > 0 {
				err = &MissingError{found.lacking}
			}
			return r.text, err
		},
	}
}

// pulls returns the namespaces that need a pull secret.
func (p *preview) pulls() []string {
	set := map[string]bool{}
	for _, r := range []*rewritten{p.objects, p.hooks} {
		for namespace := range r.pulls {
			set[cmp.Or(namespace, p.step.Namespace)] = true
		}
	}
	for _, namespace := range p.operated {
		set[namespace] = true
	}
	return sorted(set)
}

// namespaces returns the namespaces that must exist: the release's, and those of pull secrets.
func (p *preview) namespaces() []string {
	set := map[string]bool{p.step.Namespace: true}
	for _, namespace := range p.pulls() {
		set[namespace] = true
	}
	if p.step.Chart == "" {
		for _, o := range p.recorded() {
			if o.Kind == kindNamespace {
				set[o.Name] = true
			}
		}
	}
	return sorted(set)
}

// defines reports whether the part's own objects have a namespace.
func (p *preview) defines(namespace string) bool {
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return false // reported when it is applied
	}
	for _, o := range objects {
		if o.GetKind() == kindNamespace && o.GetName() == namespace {
			return true
		}
	}
	return false
}

// definitionNames returns the names of the custom resource definitions among the part's own objects.
func (p *preview) definitionNames() []string {
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return nil // reported when it is applied
	}
	var names []string
	for _, o := range objects {
		if o.GetKind() == kindDefinition {
			names = append(names, o.GetName())
		}
	}
	return names
}

// recorded returns the objects of YAML; Helm records those of a chart.
func (p *preview) recorded() []Object {
	if p.step.Chart != "" {
		return nil
	}
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return nil // reported when it is applied
	}
	var list []Object
	for _, o := range objects {
		list = append(list, Object{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()})
	}
	return list
}
