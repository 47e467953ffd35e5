//go:build linux

package installer

import (
	"os"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

const hostsTemplate = "/etc/cloud/templates/hosts.debian.tmpl"

const ofDebian = "## template:jinja\n{# as Debian ships it #}\n127.0.1.1 {{fqdn}} {{hostname}}\n127.0.0.1 localhost\n"

// TestHostsSurviveCloudInit holds that the names of the hosts are in the template from which cloud-init writes
// /etc/hosts at each boot, wherever its configuration says so, and that reset takes them out again.
func TestHostsSurviveCloudInit(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, file, text string
		writes           bool
	}{
		{
			"the image's configuration", "/etc/cloud/cloud.cfg", "preserve_hostname: false\nmanage_etc_hosts: true\n",
			true,
		},
		{"a drop-in", "/etc/cloud/cloud.cfg.d/90_site.cfg", "manage_etc_hosts: template\n", true},
		{
			"the provider's user data", "/var/lib/cloud/instance/cloud-config.txt",
			"#cloud-config\n\nmanage_etc_hosts: True\n", true,
		},
		{
			"the configuration of this boot", "/run/cloud-init/combined-cloud-config.json",
			`{"a": 1, "manage_etc_hosts": true}`, true,
		},
		{"localhost only", "/etc/cloud/cloud.cfg", "manage_etc_hosts: localhost\n", false},
		{"off", "/etc/cloud/cloud.cfg", "manage_etc_hosts: false\n", false},
		{"a comment", "/etc/cloud/cloud.cfg", "# manage_etc_hosts: true\n", false},
		{"not said", "/etc/cloud/cloud.cfg", "preserve_hostname: false\n", false},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1")
			h := s.Hosts["node1"]
			h.Put(t, hostsTemplate, ofDebian)
			h.Put(t, one.file, one.text)
			phases := []task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}
			if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			written := h.Content(hostsTemplate)
			if has := strings.Contains(written, "\n10.0.0.3 cp1\n10.0.0.4 node1\n"); has != one.writes ||
				!strings.HasPrefix(written, ofDebian) {
				t.Errorf("the template:\n%s", written)
			}
			s.States()
			s.Events = nil
			if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil ||
				strings.Contains(strings.Join(s.States(), " "), "changed") {
				t.Errorf("a second run: %v, %v", err, s.States())
			}
			// A boot of cloud-init: the template replaces the file.
			if one.writes {
				h.Put(t, "/etc/hosts", written)
				s.Events = nil
				if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil ||
					strings.Contains(strings.Join(s.States(), " "), "changed") {
					t.Errorf("after a boot: %v, %v\n%s", err, s.States(), h.Content("/etc/hosts"))
				}
			}
			s.Dialing("")
			if err := reset.Reset(t.Context(), s.Options); err != nil {
				t.Fatal(err)
			}
			if got := h.Content(hostsTemplate); got != ofDebian {
				t.Errorf("after reset:\n%s", got)
			}
		})
	}
	// A host without cloud-init gets no file of it.
	s := sitetest.NewSite(t, "cp1")
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Hosts["cp1"].Root + "/etc/cloud"); err == nil {
		t.Error("there is an /etc/cloud")
	}
}
