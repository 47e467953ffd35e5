//go:build linux

package siteregistry

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestRegistryLogin holds that hosts get the login of the site's own registry, and that its password is hidden
// everywhere else.
func TestRegistryLogin(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t,
		"imageRegistry: {type: existing, address: harbor.site, auth: {username: puller, passwordEnv: X}}")
	r := &task.Site{
		Cluster: c, Output: task.Output{Mask: task.NewMasker()},
		Inputs: task.Inputs{RegistryPassword: func() (string, error) { return "hunter2hunter2", nil }},
	}
	access, err := NodeAccess(r)
	if err != nil {
		t.Fatal(err)
	}
	files := cri.HostsFiles(access, []string{"docker.io"}, cri.Asked{})
	if text := string(files[0].Data); !strings.Contains(text, access.Authorization()) || files[0].Mode != 0o600 {
		t.Errorf("mode %o\n%s", files[0].Mode, text)
	}
	if got := r.Mask.Mask("hunter2hunter2 " + access.Authorization()); strings.Contains(got, "hunter2") ||
		strings.Contains(got, strings.TrimPrefix(access.Authorization(), "Basic ")) {
		t.Errorf("the log has %q", got)
	}
}
