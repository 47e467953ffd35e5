package adopt

import (
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/secretform"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
)

// secrets decides what may be a login, a key or a token, by the forms in which programs write them.
type secrets []secretform.Form

// withoutSecrets leaves out what may be a secret: the files are read by more people than the configurations that they
// come from.
func (d *describer) withoutSecrets(section programs.Section, config manifest.Config) manifest.Config {
	kept, left := d.secrets.parts("", map[string]any(config))
	if len(left) > 0 {
		d.gap("secrets", string(section)+" has "+listed(left)+", which may be secrets and are not copied",
			"write them under kubernetes."+string(section))
	}
	open, _ := kept.(map[string]any)
	return open
}

// parts returns a copy of a setting's value without what may be secret, and the places of that, in order. Texts in a
// list are judged by the name of the list.
func (s secrets) parts(name string, v any) (kept any, left []string) {
	add := func(at string, below []string) {
		for _, one := range below {
			if !strings.HasPrefix(one, "[") {
				one = "." + one
			}
			left = append(left, at+one)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		open := make(map[string]any, len(v))
		for _, name := range sortedKeys(v) {
			if s.may(name, v[name]) {
				left = append(left, name)
				continue
			}
			one, below := s.parts(name, v[name])
			open[name] = one
			add(name, below)
		}
		return open, left
	case []any:
		open := make([]any, 0, len(v))
		for i, one := range v {
			at := "[" + strconv.Itoa(i) + "]"
			argument, _ := one.(map[string]any)
			if of, _ := argument["name"].(string); s.may(of, argument["value"]) {
				left = append(left, of)
				continue
			}
			if s.may(name, one) {
				left = append(left, at)
				continue
			}
			one, below := s.parts(name, one)
			open = append(open, one)
			add(at, below)
		}
		return open, left
	}
	return v, nil
}

// may reports whether a setting of this name and value may be a secret.
func (s secrets) may(name string, v any) bool {
	lower := strings.ToLower(name)
	switch v := v.(type) {
	case string:
		return lower == "staticpodurl" && v != "" || // an address may be all that one needs to read it
			isAddressWithLogin(v) || !isPlain(v) && secretform.In(s, name+": "+v)
	case map[string]any, []any: // headers of HTTP have logins; those of requestheader have names of headers
		return !strings.HasPrefix(lower, "requestheader") &&
			(strings.HasSuffix(lower, "header") || strings.HasSuffix(lower, "headers"))
	}
	return false
}

// isAddressWithLogin reports whether a text is an address with a login or with a query, which may have one.
func isAddressWithLogin(text string) bool {
	_, rest, ok := strings.Cut(text, "://")
	return ok && strings.ContainsAny(rest, "@?")
}

// isPlain reports whether a text is none that a secret could be: a truth, a time, the path of a file.
func isPlain(text string) bool {
	_, noBool := strconv.ParseBool(text)
	_, noTime := time.ParseDuration(text)
	return text == "" || path.IsAbs(text) || noBool == nil || noTime == nil
}

// listed names settings for people, the first ones of many.
func listed(names []string) string {
	const most = 20
	more := ""
	if len(names) > most {
		more = " and " + strconv.Itoa(len(names)-most) + " more"
		names = names[:most]
	}
	short := make([]string, len(names))
	for i, name := range names {
		short[i] = document.Shorten(name)
	}
	return strings.Join(short, ", ") + more
}
