package deploy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/deploy"
)

// groupedSite is a bundle with two entries of deploy, one of them in a group.
func groupedSite(t *testing.T, version string, optional bool) *bundle.Reader {
	t.Helper()
	conf := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {k: v}\n"
	}
	s := site{
		name: "parts", version: version, files: map[string]string{"a.yaml": conf("a"), "g.yaml": conf("g")},
		deploy: fmt.Sprintf("groups: {gpu: {optional: %v}}\n", optional) + `deploy:
  - {release: a, namespace: parts, manifests: [a.yaml], wait: none}
  - {release: g, namespace: parts, manifests: [g.yaml], wait: none, group: gpu}
`,
		table: groups.Table{{Name: "gpu", Optional: optional}},
	}
	return s.bundle(t)
}

// TestAPIServerGroups switches a group on and off, and deploys a version with another default.
func TestAPIServerGroups(t *testing.T) {
	f := newForeign(t)
	for _, step := range []struct {
		name     string
		version  string
		optional bool
		given    groups.Words
		prune    bool
		has      bool
		word     string
	}{
		{"an optional group is off", "1", true, nil, false, false, "off"},
		{"another default changes nothing", "2", false, nil, false, false, "off"},
		{"switched on", "2", false, groups.Words{"gpu": true}, false, true, "on"},
		{"it stays on", "3", true, nil, false, true, "on"},
		{"switched off, its objects stay", "3", true, groups.Words{"gpu": false}, false, true, "off"},
		{"they are removed", "3", true, nil, true, false, "off"},
	} {
		o := f.options()
		o.Groups, o.Prune = step.given, step.prune
		report, err := deploy.Run(t.Context(), groupedSite(t, step.version, step.optional), o)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if len(report.Groups) != 1 || (report.Groups[0].On != (step.word == "on")) {
			t.Errorf("%s: %v", step.name, report.Groups)
		}
		_, err = f.kube.CoreV1().ConfigMaps("parts").Get(t.Context(), "g", metav1.GetOptions{})
		if has := err == nil; has != step.has || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: the object is there: %v, %v; removed %v, warnings %v", step.name, has, err, report.Removed,
				report.Warnings)
		}
		stored, err := f.kube.CoreV1().ConfigMaps(deploy.Namespace).Get(t.Context(), "kkbundle.deploy.parts", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var record deploy.Record
		if err := json.Unmarshal([]byte(stored.Data["record.json"]), &record); err != nil {
			t.Fatal(err)
		}
		if record.Groups["gpu"] != step.word {
			t.Errorf("%s: the record has %v", step.name, record.Groups)
		}
	}
	o := f.options()
	o.Groups = groups.Words{"gpus": true}
	_, err := deploy.Run(t.Context(), groupedSite(t, "3", true), o)
	if err == nil || !strings.Contains(err.Error(), "there is no group gpus; the groups are gpu") {
		t.Error(err)
	}
	if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "parts", By: "ops@lab"}); err != nil {
		t.Error(err)
	}
}
