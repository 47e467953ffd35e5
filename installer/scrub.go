package installer

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/plain"
)

// A scrubber takes secrets out of what leaves the site: those that are known, what looks like one, and whatever has the name
// of one. It would rather take too much.
type scrubber struct {
	mask     *task.Masker
	key      *regexp.Regexp
	block    *regexp.Regexp
	patterns []*regexp.Regexp
}

// secretName is how names of secrets end.
const secretName = `(?:pass(?:word|wd|phrase|code)?|token|secret|api[-_]?key|access[-_]?key|private[-_]?key|client-key-data|client-certificate-data|certificate[-_]?key|` +
	`authorization|credentials?|htpasswd|auth)`

func newScrubber(mask *task.Masker) *scrubber {
	return &scrubber{
		mask:  mask,
		key:   regexp.MustCompile(`(?i)` + secretName + `$`),
		block: regexp.MustCompile(`(?i)^(\s*)(?:- )?["']?[\w./-]*` + secretName + `["']?\s*:\s*(?:[|>][-+0-9]*)?\s*$`),
		patterns: []*regexp.Regexp{
			// key: value, key = "value", "key":"value", --key=value and --key value, to the end of what can belong to it
			regexp.MustCompile(`(?i)(["']?[\w./-]*` + secretName + `["']?\s*(?:=>|[:=])\s*)(?:\[[^\]\n]*\]|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\n,}]+)`),
			regexp.MustCompile(`(?i)(--?[\w-]*` + secretName + ` )\S+`),
			regexp.MustCompile(`(?i)\b((?:basic|bearer) )[A-Za-z0-9+/=._~-]{6,}`),
			regexp.MustCompile(`([a-z][a-z0-9+.-]*://[^/\s:@"']*:)[^@\s/"']+@`),
			regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
			regexp.MustCompile(`()\$(?:2[abxy]?|5|6|y|apr1)\$[./A-Za-z0-9$]{8,}`),
		},
	}
}

// text returns text of any kind without secrets, and without what could steer a terminal.
func (s *scrubber) text(text string) string {
	text = s.blocks(s.mask.MaskKnown(text)) // before keys are taken for lines of their own
	for _, p := range s.patterns {
		text = p.ReplaceAllString(text, "${1}"+task.Masked)
	}
	return plain.Lines(s.mask.Mask(text))
}

// blocks takes out what follows the name of a secret in deeper lines, as YAML writes long values.
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

// objects returns JSON without secrets: values by the names of their keys, and those of variables by the variables' names.
func (s *scrubber) objects(data []byte) ([]byte, error) {
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
		delete(v, "managedFields")
		delete(v, "kubectl.kubernetes.io/last-applied-configuration") // says again what the object says
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
