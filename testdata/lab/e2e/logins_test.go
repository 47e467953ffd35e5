package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// refusedWrites sends with the login of host2's hosts.toml what would replace or delete an image of the site's
// registry, and a pod afterwards pulls the image.
func (th *thread) refusedWrites(t *testing.T) {
	// The address has no port with Harbor. The manifest is the image's own, with another byte.
	out := th.on(t, 2, `set -eu
		toml=/etc/containerd/certs.d/registry.k8s.io/hosts.toml
		login=$(sed -n 's/.*\(Basic [^"]*\)".*/\1/p' $toml | head -n 1)
		server=$(sed -n 's|^server = "\(https://[^/]*\)/.*|\1|p' $toml)
		api=$server/v2/registry.k8s.io/pause
		ask() { curl -sS --cacert /etc/kkbundle/registry-ca.crt -H "Authorization: $login" "$@"; }
		accept='Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json'
		tag=$(ask $api/tags/list | sed 's/.*\["\([^"]*\)".*/\1/')
		digest() { ask -I -H "$accept" $api/manifests/$tag | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p'; }
		before=$(digest)
		ask -H "$accept" $api/manifests/$tag >/tmp/manifest
		type=$(sed -n 's/.*"mediaType": *"\([^"]*\(index\|manifest\|list\)[^"]*\)".*/\1/p' /tmp/manifest | head -n 1)
		echo >>/tmp/manifest
		code() { ask -o /dev/null -w "$1 %{http_code}\n" -X "$@"; }
		code PUT -H "Content-Type: $type" --data-binary @/tmp/manifest $api/manifests/$tag
		code DELETE $api/manifests/$before
		code DELETE $api/manifests/$tag
		code POST $api/blobs/uploads/
		code POST $server/v2/evil/blobs/uploads/
		rm /tmp/manifest
		echo "digest $before $(digest)"`)
	t.Logf("%s", out)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines[:len(lines)-1] {
		_, code, _ := strings.Cut(line, " ")
		if code != "401" && code != "403" && code != "405" {
			t.Errorf("the node's login: %s", line)
		}
	}
	fields := strings.Fields(lines[len(lines)-1])
	if len(lines) != 6 || len(fields) != 3 || !strings.HasPrefix(fields[1], "sha256:") || fields[1] != fields[2] {
		t.Errorf("the image's digest before and after: %q", fields)
	}
	th.pull(t, "host2")
}

// registrySees tries to read keys as the registry's services: in their namespaces, and as their user.
func (th *thread) registrySees(t *testing.T) {
	for _, unit := range []string{"kkbundle-registry", "kkbundle-registry-push"} {
		out := th.on(t, 1, fmt.Sprintf(`pid=$(systemctl show -p MainPID --value %s); user=$(ps -o user= -p $pid); echo "user $user"
			for f in /etc/kubernetes/pki/ca.key /etc/kubernetes/pki/ca.crt /etc/kubernetes/admin.conf /etc/kkbundle/etcd/ca.key /etc/ssl/private /etc/ssh/sshd_config /var/lib/kkbundle/applied /var/lib/kubelet/config.yaml; do
				test -e $f || continue
				nsenter -t $pid -m setpriv --reuid=$(id -u kkbundle-cluster-registry) --regid=$(id -g kkbundle-cluster-registry) --clear-groups ls $f/. >/dev/null 2>&1 && echo "lists $f"
				nsenter -t $pid -m setpriv --reuid=$(id -u kkbundle-cluster-registry) --regid=$(id -g kkbundle-cluster-registry) --clear-groups head -c 1 $f >/dev/null 2>&1 && echo "reads $f"
			done
			nsenter -t $pid -m setpriv --reuid=$(id -u kkbundle-cluster-registry) --regid=$(id -g kkbundle-cluster-registry) --clear-groups touch /var/lib/kkbundle/registry/probe 2>/dev/null && echo writes; rm -f /var/lib/kkbundle/registry/probe; true`, unit))
		t.Logf("%s: %s", unit, out)
		if strings.Contains(out, "user root") || strings.Contains(out, "reads ") || strings.Contains(out, "lists ") {
			t.Errorf("%s: %s", unit, out)
		}
		if strings.Contains(out, "writes") != (unit == "kkbundle-registry-push") {
			t.Errorf("%s writes: %s", unit, out)
		}
	}
}

// rotate replaces the registry's logins, and then the cluster is as an installation left it.
func (th *thread) rotate(t *testing.T, flags ...string) {
	const login = "sed -n 's/.*Basic \\([^\"]*\\)\".*/\\1/p' /etc/containerd/certs.d/registry.k8s.io/hosts.toml | head -n 1"
	const starts = "systemctl show containerd kubelet kkbundle-registry -p ActiveEnterTimestampMonotonic --value"
	before, started := th.on(t, 2, login), th.on(t, 2, starts)
	r := run(t, th.site(t, "registry rotate", flags...)).must(t, 0)
	t.Logf("rotate: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.on(t, 2, login); after == before || strings.TrimSpace(after) == "" {
		t.Error("host2 has the old login")
	}
	if got := th.on(t, 2, starts); got != started {
		t.Errorf("host2's services were restarted:\n%s%s", started, got)
	}
	th.pull(t, "host2")
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("an installation afterwards: want 0 changed, got\n%s", r.stderr)
	}
}

// pushByHand pushes with the push login through a port that the test's SSH session would forward; here curl runs on
// the registry host.
func (th *thread) pushByHand(t *testing.T) {
	work := strings.TrimSuffix(th.inventory, filepath.Ext(th.inventory)) + ".work"
	password, err := os.ReadFile(filepath.Join(work, "registry", "push-password"))
	if err != nil {
		t.Fatal(err)
	}
	got := th.on(t, 1, "curl -sS -o /dev/null -w '%{http_code}' --cacert /etc/kkbundle/registry-ca.crt -u kkbundle-push:"+strings.TrimSpace(string(password))+" -X POST https://localhost:5001/v2/by/hand/blobs/uploads/")
	if got != "202" {
		t.Errorf("a push on the registry host with the push login: %s", got)
	}
}
