package task

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A HostsError joins the errors of several hosts.
type HostsError struct {
	hosts []*Host // nil entries: errors of no host
	errs  []error
}

// JoinHosts joins the errors of hosts. errs[i], which may be nil, is that of hosts[i].
func JoinHosts(hosts []*Host, errs []error) error {
	e := &HostsError{}
	for i, err := range errs {
		if err != nil {
			e.hosts, e.errs = append(e.hosts, hosts[i]), append(e.errs, err)
		}
	}
	switch len(e.errs) {
	case 0:
		return nil
	case 1:
		return e.errs[0]
	}
	return e
}

// Unwrap returns the errors of all hosts.
func (e *HostsError) Unwrap() []error { return e.errs }

// Error has one line for each cause, with the hosts that it affects.
func (e *HostsError) Error() string {
	var causes []string
	affected := map[string][]int{}
	for i, err := range e.errs {
		cause := neutral(err.Error(), e.hosts[i])
		if affected[cause] == nil {
			causes = append(causes, cause)
		}
		affected[cause] = append(affected[cause], i)
	}
	lines := make([]string, 0, len(causes))
	for _, cause := range causes {
		list := affected[cause]
		if len(list) == 1 || e.hosts[list[0]] == nil {
			lines = append(lines, e.errs[list[0]].Error())
			continue
		}
		lines = append(lines, e.names(list)+": "+cause)
	}
	return strings.Join(lines, "\n")
}

// names returns the names of hosts, the first few of many.
func (e *HostsError) names(list []int) string {
	const most = 8
	var names []string
	for _, i := range list {
		if h := e.hosts[i]; h != nil {
			names = append(names, h.Name)
		}
	}
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d hosts (%s and %d more)", len(names), strings.Join(names[:most], ", "), len(names)-most)
}

// Whole returns the text of err with a line for each host.
func Whole(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*HostsError](err); ok {
		return strings.Replace(text, e.Error(), errors.Join(e.errs...).Error(), 1)
	}
	return text
}

// neutral returns the text of a host's error without the host's name and addresses.
func neutral(text string, h *Host) string {
	if h == nil {
		return text
	}
	if rest, ok := strings.CutPrefix(text, h.Name+" ("); ok { // its address
		if _, cause, found := strings.Cut(rest, "): "); found {
			text = cause
		}
	}
	text = strings.TrimPrefix(text, h.Name+": ")
	for _, address := range []string{h.Address, h.IP.String(), h.IP6.String()} {
		text = replaceWord(text, address, "its address")
	}
	return replaceWord(text, h.Name, "the host")
}

// replaceWord replaces a name or an address that is not a part of a longer one.
func replaceWord(text, word, by string) string {
	if word == "" {
		return text
	}
	var b strings.Builder
	for {
		i := strings.Index(text, word)
		if i < 0 {
			return b.String() + text
		}
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(word):])
		b.WriteString(text[:i])
		if continues(before) || continues(after) {
			b.WriteString(word)
		} else {
			b.WriteString(by)
		}
		text = text[i+len(word):]
	}
}

// continues reports whether a name can go on with a character.
func continues(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_')
}
