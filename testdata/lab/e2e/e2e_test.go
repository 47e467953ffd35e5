// Package e2e goes the whole way of a byte: genuine software from a real upstream into a bundle, and a cluster on hosts
// without a way out from that bundle alone. The subtests of TestThread build on one another.
package e2e

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/upstream"
)

// TestThread takes a cluster through a whole life: build, push, precheck, install, kill and continue, registry
// logins, addons, nodes add, status, support bundle, reset.
func TestThread(t *testing.T) {
	th := start(t, scenario{hosts: 3, groups: hosts.Groups{
		"kube_control_plane": {1}, "etcd": {1},
		"image_registry": {1}, "kube_worker": {2},
	}})
	th.nodes, th.pristine = 2, th.traces(t)
	steps(t, []step{
		{"build fetches every byte once", th.build},
		{"a second build fetches nothing", th.rebuild},
		{"the same lock gives the same bytes", th.reproduce},
		{"verify and inspect", th.inspect},
		{"other tools read the layout", th.layout},
		{"a changed host key is refused", th.changedHostKey},
		{"a wrong sudo password is refused", th.wrongSudoPassword},
		{"precheck finds a busy port and changes nothing", th.precheck},
		{"precheck finds each fault, and no other", th.faults},
		{"a hook that fails stops the install with its output", th.hooks},
		{"an install that loses a host says so, and goes on with the others", th.lostHost},
		{"an install killed at containerd and at kubeadm init continues", th.killed},
		{"the cluster works", th.cluster},
		{"nothing undeclared was used", th.declared},
		{"a rerun changes nothing", th.rerun},
		{"status says healthy, and a support bundle has no secrets", th.looks},
		{"status finds a lost controller manager without a cluster file, and waits for it", th.notReady},
		{"a node's login cannot push or delete", th.refusedWrites},
		{"the registry's services cannot read keys", th.registrySees},
		{"the push login pushes, on the registry host", th.pushByHand},
		{"the registry's logins are rotated without a restart", func(t *testing.T) { th.rotate(t) }},
		{"a node's new login cannot push or delete, either", th.refusedWrites},
		{"a chart that fails is rolled back, and YAML is applied", th.addons},
		{"a worker is added", th.addWorker},
		{"reset leaves nothing, and everything as it was", th.reset},
		{"a fresh install after the reset works", th.install},
		{"no packet left the hosts' network", th.packets},
	})
}

// content says whether a request was for bytes of an artifact, not for what is known about it.
func content(r upstream.Request) bool {
	isBlob := strings.Contains(r.Path, "/blobs/")
	isFile := strings.Contains(r.Path, "/bin/") || strings.HasSuffix(r.Path, ".tar.gz") ||
		strings.HasSuffix(r.Path, ".tgz")
	return r.Method == "GET" && (r.Status == 200 || r.Status == 206) && (isBlob || isFile)
}

func (th *thread) build(t *testing.T) {
	th.connected(t, "lock", "manifest.yaml").must(t, 0)
	r := th.connected(t, "build", "--locked", "manifest.yaml").must(t, 0)
	t.Logf("cold build: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	seen := 0
	times := map[string]int{}
	for _, q := range th.requests(t, &seen) {
		if content(q) {
			times[q.Path]++
		}
	}
	if len(times) < 20 {
		t.Fatalf("only %d artifacts in the upstream's log: the log is not what this test thinks it is", len(times))
	}
	for path, n := range times {
		if n > 1 {
			t.Errorf("%s was fetched %d times", path, n)
		}
	}
}

func (th *thread) rebuild(t *testing.T) {
	seen := 0
	th.requests(t, &seen)
	r := th.connected(t, "build", "--locked", "-o", "again.kkb", "manifest.yaml").must(t, 0)
	t.Logf("warm build: %s", r.took.Round(100*time.Millisecond))
	for _, q := range th.requests(t, &seen) {
		if content(q) {
			t.Errorf("%s was fetched again", q.Path)
		}
	}
}

func (th *thread) reproduce(t *testing.T) {
	th.connected(t, "build", "--locked", "--jobs", "1", "--cache", filepath.Join(th.dir, "cache1"), "-o", "one.kkb",
		"manifest.yaml").must(t, 0)
	for _, other := range []string{"again.kkb", "one.kkb"} {
		other = filepath.Join(th.dir, other)
		if out, err := exec.CommandContext(t.Context(), "cmp", th.bundle(), other).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := os.Remove(other); err != nil {
			t.Error(err)
		}
	}
}

func (th *thread) inspect(t *testing.T) {
	digest := strings.TrimSpace(th.connected(t, "verify", th.bundle()).must(t, 0).stdout)
	var x struct {
		Name, BundleVersion, Digest string
		Size                        int64
		Items                       []struct{ Kind, Name, Digest, MediaType string }
	}
	if err := json.Unmarshal([]byte(th.connected(t, "inspect", "--json", th.bundle()).must(t, 0).stdout),
		&x); err != nil {
		t.Fatal(err)
	}
	if x.Name != "lab" || x.BundleVersion != "1.0.0" || x.Digest != digest || len(x.Items) < 20 {
		t.Errorf("inspect says %s %s %s with %d items; verify says %s", x.Name, x.BundleVersion, x.Digest, len(x.Items),
			digest)
	}
}

// layout unpacks the bundle with zstd and tar alone.
func (th *thread) layout(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `zstd -dc "$1" | tar -x -C "$2"`, "sh", th.bundle(),
		dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, d := range m.Manifests {
		if d.Annotations["io.kkbundle.kind"] != "image" || !d.MediaType.IsImage() {
			continue
		}
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", d.Annotations["io.kkbundle.ref"], err)
		}
		checked++
	}
	if checked == 0 {
		t.Error("the layout has no image that is a single manifest; the lab's upstream publishes one")
	}
	// skopeo's layouts know OCI's own media types only; labapp has those.
	if out, err := exec.CommandContext(t.Context(), "skopeo", "inspect", "oci:"+dir+
		":docker.io/lab/labapp:1").CombinedOutput(); err != nil {
		t.Errorf("skopeo: %v: %s", err, out)
	}
}

// changedHostKey gives host2 the key of host1.
func (th *thread) changedHostKey(t *testing.T) {
	known, err := os.ReadFile(th.lab.KnownHostsFile())
	if err != nil {
		t.Fatal(err)
	}
	first, second := th.lab.Hosts[0].Address, th.lab.Hosts[1].Address
	var swapped []string
	for _, line := range strings.Split(string(known), "\n") {
		if strings.HasPrefix(line, first) {
			swapped = append(swapped, line, strings.Replace(line, first, second, 1))
		}
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(strings.Join(swapped, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.site(t, "install", "--known-hosts", file)).must(t, 13)
	if !strings.Contains(r.stderr, "host2") || strings.Count(r.stderr, "SHA256:") < 2 {
		t.Errorf("want the host and both fingerprints, got\n%s", r.stderr)
	}
}

func (th *thread) wrongSudoPassword(t *testing.T) {
	inventory, err := os.ReadFile(th.lab.InventoryFile())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const wrong = "not-the-password"
	password, file := filepath.Join(dir, "password"), filepath.Join(dir, "inventory.yaml")
	text := strings.Replace(string(inventory), filepath.Join(th.lab.State, "sudo-password"), password, 1)
	if text == string(inventory) {
		t.Fatal("the lab's inventory names no password file")
	}
	for name, data := range map[string]string{password: wrong + "\n", file: text} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, th.site(t, "install", "-i", file)).must(t, 13)
	if !strings.Contains(r.stderr, "host2") || !strings.Contains(r.stderr, "sudo") ||
		strings.Contains(r.stderr, wrong) {
		t.Errorf("want the host and the reason without the password, got\n%s", r.stderr)
	}
}

func (th *thread) precheck(t *testing.T) {
	run(t, th.site(t, "reset", "--yes")).must(t, 0) // what the refused installs left; also: there is nothing to reset
	before := th.traces(t)
	th.on(t, 2, "systemd-run --quiet --collect --unit=busy-port socat TCP-LISTEN:10250,fork,reuseaddr /dev/null")
	eventually(t, "something listens on 10250",
		func() bool { return strings.Contains(th.on(t, 2, "ss -ltnH"), ":10250") })
	r := run(t, th.site(t, "precheck")).must(t, 12)
	if !strings.Contains(r.stdout, "10250") || !strings.Contains(r.stdout, "host2") {
		t.Errorf("want the port and the host, got\n%s", r.stdout)
	}
	th.on(t, 2, "systemctl stop busy-port")
	eventually(t, "nothing listens on 10250",
		func() bool { return !strings.Contains(th.on(t, 2, "ss -ltnH"), ":10250") })
	run(t, th.site(t, "precheck")).must(t, 0)
	if after := th.traces(t); after != before {
		t.Errorf("precheck left traces:\n%s", difference(before, after))
	}
}

// hooks runs scripts: one that leaves a mark on every host, and one on host2 that fails.
func (th *thread) hooks(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"pre_install.sh":       "#!/bin/sh\nhostname >> /root/hooked\n",
		"pre_install_host2.sh": "#!/bin/sh\necho the disk of $(hostname) is not the one ordered >&2\nexit 3\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, th.site(t, "install", "--hooks", dir)).must(t, 16)
	if !strings.Contains(r.stderr, "the disk of host2 is not the one ordered") ||
		!strings.Contains(r.stderr, "pre_install_host2.sh") {
		t.Errorf("want the script's name and its output, got\n%s", r.stderr)
	}
	for number, name := range map[int]string{1: "host1", 2: "host2"} {
		if got := th.on(t, number, "cat /root/hooked; stat -c %a /etc/kubekey/scripts/pre_install.sh"); got != name+
			"\n755\n" {
			t.Errorf("%s: want its name and mode 755, got %q", name, got)
		}
	}
	run(t, th.site(t, "install", "--hooks", dir)).must(t, 16)
	if got := th.on(t, 1, "cat /root/hooked"); got != "host1\n" {
		t.Errorf("the hook that had succeeded ran again: %q", got)
	}
	for number := range 2 {
		th.on(t, number+1, "rm /root/hooked") // reset does not undo what hooks did
	}
}

// traces is what an installer leaves on hosts: files with their modes and owners, links, units, interfaces, routes,
// what the kernel forwards, and the packet filter's own chains and rules. Names that end in - are copies that the
// system's tools make of /etc/passwd and the like before they change them.
func (th *thread) traces(t *testing.T) string {
	t.Helper()
	const line = `find /etc /usr/local /opt /var/lib/kkbundle /var/lib/etcd /root /home -xdev ! -name '*[~-]' ! -name .sudo_as_admin_successful ! -name .cache \
			! -path '/home/*/.sudo*' ! -type d -printf '%p %M %u:%g %l\n' 2>/dev/null | sort
		find /etc /usr/local /opt -xdev -type d -printf '%p %M %u:%g\n' | sort
		find /etc /usr/local /opt /var/lib/kkbundle /var/lib/etcd /root -xdev -type f ! -name '*[~-]' -exec sha256sum {} + 2>/dev/null | sort -k 2
		systemctl list-unit-files --no-legend --no-pager --type=service | awk '{print $1, $2}' | sort
		ip -br link | awk '{print $1}' | sed 's/@.*//' | sort; ip -4 route | sort
		sysctl -a 2>/dev/null | grep -E '^net\.ipv4\.(ip_forward|conf\.(all|default|eth0)\.)' | sort
		(iptables-save; ip6tables-save) 2>/dev/null | grep -E '^(-A|:[^ ]+ -)' ; nft list tables 2>/dev/null | grep -E 'kube|cni|flannel'; true`
	text := ""
	for _, h := range th.lab.Hosts {
		text += "== " + h.Name + "\n" + th.on(t, h.Number, line)
	}
	return text
}

// lostHost pulls the worker's cable when containerd is being installed, which takes long enough to be in the middle.
func (th *thread) lostHost(t *testing.T) {
	h := th.lab.Hosts[1]
	cmd := th.site(t, "install", "--json", "--tags", "hosts,registry,cri")
	pulled := false
	var errs strings.Builder
	cmd.Stderr = io.MultiWriter(&errs, lines(func(line []byte) {
		var e struct{ Task, State, Host string }
		if json.Unmarshal(line, &e) == nil && e.Task == "containerd" && e.Host == h.Name && e.State == "started" &&
			!pulled {
			pulled = true
			if err := th.lab.Link(t.Context(), h, false); err != nil {
				t.Error(err)
			}
		}
	}))
	begin := time.Now()
	err := cmd.Run()
	if err := th.lab.Link(t.Context(), h, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host answers again", func() bool { return th.lab.SSH(t.Context(), h, "true").Run() == nil })
	if code := cmd.ProcessState.ExitCode(); !pulled || code != 13 || !strings.Contains(errs.String(), h.Name) {
		t.Fatalf("cable pulled: %v; exit code %d (%v) after %s, want 13 and the host's name\n%s", pulled, code, err,
			time.Since(begin), errs.String())
	}
	if active := th.on(t, 1, "systemctl is-active containerd"); active != "active\n" {
		t.Errorf("containerd of the other host is %s", active)
	}
	t.Logf("noticed after %s: %s", time.Since(begin).Round(time.Second), errs.String())
}

func (th *thread) killed(t *testing.T) {
	th.killAt(t, "containerd")
	th.killAt(t, "kubeadm-init")
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("%s\n%s", r.took.Round(time.Second), r.stderr)
}

func (th *thread) cluster(t *testing.T) {
	c, err := results.ClusterOf(filepath.Join(th.dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	nodes := th.kubectl(t, `get nodes --no-headers`)
	if want := th.nodes; strings.Count(nodes, " Ready ") != want || strings.Count(nodes, c.Kubernetes) != want {
		t.Errorf("want %d nodes of %s that are Ready, got\n%s", want, c.Kubernetes, nodes)
	}
	// The user's chart: a pod on each node, each reaches the service by name, and gets answers from both.
	pods := strings.Split(strings.TrimSpace(th.kubectl(t, `-n web get pods --no-headers -o wide`)), "\n")
	if len(pods) != 2 || field(pods[0], 6) == field(pods[1], 6) {
		t.Fatalf("want a pod on each node, got\n%s", strings.Join(pods, "\n"))
	}
	for _, pod := range pods {
		th.kubectl(t, "-n web exec "+field(pod, 0)+" -- /labapp lookup kubernetes.default.svc.cluster.local")
		answers := map[string]bool{}
		eventually(t, "answers from both pods", func() bool {
			answers[th.kubectl(t, "-n web exec "+field(pod, 0)+
				" -- /labapp get http://web.web.svc.cluster.local/")] = true
			return len(answers) == 2
		})
	}
	for _, number := range []int{1, 2} {
		th.on(t, number, "curl -fsS --max-time 5 http://"+th.lab.Hosts[0].Address+":30080/")
	}
}

// snapshot is what a rerun must not change.
func (th *thread) snapshot(t *testing.T) string {
	t.Helper()
	const host = `find /etc /usr/local /opt -xdev -type f -exec sha256sum {} + | sort -k 2;
		systemctl show containerd docker cri-docker crio kubelet kkbundle-registry -p ActiveEnterTimestampMonotonic --value 2>/dev/null`
	// Leases, and the fields that components write about themselves, change all the time: a Deployment's status still
	// does when the pods of its last rollout end. The token of kubeadm init ends five minutes after it, which the
	// cluster information follows.
	const objects = `list() { KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf get $1 -A -o jsonpath="{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} $2{'\n'}{end}"; }
		for k in services configmaps secrets serviceaccounts; do list $k '{.metadata.resourceVersion}'; done | grep -v -e kube-public/cluster-info -e kube-system/bootstrap-token-
		for k in deployments daemonsets; do list $k '{.metadata.generation} {.metadata.labels} {.metadata.annotations}'; done`
	return th.on(t, 1, host) + th.on(t, 2, host) + th.on(t, 1, objects)
}

func (th *thread) rerun(t *testing.T) {
	before := th.snapshot(t)
	r := run(t, th.site(t, "install")).must(t, 0)
	if !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	if after := th.snapshot(t); after != before {
		t.Errorf("the rerun changed something:\n%s", difference(before, after))
	}
	t.Logf("rerun: %s", r.took.Round(100*time.Millisecond))
}

// notReady takes away the controller manager and CoreDNS' pods; status has neither a cluster file nor a bundle.
func (th *thread) notReady(t *testing.T) {
	status := func(flags ...string) result {
		args := append([]string{"status", "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile()}, flags...)
		return run(t, th.lab.Command(t.Context(), th.kkbundle, args...))
	}
	const manifests, kubectl = "/etc/kubernetes/manifests",
		"KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace kube-system "
	th.on(t, 1, "mv "+manifests+"/kube-controller-manager.yaml /root/")
	th.waitFor(t, 2*time.Minute, "the controller manager is gone", 1, "! pgrep -f '^kube-controller-manager' && ! "+
		kubectl+"get pod kube-controller-manager-host1")
	th.on(t, 1, kubectl+"delete pod --selector=k8s-app=kube-dns --wait=true") // nothing makes new ones
	r := status().must(t, 23)
	for _, want := range []string{"control-plane-pods", "kube-controller-manager", "coredns"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}
	th.on(t, 1, "mv /root/kube-controller-manager.yaml "+manifests+"/")
	t.Logf("healthy again after %s", status("--wait", "5m").must(t, 0).took.Round(time.Second))
}

// looks asks for the status and collects a support bundle, which must not have the secrets that the hosts have.
func (th *thread) looks(t *testing.T) {
	var status struct {
		Healthy   bool
		Nodes     []struct{ Ready bool }
		Installed struct{ Name string }
	}
	if err := json.Unmarshal([]byte(run(t, th.site(t, "status", "-o", "json")).must(t, 0).stdout),
		&status); err != nil {
		t.Fatal(err)
	}
	if !status.Healthy || len(status.Nodes) != th.nodes || status.Installed.Name != "lab" {
		t.Errorf("got %+v", status)
	}
	file := filepath.Join(t.TempDir(), "support.tar.zst")
	r := run(t, th.site(t, "support-bundle", "-o", file)).must(t, 0)
	text, err := exec.CommandContext(t.Context(), "zstd", "-dc", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "support/hosts/host2/units.log") ||
		!strings.Contains(string(text), "support/cluster/nodes.json") {
		t.Errorf("logs or objects are not in it: %s", r.stderr)
	}
	secrets := th.on(t, 1, `cat /etc/kubernetes/pki/*.key /etc/kubernetes/pki/etcd/*.key /etc/kkbundle/*.key 2>/dev/null | grep -v -e -----;
		sed -n 's/.*client-key-data: //p' /etc/kubernetes/*.conf; sed -n 's/.*Basic \([^"]*\)".*/\1/p' /etc/containerd/certs.d/*/hosts.toml 2>/dev/null | sort -u
		sed -n 's/.*"auth": *"\([^"]*\)".*/\1/p' /var/lib/kubelet/config.json /etc/kkbundle/mirror-auth.json 2>/dev/null; true`)
	if strings.Count(secrets, "\n") < 50 {
		t.Fatalf("the host's secrets were not found: %d lines", strings.Count(secrets, "\n"))
	}
	for secret := range strings.Lines(secrets) {
		if secret = strings.TrimSpace(secret); len(secret) > 20 && strings.Contains(string(text), secret) {
			t.Errorf("a secret of host1 that begins with %s is in the support bundle", secret[:6])
		}
	}
}

// difference has the lines that only one of two texts has.
func difference(a, b string) string {
	in := map[string]int{}
	for _, l := range strings.Split(a, "\n") {
		in[l]++
	}
	var out []string
	for _, l := range strings.Split(b, "\n") {
		if in[l]--; in[l] < 0 {
			out = append(out, "+ "+l)
		}
	}
	for l, n := range in {
		if n > 0 {
			out = append(out, "- "+l)
		}
	}
	return strings.Join(out, "\n")
}

// addWorker adds the third host, which the inventory did not have.
func (th *thread) addWorker(t *testing.T) {
	if err := th.lab.WriteInventory(th.inventory, hosts.Groups{
		"kube_control_plane": {1}, "etcd": {1},
		"image_registry": {1}, "kube_worker": {2, 3},
	}); err != nil {
		t.Fatal(err)
	}
	before := th.snapshot(t)
	r := run(t, th.site(t, "nodes add", "--yes")).must(t, 0)
	t.Logf("worker added: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	th.nodes = 3
	th.cluster(t)
	for _, line := range strings.Split(difference(before, th.snapshot(t)), "\n") {
		if name := field(line, 2); name != "/etc/hosts" && strings.HasPrefix(name, "/") {
			t.Errorf("on the other hosts, something else than /etc/hosts was changed: %s", line)
		}
	}
	run(t, th.site(t, "nodes add")).must(t, 0) // nothing to do is no error, and nothing to ask
}

func (th *thread) reset(t *testing.T) {
	r := run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	t.Logf("reset: %s", r.took.Round(100*time.Millisecond))
	const left = `ls -d /etc/kubernetes /etc/kubekey /etc/containerd /etc/cni /var/lib/kkbundle /var/lib/kubelet/* /var/lib/containerd/* /var/lib/etcd/* /var/lib/cni \
			/etc/systemd/system/*kube* /etc/systemd/system/*kkbundle* /etc/systemd/system/containerd* /etc/sysctl.d/*kkbundle* /usr/local/bin/kube* 2>/dev/null;
		ps -eo comm= | grep -E 'kube|etcd|containerd|registry|flannel|coredns'; ip -br link | grep -E 'cni|flannel|veth' ; ip route | grep -v 10.250.0.0/24; grep -l kkbundle /etc/hosts; true`
	for number := range th.nodes {
		if out := th.on(t, number+1, left); out != "" {
			t.Errorf("host%d still has\n%s", number+1, out)
		}
	}
	if after := th.traces(t); after != th.pristine {
		t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
	}
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0) // again: nothing to do is no error
}

func (th *thread) install(t *testing.T) {
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("fresh install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	th.cluster(t)
	work := strings.TrimSuffix(th.lab.InventoryFile(), ".yaml") + ".work"
	log, err := os.ReadFile(filepath.Join(work, "install.log"))
	if err != nil {
		t.Fatal(err)
	}
	password, err := os.ReadFile(filepath.Join(th.lab.State, "sudo-password"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), strings.TrimSpace(string(password))) ||
		!strings.Contains(string(log), "kubeadm init") {
		t.Error("install.log must have the commands and no password")
	}
}

func (th *thread) packets(t *testing.T) {
	left, err := th.lab.LeftPackets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Errorf("%d packets were on their way out", left)
	}
}
