package kube_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// An api answers commands by their beginnings, and keeps them.
type api struct {
	answers map[string]string
	asked   []kube.Command
	fail    string
}

var errPlanted = errors.New("planted")

func (a *api) client() kube.Client {
	return kube.Client{Kubectl: func(_ context.Context, c kube.Command) ([]byte, error) {
		a.asked = append(a.asked, c)
		line := strings.Join(c.Args, " ")
		if a.fail != "" && strings.HasPrefix(line, a.fail) {
			return nil, errPlanted
		}
		for begin, answer := range a.answers {
			if strings.HasPrefix(line, begin) {
				return []byte(answer), nil
			}
		}
		return nil, nil
	}}
}

func (a *api) lines() []string {
	var list []string
	for _, c := range a.asked {
		list = append(list, strings.Join(c.Args, " "))
	}
	return list
}

// TestMissingObject holds that kubectl's empty output about an object that is allowed to be missing is no error.
func TestMissingObject(t *testing.T) {
	t.Parallel()
	client := (&api{}).client()
	if m, err := client.ConfigMap(t.Context(), "kube-system", "coredns", "--ignore-not-found"); err != nil ||
		len(m.Data) > 0 {
		t.Errorf("got %v, %v", m.Data, err)
	}
	if _, err := client.ConfigMap(t.Context(), "kube-system", "coredns"); err == nil {
		t.Error("no output about an object that has to be there is no error")
	}
}

// TestNodes decodes a node that has fields of a later Kubernetes, too.
func TestNodes(t *testing.T) {
	t.Parallel()
	a := &api{answers: map[string]string{"get nodes": `{"apiVersion": "v1", "kind": "List", "items": [
{"metadata": {"name": "cp1", "labels": {"a": "b"}, "later": {"x": 1}}, "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "later": true}]},
 "status": {"later": [], "conditions": [{"type": "Ready", "status": "True"}, {"type": "Later", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.3"}, {"type": "Hostname", "address": "cp1"}]}},
{"metadata": {"name": "silent"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped"}]}},
{"metadata": {"name": "new"}}]}`}}
	nodes, err := a.client().Nodes(t.Context())
	if err != nil || len(nodes) != 3 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	cp, silent, fresh := kube.FindNode(nodes, "cp1"), kube.FindNode(nodes, "silent"), kube.FindNode(nodes, "new")
	if !kube.IsNodeReady(cp) || kube.IsNodeReady(silent) || kube.IsNodeReady(fresh) {
		t.Error("only cp1 is ready")
	}
	if got := kube.NodeCondition(silent, corev1.NodeReady); got.Status != corev1.ConditionUnknown ||
		got.Message != "stopped" {
		t.Errorf("got %v", got)
	}
	if got := kube.NodeCondition(fresh, corev1.NodeReady).Message; got != "no condition reported yet" {
		t.Errorf("got %q", got)
	}
	if kube.FindNode(nodes, "other") != nil || !kube.HasAddress(cp, "10.0.0.3") || kube.HasAddress(cp, "cp1") {
		t.Error("a node by its name and its internal address")
	}
	if !kube.HasTaint(cp, "k", "v", corev1.TaintEffectNoSchedule) ||
		kube.HasTaint(cp, "k", "", corev1.TaintEffectNoSchedule) {
		t.Error("a taint is its key, its value and its effect")
	}
	if !a.asked[0].Quiet {
		t.Error("objects are long, and not for a log")
	}
	a.answers["get nodes"] = "Error"
	if _, err := a.client().Nodes(t.Context()); err == nil ||
		!strings.HasPrefix(err.Error(), "output of kubectl get nodes: ") {
		t.Errorf("got %v", err)
	}
}

func TestNodeCommands(t *testing.T) {
	t.Parallel()
	a := &api{answers: map[string]string{"get node n": "node/n\n"}}
	c, ctx := a.client(), t.Context()
	there, err := c.HasNode(ctx, "n")
	missing, missingErr := c.HasNode(ctx, "other")
	if !there || missing {
		t.Errorf("n is there: %v, other: %v", there, missing)
	}
	if err := errors.Join(err, missingErr, c.Cordon(ctx, "n"), c.Uncordon(ctx, "n"), c.AnnotateNode(ctx, "n", "a-"),
		c.AnnotateNode(ctx, "n", "a=b", "--overwrite"),
		c.TaintNode(ctx, "n", "k=v:NoSchedule", "k:NoExecute-"), c.DeleteNode(ctx, "n"),
		c.PatchConfigMap(ctx, "ns", "m", "k", "v\n"), c.ApplyNode(ctx, "me", "n", map[string]string{"a": "b"},
			nil)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.lines(), []string{
		"get node n --ignore-not-found --output=name", "get node other --ignore-not-found --output=name", "cordon n",
		"uncordon n",
		"annotate node n a-", "annotate node n a=b --overwrite", "taint node n --overwrite k=v:NoSchedule k:NoExecute-",
		"delete node n --ignore-not-found",
		`patch configmap m --namespace=ns --type=merge --patch={"data":{"k":"v\n"}}`,
		"apply --server-side --force-conflicts --field-manager=me --filename=-",
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if got := string(a.asked[len(a.asked)-1].Stdin); got != `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","labels":{"a":"b"}}}` {
		t.Errorf("applied %s", got)
	}
}

func TestOwnsExactly(t *testing.T) {
	t.Parallel()
	node := func(fields string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{
				Manager: "other", Operation: "Apply",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:theirs":{}}}}`),
			},
			{
				Manager: "me", Operation: "Update",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:earlier":{}}}}`),
			},
			{Manager: "me", Operation: "Apply", FieldsV1: metav1.NewFieldsV1(fields)},
		}}}
	}
	labels, annotations := map[string]string{"a": "1"}, map[string]string{"b": "2"}
	for fields, want := range map[string]bool{
		`{"f:metadata":{"f:labels":{".":{},"f:a":{}},"f:annotations":{"f:b":{}}}}`:            true,
		`{"f:metadata":{"f:labels":{"f:a":{},"f:before":{}},"f:annotations":{"f:b":{}}}}`:     false,
		`{"f:metadata":{"f:labels":{"f:a":{}}}}`:                                              false,
		`{"f:metadata":{"f:labels":{"f:a":{}},"f:annotations":{"f:b":{}}},"f:later":{"a":1}}`: true,
		`{"f:metadata":1}`: false,
	} {
		if got := kube.OwnsExactly(node(fields), "me", labels, annotations); got != want {
			t.Errorf("%s: got %v", fields, got)
		}
	}
	if !kube.OwnsExactly(&corev1.Node{}, "me", labels, annotations) {
		t.Error("a node that nobody has applied has no wrong owner")
	}
}

// TestDrain has the command lines of an upgrade, of nodes delete, and of a host that is gone.
func TestDrain(t *testing.T) {
	t.Parallel()
	for want, how := range map[string]kube.Drain{
		"drain n --ignore-daemonsets --delete-emptydir-data --timeout=5m0s":                                   {Timeout: 5 * time.Minute},
		"drain n --ignore-daemonsets --delete-emptydir-data --timeout=1m0s --disable-eviction":                {Timeout: time.Minute, DisableEviction: true},
		"drain n --ignore-daemonsets --delete-emptydir-data --force --timeout=1m0s --disable-eviction":        {Timeout: time.Minute, Force: true, DisableEviction: true},
		"delete pods --all-namespaces --field-selector=spec.nodeName=n --force --grace-period=0 --wait=false": {Timeout: time.Minute, Force: true, HostGone: true},
	} {
		a := &api{}
		if err := a.client().Drain(t.Context(), "n", how); err != nil {
			t.Fatal(err)
		}
		if got := a.lines(); len(got) != 1 || got[0] != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if patience := a.asked[0].Patience; !how.HostGone && patience != how.Timeout {
			t.Errorf("%s may be silent for %s", want, patience)
		}
	}
	a := &api{fail: "drain"}
	if err := a.client().Drain(t.Context(), "n", kube.Drain{}); !errors.Is(err, errPlanted) {
		t.Errorf("got %v", err)
	}
}

func TestPods(t *testing.T) {
	t.Parallel()
	a := &api{answers: map[string]string{"get pods --namespace=ns": `{"items": [
{"metadata": {"name": "ready", "ownerReferences": [{"kind": "ReplicaSet"}]}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "later": 1}},
{"metadata": {"name": "ended"}, "status": {"phase": "Succeeded"}},
{"metadata": {"name": "deleted", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}},
{"metadata": {"name": "static", "annotations": {"kubernetes.io/config.mirror": "x"}}, "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}},
{"metadata": {"name": "waits"}, "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}],
 "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}], "conditions": [{"type": "Ready", "status": "False", "message": "not it"}]}},
{"metadata": {"name": "silent"}, "status": {"phase": "Pending"}}]}`}}
	pods, err := a.client().Pods(t.Context(), "--namespace=ns")
	if err != nil {
		t.Fatal(err)
	}
	var ready, over, lone []string
	reasons := map[string]string{}
	for _, p := range pods {
		if kube.IsPodReady(&p) {
			ready = append(ready, p.Name)
		}
		if kube.IsPodOver(&p) {
			over = append(over, p.Name)
		}
		if kube.IsLone(&p) {
			lone = append(lone, p.Name)
		}
		reasons[p.Name] = kube.NotReadyReason(&p)
	}
	if diff := cmp.Diff([][]string{ready, over, lone}, [][]string{
		{"ready"},
		{"ended", "deleted"},
		{"deleted", "waits", "silent"},
	}); diff != "" {
		t.Errorf("ready, over, lone (-got +want):\n%s", diff)
	}
	if reasons["waits"] != "c: ErrImagePull: gone" || reasons["static"] != "no room" || reasons["silent"] != "Pending" {
		t.Errorf("got %v", reasons)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	a := &api{answers: map[string]string{"get all": `{"items": [
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3}, "status": {"readyReplicas": 2}},
{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "renewTime": "2026-11-22T10:00:00.123456Z"}},
{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "free"}, "spec": {}}, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}},
{"kind": "Later", "apiVersion": "later/v1", "metadata": {"name": "x"}, "spec": 1}]}`}}
	list, err := a.client().List(t.Context(), "all")
	if err != nil || len(list) != 5 {
		t.Fatalf("%d objects, %v", len(list), err)
	}
	if ready, want := kube.Replicas(list[0].(*appsv1.Deployment)); ready != 2 || want != 3 {
		t.Errorf("%d of %d", ready, want)
	}
	name, renewed := kube.Holder(list[1].(*coordinationv1.Lease))
	if name != "me" || renewed.UTC().Format(time.RFC3339Nano) != "2026-11-22T10:00:00.123456Z" {
		t.Errorf("%s, %s", name, renewed)
	}
	if name, _ := kube.Holder(list[2].(*coordinationv1.Lease)); name != "" {
		t.Errorf("%s holds a lease that nobody holds", name)
	}
	if m := list[3].(*corev1.ConfigMap); m.Data["a"] != "b" {
		t.Errorf("got %v", m)
	}
	if o := list[4]; o.GetName() != "x" || o.GetObjectKind().GroupVersionKind().Kind != "Later" {
		t.Errorf("got %v", o)
	}
	if _, want := kube.Replicas(nil); want != 0 {
		t.Error("no Deployment has no replicas")
	}
}

// TestYAML covers unset fields that encoding/json writes, and empty fields that have to stay.
func TestYAML(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Name: "x"}
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "a"}, {
			Name: "b", Resources: kube.Requests("25m", "16Mi"),
			LivenessProbe: kube.HTTPProbe("", "/health", 80),
		},
	}}}
	got, err := kube.YAML(
		&corev1.Namespace{ObjectMeta: meta},
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: pod}},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: pod, Replicas: new(int32(0))}},
		&networkingv1.NetworkPolicy{ObjectMeta: meta, Spec: networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
		}},
		&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			kube.HostVolume("h", "/h", corev1.HostPathFile), kube.HostVolume("any", "/any", ""),
			kube.ConfigVolume("c", corev1.ConfigMapVolumeSource{Optional: new(false)}),
		}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestStaticPod(t *testing.T) {
	t.Parallel()
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	text, err := kube.StaticPod("proxy", []byte("config"), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"name: proxy\n  namespace: kube-system\n", "hostNetwork: true\n",
		"priorityClassName: system-node-critical\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	digest, err := kube.StaticPodDigest(text)
	// sha256 of the YAML of the spec, with its two fixed fields, and of "config".
	if want := "sha256:fe2700a446d524f1ba059f8e98d1da7b0f05ff1208067f6ff3d5be5485a3e773"; err != nil || digest != want {
		t.Errorf("got %s, %v", digest, err)
	}
	a := &api{answers: map[string]string{}}
	runs := func(digest, ready string) error {
		a.answers["get pod proxy-node1 --namespace=kube-system"] = `{"metadata": {"annotations": {"` +
			kube.ConfigAnnotation + `": "` + digest +
			`"}}, "status": {"conditions": [{"type": "Ready", "status": "` + ready + `", "message": "wait"}]}}`
		return a.client().StaticPodRuns(t.Context(), "proxy", "node1", "sha256:1")
	}
	if err := runs("sha256:1", "True"); err != nil {
		t.Error(err)
	}
	for _, err := range []error{runs("sha256:0", "True"), runs("sha256:1", "False")} {
		if err == nil || err.Error() != "static pod proxy on node1 is not ready or not current: wait" {
			t.Errorf("got %v", err)
		}
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	for want, how := range map[string]kube.Apply{
		"apply --filename=-": {},
		"apply --server-side --field-manager=me --filename=-": {Manager: "me"},
		"apply --server-side --force-conflicts --field-manager=me --filename=- --namespace=n": {
			Manager: "me",
			Force:   true, Namespace: "n",
		},
	} {
		a := &api{}
		if err := a.client().Apply(t.Context(), []byte("text"), how); err != nil || a.lines()[0] != want ||
			string(a.asked[0].Stdin) != "text" {
			t.Errorf("got %+v, %v", a.asked, err)
		}
	}
}

func TestParseManifest(t *testing.T) {
	t.Parallel()
	data := `# only a comment
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: w}}
---
{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Secret, metadata: {name: s}}, {apiVersion: v1, kind: Namespace, metadata: {name: ns}}]}
---
{apiVersion: a.example/v1, kind: Thing, metadata: {name: t, namespace: ns}}
`
	objects, err := kube.ParseManifest([]byte(data))
	var got []string
	for _, o := range objects {
		got = append(got, kube.Describe(o))
	}
	want := "Namespace.v1 ns|Secret.v1 s|Thing.a.example/v1 ns/t|ValidatingWebhookConfiguration.admissionregistration.k8s.io/v1 w"
	if strings.Join(got, "|") != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for name, text := range map[string]string{
		"JSON":         `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","annotations":{"x":"\ud83d\ude00"}}}` + "\n" + `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}`,
		"document end": "{apiVersion: v1, kind: Secret, metadata: {name: a}}\n...\n{apiVersion: v1, kind: Secret, metadata: {name: b}}\n",
		"a list":       "{apiVersion: v1, kind: SecretList, items: [{apiVersion: v1, kind: Secret, metadata: {name: a}}, {apiVersion: v1, kind: Secret, metadata: {name: b}}]}",
	} {
		if m, err := kube.ParseManifest([]byte(text)); err != nil || len(m) != 2 || m[0].GetName() != "a" ||
			m[1].GetName() != "b" {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	for text, want := range map[string]string{
		"a: b": "document 1: not a Kubernetes object",
		"{apiVersion: v1, kind: Pod, metadata: {name: p}}\n{apiVersion: v1, kind: Pod, metadata: {name: q}}": "document 1: line 1: another object follows",
		"{apiVersion: v1, kind: Pod, metadata: {name: p}}\n---{apiVersion: v1, kind: Pod}":                   `document 2: line 2: text follows "---"`,
		"{apiVersion: v1, kind: Pod}": "Pod without metadata.name",
		"---\n[":                      "document 1",
		"{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: 5}}": "document 1",
	} {
		if _, err := kube.ParseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestManifestCommands(t *testing.T) {
	t.Parallel()
	m, err := kube.ParseManifest([]byte(`{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}, status: {kept: null}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: there}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.a.example}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: there}}
`))
	if err != nil {
		t.Fatal(err)
	}
	a, ctx := &api{}, t.Context()
	c := a.client()
	if err := errors.Join(c.CheckManifest(ctx, m, "shop"), c.ApplyManifest(ctx, m,
		kube.Apply{Manager: "me", Force: true, Namespace: "shop"}),
		c.RollOut(ctx, m, "shop", time.Minute)); err != nil {
		t.Fatal(err)
	}
	const apply = "apply --server-side --force-conflicts --field-manager=me --filename=-"
	if diff := cmp.Diff(a.lines(), []string{
		"get --output=name --namespace=shop --filename=-", "get --output=name --filename=-",
		apply + " --namespace=shop",
		"wait --for=condition=Established --timeout=60s customresourcedefinition/things.a.example",
		apply + " --namespace=shop", apply,
		"rollout status deployment/web --namespace=shop --timeout=1m0s",
		"wait --for=condition=complete job/once --namespace=there --timeout=1m0s",
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if text := string(a.asked[4].Stdin); !strings.Contains(text, "status:\n  kept: null\n") {
		t.Errorf("what somebody has written was changed:\n%s", text)
	}
	a.fail = "rollout"
	if err := c.RollOut(ctx, m, "shop", time.Minute); !errors.Is(err, errPlanted) ||
		!strings.HasPrefix(err.Error(), "Deployment.apps/v1 web: ") {
		t.Errorf("got %v", err)
	}
}
