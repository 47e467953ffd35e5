package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
)

// diff fills the report with what deploy would change, as the API server says it.
func (r *run) diff(ctx context.Context) error {
	var all strings.Builder
	for _, p := range r.previews {
		result := Result{Part: Part{
			Namespace: p.step.Namespace, Release: p.step.Release, Chart: p.step.Chart,
			Version: p.version,
		}, Was: p.was}
		text, err := r.diffPart(ctx, p, &result)
		if err != nil {
			return &PartError{p.step.name(), err}
		}
		all.WriteString(text)
		r.report.Results = append(r.report.Results, result)
	}
	text, err := r.diffRedirect(ctx)
	if err != nil {
		return err
	}
	r.report.Diff = r.site.hide(text + all.String())
	_, err = r.orphans(ctx)
	return err
}

// diffRedirect compares the admission policy with that of an earlier run.
func (r *run) diffRedirect(ctx context.Context) (string, error) {
	if r.admission == nil {
		if r.Redirect == RedirectNothing && r.record.Redirect != nil {
			r.say("", "admission policy "+policyName(r.report.Name)+" would be removed")
		}
		return "", nil
	}
	var all strings.Builder
	for _, o := range r.admission.objects {
		before, after, err := r.apply(ctx, o.DeepCopy(), applying{force: true, dryRun: true})
		if err != nil {
			return "", err
		}
		all.WriteString(difference(before, after))
	}
	return all.String(), nil
}

func (r *run) diffPart(ctx context.Context, p *preview, result *Result) (string, error) {
	result.Action = Unchanged
	if p.step.Chart == "" {
		text, err := r.diffYAML(ctx, p)
		if text != "" {
			result.Action = Applied
		}
		return text, err
	}
	chart, err := p.step.load(ctx, r.bundle)
	if err != nil {
		return "", err
	}
	o := r.install(p.step)
	o.Rewrite = p.how(r.images)
	if same, err := charts.Installed(ctx, chart, o); err != nil || same {
		return "", err
	}
	if result.Action = Upgraded; p.was == "" {
		result.Action = Installed
	}
	return r.diffChart(ctx, p)
}

// diffYAML compares the live objects with the result of applying YAML, which the API server computes.
func (r *run) diffYAML(ctx context.Context, p *preview) (string, error) {
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, o := range objects {
		before, after, err := r.apply(ctx, o, applying{namespace: p.step.Namespace, force: r.Force, dryRun: true})
		if isNotYet(err) {
			before, after, err = nil, o, nil
		}
		if err != nil {
			return "", err
		}
		all.WriteString(difference(before, after))
	}
	return all.String(), nil
}

// isNotYet reports whether the API server cannot say what an object would become, because its namespace or its kind
// will come before it.
func isNotYet(err error) bool {
	return err != nil && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err))
}

// diffChart compares the live objects of a release with those after Helm's patches.
func (r *run) diffChart(ctx context.Context, p *preview) (string, error) {
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return "", err
	}
	was, err := kube.ParseManifest([]byte(p.before))
	if err != nil {
		return "", err
	}
	old := map[string]*unstructured.Unstructured{}
	for _, o := range was {
		old[key(o, p.step.Namespace)] = owned(o, p.step)
	}
	var all strings.Builder
	for _, o := range objects {
		o = owned(o, p.step)
		before, after, err := r.patched(ctx, o, old[key(o, p.step.Namespace)], p.step.Namespace)
		if err != nil {
			return "", &ObjectError{kube.Describe(o), err}
		}
		delete(old, key(o, p.step.Namespace))
		all.WriteString(difference(before, after))
	}
	for _, o := range was { // in its order
		if _, left := old[key(o, p.step.Namespace)]; left {
			all.WriteString(difference(o, nil))
		}
	}
	return all.String(), nil
}

func key(o *unstructured.Unstructured, namespace string) string {
	if o.GetNamespace() != "" {
		namespace = o.GetNamespace()
	}
	return o.GroupVersionKind().GroupKind().String() + " " + namespace + "/" + o.GetName()
}

// owned adds Helm's label and annotations, which every object of a release gets.
func owned(o *unstructured.Unstructured, s *step) *unstructured.Unstructured {
	o = o.DeepCopy()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[ManagedLabel] = "Helm"
	annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"] = s.Release, s.Namespace
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return o
}

// patched returns a live object, and what Helm's patch would make of it: of what the release had, what it will have,
// and the live object. Helm ignores the live object for kinds that are not Kubernetes' own.
func (r *run) patched(ctx context.Context, o, old *unstructured.Unstructured,
	namespace string,
) (live, after *unstructured.Unstructured, err error) {
	client, err := r.resource(o, namespace)
	if isNotYet(err) {
		return nil, o, nil
	}
	if err != nil {
		return nil, nil, err
	}
	live, err = client.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		after, err = client.Create(ctx, o, metav1.CreateOptions{
			DryRun:       []string{metav1.DryRunAll},
			FieldManager: "helm",
		})
		if isNotYet(err) {
			return nil, o, nil
		}
		return nil, after, err
	}
	if err != nil {
		return nil, nil, err
	}
	if old == nil {
		old = o
	}
	kind, patch, err := helmPatch(old, o, live)
	if err != nil {
		return nil, nil, err
	}
	after, err = client.Patch(ctx, o.GetName(), kind, patch, metav1.PatchOptions{
		DryRun:       []string{metav1.DryRunAll},
		FieldManager: "helm",
	})
	return live, after, err
}

func helmPatch(old, o, live *unstructured.Unstructured) (types.PatchType, []byte, error) {
	var texts [3][]byte
	for i, one := range []*unstructured.Unstructured{old, o, live} {
		var err error
		if texts[i], err = json.Marshal(one.Object); err != nil {
			return "", nil, err
		}
	}
	typed, err := scheme.Scheme.New(o.GroupVersionKind())
	if err != nil {
		patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(texts[0], texts[1], texts[0])
		return types.MergePatchType, patch, err
	}
	about, err := strategicpatch.NewPatchMetaFromStruct(typed)
	if err != nil {
		return "", nil, err
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(texts[0], texts[1], texts[2], about, true)
	return types.StrategicMergePatchType, patch, err
}

// difference returns a unified diff of two states of an object, "" if they are equal. Secrets are masked.
func difference(before, after *unstructured.Unstructured) string {
	named := after
	if after == nil {
		named = before
	}
	a, b := shown(before, after), shown(after, before)
	if a == b {
		return ""
	}
	name := kube.Describe(named)
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: lines(a), B: lines(b), FromFile: name + " (live)", ToFile: name + " (deployed)", Context: 3,
	})
	if err != nil { // writing to memory
		return name + ": " + err.Error() + "\n"
	}
	return text
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return difflib.SplitLines(strings.TrimSuffix(text, "\n"))
}

// shown returns an object as YAML for a diff: without what the API server keeps for itself.
func shown(o, other *unstructured.Unstructured) string {
	if o == nil {
		return ""
	}
	o = o.DeepCopy()
	for _, field := range []string{
		"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp",
		"selfLink",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	if o.GetKind() == "Secret" && o.GetAPIVersion() == "v1" {
		mask(o, other)
	}
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(text)
}

// mask replaces a secret's values by a text that says only whether the other state has the same value.
func mask(o, other *unstructured.Unstructured) {
	annotations := o.GetAnnotations()
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration") // it repeats the values
	o.SetAnnotations(annotations)
	for _, field := range []string{"data", "stringData"} {
		values, _, _ := unstructured.NestedMap(o.Object, field)
		var others map[string]any
		if other != nil {
			others, _, _ = unstructured.NestedMap(other.Object, field)
		}
		for _, name := range sortedKeys(values) {
			text := "(masked)"
			if had, ok := others[name]; ok && had != values[name] {
				text = "(masked, another value)"
				if isFirst(values[name], had) {
					text = "(masked, one value)"
				}
			}
			values[name] = text
		}
		if len(values) > 0 {
			o.Object[field] = values
		}
	}
}

// isFirst orders two different values, so that both sides of a diff get different texts.
func isFirst(a, b any) bool { return fmt.Sprint(a) < fmt.Sprint(b) }

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
