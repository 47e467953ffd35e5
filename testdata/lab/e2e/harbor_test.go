package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestHarbor installs a cluster that pulls from Harbor on its worker. Docker and Compose are genuine, and separate
// from the node's containerd. Harbor's images are a stand-in: see software/src/harbor.
func TestHarbor(t *testing.T) {
	th := start(t, scenario{
		hosts:    2,
		with:     []software.Extra{software.Docker, software.DockerCompose, software.Harbor},
		standIns: []string{"Harbor's images"},
		groups:   hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2}, "image_registry": {2}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "imageRegistry: {type: registry}",
				"imageRegistry: {type: harbor}")
		},
	})
	th.nodes, th.pristine = 2, th.traces(t)
	th.makeBundle(t)
	steps(t, []step{
		{"an install killed at Harbor continues", func(t *testing.T) {
			th.killAt(t, "harbor")
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s", r.took.Round(100*time.Millisecond))
			th.nodesAre(t, 1, "host1", "host2")
		}},
		{"Docker has a containerd of its own", th.dockerApart},
		{"a pod pulls from Harbor", func(t *testing.T) { th.pull(t, "host1") }},
		{"a node's login cannot push or delete", th.refusedWrites},
		{"Harbor's robot account is replaced without a restart", func(t *testing.T) { th.rotate(t, "--pull") }},
		{"a rerun changes nothing", th.rerun},
		{"Harbor's host renews its certificate, and Harbor serves the new one", th.harborRenewed},
		{"Harbor is there after its host has started again", th.restartHarbor},
		{"reset leaves what Harbor keeps, and nothing else", th.resetHarbor},
	})
}

func (th *thread) dockerApart(t *testing.T) {
	got := th.on(t, 2, `ps -eo args= | grep -E '^/(usr/local|opt/kkbundle/docker)/bin/(dockerd|containerd)( |$)' | awk '{print $1}' | sort; docker ps --format '{{.Names}}' | sort`)
	want := "/opt/kkbundle/docker/bin/containerd\n/opt/kkbundle/docker/bin/dockerd\n/usr/local/bin/containerd\nnginx\nregistry\n"
	if got != want {
		t.Errorf("host2 runs\n%swant\n%s", got, want)
	}
	if got := th.on(t, 2, "ctr namespaces ls -q"); strings.Contains(got, "moby") {
		t.Errorf("Docker's containers are in the node's containerd: %s", got)
	}
	if got := th.on(t, 2, "stat -c %a /opt/harbor /opt/harbor/harbor.yml"); got != "700\n600\n" {
		t.Errorf("modes of /opt/harbor and harbor.yml:\n%s", got)
	}
}

// harborRenewed runs what the timer runs, as if the certificate ended soon, and then certs renew. What Harbor serves
// is a copy that prepare makes.
func (th *thread) harborRenewed(t *testing.T) {
	served := func() string {
		return th.on(t, 2, "curl -sSkv -o /dev/null https://10.250.0.12/api/v2.0/health 2>&1 | grep 'expire date'")
	}
	const answers = "curl -fsSk https://10.250.0.12/api/v2.0/health | grep healthy"
	before := served()
	th.on(t, 2, "sed 's/ 60 / 400 /' /opt/kkbundle/bin/renew-leaf-certificates | sh -e")
	th.waitFor(t, 2*time.Minute, "Harbor is there", 2, answers)
	renewed := served()
	if renewed == before {
		t.Error("Harbor serves the old certificate after its renewal on the host")
	}
	th.pull(t, "host1")
	run(t, th.site(t, "certs renew")).must(t, 0)
	th.waitFor(t, 2*time.Minute, "Harbor is there", 2, answers)
	if served() == renewed {
		t.Error("Harbor serves the same certificate after certs renew")
	}
	th.pull(t, "host1")
	run(t, th.site(t, "install")).must(t, 0)
	th.rerun(t)
}

func (th *thread) restartHarbor(t *testing.T) {
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	if err := th.lab.Start(t.Context(), th.lab.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	th.waitFor(t, 2*time.Minute, "Harbor is there", 2,
		"systemctl is-active harbor && curl -fsSk https://10.250.0.12/api/v2.0/health | grep healthy")
	th.rerunHA(t) // what the cluster writes about pods that were away goes on beside it
	th.pull(t, "host1")
}

func (th *thread) resetHarbor(t *testing.T) {
	run(t, th.site(t, "reset", "--yes")).must(t, 0)
	const left = `ls -d /opt/harbor /var/log/harbor /etc/docker /var/lib/docker/* /run/docker /opt/kkbundle /usr/local/lib/kkbundle /usr/local/lib/docker /etc/systemd/system/harbor.service 2>/dev/null; ls /usr/local/bin;
		ps -eo comm= | grep -E 'docker|containerd|harbor|registry'; ip -br link | grep -E 'docker|br-'; iptables-save | grep -E 'DOCKER|FORWARD DROP'; true`
	if out := th.on(t, 2, left); out != "" {
		t.Errorf("reset leaves\n%s", out)
	}
	if out := th.on(t, 2, "ls -d /var/lib/harbor/registry"); !strings.Contains(out, "registry") {
		t.Error("reset has taken the images away")
	}
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	if after := th.traces(t); after != th.pristine {
		t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
	}
}
