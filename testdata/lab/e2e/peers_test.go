package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// spegelCatalog has Spegel's chart at an address: the lab's upstream has no charts in its registry.
const spegelCatalog = `apiVersion: kkbundle.io/v1
kind: Catalog
components:
  spegel:
    default: ` + software.SpegelVersion + `
    chart: {url: "https://` + software.SpegelChart + `", version: "{number}"}
    images: ["` + software.SpegelProgram + `"]
`

// peersTools is an image that no node has before a pod asks for it.
const peersTools = "docker.io/library/busybox:1.37.0"

// TestPeers installs four nodes that take layers from each other. Spegel is no module: its program and its chart have
// to be given.
func TestPeers(t *testing.T) {
	const address = "10.250.0.15:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts: 5, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2, 3, 4}},
		with:  []software.Extra{software.Spegel, software.Addons},
		given: []string{software.SpegelProgram, software.SpegelChart},
		edit: func(t *testing.T, dir string) {
			useCompanyRegistry(t, dir, address, ca)
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "cni: {type: flannel}\n",
				"cni: {type: flannel}\nimageDistribution: {peers: spegel}\ncatalog: [catalog.yaml]\n")
			rewrite(t, filepath.Join(dir, "manifest.yaml"), "  - docker.io/lab/labapp:1\n",
				"  - docker.io/lab/labapp:1\n  - "+peersTools+"\n")
			write(t, dir, map[string]string{"catalog.yaml": spegelCatalog})
		},
	})
	th.companyRegistry(t, 5, ca)
	th.makeBundle(t)
	th.pristine = th.traces(t)
	steps(t, []step{
		{"push fills the registry", func(t *testing.T) { th.pushToCompany(t, address) }},
		{"install", func(t *testing.T) {
			r := th.withCompany(t, companyPassword, "install").must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
		}},
		{"a node gives layers to nobody without the login", func(t *testing.T) {
			if got := th.on(t, 5, "curl -s -o /dev/null -w %{http_code} http://10.250.0.12:30020/v2/"); got != "401" {
				t.Errorf("the answer is %s", got)
			}
		}},
		{"the registry sends each layer to one of four nodes", th.layersOnce},
		{"a node takes an image from the others while the registry is away", th.registryAway},
		{"a rerun changes nothing", func(t *testing.T) {
			r := th.withCompany(t, companyPassword, "install").must(t, 0)
			if !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
		}},
		{"another login reaches the pods", th.otherLogin},
		{"reset leaves nothing", func(t *testing.T) {
			th.withCompany(t, companyPassword, "reset", "--yes", "--with-data").must(t, 0)
			if after := th.traces(t); after != th.pristine {
				t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
			}
		}},
		{"no packet left the hosts' network", th.packets},
	})
}

// runOn starts a pod of an image on a host, and waits until it runs.
func (th *thread) runOn(t *testing.T, number int, image string) {
	t.Helper()
	pod := fmt.Sprintf("peer%d", number)
	th.kubectl(t, fmt.Sprintf(`run %s --image=%s --overrides='{"spec":{"nodeName":%q,"tolerations":[{"operator":"Exists"}]}}' -- sleep 3600`,
		pod, image, th.lab.Hosts[number-1].Name))
	th.kubectl(t, "wait pod/"+pod+" --for=condition=Ready --timeout=90s")
}

// blobs returns how often the registry has sent each blob of a repository.
func (th *thread) blobs(t *testing.T, repository string) map[string]int {
	sent := map[string]int{}
	out := th.on(t, 5, `journalctl --unit=company-registry --no-pager | grep -F 'msg="response completed"' | grep -F 'http.request.method=GET' |
		grep -o '/v2/mirror/`+repository+`/blobs/sha256:[0-9a-f]*' | grep -o 'sha256:[0-9a-f]*'; true`)
	for _, digest := range strings.Fields(out) {
		sent[digest]++
	}
	return sent
}

func (th *thread) layersOnce(t *testing.T) {
	th.runOn(t, 2, peersTools)
	time.Sleep(5 * time.Second) // Spegel tells the others what its node has
	for _, number := range []int{1, 3, 4} {
		th.runOn(t, number, peersTools)
	}
	sent := th.blobs(t, "docker.io/library/busybox")
	t.Logf("the registry has sent %v", sent)
	if len(sent) == 0 {
		t.Errorf("the registry has sent no layer: nothing was seen of\n%s",
			th.on(t, 5, "journalctl --unit=company-registry --no-pager | grep busybox | tail -5"))
	}
	for digest, times := range sent {
		if times != 1 {
			t.Errorf("%s was sent %d times", digest, times)
		}
	}
	th.kubectl(t, "delete pod peer1 peer2 peer3 peer4 --now")
}

// registryAway has the control plane, which runs no pod of the application, take its image by the digest.
func (th *thread) registryAway(t *testing.T) {
	image := strings.TrimSpace(th.kubectl(t, "get pods -n web -o jsonpath='{.items[0].status.containerStatuses[0].imageID}'"))
	th.on(t, 5, "systemctl stop company-registry")
	th.runOn(t, 1, image)
	th.kubectl(t, "delete pod peer1 --now")
	th.on(t, 5, "systemctl reset-failed company-registry; systemd-run --unit=company-registry /srv/bin/registry serve /srv/registry/config.yml")
	th.waitFor(t, time.Minute, "the company's registry is back", 5, "curl -sk https://127.0.0.1:5443/v2/ | grep -q UNAUTHORIZED")
}

// otherLogin loses the login's file in the work directory.
func (th *thread) otherLogin(t *testing.T) {
	before := th.on(t, 3, "grep -h Authorization /etc/containerd/certs.d/docker.io/hosts.toml")
	file := filepath.Join(strings.TrimSuffix(th.lab.InventoryFile(), ".yaml")+".work", "registry", "peers-password")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	th.withCompany(t, companyPassword, "install").must(t, 0)
	after := th.on(t, 3, "grep -h Authorization /etc/containerd/certs.d/docker.io/hosts.toml")
	if before == after {
		t.Error("the node has the login of before")
	}
	th.kubectl(t, "-n kube-system rollout status daemonset/spegel --timeout=3m")
	th.on(t, 3, `curl -sf -o /dev/null -H "$(sed -n '/30020".header/,$s/.*Authorization = \["\(.*\)"\]/Authorization: \1/p' /etc/containerd/certs.d/docker.io/hosts.toml | head -1)" http://10.250.0.13:30020/v2/`)
}
