package look

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/internal/secretform"
)

// A scrubber removes secrets from data that leaves the site: known secrets, texts that look like one, and values with
// the name of one. It removes too much rather than too little.
type scrubber struct {
	mask   *task.Masker
	values bool // values of variables and of config maps stay, as far as they do not look like secrets
	key    *regexp.Regexp
	block  *regexp.Regexp
	forms  []secretform.Form
}

func newScrubber(mask *task.Masker) *scrubber {
	return &scrubber{
		mask:  mask,
		key:   regexp.MustCompile(`(?i)` + secretform.Name + `$`),
		block: regexp.MustCompile(`(?i)^(\s*)(?:- )?["']?[\w./-]*` + secretform.Name + `["']?\s*:\s*(?:[|>][-+0-9]*)?\s*$`),
		forms: secretform.All(),
	}
}

// text returns text without secrets and without terminal control characters.
func (s *scrubber) text(text string) string {
	text = s.blocks(s.mask.MaskKnown(text)) // before keys match as separate lines
	for _, f := range s.forms {
		text = f.Replace(text, task.Masked)
	}
	return plain.Lines(s.mask.Mask(text))
}

// blocks removes the deeper lines below a secret's name: YAML writes long values so.
func (s *scrubber) blocks(text string) string {
	var b strings.Builder
	inside := -1
	for line := range strings.Lines(text) {
		indent := len(line) - len(strings.TrimLeft(line, " \t"))
		if inside >= 0 && (indent > inside || strings.TrimSpace(line) == "") {
			continue
		}
		inside = -1
		b.WriteString(line)
		if m := s.block.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			inside = len(m[1])
			b.WriteString(strings.Repeat(" ", inside+2) + task.Masked + "\n")
		}
	}
	return b.String()
}

// objects returns JSON without secrets, and without the values of variables and config maps.
func (s *scrubber) objects(data []byte) ([]byte, error) {
	if err := capped.CheckJSON(data, capped.MaxValues); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(s.walk(v))
	return out.Bytes(), err
}

func (s *scrubber) walk(v any) any {
	switch v := v.(type) {
	case string:
		return s.text(v)
	case []any:
		for i := range v {
			v[i] = s.walk(v[i])
		}
	case map[string]any:
		if kind, _ := v["kind"].(string); kind == "Secret" {
			return task.Masked
		}
		if !s.values {
			leaveOutValues(v)
		}
		delete(v, "managedFields")
		delete(v, "kubectl.kubernetes.io/last-applied-configuration") // repeats the object
		name, _ := v["name"].(string)
		for key, below := range v {
			_, isText := below.(string)
			if isText && (s.key.MatchString(key) || key == "value" && s.key.MatchString(name)) {
				v[key] = task.Masked
				continue
			}
			v[key] = s.walk(below)
		}
	}
	return v
}

// leaveOutValues replaces the values of an object's variables (env), and of a config map, by their sizes: nobody can
// tell by its name that a value is no secret. Config maps of Kubernetes itself have its configuration, and stay.
func leaveOutValues(object map[string]any) {
	variables, _ := object["env"].([]any)
	for _, one := range variables {
		if variable, ok := one.(map[string]any); ok && variable["value"] != nil {
			variable["value"] = leftOut(variable["value"])
		}
	}
	if object["kind"] != "ConfigMap" {
		return
	}
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if meta["namespace"] == kube.SystemNamespace && slices.Contains([]string{
		"coredns", "kube-proxy", "kubeadm-config",
		"kubelet-config",
	}, name) {
		return
	}
	for _, field := range []string{"data", "binaryData"} {
		data, _ := object[field].(map[string]any)
		for key := range data {
			data[key] = leftOut(data[key])
		}
	}
}

func leftOut(value any) string {
	text, _ := value.(string)
	return fmt.Sprintf("(%d bytes left out)", len(text))
}
