package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// A FindError lists the charts and files that could not be searched for images, and images in files that are no
// references.
type FindError struct{ problems []string }

// Error has a line for each of them.
func (e *FindError) Error() string {
	if len(e.problems) == 1 {
		return e.problems[0]
	}
	return fmt.Sprintf("%d problems in charts and YAML:\n  %s", len(e.problems), strings.Join(e.problems, "\n  "))
}

// Hint returns the ways around.
func (*FindError) Hint() string {
	return "correct the values or the file; for a chart whose images are all listed under images, set imagesListed: true"
}

// An UndecidedError lists texts that may be images, which Options.Strict does not allow.
type UndecidedError struct{ Texts []string }

// Error has a line for each text.
func (e *UndecidedError) Error() string {
	return fmt.Sprintf("%s may be an image or stand for one:\n  %s", plain.Count(len(e.Texts), "text"),
		strings.Join(e.Texts, "\n  "))
}

// Hint returns the ways to decide them.
func (*UndecidedError) Hint() string {
	return "list those that are needed under images, write imageRules for custom resources, and name the others under excludeImages"
}

// useDeployments records how deploy installs charts, and carries the files that it reads.
func (p *Project) useDeployments() error {
	list := p.Manifest.Deployments()
	for _, a := range list {
		for _, file := range a.Manifests {
			p.apply(path.Clean(file), a.Group)
		}
		if a.Chart == "" {
			continue
		}
		use := manifest.ChartUse{Chart: a.Chart, Release: a.Release, Namespace: a.Namespace}
		for _, file := range a.Values {
			use.Values = append(use.Values, path.Clean(file))
		}
		p.Manifest.Uses = append(p.Manifest.Uses, use)
	}
	if err := p.carry(p.File, "", p.Manifest.CarriedFiles()); err != nil {
		return &InputError{err}
	}
	return nil
}

// useCharts records how a cluster installs charts. Its cluster file is in directory dir.
func (p *Project) useCharts(c *manifest.Cluster, dir string) error {
	uses, err := plan.ChartUses(c)
	if err != nil {
		return err
	}
	if len(p.clusters) == 0 {
		p.Manifest.Kubernetes.Version = c.Kubernetes.Version
	}
	p.clusters = append(p.clusters, c)
	for i := range uses {
		uses[i].Values = slices.Clone(uses[i].Values)
		for j, v := range uses[i].Values {
			uses[i].Values[j] = path.Join(dir, v)
		}
		if c.Kubernetes.Version != p.Manifest.Kubernetes.Version {
			uses[i].Version = c.Kubernetes.Version
		}
	}
	p.Manifest.Uses = append(p.Manifest.Uses, uses...)
	for _, a := range c.Addons {
		for _, file := range a.Manifests {
			p.apply(path.Join(dir, file), a.Group)
		}
	}
	return nil
}

// apply records a file of YAML that deploy or a cluster applies.
func (p *Project) apply(file, group string) {
	p.applied = append(p.applied, manifest.YAML{Path: file, Group: group})
	if len(p.Manifest.Groups) > 0 {
		p.Manifest.Applied = append(p.Manifest.Applied, manifest.YAML{Path: file, Group: group})
	}
}

// isApplied reports whether deploy or a cluster applies a file.
func (p *Project) isApplied(file string) bool {
	return slices.ContainsFunc(p.applied, func(y manifest.YAML) bool { return y.Path == file })
}

// A finder finds images that nobody listed: in charts, as they will be installed, and in Kubernetes YAML.
type finder struct {
	*session
	seen findings
	done bool // everything was searched
	// repositories are the pins of those whose YAML is searched. They are in the cache.
	repositories []manifest.Pin
	// answers are those of variants before; nil without variants.
	answers answers
	asking  sync.Mutex // guards answers
}

// findings are the results of a finder.
type findings struct {
	discover.Result
	excluded []discover.Image
	inputs   []manifest.Input
	members  memberships // of images and charts
}

// resolve makes a lock. If kubeadm lists other images than the catalog does, it changes the project and resolves again.
func (s *session) resolve(ctx context.Context) (*finder, *manifest.Lock, error) {
	f := &finder{session: s}
	l, err := f.resolve(ctx)
	if err != nil {
		return f, l, err
	}
	clusters, err := s.releases()
	if err != nil {
		return f, nil, err
	}
	differs, err := s.learn(ctx, l, clusters)
	if err != nil {
		return f, nil, err
	}
	if differs {
		f = &finder{session: s}
		if l, err = f.resolve(ctx); err != nil {
			return f, l, err
		}
	}
	l.Kubeadm = s.listed()
	return f, l, nil
}

// resolve makes a lock of the manifest and the images found.
func (f *finder) resolve(ctx context.Context) (*manifest.Lock, error) {
	var err error
	if f.repositories, err = f.bringRepositories(ctx); butItems(ctx, err) != nil {
		return nil, err
	}
	m := f.begin(PhaseResolve)
	defer m.end()
	o := f.fetchOptions(m)
	o.Keep, o.FirstUse = keeping(f.keep, f.repositories), f.announceFirstUse
	o.Find = func(ctx context.Context, list []fetch.Chart) ([]fetch.Found, error) {
		err := f.find(ctx, list)
		return f.found(), err
	}
	l, err := fetch.Resolve(ctx, f.Manifest, o)
	f.placeItems(err)
	if l == nil {
		return nil, err
	}
	if err := f.complete(l); err != nil {
		return nil, err
	}
	return l, err
}

// complete adds to a lock all but its items: their groups, and what was found out in the search for images.
func (f *finder) complete(l *manifest.Lock) error {
	f.setGroups(l)
	l.Inputs = slices.Concat(f.seen.inputs, f.Manifest.Included)
	l.Values = manifest.LockedValues(f.Manifest.Set)
	if in, ok := f.catalogInput(); ok {
		l.Inputs = append(l.Inputs, in)
	}
	for _, name := range f.catalogs {
		d, err := f.digestOf(name)
		if err != nil {
			return err
		}
		l.Inputs = append(l.Inputs, manifest.Input{Path: name, Digest: d})
	}
	var refs []string
	for _, pin := range l.Items {
		if pin.Kind == manifest.ItemImage {
			refs = append(refs, pin.Ref)
		}
	}
	for _, d := range f.undecided(refs) {
		l.Undecided = append(l.Undecided, d.String())
	}
	return nil
}

// found returns the images with the first places of each.
func (f *finder) found() []fetch.Found {
	const most = 5
	var list []fetch.Found
	places := map[string]int{}
	for _, image := range f.seen.Images {
		n := places[image.Ref]
		places[image.Ref]++
		if n == 0 {
			list = append(list, fetch.Found{Image: manifest.Image{Name: image.Ref}})
		}
		if n < most {
			one := &list[len(list)-1] // they are sorted
			one.Places = append(one.Places, image.Place.String())
		}
	}
	for i := range list {
		if more := places[list[i].Image.Name] - most; more > 0 {
			list[i].Places = append(list[i].Places, fmt.Sprintf("and %d more", more))
		}
	}
	return list
}

// undecided returns the doubts that no reference settles and excludeImages does not name.
func (f *finder) undecided(refs []string) []discover.Doubt {
	return slices.DeleteFunc(discover.Undecided(f.seen.Doubts, refs),
		func(d discover.Doubt) bool { return f.Manifest.ExcludesImage(d.Text) })
}

// judge reports undecided texts, as an error with Options.Strict.
func (s *session) judge(undecided []string) error {
	if len(undecided) == 0 {
		return nil
	}
	if s.Strict {
		return &UndecidedError{undecided}
	}
	const most = 5
	for _, text := range undecided[:min(most, len(undecided))] {
		s.note("undecided: %s", text)
	}
	if len(undecided) > most {
		s.note("undecided: %d more; see `kkbundle images %s`", len(undecided)-most, s.File)
	}
	return nil
}

// find searches every chart and file, several at a time. Findings are kept if some fail; the error names all that
// failed.
func (f *finder) find(ctx context.Context, list []fetch.Chart) error {
	f.seen, f.done = findings{members: memberships{}}, false // of an attempt that met a damaged blob
	f.chartMembers(list)
	jobs, err := f.plan(list)
	if err != nil {
		return err
	}
	ofGit, problems, err := f.gitJobs(ctx)
	if err != nil {
		return err
	}
	jobs = append(jobs, ofGit...)
	for i := range jobs {
		jobs[i].request.Rules = f.Manifest.ImageRules
	}
	var mu sync.Mutex
	var results []discover.Result
	var missing []string
	var group errgroup.Group
	group.SetLimit(2) // processes with their own memory
	for _, job := range jobs {
		group.Go(func() error {
			a, lacking, err := f.askOnce(ctx, job)
			mu.Lock()
			defer mu.Unlock()
			results = append(results, a.Result)
			f.seen.imageMembers(a.Images, job.member)
			problems = append(problems, a.Problems...)
			problems = append(problems, f.inputsOf(a.Files)...)
			problems = append(problems, f.optedIn(a.Files)...)
			if n := len(a.Unread); n > 0 {
				const most = 5
				f.note("%s: %s with other text than YAML of Kubernetes, which was not searched for images: %s",
					job.request.Source, plain.Count(n, "file"), plain.Line(plain.Few(a.Unread, most)))
			}
			missing = lacking
			var failed *FindError
			if errors.As(err, &failed) {
				problems = append(problems, failed.problems...)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(missing) > 0 {
		f.note("charts are rendered without %s, which this system does not offer; limits of time and memory hold",
			strings.Join(missing, ", "))
	}
	f.take(discover.Merge(results...))
	problems = append(problems, f.invalid()...)
	slices.SortFunc(f.seen.inputs, func(a, b manifest.Input) int { return strings.Compare(a.Path, b.Path) })
	f.seen.inputs = slices.CompactFunc(f.seen.inputs,
		func(a, b manifest.Input) bool { return a.Path == b.Path && a.Digest == b.Digest })
	if len(problems) > 0 {
		slices.Sort(problems)
		return &FindError{slices.Compact(problems)}
	}
	f.done = true
	return nil
}

// invalid returns the images in the user's own YAML that are no references. A chart's can depend on values of the site.
func (f *finder) invalid() (problems []string) {
	for _, d := range f.seen.Doubts {
		if d.Invalid() && d.Source == "" && !f.Manifest.ExcludesImage(d.Text) {
			problems = append(problems, fmt.Sprintf("%s: %s: correct it, or name it under excludeImages", d.Place,
				d.Problem()))
		}
	}
	return problems
}

// take keeps the results, excluded images apart.
func (f *finder) take(r discover.Result) {
	f.seen.Doubts = r.Doubts
	for _, image := range r.Images {
		if f.Manifest.ExcludesImage(image.Ref) {
			f.seen.excluded = append(f.seen.excluded, image)
		} else {
			f.seen.Images = append(f.seen.Images, image)
		}
	}
}

// plan lists the jobs. The error is a *FindError.
func (f *finder) plan(list []fetch.Chart) ([]findJob, error) {
	version := f.Manifest.Kubernetes.Version
	if version == "" {
		var err error
		if version, err = catalog.Newest(); err != nil {
			return nil, err
		}
	}
	var jobs []findJob
	var problems []string
	for _, c := range list {
		if c.Chart.ImagesListed {
			continue
		}
		if c.Chart.Path != "" {
			problems = append(problems, f.inputsOf([]string{c.Chart.Path})...)
		}
		for _, use := range f.usesOf(c) {
			values, bad := f.valuesFiles(use.Values)
			problems = append(problems, bad...)
			o := charts.RenderOptions{
				Release: use.Release, Namespace: use.Namespace, Values: use.Set,
				KubeVersion: cmp.Or(use.Version, version), APIVersions: f.Manifest.Kubernetes.APIVersions,
				MaxOutput: charts.MaxRendered,
			}
			source := fmt.Sprintf("chart %s %s", c.Pin.Name, c.Pin.Version)
			jobs = append(jobs, findJob{archive: c.Archive, member: memberOf(c.Chart.Group), request: findRequest{
				Source: source,
				Chart:  &chartRequest{Options: o, Values: values},
			}})
		}
	}
	more, bad := f.yamlJobs()
	if problems = append(problems, bad...); len(problems) > 0 {
		return nil, &FindError{problems}
	}
	return append(jobs, more...), nil
}

// usesOf returns how a chart is installed: by the clusters, and with the values that the manifest names. Without
// either, it is rendered once with its own values.
func (f *finder) usesOf(c fetch.Chart) []manifest.ChartUse {
	var uses []manifest.ChartUse
	for _, use := range f.Manifest.Uses {
		if use.Chart == c.Pin.Name {
			uses = append(uses, use)
		}
	}
	if len(uses) == 0 || len(c.Chart.Values) > 0 {
		uses = append(uses, manifest.ChartUse{
			Chart: c.Pin.Name, Release: c.Pin.Name, Namespace: "default",
			Values: c.Chart.Values,
		})
	}
	return uses
}

func (f *finder) valuesFiles(paths []string) (files []charts.ValuesFile, problems []string) {
	for _, p := range paths {
		data, text, err := f.readText(f.beside(p))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		files = append(files, charts.ValuesFile{Name: p, Data: text})
		f.seen.inputs = append(f.seen.inputs, inputOf(p, data))
	}
	return files, problems
}
