package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// A Value is a site's value of a release: a values file, or one setting.
type Value struct {
	// Release is RELEASE or NAMESPACE/RELEASE.
	Release string
	// File is the name of a values file with this Data.
	File string
	Data []byte
	// Set is PATH=VALUE, as in Helm's --set.
	Set string
}

// A step is an entry of deploy with all that it needs.
type step struct {
	manifest.Addon
	item   bundle.Item    // of a chart
	values map[string]any // of a chart
	yaml   []byte         // of manifests
}

func (s *step) name() string { return s.Namespace + "/" + s.Release }

func (s *step) wait() time.Duration {
	if s.Wait == manifest.WaitReady {
		return time.Duration(s.Timeout)
	}
	return 0
}

// plan returns what to deploy: deploy of the bundle's manifest, or else the addons of its cluster file, without the
// entries of groups that are off.
func (r *run) plan(ctx context.Context) (steps []*step, err error) {
	b, m, given := r.bundle, r.manifest, r.Values
	list := m.Deployments()
	if len(list) == 0 {
		if list, err = r.addons(ctx); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, &NothingError{m.Metadata.Name}
	}
	var errs []error
	for _, a := range r.groups.set.Entries(list, b.Index().Items, m.Charts) {
		s, err := r.newStep(ctx, a)
		errs = append(errs, err)
		steps = append(steps, s)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return steps, override(steps, given)
}

// A NothingError means a bundle does not say what to deploy.
type NothingError struct{ Name string }

// Error names the bundle.
func (e *NothingError) Error() string {
	return "bundle " + e.Name + " has nothing to deploy: no deploy in its manifest, and no addons in a cluster file"
}

// Hint returns the remedy.
func (*NothingError) Hint() string {
	return "list charts and YAML under deploy of the manifest, in order: deploy: [{chart: NAME, namespace: NAMESPACE}], and build again"
}

// addons returns the addons of the bundle's cluster file.
func (r *run) addons(ctx context.Context) ([]manifest.Addon, error) {
	b := r.bundle
	if _, ok := b.Find(bundle.KindManifest, bundle.DocumentCluster, ""); !ok {
		return nil, nil
	}
	data, err := b.Document(ctx, bundle.KindManifest, bundle.DocumentCluster)
	if err != nil {
		return nil, err
	}
	c, _, err := kubekey.ReadClusterWith(r.manifest.Set, bundle.DocumentCluster, data)
	if err == nil {
		err = c.UnknownGroups(r.groups.set.Table().Names())
	}
	if err != nil {
		return nil, err
	}
	return c.WithDefaults().Addons, nil
}

func (r *run) newStep(ctx context.Context, a manifest.Addon) (*step, error) {
	b, set, items := r.bundle, r.manifest.Set, r.items()
	read := func(file string) ([]byte, error) {
		data, err := b.Document(ctx, bundle.KindManifest, path.Clean(file))
		if err != nil {
			return nil, err
		}
		return set.YAML(file, data, nil)
	}
	s := &step{Addon: a}
	if a.Chart == "" {
		for _, file := range a.Manifests {
			data, err := read(file)
			if err == nil {
				_, err = kube.ParseManifest(data)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.name(), file, err)
			}
			s.yaml = fmt.Appendf(s.yaml, "---\n%s\n", bytes.TrimSpace(data))
		}
		return s, nil
	}
	i := slices.IndexFunc(items, func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Name == a.Chart })
	if i < 0 {
		return nil, fmt.Errorf("%s: the bundle has no chart %s", s.name(), a.Chart)
	}
	s.item = items[i]
	var files []charts.ValuesFile
	for _, file := range a.Values {
		data, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name(), err)
		}
		files = append(files, charts.ValuesFile{Name: file, Data: data})
	}
	var err error
	if s.values, err = charts.ReadValues(files...); err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	return s, nil
}

// A ValueError means a value of the command line fits no release.
type ValueError struct{ Err error }

// Error returns the reason.
func (e *ValueError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ValueError) Unwrap() error { return e.Err }

// override applies the site's values: files first, then single settings, each in their order.
func override(steps []*step, given []Value) error {
	var errs []error
	for _, v := range slices.SortedStableFunc(slices.Values(given), bySet) {
		s, err := stepOf(steps, v.Release)
		if err == nil && v.Set != "" {
			err = charts.SetValue(s.values, v.Set)
		} else if err == nil {
			var over map[string]any
			if over, err = charts.ReadValues(charts.ValuesFile{Name: v.File, Data: v.Data}); err == nil {
				s.values = charts.MergeValues(s.values, over)
			}
		}
		if err != nil {
			errs = append(errs, &ValueError{fmt.Errorf("values of %s: %w", v.Release, err)})
		}
	}
	return errors.Join(errs...)
}

func stepOf(steps []*step, release string) (*step, error) {
	var found, names []*step
	for _, s := range steps {
		if s.Chart == "" {
			continue
		}
		names = append(names, s)
		if s.Release == release || s.name() == release {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("the bundle has no such release; its releases: %s", stepNames(names))
	}
	return nil, fmt.Errorf("the name fits several releases: %s", stepNames(found))
}

func stepNames(list []*step) string {
	var names []string
	for _, s := range list {
		names = append(names, s.name())
	}
	return strings.Join(names, ", ")
}

// load loads the step's chart.
func (s *step) load(ctx context.Context, b *bundle.Reader) (_ *charts.Chart, err error) {
	archive, err := b.ContentOf(ctx, s.item)
	if err != nil {
		return nil, err
	}
	blob, err := b.Blob(ctx, archive.Digest, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.item, err)
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	chart, err := charts.Load(blob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.item, err)
	}
	return chart, nil
}

// bySet sorts files before settings.
func bySet(a, b Value) int {
	switch {
	case a.Set == "" && b.Set != "":
		return -1
	case a.Set != "" && b.Set == "":
		return 1
	}
	return 0
}
