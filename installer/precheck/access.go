package precheck

import (
	"slices"
	"strings"
)

// accessChecks are about how the hosts are reached.
func accessChecks() []Check {
	return []Check{{
		ID: "ssh-algorithms", Groups: []string{GroupHost}, Level: Warn, Title: "the SSH server takes no outdated algorithms", Rule: hasSafeSSH,
		Why:    "who can change the traffic may read or change what the installation sends, keys among it",
		Fix:    "remove them from KexAlgorithms, Ciphers, MACs and HostKeyAlgorithms in sshd_config, or update the SSH server",
		Source: "RFC 9142; OpenSSH release notes: what it has switched off by default",
	}}
}

// hasSafeSSH looks at what the server takes, not at what was used: others connect too.
func hasSafeSSH(s *Subject) Finding {
	sshd := s.Facts.SSHD
	if sshd == nil {
		return skip() // no server, or none of OpenSSH
	}
	var old []string
	for _, of := range []struct {
		algorithms []string
		outdated   func(string) bool
	}{
		{sshd.KexAlgorithms, func(a string) bool { return strings.HasSuffix(a, "sha1") }},
		{sshd.Ciphers, func(a string) bool { return strings.Contains(a, "-cbc") || strings.HasPrefix(a, "arcfour") }},
		{sshd.MACs, func(a string) bool {
			return strings.HasPrefix(a, "hmac-md5") || strings.HasPrefix(a, "hmac-ripemd") || strings.HasPrefix(a, "hmac-sha1-96")
		}},
		{sshd.HostKeyAlgorithms, func(a string) bool { return a == "ssh-dss" || a == "ssh-rsa" }},
	} {
		for _, a := range of.algorithms {
			if of.outdated(a) && !slices.Contains(old, a) {
				old = append(old, a)
			}
		}
	}
	if len(old) > 0 {
		return fail(some(old))
	}
	return pass("none")
}
