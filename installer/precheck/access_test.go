//go:build linux

package precheck_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	sshhost "github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/installer/precheck"
)

// TestOutdatedSSH holds, against OpenSSH's own server, that what is outdated is told of connections that come about,
// and that a server with nothing else is refused with a sentence that says so.
func TestOutdatedSSH(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, config, found, refused string }{
		{"of today", "", "", ""},
		{"key exchange", "KexAlgorithms diffie-hellman-group14-sha1", "diffie-hellman-group14-sha1", ""},
		{"MAC", "Ciphers aes128-ctr\nMACs hmac-sha1-96", "hmac-sha1-96", ""},
		{"CBC only", "Ciphers aes128-cbc,3des-cbc", "", "the host's SSH server is outdated"},
		{"group 1 only", "KexAlgorithms diffie-hellman-group1-sha1", "", "the host's SSH server is outdated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Config: c.config})
			in := good(t)
			h := &in.Hosts[1]
			on, err := sshhost.Dial(t.Context(), sshhost.SSHOptions{
				Name: h.Name, Address: s.Host, Port: s.Port,
				User: hosttest.UserSudoFree, Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts},
				Patience: time.Hour,
			})
			want := "ssh-algorithms"
			switch {
			case c.refused != "":
				h.Facts, h.Err, c.found, want = nil, err, c.refused, "reachable"
			case err != nil:
				t.Fatal(err)
			default:
				defer func() { _ = on.Close() }()
				used, _ := sshhost.AlgorithmsOf(on)
				h.SSH = &used
			}
			r := precheck.Evaluate(in)
			i := slices.IndexFunc(r.Results, func(r precheck.Result) bool { return r.ID == want && r.Host == h.Name })
			if i < 0 || r.Results[i].OK != (c.found == "") || !strings.Contains(r.Results[i].Found, c.found) {
				t.Fatalf("want %s of %s among %v, used %+v, %v", c.found, want, failed(r), h.SSH, err)
			}
			if one := r.Results[i]; !one.OK && one.ID == "ssh-algorithms" && one.Level != precheck.Warn {
				t.Errorf("it is at level %s", one.Level)
			}
		})
	}
}
