package charts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
)

// What talks to a cluster is exercised by the end-to-end test; nothing here stands in for an API server.

func TestContentMark(t *testing.T) {
	t.Parallel()
	file := func(name, data string) *chart.File { return &chart.File{Name: name, Data: []byte(data)} }
	base := &chart.Chart{Raw: []*chart.File{file("Chart.yaml", "a"), file("values.yaml", "b")}}
	mark := func(c *chart.Chart, values map[string]any) string {
		t.Helper()
		m, err := contentMark(c, values, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	one := mark(base, map[string]any{"x": 1, "y": map[string]any{"a": 1, "b": 2}})
	if len(one) > 63 {
		t.Errorf("%q does not fit into a label", one)
	}
	if same := mark(base, map[string]any{"y": map[string]any{"b": 2, "a": 1}, "x": 1}); same != one {
		t.Error("the order of values matters")
	}
	for name, other := range map[string]string{
		"values":    mark(base, map[string]any{"x": 2}),
		"a file":    mark(&chart.Chart{Raw: []*chart.File{file("Chart.yaml", "a"), file("values.yaml", "c")}}, nil),
		"its name":  mark(&chart.Chart{Raw: []*chart.File{file("Chart.yaml", "a"), file("values.yml", "b")}}, nil),
		"its edges": mark(&chart.Chart{Raw: []*chart.File{file("Chart.yamla", ""), file("values.yaml", "b")}}, nil),
		"no values": mark(base, nil),
	} {
		if other == one {
			t.Errorf("%s does not matter", name)
		}
	}
}

func TestIsDeployed(t *testing.T) {
	t.Parallel()
	made := func(status release.Status, mark string) *release.Release {
		return &release.Release{Info: &release.Info{Status: status}, Labels: map[string]string{MarkLabel: mark}}
	}
	for name, c := range map[string]struct {
		last *release.Release
		want bool
	}{
		"none":       {nil, false},
		"the same":   {made(release.StatusDeployed, "m"), true},
		"another":    {made(release.StatusDeployed, "n"), false},
		"pending":    {made(release.StatusPendingUpgrade, "m"), false},
		"failed":     {made(release.StatusFailed, "m"), false},
		"by a human": {&release.Release{Info: &release.Info{Status: release.StatusDeployed}}, false},
	} {
		if got := (state{last: c.last, mark: "m"}).isDeployed(); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestHelmKeepsTheLabel holds that a revision of the helm command, into which Helm copies the label, is no deployed
// state.
func TestHelmKeepsTheLabel(t *testing.T) {
	t.Parallel()
	last := &release.Release{Version: 4, Info: &release.Info{Status: release.StatusDeployed}}
	s := state{last: last, mark: "m"}
	last.Labels = map[string]string{MarkLabel: s.label()}
	last.Version++
	for description, want := range map[string]bool{"": true, "Upgrade complete": true, "Rollback to 5": true} {
		if last.Info.Description = description; s.isDeployed() != want {
			t.Errorf("own revision, %q: not %v", description, want)
		}
	}
	last.Version++
	for description, want := range map[string]bool{
		"Upgrade complete": false, "Rollback to 5": true,
		"Rollback to 3": false,
	} {
		if last.Info.Description = description; s.isDeployed() != want {
			t.Errorf("helm's revision, %q: not %v", description, want)
		}
	}
}

func TestCopyValues(t *testing.T) {
	t.Parallel()
	given := map[string]any{"a": map[string]any{"b": 1}, "c": []any{1}}
	copied := copyValues(given)
	if diff := cmp.Diff(copied, given); diff != "" {
		t.Error(diff)
	}
	copied["a"].(map[string]any)["b"] = 2
	if given["a"].(map[string]any)["b"] != 1 {
		t.Error("the copy is the original")
	}
}

func TestKubeconfigIsRefused(t *testing.T) {
	t.Parallel()
	c := &Chart{helm: &chart.Chart{Metadata: &chart.Metadata{Name: "demo", Version: "1"}}}
	for _, text := range []string{"", "apiVersion: v1\nkind: Config\n", "{"} {
		if _, err := Install(t.Context(), c, InstallOptions{
			Kubeconfig: []byte(text), Namespace: "a",
			Release: "b",
		}); err == nil {
			t.Errorf("kubeconfig %q is accepted", text)
		}
	}
}
