package charts

import (
	"fmt"
	"maps"
	"strings"

	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// A ValuesFile is a values file with its name for errors.
type ValuesFile struct {
	Name string
	Data []byte
}

// ReadValues merges values files like Helm's -f: mappings are merged, anything else is replaced, later files win.
func ReadValues(files ...ValuesFile) (map[string]any, error) {
	values := map[string]any{}
	for _, f := range files {
		var content any
		if err := yaml.Unmarshal(f.Data, &content); err != nil {
			return nil, fmt.Errorf("values %s: %w", f.Name, err)
		}
		one, ok := content.(map[string]any)
		if !ok && content != nil {
			return nil, fmt.Errorf("values %s: not a mapping (NAME: VALUE)", f.Name)
		}
		values = mergedValues(values, one)
	}
	return values, nil
}

// SetValue sets one value as Helm's --set does, PATH=VALUE, in values. Its error has no part of VALUE, as Helm's has:
// it may be a secret.
func SetValue(values map[string]any, text string) error {
	if strvals.ParseInto(text, values) == nil {
		return nil
	}
	path, _, _ := strings.Cut(text, "=")
	return fmt.Errorf(`--set %s: Helm cannot read the value or its path; write \, for a comma in a value, or use a values file`, path)
}

// MergeValues merges over into base like ReadValues, without changing either.
func MergeValues(base, over map[string]any) map[string]any { return mergedValues(base, over) }

func mergedValues(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for key, v := range over {
		below, both := out[key].(map[string]any)
		if m, ok := v.(map[string]any); ok && both {
			v = mergedValues(below, m)
		}
		out[key] = v
	}
	return out
}
