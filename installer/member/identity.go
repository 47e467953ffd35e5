package member

import "strings"

// An identity identifies a cluster. Hosts of one cluster never become nodes of another.
type identity struct{ name, Version string }

// parseIdentity reads the text that String writes.
func parseIdentity(text string) identity {
	name, version, _ := strings.Cut(text, " ")
	return identity{name, version}
}

// String returns the identity as hosts record it.
func (i identity) String() string {
	if i.Version == "" {
		return i.name
	}
	return i.name + " " + i.Version
}

// sameName reports whether two clusters differ in their version at most.
func (i identity) sameName(other identity) bool { return i.name == other.name }
