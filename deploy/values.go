package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// A ResolveFunc returns the values of a bundle's table at the site. known are those of the bundle's lock, and those
// that the run before was given.
type ResolveFunc func(
	ctx context.Context, t values.Table, src *document.Tree, known []values.Given,
) (*values.Set, error)

// resolveKnown is the ResolveFunc of Options without one.
func resolveKnown(ctx context.Context, t values.Table, src *document.Tree, known []values.Given) (*values.Set, error) {
	return t.Resolve(ctx, src, values.Options{At: values.Site, Given: known})
}

// A SiteValue is a value that the site gives.
type SiteValue struct {
	Name string `json:"name"`
	// Value and Was are empty for a secret. Was is that of the run before.
	Value string `json:"value,omitempty"`
	Was   string `json:"was,omitempty"`
	// From is who gave it: --set, a variable, a place in a file, record, default.
	From    string `json:"from"`
	Secret  bool   `json:"secret,omitempty"`
	Changed bool   `json:"changed"`
}

// String returns the value for people.
func (v SiteValue) String() string {
	text := v.Value
	if v.Secret {
		text = "(secret)"
	}
	switch {
	case v.Changed && v.Was != "":
		text += " (was " + v.Was + ")"
	case v.Changed:
		text += " (changed)"
	}
	return fmt.Sprintf("%s = %s, from %s", v.Name, text, v.From)
}

// siteValues are the values of the site, and what is remembered of the run before.
type siteValues struct {
	set *values.Set // nil without a table
	// before are those that the run before was given.
	before map[string]string
	// lost are secrets that the run before was given and the cluster does not have any more.
	lost []string
}

// readManifest reads the bundle's manifest with the values of its lock and of the site. Only for values of the site it
// connects to the cluster, which remembers them.
func (r *run) readManifest(ctx context.Context) error {
	data, err := r.bundle.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
	if err != nil {
		return err
	}
	resolve := r.Resolve
	if resolve == nil {
		resolve = resolveKnown
	}
	r.manifest, err = manifest.ParseBundleWith(bundle.DocumentManifest, data,
		func(t values.Table, src *document.Tree) (*values.Set, error) {
			known, err := lockedValues(ctx, r.bundle)
			if err != nil {
				return nil, err
			}
			if len(t.At(values.Site)) > 0 {
				more, err := r.remembered(ctx, t)
				if err != nil {
					return nil, err
				}
				known = append(known, more...)
			}
			return resolve(ctx, t, src, known)
		})
	if r.site.set = r.manifest.Set; err != nil {
		return err
	}
	for _, name := range r.site.lost {
		if v, ok := r.site.set.Value(name); ok && v.Secret && v.IsAt(values.Site) && !isGiven(v) {
			return fmt.Errorf("value %s: the run before was given it, and Secret %s/%s does not have it any more: %s",
				name, Namespace, valuesName(r.report.Name), v.HowToGive())
		}
	}
	return nil
}

// hide replaces the secret values of the site in a text, those of this run and of the one before, line by line.
// Shorter ones than four characters stay: they are in many other words.
func (s siteValues) hide(text string) string {
	const least = 4
	for _, v := range s.set.List() {
		if !v.Secret {
			continue
		}
		for line := range strings.Lines(v.Text + "\n" + s.before[v.Name]) {
			if line = strings.TrimSpace(line); len(line) >= least {
				text = strings.ReplaceAll(text, line, "(secret)")
			}
		}
	}
	return text
}

// lockedValues returns the values that the bundle was built with.
func lockedValues(ctx context.Context, b *bundle.Reader) ([]values.Given, error) {
	if _, ok := b.Find(bundle.KindLock, bundle.DocumentLock, ""); !ok {
		return nil, nil
	}
	data, err := b.Document(ctx, bundle.KindLock, bundle.DocumentLock)
	if err != nil {
		return nil, err
	}
	l, err := manifest.ParseLock(bundle.DocumentLock, data)
	if err != nil {
		return nil, err
	}
	return l.Given(true), nil
}

// remembered returns the values that the run before was given, from its record and its Secret.
func (r *run) remembered(ctx context.Context, t values.Table) ([]values.Given, error) {
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	list, err := r.records(ctx)
	if err != nil {
		return nil, err
	}
	r.site.before = map[string]string{}
	i := slices.IndexFunc(list, func(one *Record) bool { return one.Name == r.report.Name })
	if i < 0 {
		return nil, nil
	}
	maps.Copy(r.site.before, list[i].Values)
	if len(list[i].SecretValues) > 0 {
		secret, err := r.kube.CoreV1().Secrets(Namespace).Get(ctx, valuesName(r.report.Name), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, &ObjectError{"Secret " + Namespace + "/" + valuesName(r.report.Name), err}
		}
		if err == nil {
			for name, text := range secret.Data {
				r.site.before[name] = string(text)
			}
		}
		for _, name := range list[i].SecretValues {
			if _, ok := r.site.before[name]; !ok {
				r.site.lost = append(r.site.lost, name)
			}
		}
	}
	var known []values.Given
	for _, d := range t.At(values.Site) {
		if text, ok := r.site.before[d.Name]; ok {
			known = append(known, values.Given{Name: d.Name, Text: text, Layer: values.FromRecord})
		}
	}
	return known, nil
}

// list returns the values of the site for the report.
func (s siteValues) list() []SiteValue {
	var list []SiteValue
	for _, v := range s.set.List() {
		if !v.IsAt(values.Site) {
			continue
		}
		was, known := s.before[v.Name]
		one := SiteValue{
			Name: v.Name, From: v.Origin, Secret: v.Secret,
			Changed: isGiven(v) != known || known && was != v.Text,
		}
		if !v.Secret {
			one.Value = v.Text
			if one.Changed {
				one.Was = was
			}
		}
		list = append(list, one)
	}
	return list
}

// errValuesChanged means that another run was given other values since this one read them.
var errValuesChanged = errors.New("another run changed the values of this bundle just now; run the command again")

// isOf reports whether a record has the values that were read from it at the beginning.
func (s siteValues) isOf(r *Record) bool {
	for name, text := range r.Values {
		if before, ok := s.before[name]; !ok || before != text {
			return false
		}
	}
	return true
}

// isGiven reports whether somebody gave a value, now or before: a default is not remembered.
func isGiven(v values.Value) bool { return v.Layer != values.FromDefault }

// given returns the values to remember, those that are secret apart.
func (s siteValues) given() (open map[string]string, secret map[string][]byte) {
	for _, v := range s.set.List() {
		switch {
		case !v.IsAt(values.Site) || !isGiven(v):
		case v.Secret:
			if secret == nil {
				secret = map[string][]byte{}
			}
			secret[v.Name] = []byte(v.Text)
		default:
			if open == nil {
				open = map[string]string{}
			}
			open[v.Name] = v.Text
		}
	}
	return open, secret
}

// valuesName is the name of the Secret with a bundle's secret values.
func valuesName(bundle string) string { return "kkbundle.values." + bundle }

// rememberSecrets writes the secret values of the site, or removes the Secret if there are none any more. The record
// names them before.
func (r *run) rememberSecrets(ctx context.Context, had bool) error {
	_, secret := r.site.given()
	if len(secret) == 0 {
		if !had {
			return nil
		}
		return r.forgetSecrets(ctx, r.report.Name)
	}
	name := valuesName(r.report.Name)
	data, err := json.Marshal(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Labels: labelsOf(r.report.Name)},
		Data:       secret,
	})
	if err != nil {
		return err
	}
	_, err = r.kube.CoreV1().Secrets(Namespace).Patch(ctx, name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: kube.FieldManager, Force: new(true)})
	if err != nil {
		return &ObjectError{"Secret " + Namespace + "/" + name, err}
	}
	return nil
}

// forgetSecrets removes the secret values of a bundle.
func (c *cluster) forgetSecrets(ctx context.Context, bundle string) error {
	err := c.kube.CoreV1().Secrets(Namespace).Delete(ctx, valuesName(bundle), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return &ObjectError{"Secret " + Namespace + "/" + valuesName(bundle), err}
	}
	return nil
}
