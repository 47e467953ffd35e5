package hosts_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// program is a kkbundle that is a script.
func program(t *testing.T, script string) *hosts.Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kkbundle")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &hosts.Program{Path: path, Environment: hosts.Environment(t.TempDir())}
}

// TestProgram follows events, takes the error event for the failure, and survives what is no event.
func TestProgram(t *testing.T) {
	t.Setenv("SECRET_OF_THE_MANAGER", "hunter2")
	p := program(t, `cat
echo '{"event":"task","phase":"bootstrap","task":"swap","state":"done"}' >&2
echo 'panic: none' >&2
[ -z "$SECRET_OF_THE_MANAGER" ] || exit 99
case $2 in
fails) echo '{"event":"error","message":"node1: unreachable","exitCode":13,"hint":"look at it"}' >&2; exit 13 ;;
crashes) exit 2 ;;
esac
`)
	var seen []hosts.Event
	out, err := p.Run(t.Context(), hosts.Call{Args: []string{"provision"}, Stdin: []byte("document"), Progress: func(e hosts.Event) { seen = append(seen, e) }})
	if err != nil || string(out) != "document" || len(seen) != 1 || seen[0].Phase != "bootstrap" {
		t.Errorf("%q, %v, %+v", out, err, seen)
	}
	var f *hosts.Failure
	if _, err := p.Run(t.Context(), hosts.Call{Args: []string{"fails"}}); !errors.As(err, &f) || !f.Unreachable() || err.Error() != "node1: unreachable; look at it" {
		t.Errorf("%v", err)
	}
	if _, err := p.Run(t.Context(), hosts.Call{Args: []string{"crashes"}}); !errors.As(err, &f) || f.Code != 2 || !strings.Contains(err.Error(), "panic: none") {
		t.Errorf("%v", err)
	}
	if _, err := (&hosts.Program{Path: "/nowhere/kkbundle"}).Run(t.Context(), hosts.Call{}); err == nil {
		t.Error("a program that is not there ran")
	}
}

// TestProgramIsToldToEnd: a cancelled run gets SIGTERM, and its end is awaited.
func TestProgramIsToldToEnd(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "ended")
	p := program(t, `trap 'echo yes > `+mark+`; exit 130' TERM; echo '{"event":"task","phase":"x"}' >&2; while :; do sleep 0.05; done`)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := p.Run(ctx, hosts.Call{Args: []string{"reset"}, Progress: func(hosts.Event) { cancel(errors.New("the instance is deleted")) }})
	if err == nil || !strings.Contains(err.Error(), "the instance is deleted") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("the run did not end in order")
	}
}

// A recorder is a Runner that keeps what it was called with, and the files of the run.
type recorder struct {
	call   hosts.Call
	files  map[string]string
	out    string
	err    error
	events []hosts.Event
	learn  string
}

func (r *recorder) Run(_ context.Context, call hosts.Call) ([]byte, error) {
	r.call, r.files = call, map[string]string{}
	for _, e := range r.events {
		call.Progress(e)
	}
	if i := slices.Index(call.Args, "--output"); i >= 0 {
		if err := os.WriteFile(call.Args[i+1], []byte("bundle"), 0o600); err != nil {
			return nil, err
		}
	}
	if i := slices.Index(call.Args, "--inventory"); i >= 0 {
		dir := filepath.Dir(call.Args[i+1])
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				return nil, errors.New(e.Name() + " can be read by others")
			}
			r.files[e.Name()] = string(data)
		}
		if r.learn != "" {
			if err := os.WriteFile(filepath.Join(dir, "known_hosts"), []byte(r.learn), 0o600); err != nil {
				return nil, err
			}
		}
	}
	return []byte(r.out), r.err
}

func operator(t *testing.T, r hosts.Runner) *hosts.Operator {
	t.Helper()
	return &hosts.Operator{Runner: r, Dir: t.TempDir(), Bundles: t.TempDir()}
}

func node() hosts.Host {
	return hosts.Host{
		Name: "prod-cp-x", Owner: "site/prod/prod-cp-x", InternalIPv4: "10.0.0.7", KnownHosts: []byte("10.1.0.7 ssh-ed25519 AAAA\n"),
		Login:    hosts.Login{Address: "10.1.0.7", Port: 2222, User: "ops", Key: []byte("PRIVATE"), SudoPassword: []byte("sudoword")},
		Bastions: []hosts.Login{{Address: "jump", Port: 22, User: "j", Password: []byte("jumpword")}},
	}
}

func cluster() hosts.Cluster {
	return hosts.Cluster{
		Name: "prod", Version: "v1.36.3", PodCIDR: "10.2.0.0/16", Packages: "host",
		Registry: hosts.Registry{Address: "registry.site:5000/mirror", Username: "pull", Password: "pullword", CA: []byte("CERT")},
	}
}

// TestProvision: secrets are in files of mode 0600 that are gone afterwards, and never among the arguments.
func TestProvision(t *testing.T) {
	t.Parallel()
	r := &recorder{learn: "10.1.0.7 ssh-ed25519 BBBB\n", events: []hosts.Event{
		{Event: "task", Phase: "connect"}, {Event: "task", Phase: "bootstrap"}, {Event: "task", Phase: "bootstrap"}, {Event: "progress", Phase: "binary"}, {Event: "task", Phase: "binary"},
	}}
	o := operator(t, r)
	var phases []string
	done, err := o.Provision(t.Context(), hosts.Work{Host: node(), Cluster: cluster(), Bundle: hosts.File{Path: "/bundles/x.kkb", RequireSignature: true}, Document: []byte("#cloud-config\n# tokenword")}, func(p string) { phases = append(phases, p) })
	if err != nil || string(done.KnownHosts) != r.learn || !slices.Equal(phases, []string{"bootstrap", "binary"}) {
		t.Errorf("%q, %v, %q", done.KnownHosts, err, phases)
	}
	line := strings.Join(r.call.Args, " ")
	for _, want := range []string{
		"provision --owner site/prod/prod-cp-x --inventory ", "--set metadata.name=prod", "--set kubernetes.version=v1.36.3", "--set kubernetes.podCIDR=10.2.0.0/16", "--set osPackages=host",
		"--set imageRegistry= --set imageRegistry={", `"address":"registry.site:5000/mirror"`, "--require-signature --allow-older -- prod-cp-x - /bundles/x.kkb",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if strings.Contains(line, "accept-new") {
		t.Error("a host key is accepted that nobody asked for")
	}
	for _, secret := range []string{"PRIVATE", "sudoword", "jumpword", "pullword", "tokenword"} {
		if strings.Contains(line, secret) {
			t.Errorf("%s is on the command line", secret)
		}
		if strings.Contains(r.files["inventory.yaml"], secret) {
			t.Errorf("%s is in the inventory", secret)
		}
	}
	for file, want := range map[string]string{"host-key": "PRIVATE", "host-sudo": "sudoword", "bastion0-password": "jumpword", "registry-password": "pullword", "registry-ca.pem": "CERT"} {
		if r.files[file] != want {
			t.Errorf("%s is %q", file, r.files[file])
		}
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestProvisionFailure: the arguments of a command of the bootstrap data are in no message; those of kkbundle's own commands stay.
func TestProvisionFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ phase, task, message, want string }{
		{"provisioning", "run kubeadm", "x: provisioning run kubeadm: x: kubeadm join --token tokenword: exit code 1: [ERROR FileAvailable]", "x: run kubeadm: exit code 1: [ERROR FileAvailable]"},
		{"provisioning", "be x", "x: unreachable", "x: unreachable"},
		{"repository", "packages", "x: dpkg -i a.deb: exit code 2", "x: dpkg -i a.deb: exit code 2"},
	} {
		r := &recorder{err: &hosts.Failure{Code: 16, Message: c.message, Hint: "look"}, events: []hosts.Event{{Event: "task", Phase: c.phase, Task: c.task}}}
		h := node()
		h.Name = "x"
		_, err := operator(t, r).Provision(t.Context(), hosts.Work{Host: h, Cluster: cluster(), Document: []byte("d")}, func(string) {})
		var f *hosts.Failure
		if !errors.As(err, &f) || !f.OnHost() || err.Error() != c.want+"; look" {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestClean needs no bundle and names one host only. A host that may be trusted is.
func TestClean(t *testing.T) {
	t.Parallel()
	r := &recorder{err: &hosts.Failure{Code: 17, Message: "locked by another run"}}
	h := node()
	h.AcceptNew = true
	c := cluster()
	c.Runtime = "docker"
	_, err := operator(t, r).Clean(t.Context(), h, c)
	var f *hosts.Failure
	if !errors.As(err, &f) || !f.Busy() || f.Input() || f.OnHost() {
		t.Errorf("%v", err)
	}
	line := strings.Join(r.call.Args, " ")
	for _, want := range []string{"reset --yes --owner site/prod/prod-cp-x --cluster ", "--limit prod-cp-x", "--accept-new"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if strings.Contains(line, "with-data") || strings.Contains(line, "foreign") {
		t.Errorf("%q removes more than kkbundle installed", line)
	}
	if f := r.files["cluster.yaml"]; !strings.Contains(f, "name: prod") || !strings.Contains(f, "type: docker") || !strings.Contains(f, "type: none") {
		t.Errorf("cluster file: %s", f)
	}
}

// TestInspect: the versions are those of the API servers in the bundle.
func TestInspect(t *testing.T) {
	t.Parallel()
	items := []map[string]string{
		{"kind": "image", "name": "registry.k8s.io/kube-apiserver:v1.36.3"},
		{"kind": "image", "name": "registry.k8s.io/kube-apiserver:v1.9.12"},
		{"kind": "image", "name": "mirror.site:5000/k8s/kube-apiserver:v1.36.3@sha256:00"},
		{"kind": "image", "name": "registry.k8s.io/kube-proxy:v1.35.0"},
		{"kind": "image", "name": "x/my-kube-apiserver:v1.34.0"},
		{"kind": "file", "name": "kube-apiserver:v1.33.0"},
		{"kind": "image", "name": "kube-apiserver:latest"},
		{"kind": "manifest", "name": "cluster.yaml"},
	}
	out, err := json.Marshal(map[string]any{"version": 1, "name": "site", "bundleVersion": "1.4.0", "digest": "sha256:1", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{out: string(out)}
	b := hosts.Bundle{Source: "oci://registry.site/bundles/site:1.4.0", Username: "u", Password: "p", CA: []byte("CERT"), Trust: []byte("PEM"), RequireSignature: true}
	c, err := operator(t, r).Inspect(t.Context(), b)
	if err != nil || c.Name != "site" || c.Version != "1.4.0" || !c.HasCluster || !slices.Equal(c.Versions, []string{"v1.9.12", "v1.36.3"}) {
		t.Errorf("%+v, %v", c, err)
	}
	line := strings.Join(r.call.Args, " ")
	for _, want := range []string{"inspect ", "--ca ", "--trust ", "--require-signature", "--username u --password-stdin", "-- oci://registry.site/bundles/site:1.4.0"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	if string(r.call.Stdin) != "p" {
		t.Errorf("the password is %q", r.call.Stdin)
	}
	r.out = "no json"
	if _, err := operator(t, r).Inspect(t.Context(), b); err == nil {
		t.Error("a result without JSON was taken")
	}
}

// TestPull: a bundle is downloaded once, under its digest, and another one that its address gives is refused; a file is one of the directory
// of bundles.
func TestPull(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	r := &recorder{out: `{"digest": "sha256:` + strings.Repeat("cd", 32) + `"}`}
	o := operator(t, r)
	source := hosts.Bundle{Source: "https://files.site/site-1.kkb"}
	pulled := filepath.Join(o.Bundles, "pulled")
	if path, err := o.Pull(t.Context(), source, digest); err == nil || !strings.Contains(err.Error(), "read again") {
		t.Errorf("another bundle is at %s, %v", path, err)
	}
	if left, err := os.ReadDir(pulled); err != nil || len(left) > 0 {
		t.Errorf("another bundle was kept: %v, %v", left, err)
	}
	r.out = `{"digest": "` + digest + `"}`
	path, err := o.Pull(t.Context(), source, digest)
	if data, readErr := os.ReadFile(path); err != nil || readErr != nil || string(data) != "bundle" || path != filepath.Join(pulled, strings.Repeat("ab", 32), "bundle.kkb") {
		t.Errorf("%q, %v, %q, %v", path, err, data, readErr)
	}
	r.call = hosts.Call{}
	if again, err := o.Pull(t.Context(), source, digest); err != nil || again != path || r.call.Args != nil {
		t.Errorf("%q, %v, %q", again, err, r.call.Args)
	}
	for _, digest := range []string{"", "sha256:../../etc", "md5:00"} {
		if path, err := o.Pull(t.Context(), hosts.Bundle{Source: "oci://r/x"}, digest); err == nil {
			t.Errorf("%q is at %s", digest, path)
		}
	}
	if path, err := o.Pull(t.Context(), hosts.Bundle{Source: "file:///site.kkb"}, ""); err != nil || path != filepath.Join(o.Bundles, "site", "site.kkb") {
		t.Errorf("%q, %v", path, err)
	}
	if path, err := o.Pull(t.Context(), hosts.Bundle{Source: "file:///../../etc/shadow"}, ""); err == nil {
		t.Errorf("a file elsewhere: %s", path)
	}
}

// TestPullsSideBySide: who wants a bundle waits for nobody who pulls another one, and for one's own no longer than told.
func TestPullsSideBySide(t *testing.T) {
	t.Parallel()
	at, end := make(chan struct{}), make(chan struct{})
	digest := func(s string) string { return "sha256:" + strings.Repeat(s, 32) }
	o := operator(t, runner(func(call hosts.Call) ([]byte, error) {
		if strings.HasSuffix(call.Args[len(call.Args)-1], "/slow.kkb") {
			close(at)
			<-end
		}
		return []byte(`{"digest": "` + digest("cd") + `"}`), nil
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := o.Pull(t.Context(), hosts.Bundle{Source: "https://files.site/slow.kkb"}, digest("ab")); err == nil {
			t.Error("another bundle was taken")
		}
	}()
	<-at
	if _, err := o.Pull(t.Context(), hosts.Bundle{Source: "https://files.site/fast.kkb"}, digest("cd")); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("too long"))
	if _, err := o.Pull(ctx, hosts.Bundle{Source: "https://files.site/slow.kkb"}, digest("ab")); err == nil || err.Error() != "too long" {
		t.Errorf("%v", err)
	}
	close(end)
	<-ended
}

type runner func(hosts.Call) ([]byte, error)

func (r runner) Run(_ context.Context, call hosts.Call) ([]byte, error) { return r(call) }

// TestKeep: bundles that nothing names go once nobody has used them for some time.
func TestKeep(t *testing.T) {
	t.Parallel()
	o := operator(t, &recorder{})
	now := time.Now()
	if err := o.Keep(nil, now); err != nil {
		t.Error(err)
	}
	for name, used := range map[string]time.Time{"named": now.Add(-time.Hour), "old": now.Add(-time.Hour), "old.part": now.Add(-time.Hour), "new": now} {
		dir := filepath.Join(o.Bundles, "pulled", name)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "bundle.kkb"), nil, 0o600), os.Chtimes(dir, used, used)); err != nil {
			t.Fatal(err)
		}
	}
	err := o.Keep([]string{"sha256:named"}, now.Add(-time.Minute))
	left, _ := filepath.Glob(filepath.Join(o.Bundles, "pulled", "*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if err != nil || !slices.Equal(left, []string{"named", "new"}) {
		t.Errorf("%q, %v", left, err)
	}
}

// TestInternalAddresses: an address for SSH is the node's, unless the host has others.
func TestInternalAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address, v4, v6 string
		want            []string
	}{
		{"10.0.0.1", "", "", []string{"10.0.0.1"}},
		{"fd00::1", "10.0.0.1", "", []string{"10.0.0.1", "fd00::1"}},
		{"node.site", "", "", nil},
		{"10.0.0.1", "10.9.0.1", "fd00::9", []string{"10.9.0.1", "fd00::9"}},
	} {
		if got := hosts.InternalAddresses(c.address, c.v4, c.v6); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestUpgrade: the machine's own host is named, with the version, and files come by standard input.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	r := &recorder{learn: "10.1.0.7 ssh-ed25519 BBBB\n"}
	o := operator(t, r)
	w := hosts.Work{Host: node(), Cluster: cluster(), Bundle: hosts.File{Path: "/bundles/x.kkb", RequireSignature: true}, Document: []byte("# tokenword")}
	done, err := o.Upgrade(t.Context(), w, "/etc/kubernetes/patches")
	if err != nil || string(done.KnownHosts) != r.learn || string(r.call.Stdin) != "# tokenword" {
		t.Errorf("%q, %v, %q", done.KnownHosts, err, r.call.Stdin)
	}
	line := strings.Join(r.call.Args, " ")
	for _, want := range []string{
		"upgrade-machine --owner site/prod/prod-cp-x --inventory ", "--set kubernetes.version=v1.36.3", `"address":"registry.site:5000/mirror"`,
		"--require-signature --allow-older --patches /etc/kubernetes/patches --files - -- prod-cp-x /bundles/x.kkb",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	for _, secret := range []string{"PRIVATE", "sudoword", "jumpword", "pullword", "tokenword"} {
		if strings.Contains(line, secret) {
			t.Errorf("%s is on the command line", secret)
		}
	}
	if _, err := o.CheckUpgrade(t.Context(), w); err != nil || !slices.Contains(r.call.Args, "--check") || !slices.Contains(r.call.Args, "--files") || string(r.call.Stdin) != "# tokenword" {
		t.Errorf("the check: %q %q, %v", r.call.Args, r.call.Stdin, err)
	}
	w.Document = nil
	if _, err := o.Upgrade(t.Context(), w, ""); err != nil || slices.Contains(r.call.Args, "--patches") || slices.Contains(r.call.Args, "--files") {
		t.Errorf("%v, %q", err, r.call.Args)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
