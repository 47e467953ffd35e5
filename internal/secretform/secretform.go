// Package secretform knows how programs write secrets: names of settings that have one, and texts that are one. It
// takes too much for a secret rather than too little.
package secretform

import (
	"regexp"
	"slices"
)

// A Form is a form in which programs write a secret.
type Form struct {
	// Name is the form's for people, and for tests.
	Name string
	// pattern has the text in front of the secret as its group, which stays.
	pattern *regexp.Regexp
	// harmless matches texts of the pattern that are no secrets; nil for none.
	harmless *regexp.Regexp
}

// word is the end of secrets' names, Name the regular expression of a secret's name: some words decide wherever they
// are in it.
const (
	word = `(?:pass(?:word|wd|phrase|code)?|pwd|psk|token|secret|credentials?|htpasswd|auth|authorization|cookie|salt|dsn|` +
		`connection[-_]?string|webhook(?:[-_]?(?:ur[il]|address))?|client-key-data|client-certificate-data|wep-key\d|` +
		`(?:secret|sign(?:ing)?|encrypt(?:ion)?|account|shared|master|storage|access|api|private|licen[sc]e|hmac|certificate|service)[-_]?key)`
	Name = `(?:(?:pass(?:word|wd|phrase|code)|wpa-psk|htpasswd)[\w-]*|(?-i:(?:PASS|PWD|TOKEN|SECRET|CREDENTIALS?|AUTH|KEY)_[A-Z0-9_]+)|(?:token|secret)[-_]?\d+|` + word + `)`
	// argument is the value of a flag, to its end.
	argument = `(?:"[^"\n]*"|'[^'\n]*'|\S+)`
)

// hookURL matches addresses whose path is the secret, up to the path: incoming webhooks of chats and of automation.
const hookURL = `(https?://[^\s/"']*(?:hook|discord|slack|telegram)[^\s/"']*/|https?://[^\s"']*/(?:web)?hooks?/)`

// All returns the forms, those with a name first. Each has an example in TestSecretForms of installer/look.
func All() []Form {
	form := func(name, pattern string) Form {
		return Form{Name: name, pattern: regexp.MustCompile(pattern)}
	}
	port := form("flag -p", `(\s-p[ =])`+argument)
	// ports, directories and a next flag
	port.harmless = regexp.MustCompile(`-p.["']?(?:\d+(?::\d+)*(?:/\w+)?|[-./].*)$`)
	address := form("address with a password", `(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@"']*:)[^\s"'<>]*@`)
	address.harmless = regexp.MustCompile(`:\d{1,5}/[^@]*@$`) // a port, and a path with a digest or a scope
	token := func(name, pattern string) Form { return form(name, `()\b`+pattern) }
	return []Form{
		// to the end of the value
		form("name and value", `(?i)(["']?[\w./-]*`+Name+
			`["']?\s*(?:=>|[:=])\s*)(?:\[[^\]\n]*\]|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|(?:[^\n,;}]|[,;}][^\s,;}"'])+)`),
		form("variable", `(?im)(["']?name["']?\s*[:=]\s*["']?[\w./-]*`+Name+
			`["']?\s*,?\s*["']?value["']?\s*[:=]\s*)`+
			`(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\n,}]+)`),
		form("flag and value", `(?i)(--?[\w-]*`+Name+`[ \t]+)`+argument),
		// requirepass value
		form("directive", `(?im)^([ \t]*[\w-]*(?:pass|pwd|password|secret|masterauth)[ \t]+)[^\s:=].*$`),
		form("netrc", `(?i)(\blogin\s+\S+\s+password\s+)\S+`),
		form("chrony key", `(?im)^([ \t]*\d+[ \t]+(?:MD5|SHA\d*(?:-\d+)?|AES\d+)[ \t]+)(?:HEX:|ASCII:)?\S+`),
		port,
		form("flag -p of MySQL", `(?i)(\b(?:mysql\w*|mariadb\w*|sshpass)\b[^\n|;]*?\s-p)[^\s-]\S*`),
		form("flag with a login", `(?i)((?:--[\w-]*(?:creds|user)|\bcurl\b[^\n]*?\s-u)[ =]["']?[^\s:"']+:)[^\s"']+`),
		form("webhook", `(?i)`+hookURL+`[^\s"']+`),
		form("header", `(?i)\b((?:basic|bearer) )[A-Za-z0-9+/=._~-]{6,}`),
		address,
		form("address with a token", `(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:"']{20,}@`),
		form("signed address", `(?i)([?&](?:sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|key|code)=)[^&\s"']+`),
		form("signature", `(?i)(\bsignature=)[0-9a-f]{16,}`),
		form("private key", `(?s)(-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----).*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)`),
		token("web token", `eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
		form("password hash", `()\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2(?:id|i|d)|pbkdf2[-\w]*|scrypt)\$[./A-Za-z0-9$=,+]{8,}`),
		form("LDAP hash", `()\{S?(?:SHA|MD5)(?:256|384|512)?\}[A-Za-z0-9+/=]{8,}`),
		token("k3s token", `K10[0-9a-f]{8,}::[^\s"']+`),
		token("age", `(?i:AGE-SECRET-KEY-)[A-Za-z0-9-]+`),
		token("GitHub", `(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{8,}`),
		token("GitLab", `gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_.-]{8,}`),
		token("Tailscale", `tskey-[A-Za-z0-9_-]{8,}`),
		token("AWS", `(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b`),
		token("Slack", `(?:xox[a-z]|xapp)-[A-Za-z0-9-]{8,}`),
		token("npm, Hugging Face, PyPI, Docker Hub", `(?:npm_|hf_|pypi-|dckr_(?:pat|oat)_)[A-Za-z0-9_-]{16,}`),
		token("Google", `(?:AIza|ya29\.)[A-Za-z0-9_-]{20,}`),
		token("Stripe, OpenAI", `(?:[sr]k_(?:live|test)_|sk-)[A-Za-z0-9_-]{16,}`),
		token("Vault", `hv[sbr]\.[A-Za-z0-9_-]{16,}`),
		token("DigitalOcean", `do[opr]_v1_[0-9a-f]{32,}`),
	}
}

// In reports whether a text has a secret in one of the forms.
func In(forms []Form, text string) bool {
	return slices.ContainsFunc(forms, func(f Form) bool { return f.Replace(text, "") != text })
}

// Replace returns text with stands in place of the form's secrets.
func (f Form) Replace(text, stands string) string {
	if f.harmless == nil {
		return f.pattern.ReplaceAllString(text, "${1}"+stands)
	}
	return f.pattern.ReplaceAllStringFunc(text, func(found string) string {
		if f.harmless.MatchString(found) {
			return found
		}
		return f.pattern.ReplaceAllString(found, "${1}"+stands)
	})
}
