package precheck

import "testing"

// A cluster file has IPv6 addresses in brackets, with a port or without.
func TestAddressesOfAClusterFile(t *testing.T) {
	for text, want := range map[string][2]string{
		"10.0.0.9":       {"10.0.0.9", "10.0.0.9:443"},
		"10.0.0.9:5000":  {"10.0.0.9", "10.0.0.9:5000"},
		"fd00::9":        {"fd00::9", "[fd00::9]:443"},
		"[fd00::9]":      {"fd00::9", "[fd00::9]:443"},
		"[fd00::9]:5000": {"fd00::9", "[fd00::9]:5000"},
		"lb.site":        {"invalid IP", "lb.site:443"},
	} {
		if got := [2]string{addressOf(text).String(), withPort(text, "443")}; got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
