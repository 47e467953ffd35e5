package deploy

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// TestWrongValues holds that values that are none are named with their release, and that no value is in an error.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]Value{
		"a list":           {File: "prod.yaml", Data: []byte("- hunter2\n")},
		"a text":           {File: "prod.yaml", Data: []byte("hunter2")},
		"no YAML":          {File: "prod.yaml", Data: []byte("a: [hunter2\nb: {")},
		"not text":         {File: "prod.yaml", Data: []byte("\x00\x01hunter2\xff")},
		"a comma in it":    {Set: "password=ab,hunter2"},
		"a bracket in it":  {Set: "list[hunter2]=x"},
		"a large index":    {Set: "list[99999999]=hunter2"},
		"a brace in it":    {Set: "password={hunter2"},
		"a negative index": {Set: "list[-1]=hunter2"},
	} {
		v.Release = "web"
		steps := []*step{{
			Addon:  manifest.Addon{Chart: "web", Release: "web", Namespace: "shop"},
			values: map[string]any{"a": "b"},
		}}
		err := override(steps, []Value{v})
		if err == nil || !strings.Contains(err.Error(), "values of web") ||
			v.Set == "" && !strings.Contains(err.Error(), "prod.yaml") {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if strings.Contains(strings.TrimPrefix(err.Error(), "values of web: --set list[hunter2]:"), "hunter2") ||
			strings.Contains(err.Error(), "Go value") || strings.Contains(err.Error(), "map[string]") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
