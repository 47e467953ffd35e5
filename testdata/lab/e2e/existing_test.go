package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestExistingRegistry installs a cluster that pulls from a company's registry, with TLS by the company's authority
// and a login.
func TestExistingRegistry(t *testing.T) {
	const address = "10.250.0.12:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts:  2,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}},
		edit: func(t *testing.T, dir string) {
			useCompanyRegistry(t, dir, address, ca)
			rewrite(t, filepath.Join(dir, "web.yaml"), "replicas: 2", "replicas: 1")
		},
	})
	th.companyRegistry(t, 2, ca)
	th.makeBundle(t)
	th.pristine = th.traces(t)
	steps(t, []step{
		{"an empty registry is reported with the command that fills it", func(t *testing.T) {
			if r := th.withCompany(t, companyPassword, "install"); r.code == 0 ||
				!strings.Contains(r.stderr, "kkbundle push --registry "+address) {
				t.Errorf("exit code %d\n%s", r.code, r.stderr)
			}
		}},
		{"push fills it, with the company's authority and login", func(t *testing.T) { th.pushToCompany(t, address) }},
		{"a wrong password is refused and named", func(t *testing.T) {
			if r := th.withCompany(t, "wrong-horse-battery", "install"); r.code == 0 || !strings.Contains(r.stderr, address) {
				t.Errorf("exit code %d\n%s", r.code, r.stderr)
			}
		}},
		{"install", func(t *testing.T) {
			r := th.withCompany(t, companyPassword, "install").must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
			th.nodesAre(t, 1, "host1")
		}},
		{"pods pull through it, with upstream's names", func(t *testing.T) {
			th.pull(t, "host1")
			th.on(t, 2, "journalctl --unit=company-registry --no-pager | grep -q /v2/mirror/docker.io/lab/labapp/manifests/")
			if got := th.on(t, 1, "stat -c %a $(grep -l 10.250.0.12:5443 /etc/containerd/certs.d/*/hosts.toml) | sort -u"); got != "600\n" {
				t.Errorf("files with the login have the modes %q", got)
			}
		}},
		{"a rerun changes nothing", func(t *testing.T) {
			if r := th.withCompany(t, companyPassword, "install").must(t, 0); !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
		}},
		{"reset leaves nothing, and the company's registry alone", func(t *testing.T) {
			th.withCompany(t, companyPassword, "reset", "--yes", "--with-data").must(t, 0)
			th.on(t, 2, "systemctl is-active company-registry")
			if after := th.traces(t); after != th.pristine {
				t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
			}
		}},
		{"no packet left the hosts' network", th.packets},
	})
}
