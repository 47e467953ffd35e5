//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A pretended kubectl keeps what was applied last; nothing stands in for an API server but the answers that the tasks
// read. The lab has the real one.
type pretended struct {
	t       *testing.T
	applied []string // the kinds of each call, with the namespace that objects without one get
	record  map[string]any
	lacks   bool // objects are not there
}

func (p *pretended) run(_ context.Context, cmd host.Cmd) error {
	args := cmd.Args[2:]
	var input []byte
	if cmd.Stdin != nil {
		input, _ = io.ReadAll(cmd.Stdin)
	}
	failed := &host.ExitError{Args: cmd.Args, Code: 1, Stderr: "not found"}
	switch {
	case args[0] == "apply":
		objects, err := kube.ParseManifest(input)
		if err != nil {
			p.t.Error(err)
		}
		var names []string
		for _, o := range objects {
			names = append(names, o.GetKind()+" "+o.GetName())
			if o.GetKind() == "ConfigMap" && strings.HasPrefix(o.GetName(), "kkbundle.manifests.") {
				p.record = o.Object
			}
		}
		p.applied = append(p.applied, strings.Join(names, ",")+" "+
			strings.TrimPrefix(args[len(args)-1], "--filename=-"))
	case args[0] == "get" && args[1] == "configmaps":
		var items []any
		if p.record != nil {
			items = append(items, p.record)
		}
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"items": items})
	case args[0] == "get" && p.lacks:
		return failed
	}
	return nil
}

func TestManifestsTask(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	files := map[string]string{"a.yaml": `
{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: there}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.a.example}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {a: b}}}}
`}
	s.Options.Values = func(path string) ([]byte, error) {
		if data, ok := files[path]; ok {
			return []byte(data), nil
		}
		return nil, os.ErrNotExist
	}
	r := s.Run(t, nil)
	target := r.Hosts[0]
	p := &pretended{t: t}
	cp := s.Hosts["cp1"]
	cp.Answer("kubectl", p.run)
	wantedAddon := manifest.Addon{
		Release: "notes", Namespace: "shop", Manifests: []string{"a.yaml"}, Wait: "ready",
		Timeout: scalar.Duration(addon.ChartWait),
	}
	a, err := addon.ManifestsOf(r.Site, wantedAddon)
	if err != nil {
		t.Fatal(err)
	}
	cp.Said("kubectl")
	if ok, err := addon.IsApplied(t.Context(), target, a); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := addon.Apply(t.Context(), target, "addon-notes", a); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Namespace shop ", "CustomResourceDefinition things.a.example --namespace=shop",
		"ConfigMap mine,Deployment web --namespace=shop", "ConfigMap other ", "ConfigMap kkbundle.manifests.notes ",
	}
	if !slices.Equal(p.applied, want) {
		t.Errorf("applied %q, want %q", p.applied, want)
	}
	said := strings.Join(cp.Said("kubectl"), "\n")
	for _, want := range []string{
		"--for=condition=Established --timeout=60s customresourcedefinition/things.a.example",
		"rollout status deployment/web --namespace=shop --timeout=5m0s",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q was not run:\n%s", want, said)
		}
	}
	if ok, err := addon.IsApplied(t.Context(), target, a); !ok || err != nil {
		t.Error(ok, err)
	}
	p.lacks = true
	if ok, err := addon.IsApplied(t.Context(), target, a); ok || err != nil {
		t.Error("an object is gone, and nothing is to be done", err)
	}
	p.lacks = false
	files["a.yaml"] = "{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}"
	if a, err = addon.ManifestsOf(r.Site, wantedAddon); err != nil {
		t.Fatal(err)
	}
	if ok, err := addon.IsApplied(t.Context(), target, a); ok || err != nil {
		t.Error("the file has changed, and nothing is to be done", err)
	}
	s.States()
	if err := addon.Apply(t.Context(), target, "addon-notes", a); err != nil {
		t.Fatal(err)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.Events) != 1 || s.Events[0].State != task.Warned || !strings.HasPrefix(s.Events[0].Message,
		"CustomResourceDefinition.apiextensions.k8s.io/v1 things.a.example, ConfigMap.v1 there/other, Deployment.apps/v1 web is not in") {
		t.Errorf("%+v", s.Events)
	}
	wantedAddon.Manifests = []string{"missing.yaml"}
	if _, err := addon.ManifestsOf(r.Site, wantedAddon); err == nil ||
		!strings.Contains(err.Error(), "addon notes: missing.yaml: ") {
		t.Error(err)
	}
}

// Installed addons that the cluster file no longer has are named.
func TestLeftAddons(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t,
		"addons: [{chart: demo, namespace: shop}, {release: notes, manifests: [a.yaml]}]\ndns: {nodeLocal: true}")
	r := s.Run(t, nil)
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		text := `kube-flannel {"name":"flannel"}` + "\n" + `shop {"name":"demo"}` + "\n" + `old {"name":"gone"}` +
			"\n" + `old {"name":"gone"}` + "\n"
		if slices.Contains(cmd.Args, "configmaps") {
			text = `default {"kkbundle.io/manifests":"notes"}` + "\n" +
				`kube-system {"kkbundle.io/manifests":"node-local-dns"}` + "\n" +
				`kube-system {"kkbundle.io/manifests":"multus"}` + "\n"
		}
		_, err := io.WriteString(cmd.Stdout, text)
		return err
	})
	tasks := plan.Tasks(s.Options.Cluster)
	step := tasks[slices.IndexFunc(tasks, func(t task.Task) bool { return t.Name == "removed-addons" })]
	err := step.Do(t.Context(), r.Hosts[0])
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err != nil || len(s.Events) != 1 ||
		!strings.Contains(s.Events[0].Message,
			"they stay in the cluster: chart old/gone, manifests kube-system/multus; remove") {
		t.Errorf("%+v, %v", s.Events, err)
	}
}
