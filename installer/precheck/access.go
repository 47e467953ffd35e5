package precheck

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
)

// accessChecks check the access to hosts.
func accessChecks() []Check {
	return []Check{{
		ID: "ssh-algorithms", Groups: []string{GroupHost}, Level: Warn,
		Title: "the SSH server takes no outdated algorithms", Rule: hasSafeSSH,
		Why:    "an attacker who can change the traffic could read or change the installation's data, including keys",
		Fix:    "remove them from KexAlgorithms, Ciphers, MACs and HostKeyAlgorithms in sshd_config, or update the SSH server",
		Source: "RFC 9142; OpenSSH release notes: algorithms disabled by default",
	}}
}

// hasSafeSSH checks all algorithms of the server, not only those used: others connect, too.
func hasSafeSSH(s *Subject) Finding {
	takes := node.SSHD{}
	if s.Facts.SSHD != nil {
		takes = *s.Facts.SSHD
	}
	if used := s.Host.SSH; used != nil {
		takes.KexAlgorithms = append(slices.Clone(takes.KexAlgorithms), used.KeyExchange)
		takes.Ciphers = append(slices.Clone(takes.Ciphers), used.Cipher)
		takes.MACs = append(slices.Clone(takes.MACs), used.MAC)
		takes.HostKeyAlgorithms = append(slices.Clone(takes.HostKeyAlgorithms), used.HostKey)
	}
	if len(takes.KexAlgorithms) == 0 {
		return skip() // no server, or no answer
	}
	old := slices.Concat(
		outdated(takes.KexAlgorithms, func(a string) bool { return strings.HasSuffix(a, "sha1") }),
		outdated(takes.Ciphers, func(a string) bool {
			return strings.Contains(a, "-cbc") ||
				strings.HasPrefix(a, "arcfour")
		}),
		outdated(takes.MACs, func(a string) bool {
			return strings.HasPrefix(a, "hmac-md5") || strings.HasPrefix(a, "hmac-ripemd") ||
				strings.HasPrefix(a, "hmac-sha1-96")
		}),
		outdated(takes.HostKeyAlgorithms,
			func(a string) bool { return strings.HasPrefix(a, "ssh-dss") || strings.HasPrefix(a, "ssh-rsa") }),
	)
	if old = unique(old); len(old) > 0 {
		return fail(some(old))
	}
	return pass("none")
}

func outdated(list []string, is func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(a string) bool { return !is(a) })
}
