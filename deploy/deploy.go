package deploy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry"
)

// Options configure Run.
type Options struct {
	Cluster  *rest.Config
	Registry Registry
	// Values are the site's values of releases.
	Values []Value
	// Resolve returns the values of the manifest's table; nil takes those of the lock and of the run before.
	Resolve ResolveFunc
	// Groups are those of the bundle that the site switches on or off; the others stay as the run before had them.
	Groups groups.Words
	// By names this run for the record and for a second run: user, machine and process.
	By string
	// DryRun changes nothing, and fills Report.Diff.
	DryRun bool
	// NoPush expects the bundle's items in the registry.
	NoPush bool
	// Adopt takes over releases that somebody else installed.
	Adopt bool
	// Force takes over fields of YAML's objects that other programs own.
	Force bool
	// Redirect decides about the admission policy for pods of operators and jobs. It applies in the namespaces of the
	// parts and in RedirectNamespaces; nil stands for those of an earlier run.
	Redirect           Redirecting
	RedirectNamespaces []string
	// Prune removes releases and objects of YAML that an earlier version of the bundle had, and this one lacks.
	Prune bool
	// Progress, if set, is told of each step.
	Progress func(Event)
	Logger   *slog.Logger
}

// An Event is the beginning or the end of a step, or a warning.
type Event struct {
	// Part is NAMESPACE/RELEASE, "" for the whole.
	Part    string
	Message string
	Warning bool
}

// A Result is what happened to one part.
type Result struct {
	Part
	// Action is what was done, or what a dry run would do.
	Action Action `json:"action"`
	// Was is the version of the chart before an upgrade.
	Was  string        `json:"was,omitempty"`
	Took time.Duration `json:"-"`
}

// An Action is what Run does with a part.
type Action string

// The actions.
const (
	Installed Action = "installed"
	Upgraded  Action = "upgraded"
	Applied   Action = "applied" // YAML
	Unchanged Action = "unchanged"
)

// A Report is the outcome of Run.
type Report struct {
	Name     string   `json:"name"`
	Version  string   `json:"bundleVersion"`
	Registry string   `json:"registry"`
	Results  []Result `json:"parts"`
	// Values are those of the manifest's table that the site gives.
	Values []SiteValue `json:"values,omitempty"`
	// Groups are those of the bundle, with the decision of the site.
	Groups []SiteGroup `json:"groups,omitempty"`
	// Redirected are the namespaces in which an admission policy leads pods to the registry.
	Redirected []string `json:"redirectedNamespaces,omitempty"`
	// Removed are the releases and objects that Prune removed, or would remove.
	Removed  []string  `json:"removed,omitempty"`
	Warnings []string  `json:"warnings,omitempty"`
	Diff     string    `json:"diff,omitempty"`
	Pushed   PushState `json:"push"`
}

// PushState is the part of a push that people ask for.
type PushState struct {
	Pushed  int   `json:"pushed"`
	Present int   `json:"present"`
	Missing int   `json:"missing,omitempty"` // of a dry run
	Sent    int64 `json:"bytesSent"`
}

// Changed returns the number of parts that changed.
func (r *Report) Changed() int {
	n := 0
	for _, one := range r.Results {
		if one.Action != Unchanged {
			n++
		}
	}
	return n
}

// run is the state of Run.
type run struct {
	Options
	*cluster
	bundle    *bundle.Reader
	manifest  *manifest.Bundle
	steps     []*step
	previews  []*preview
	images    *images
	endpoint  Endpoint
	admission *admission // nil without one
	record    *Record
	others    []*Record       // of other bundles
	claimed   map[string]bool // identities of their objects
	report    *Report
	site      siteValues
	groups    siteGroups
}

// Run deploys a bundle. Nothing changes before everything is known to be complete: the plan, the connection, and that
// the bundle has each image that the objects name. A repeated run continues, and changes nothing if nothing differs.
func Run(ctx context.Context, b *bundle.Reader, o Options) (report *Report, err error) {
	r := &run{Options: o, bundle: b, report: &Report{Name: b.Index().Name, Version: b.Index().Version}}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	if err := r.readManifest(ctx); err != nil {
		return r.report, err
	}
	r.report.Values = r.site.list()
	if err := r.selectGroups(ctx); err != nil {
		return r.report, err
	}
	if r.steps, err = r.plan(ctx); err != nil {
		return r.report, err
	}
	if err := r.connect(ctx); err != nil {
		return r.report, err
	}
	if !o.DryRun {
		if err := r.begin(ctx); err != nil {
			return r.report, err
		}
		held, unlock, err := r.lock(ctx, o.By)
		if err != nil {
			return r.report, err
		}
		defer unlock()
		ctx = held
	}
	r.endpoint, err = o.Registry.Open(ctx, o.Cluster, o.DryRun)
	if err != nil {
		return r.report, &RegistryError{err}
	}
	defer func() { err = errors.Join(err, o.Registry.Close()) }()
	r.report.Registry = r.endpoint.Pull
	if err := r.prepare(ctx); err != nil {
		return r.report, err
	}
	if o.DryRun {
		return r.report, r.diff(ctx)
	}
	if err = r.checkConflicts(ctx); err == nil {
		err = r.deploy(ctx)
	}
	if cause := context.Cause(ctx); errors.Is(cause, errLost) {
		err = errLost
	}
	return r.report, err
}

// connect connects to the cluster, once.
func (r *run) connect(ctx context.Context) (err error) {
	if r.cluster == nil {
		r.cluster, err = connect(ctx, r.Cluster, r.Logger)
	}
	return err
}

// begin makes the namespace of records and locks.
func (r *run) begin(ctx context.Context) error {
	_, _, err := r.ensureNamespace(ctx, Namespace, map[string]string{ManagedLabel: managedBy}, nil)
	return err
}

// prepare renders everything, checks its images, and seeds the registry.
func (r *run) prepare(ctx context.Context) error {
	var err error
	if r.images, err = newImages(r.items(), r.manifest, r.endpoint, nil); err != nil {
		return err
	}
	if r.endpoint.PullSecret != nil {
		r.images.secret = "kkbundle.pull." + r.report.Name
	}
	if err := r.readRecords(ctx); err != nil {
		return err
	}
	if err := r.wantsRedirect(ctx); err != nil {
		return err
	}
	if err := r.renderAll(ctx); err != nil {
		return err
	}
	if err := r.checkNamespaces(ctx); err != nil {
		return err
	}
	r.say("", "registry "+r.endpoint.Pull)
	digests, sum, err := seed(ctx, r.bundle, r.endpoint, r.groups.set, r.NoPush || r.DryRun)
	if err != nil {
		return err
	}
	r.report.Pushed = PushState{
		Pushed: sum.ItemsPushed, Present: sum.ItemsPresent, Missing: sum.ItemsMissing,
		Sent: sum.BytesSent,
	}
	r.report.Warnings = append(r.report.Warnings, sum.Warnings...)
	if r.NoPush && sum.ItemsMissing > 0 {
		return errUnseeded(r.endpoint.Pull, sum)
	}
	return r.rewriteAll(digests, sum)
}

// rewriteAll leads the previews' images to the registry, with the digests there.
func (r *run) rewriteAll(digests map[string]digest.Digest, sum registry.PushSummary) error {
	secret := r.images.secret
	var err error
	if r.images, err = newImages(r.items(), r.manifest, r.endpoint, digests); err != nil {
		return err
	}
	r.images.secret = secret
	for _, p := range r.previews {
		if err := p.rewrite(r.images); err != nil {
			return &PartError{p.step.name(), err}
		}
	}
	r.Logger.Debug("registry was asked", "items", len(sum.Items))
	return r.planRedirect()
}

// readRecords reads what is deployed, and refuses releases of other bundles.
func (r *run) readRecords(ctx context.Context) error {
	list, err := r.records(ctx)
	if err != nil {
		return err
	}
	r.record = &Record{Name: r.report.Name}
	var errs []error
	for _, one := range list {
		if one.Name == r.report.Name {
			r.record = one
			if r.site.before != nil && !r.site.isOf(one) || r.groups.read && !maps.Equal(one.Groups, r.groups.texts) {
				errs = append(errs, errValuesChanged)
			}
			continue
		}
		r.others = append(r.others, one)
		for _, s := range r.steps {
			if one.part(s.name()) != nil {
				errs = append(errs, &TakenError{s.name(), "bundle " + one.Name})
			}
		}
	}
	return errors.Join(errs...)
}

// renderAll renders all parts and reports all images that the bundle lacks.
func (r *run) renderAll(ctx context.Context) error {
	var missing []string
	var errs []error
	var definitions []string
	for _, s := range r.steps {
		p, err := r.render(ctx, s, definitions)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		definitions = append(definitions, p.definitions...)
		r.previews = append(r.previews, p)
		if err := p.ownership(); err != nil && !r.Adopt {
			errs = append(errs, err)
		}
		if err := p.rewrite(r.images); err != nil {
			errs = append(errs, &PartError{s.name(), err})
			continue
		}
		found, err := r.images.unled(slices.Concat(p.objects.text, p.hooks.text))
		if err != nil {
			errs = append(errs, &PartError{s.name(), err})
			continue
		}
		missing = append(missing, found.lacking...)
		r.warnOf(s.name(), found)
	}
	r.warnUnnamed()
	if len(missing) > 0 {
		slices.Sort(missing)
		errs = append(errs, &MissingError{slices.Compact(missing)})
	}
	return errors.Join(errs...)
}

// warnOf warns of the images of a part that are not led to the registry.
func (r *run) warnOf(part string, f findings) {
	for _, one := range f.unclear {
		r.warn(part, "undecided: "+one+
			": deploy leaves it alone; list a needed image under images of the manifest, and name another text under excludeImages")
	}
	for _, one := range f.loose {
		r.warn(part, "image "+one+
			" is in the registry and not in the bundle: its tag decides what runs; name its digest in the values")
	}
	if r.Redirect == RedirectPods {
		return
	}
	for _, one := range f.left {
		r.warn(part, "image "+one+
			" keeps its upstream name: nodes must be able to pull it; set the place with imageRules or values, or use --redirect-pods")
	}
}

// warnUnnamed warns of images that the manifest lists for pods of operators.
func (r *run) warnUnnamed() {
	if r.Redirect == RedirectPods {
		return
	}
	used := map[string]bool{}
	for _, p := range r.previews {
		maps.Copy(used, p.objects.used)
		maps.Copy(used, p.hooks.used)
	}
	for _, ref := range r.images.unnamed(r.listedImages(), used) {
		r.warn("", "image "+ref+
			" is in no object: a pod that an operator makes with it pulls from upstream, unless --redirect-pods leads it to the registry")
	}
}

// deploy makes the changes, part by part, and records them.
func (r *run) deploy(ctx context.Context) error {
	known := *r.record
	r.record.Bundle, r.record.Digest, r.record.Registry = r.report.Version, r.bundle.Digest().String(), r.endpoint.Pull
	r.record.By = r.By
	open, secret := r.site.given()
	r.record.Values, r.record.SecretValues = open, slices.Sorted(maps.Keys(secret))
	if !r.groups.set.All() { // a bundle without groups says nothing of them
		r.record.Groups = r.groups.set.Words().Texts()
	}
	for _, p := range r.previews {
		r.record.add(p)
	}
	changes := known.State != StateDeployed || known.Digest != r.record.Digest || known.Registry != r.record.Registry ||
		len(known.Parts) != len(r.record.Parts) ||
		slices.ContainsFunc(r.report.Values, func(v SiteValue) bool { return v.Changed }) ||
		!maps.Equal(known.Groups, r.record.Groups)
	if changes {
		r.record.State = StateDeploying
		if err := r.write(ctx, r.record); err != nil {
			return err
		}
		if err := r.rememberSecrets(ctx, len(known.SecretValues) > 0); err != nil {
			return r.failed(ctx, err)
		}
	}
	redirected, err := r.redirect(ctx)
	if err != nil {
		return r.failed(ctx, err)
	}
	for _, p := range r.previews {
		result, err := r.part(ctx, p)
		if err != nil && ctx.Err() == nil {
			err = &PartError{p.step.name(), err}
		}
		if err != nil {
			return r.failed(ctx, err)
		}
		r.report.Results = append(r.report.Results, result)
	}
	pruned, err := r.orphans(ctx)
	if err != nil {
		return r.failed(ctx, err)
	}
	r.warnStrays(ctx)
	if !changes && !pruned && !redirected && r.report.Changed() == 0 {
		return nil
	}
	r.record.State = StateDeployed
	return r.write(ctx, r.record)
}

// failed records that a part failed, if the record can reach the API server.
func (r *run) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil || isConnectionLost(err) {
		return err
	}
	r.record.State = StateFailed
	return errors.Join(err, r.write(ctx, r.record))
}

// add records a part before it is made, so that an interrupted run can be removed.
func (r *Record) add(p *preview) {
	part := r.part(p.step.name())
	if part == nil {
		r.Parts = append(r.Parts, Part{Namespace: p.step.Namespace, Release: p.step.Release})
		part = &r.Parts[len(r.Parts)-1]
	}
	part.Chart, part.Version = p.step.Chart, p.version
	for _, o := range p.recorded() {
		if !slices.Contains(part.Objects, o) {
			part.Objects = append(part.Objects, o)
		}
	}
}

// part makes one part.
func (r *run) part(ctx context.Context, p *preview) (Result, error) {
	start := time.Now()
	result := Result{Part: Part{
		Namespace: p.step.Namespace, Release: p.step.Release, Chart: p.step.Chart,
		Version: p.version,
	}}
	fresh, err := r.namespaces(ctx, p)
	if err != nil {
		return result, err
	}
	do := r.chart
	if p.step.Chart == "" {
		do = r.yaml
	}
	if err := do(ctx, p, &result); err != nil {
		return result, err
	}
	if fresh && result.Action == Unchanged {
		result.Action = Applied
	}
	result.Took = time.Since(start)
	r.say(p.step.name(), result.describe())
	return result, nil
}

// describe returns the result for people.
func (r Result) describe() string {
	text := string(r.Action)
	switch {
	case r.Chart == "":
	case r.Action == Upgraded && r.Was != r.Version:
		text += fmt.Sprintf(" (%s %s, was %s)", r.Chart, r.Version, r.Was)
	default:
		text += fmt.Sprintf(" (%s %s)", r.Chart, r.Version)
	}
	return text
}

// namespaces makes the namespaces and pull secrets of a part, and reports whether any changed. Pull secrets are
// recorded before they are made; a namespace has a label.
func (r *run) namespaces(ctx context.Context, p *preview) (changed bool, err error) {
	for _, namespace := range p.namespaces() {
		labels, annotations := labelsOf(r.report.Name), map[string]string(nil)
		own := p.step.Chart != "" && p.defines(namespace)
		if own { // Helm takes over what has its labels
			labels = map[string]string{ManagedLabel: "Helm"}
			annotations = map[string]string{
				"meta.helm.sh/release-name":      p.step.Release,
				"meta.helm.sh/release-namespace": p.step.Namespace,
			}
		}
		made, err := r.namespace(ctx, namespace, labels, annotations)
		if err != nil {
			return false, err
		}
		changed = changed || made
	}
	for _, namespace := range p.pulls() {
		again, err := r.pullSecret(ctx, namespace)
		if err != nil {
			return false, err
		}
		changed = changed || again
	}
	return changed, nil
}

// namespace makes and records a namespace, and reports whether it was missing.
func (r *run) namespace(ctx context.Context, name string, labels,
	annotations map[string]string,
) (made bool, err error) {
	live, made, err := r.ensureNamespace(ctx, name, labels, annotations)
	if err != nil {
		return false, err
	}
	// An earlier run can have ended between the namespace and its record.
	if isOf(live, r.report.Name) && !slices.Contains(r.record.Namespaces, name) {
		r.record.Namespaces = append(r.record.Namespaces, name)
		return made, r.write(ctx, r.record)
	}
	return made, nil
}

// pullSecret records and makes the pull secret of a namespace, and reports whether that changed anything.
func (r *run) pullSecret(ctx context.Context, namespace string) (changed bool, err error) {
	if !slices.Contains(r.record.Pulls, namespace) {
		r.record.Pulls = append(r.record.Pulls, namespace)
		if err := r.write(ctx, r.record); err != nil {
			return false, err
		}
	}
	return r.applyPullSecret(ctx, namespace, r.images.secret, r.report.Name, r.endpoint.PullSecret)
}

// chart installs or upgrades a release.
func (r *run) chart(ctx context.Context, p *preview, result *Result) error {
	result.Action, result.Was = Unchanged, p.was
	chart, err := p.step.load(ctx, r.bundle)
	if err != nil {
		return err
	}
	o := r.install(p.step)
	o.Rewrite = p.how(r.images)
	if same, err := charts.Installed(ctx, chart, o); err != nil || same {
		return err
	}
	doing := "installing"
	if p.was != "" {
		doing = "upgrading to"
	}
	r.say(p.step.name(), fmt.Sprintf("%s %s %s", doing, chart.Name(), chart.Version()))
	definitions, err := kube.ParseManifest(chart.CRDs())
	if err != nil {
		return fmt.Errorf("custom resource definitions: %w", err)
	}
	if _, err := r.applyAll(ctx, definitions, applying{force: true}); err != nil {
		return err
	}
	o.Wait, o.Rollback = p.step.wait(), p.step.OnFailure == manifest.FailureRollback
	stop := r.watch(ctx, p)
	_, err = charts.Install(ctx, chart, o)
	stop()
	if err != nil {
		return err
	}
	if err := r.established(ctx, p.definitionNames()); err != nil { // for later parts
		return err
	}
	if result.Action = Upgraded; p.was == "" {
		result.Action = Installed
	}
	return nil
}

// install returns what every call about a release has.
func (r *run) install(s *step) charts.InstallOptions {
	return charts.InstallOptions{
		Cluster: r.shared, Namespace: s.Namespace, Release: s.Release, Values: s.values,
		Logger: r.Logger,
	}
}

func (c *cluster) status(ctx context.Context, p Part, logger *slog.Logger) (string, error) {
	return charts.ReleaseStatus(ctx, charts.InstallOptions{
		Cluster: c.shared, Namespace: p.Namespace,
		Release: p.Release, Logger: logger,
	})
}

// yaml applies YAML.
func (r *run) yaml(ctx context.Context, p *preview, result *Result) error {
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return err
	}
	changed, err := r.applyAll(ctx, objects, applying{namespace: p.step.Namespace, force: r.Force})
	if err != nil {
		return err
	}
	if result.Action = Unchanged; changed > 0 {
		result.Action = Applied
	}
	if p.step.wait() == 0 {
		return nil
	}
	o := r.install(p.step)
	o.Wait = p.step.wait()
	stop := r.watch(ctx, p)
	defer stop()
	return charts.WaitReady(ctx, o, string(p.objects.text))
}

func (r *run) say(part, message string) {
	if r.Progress != nil {
		r.Progress(Event{Part: part, Message: message})
	}
}

func (r *run) warn(part, message string) {
	r.report.Warnings = append(r.report.Warnings, strings.TrimPrefix(part+": "+message, ": "))
	if r.Progress != nil {
		r.Progress(Event{Part: part, Message: message, Warning: true})
	}
}

// sorted returns the keys of a set.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
