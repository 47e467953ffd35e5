package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Redirecting is a decision about the admission policy that leads images of pods of operators and jobs to the registry.
type Redirecting int

// The values of Redirecting.
const (
	RedirectAsBefore Redirecting = iota // a policy of an earlier run is kept up to date
	RedirectPods
	RedirectNothing // a policy of an earlier run is removed
)

// A Redirect is the record of an admission policy.
type Redirect struct {
	// Namespaces are those that the operator added to the namespaces of the parts.
	Namespaces []string `json:"namespaces,omitempty"`
}

// A RedirectError means the API server cannot or does not lead pods to the registry.
type RedirectError struct {
	Version string // of the API server
	Reason  string
	// Remedy is "" if the API server is too old.
	Remedy string
}

// Error names the API server's version and the reason.
func (e *RedirectError) Error() string {
	return fmt.Sprintf("--redirect-pods: API server %s %s", e.Version, e.Reason)
}

// Hint returns the remedy.
func (e *RedirectError) Hint() string {
	if e.Remedy != "" {
		return e.Remedy
	}
	return "deploy without --redirect-pods, and name the images of operators with values or imageRules; Kubernetes has this API from v1.36 on"
}

// admission is the policy of this run, with its binding.
type admission struct {
	objects    []*unstructured.Unstructured
	namespaces []string
	from, to   string // one of the images, for a trial
}

func policyName(bundle string) string { return "kkbundle.deploy." + bundle }

// redirectedBefore returns the namespaces in the binding of an earlier run's policy, nil without one. The record
// alone is not believed: the namespaces get a login, and who may write in the namespace of records may not make a
// binding.
func (r *run) redirectedBefore(ctx context.Context) ([]string, error) {
	o := Object{
		APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "MutatingAdmissionPolicyBinding",
		Name: policyName(r.report.Name),
	}
	client, err := r.resource(o.unstructured(), "")
	if err != nil {
		return nil, &ObjectError{o.String(), err}
	}
	live, err := client.Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.GetLabels()[NameLabel] != r.report.Name {
		return nil, nil
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, binding)
	}
	if err != nil {
		return nil, &ObjectError{o.String(), err}
	}
	var list []string
	if where := binding.Spec.MatchResources; where != nil && where.NamespaceSelector != nil {
		for _, one := range where.NamespaceSelector.MatchExpressions {
			if one.Key == corev1.LabelMetadataName && one.Operator == metav1.LabelSelectorOpIn {
				list = append(list, one.Values...)
			}
		}
	}
	return list, nil
}

// wantsRedirect decides about the policy, and returns an error if the API server has none.
func (r *run) wantsRedirect(ctx context.Context) error {
	if r.Redirect == RedirectNothing || r.Redirect == RedirectAsBefore && r.record.Redirect == nil {
		return nil
	}
	kind := schema.GroupKind{Group: admissionv1.GroupName, Kind: "MutatingAdmissionPolicy"}
	_, err := r.mapper.RESTMapping(kind, admissionv1.SchemeGroupVersion.Version)
	if meta.IsNoMatchError(err) {
		return r.redirectError("has no MutatingAdmissionPolicy in admissionregistration.k8s.io/v1", "")
	}
	if err != nil || r.Redirect == RedirectPods {
		return err
	}
	known, err := r.redirectedBefore(ctx)
	if err != nil {
		return err
	}
	if known == nil {
		r.warn("", "the record names an admission policy that the cluster does not have: pods of operators are not led to the registry; use --redirect-pods")
		return nil
	}
	if r.RedirectNamespaces == nil {
		r.keepNamespaces(known)
	}
	r.Redirect = RedirectPods
	return nil
}

// keepNamespaces keeps the namespaces of the record that the policy's binding has.
func (r *run) keepNamespaces(known []string) {
	for _, name := range r.record.Redirect.Namespaces {
		if slices.Contains(known, name) {
			r.RedirectNamespaces = append(r.RedirectNamespaces, name)
		} else {
			r.warn("", "namespace "+name+
				" is in the record, and not in the admission policy: it gets no login; use --redirect-namespace "+name)
		}
	}
}

func (r *run) redirectError(reason, remedy string) error {
	return &RedirectError{Version: r.version, Reason: reason, Remedy: remedy}
}

// planRedirect makes the policy, and gives all its namespaces a pull secret.
func (r *run) planRedirect() error {
	if r.Redirect != RedirectPods {
		return nil
	}
	set := map[string]bool{Namespace: true} // for the trial
	for _, name := range r.RedirectNamespaces {
		set[name] = true
	}
	for _, p := range r.previews {
		for _, name := range p.redirected() {
			set[name] = true
		}
		if r.images.secret != "" {
			p.operated = p.redirected()
		}
	}
	a := &admission{namespaces: sorted(set)}
	spelled := r.images.spellings()
	if len(spelled) == 0 {
		return r.redirectError("would have nothing to do: the bundle has no images", "deploy without --redirect-pods")
	}
	a.from = slices.Min(slices.Collect(maps.Keys(spelled)))
	a.to = spelled[a.from]
	for _, typed := range []runtime.Object{
		podPolicy(r.report.Name, spelled, r.images.secret),
		podBinding(r.report.Name, a.namespaces),
	} {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
		if err != nil {
			return err
		}
		a.objects = append(a.objects, &unstructured.Unstructured{Object: object})
	}
	r.admission, r.report.Redirected = a, a.namespaces
	return nil
}

// redirected returns the namespaces in which others may make pods of a part: its own, and those of its custom
// resources.
func (p *preview) redirected() []string {
	set := map[string]bool{}
	for _, name := range p.namespaces() {
		set[name] = true
	}
	objects, err := kube.ParseManifest(p.objects.text)
	if err != nil {
		return sorted(set) // reported when it is applied
	}
	for _, o := range objects {
		if name := o.GetNamespace(); name != "" && isCustom(o.GroupVersionKind().Group) {
			set[name] = true
		}
	}
	return sorted(set)
}

// isCustom reports whether an API group is none of Kubernetes' own.
func isCustom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}

// redirect applies the policy before the first part, or removes that of an earlier run. It reports whether anything
// changed.
func (r *run) redirect(ctx context.Context) (changed bool, err error) {
	if r.admission == nil {
		if r.Redirect != RedirectNothing || r.record.Redirect == nil {
			return false, nil
		}
		r.say("", "admission policy "+policyName(r.report.Name)+" is removed")
		return true, r.dropRedirect(ctx)
	}
	if have := r.record.Redirect; have == nil || !slices.Equal(have.Namespaces, r.RedirectNamespaces) {
		r.record.Redirect = &Redirect{r.RedirectNamespaces}
		if err := r.write(ctx, r.record); err != nil {
			return false, err
		}
		changed = true
	}
	for _, name := range r.RedirectNamespaces {
		made, err := r.namespace(ctx, name, labelsOf(r.report.Name), nil)
		if err != nil {
			return false, err
		}
		again := false
		if r.images.secret != "" {
			if again, err = r.pullSecret(ctx, name); err != nil {
				return false, err
			}
		}
		changed = changed || made || again
	}
	for _, o := range r.admission.objects {
		before, after, err := r.apply(ctx, o.DeepCopy(), applying{force: true})
		if err != nil {
			return false, err
		}
		if before == nil || before.GetResourceVersion() != after.GetResourceVersion() {
			changed = true
		}
	}
	if changed {
		r.say("", fmt.Sprintf("admission policy %s applied: it leads pods in %s to the registry",
			policyName(r.report.Name), strings.Join(r.admission.namespaces, ", ")))
	}
	err = r.awaitRedirect(ctx)
	if err != nil && ctx.Err() == nil { // an interrupted run continues with the policy
		err = errors.Join(err, r.dropRedirect(ctx))
	}
	return changed, err
}

// dropRedirect removes the policy: one that fails can keep pods from being made.
func (r *run) dropRedirect(ctx context.Context) error {
	if err := r.removePolicy(ctx, r.report.Name); err != nil {
		return err
	}
	r.record.Redirect = nil
	return r.write(ctx, r.record)
}

// awaitRedirect waits until the API server leads the image of a pod to the registry. The pod is not made.
func (r *run) awaitRedirect(ctx context.Context) error {
	// a new namespace's service account is missing for a moment
	const patience, ofRefusals = 2 * time.Minute, 15 * time.Second
	limited, cancel := context.WithTimeoutCause(ctx, patience, errNotRedirected)
	defer cancel()
	begin := time.Now()
	var last error
	for {
		image, err := r.tryPod(limited)
		switch {
		case err == nil && image == r.admission.to:
			return nil
		// by what comes after the policy
		case (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && time.Since(begin) > ofRefusals:
			r.warn("", "the admission policy could not be tried, since the API server refuses a pod in the namespace "+
				Namespace+": "+err.Error())
			return nil
		case limited.Err() == nil:
			last = err
		}
		select {
		case <-limited.Done():
		case <-time.After(200 * time.Millisecond):
			continue
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case last != nil:
			return &ObjectError{"a pod to try the admission policy with", last}
		}
		return r.redirectError("does not apply the policy "+policyName(r.report.Name)+" within "+patience.String(),
			"the admission plugin MutatingAdmissionPolicy of the API server must be on: deploy without --redirect-pods, or switch it on")
	}
}

var errNotRedirected = errors.New("the policy is not applied")

// tryPod returns the image that a pod with an image of the bundle would get.
func (r *run) tryPod(ctx context.Context) (string, error) {
	yes, no, user := true, false, int64(65534)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kkbundle-trial-"},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "trial", Image: r.admission.from,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	made, err := r.kube.CoreV1().Pods(Namespace).Create(ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: kube.FieldManager})
	if err != nil {
		return "", err
	}
	return made.Spec.Containers[0].Image, nil
}

// removePolicy deletes a bundle's policy and its binding, if deploy made them.
func (c *cluster) removePolicy(ctx context.Context, bundle string) error {
	name := policyName(bundle)
	for _, kind := range []string{"MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"} {
		o := Object{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: kind, Name: name}
		u := o.unstructured()
		client, err := c.resource(u, "")
		if meta.IsNoMatchError(err) {
			return nil // the API server has no policies any more
		}
		if err != nil {
			return &ObjectError{o.String(), err}
		}
		live, err := client.Get(ctx, name, metav1.GetOptions{})
		if err == nil && live.GetLabels()[NameLabel] == bundle {
			err = client.Delete(ctx, name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return &ObjectError{o.String(), err}
		}
	}
	return nil
}

// spellings returns the destinations of all images by each name that pods can have for them.
func (m *images) spellings() map[string]string {
	all := map[string]string{}
	for _, table := range []map[string]string{m.byRef, m.byDigest, m.byPull} {
		for ref, to := range table {
			for _, text := range spellings(ref) {
				if !m.excluded(ref) {
					all[text] = to
				}
			}
		}
	}
	return all
}

// spellings returns the names that mean a fully qualified reference: without Docker Hub's implied parts, and without
// the implied tag.
func spellings(ref string) []string {
	list := []string{ref}
	if rest, ok := strings.CutPrefix(ref, "docker.io/"); ok {
		list = append(list, rest, "index.docker.io/"+rest)
		if short, ok := strings.CutPrefix(rest, "library/"); ok {
			list = append(list, short, "docker.io/"+short, "index.docker.io/"+short)
		}
	}
	for _, text := range list {
		if untagged, ok := strings.CutSuffix(text, ":latest"); ok {
			list = append(list, untagged)
		}
	}
	return slices.DeleteFunc(list, func(text string) bool {
		name, err := scalar.ImageName(text)
		return err != nil || name != ref // such as a repository of Docker Hub that looks like another registry
	})
}

// mostNames bounds the names in one expression: the API server parses no longer ones than 100,000 characters.
const mostNames = 200

// podPolicy returns the policy: it replaces the images of the bundle in new pods, and adds the pull secret.
func podPolicy(bundle string, spelled map[string]string, secret string) *admissionv1.MutatingAdmissionPolicy {
	var variables []admissionv1.Variable
	var tables []string
	for names := range slices.Chunk(slices.Sorted(maps.Keys(spelled)), mostNames) {
		var entries []string
		for _, name := range names {
			entries = append(entries, quoted(name)+": "+quoted(spelled[name]))
		}
		name := "images" + strconv.Itoa(len(tables))
		variables = append(variables, admissionv1.Variable{Name: name, Expression: "{" + strings.Join(entries, ", ") +
			"}"})
		tables = append(tables, "variables."+name)
	}
	where := func(image string) string {
		var tries []string
		for _, table := range tables {
			tries = append(tries, fmt.Sprintf("%s[?%s]", table, image))
		}
		return strings.Join(tries, ".or(") + strings.Repeat(")", len(tries)-1) + ".orValue('')"
	}
	list := func(name, has, image string) admissionv1.Variable {
		return admissionv1.Variable{
			Name: name,
			Expression: fmt.Sprintf("has(object.spec.%s) ? object.spec.%s.map(x, %s ? %s : '') : []", name, name, has,
				where(image)),
		}
	}
	variables = append(variables,
		list("containers", "has(x.image)", "x.image"), list("initContainers", "has(x.image)", "x.image"),
		list("volumes", "has(x.image) && has(x.image.reference)", "x.image.reference"))
	change := func(name, field string) string {
		return fmt.Sprintf(`variables.%s.transformList(i, to, to != '', JSONPatch{op: "replace", path: "/spec/%s/" + string(i) + "/%s", value: to})`, name, name, field)
	}
	expression := change("containers", "image") + " + " + change("initContainers", "image") + " + " +
		change("volumes", "image/reference")
	if secret != "" {
		variables = append(variables, admissionv1.Variable{
			Name:       "isLed",
			Expression: "(variables.containers + variables.initContainers + variables.volumes).exists(to, to != '')",
		})
		// A list of objects as one value makes Kubernetes v1.36.3 panic, so the list is added empty.
		expression += fmt.Sprintf(` + (!variables.isLed || has(object.spec.imagePullSecrets) ? [] : [JSONPatch{op: "add", path: "/spec/imagePullSecrets", value: []}]) +
(!variables.isLed || has(object.spec.imagePullSecrets) && object.spec.imagePullSecrets.exists(x, x.name == %[1]s) ? [] :
  [JSONPatch{op: "add", path: "/spec/imagePullSecrets/-", value: Object.spec.imagePullSecrets{name: %[1]s}}])`, quoted(secret))
	}
	ignore := admissionv1.Ignore
	return &admissionv1.MutatingAdmissionPolicy{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionv1.SchemeGroupVersion.String(),
			Kind:       "MutatingAdmissionPolicy",
		},
		ObjectMeta: metav1.ObjectMeta{Name: policyName(bundle), Labels: labelsOf(bundle)},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			FailurePolicy:      &ignore,
			ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy, // for the containers that webhooks add
			Variables:          variables,
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{Expression: expression},
			}},
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule: admissionv1.Rule{
						APIGroups: []string{""}, APIVersions: []string{"v1"},
						Resources: []string{"pods"},
					},
				},
			}}},
		},
	}
}

// quoted returns a literal of CEL. References and names of Kubernetes have no character that needs an escape.
func quoted(text string) string { return "'" + text + "'" }

// podBinding returns the binding of the policy to namespaces.
func podBinding(bundle string, namespaces []string) *admissionv1.MutatingAdmissionPolicyBinding {
	return &admissionv1.MutatingAdmissionPolicyBinding{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionv1.SchemeGroupVersion.String(),
			Kind:       "MutatingAdmissionPolicyBinding",
		},
		ObjectMeta: metav1.ObjectMeta{Name: policyName(bundle), Labels: labelsOf(bundle)},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: policyName(bundle),
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces},
				},
			}},
		},
	}
}
