package adopt

import (
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
)

// withoutSecrets leaves out what may be a login, a key or a token: the files are read by more people than the
// configurations that they come from.
func (d *describer) withoutSecrets(section programs.Section, config manifest.Config) manifest.Config {
	kept, left := openParts(map[string]any(config))
	if len(left) > 0 {
		d.gap("secrets", string(section)+" has "+listed(left)+", which may be secrets and are not copied",
			"write them under kubernetes."+string(section))
	}
	open, _ := kept.(map[string]any)
	return open
}

// openParts returns a copy of a value without what may be secret, and the places of that, in order.
func openParts(v any) (kept any, left []string) {
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
			if maySecret(name, v[name]) {
				left = append(left, name)
				continue
			}
			one, below := openParts(v[name])
			open[name] = one
			add(name, below)
		}
		return open, left
	case []any:
		open := make([]any, 0, len(v))
		for i, one := range v {
			at := "[" + strconv.Itoa(i) + "]"
			argument, _ := one.(map[string]any)
			if name, _ := argument["name"].(string); maySecret(name, argument["value"]) {
				left = append(left, name)
				continue
			}
			if maySecret("", one) {
				left = append(left, at)
				continue
			}
			one, below := openParts(one)
			open = append(open, one)
			add(at, below)
		}
		return open, left
	}
	return v, nil
}

// maySecret reports whether a setting of this name and value may be a secret.
func maySecret(name string, v any) bool {
	text, isText := v.(string)
	if isText && hasLogin(text) {
		return true
	}
	name = strings.ToLower(name)
	if name == "staticpodurl" { // an address may be all that one needs to read it
		return v != ""
	}
	if strings.HasPrefix(name, "requestheader") { // names of headers
		return false
	}
	for _, word := range []string{
		"password", "passwd", "secret", "token", "key", "credential", "credentials", "header", "headers",
	} {
		if strings.HasSuffix(name, word) {
			return !isPlain(v)
		}
	}
	return false
}

// isPlain reports whether a value is none that a secret could be: a number, a truth, a time, the path of a file.
func isPlain(v any) bool {
	text, ok := v.(string)
	if !ok {
		_, mapping := v.(map[string]any)
		_, list := v.([]any)
		return !mapping && !list
	}
	_, noBool := strconv.ParseBool(text)
	_, noTime := time.ParseDuration(text)
	return text == "" || path.IsAbs(text) || noBool == nil || noTime == nil
}

// hasLogin reports whether a text has a login in it: in an address or its query, as a header, or as a key.
func hasLogin(text string) bool {
	if _, rest, ok := strings.Cut(text, "://"); ok && strings.ContainsAny(rest, "@?") {
		return true
	}
	lower := strings.ToLower(text)
	return strings.Contains(text, "-----BEGIN") || strings.HasPrefix(lower, "bearer ") || strings.HasPrefix(lower, "basic ")
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
