package hosts_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// TestGenuineProgram: kkbundle itself understands what it is called with, and its exit codes mean what this package says. No host is needed:
// nobody listens at the address.
func TestGenuineProgram(t *testing.T) {
	t.Parallel()
	path := os.Getenv("KKBUNDLE_PROGRAM")
	if path == "" {
		path = "../../../bin/kkbundle"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("no program kkbundle: build it with make build, or name it in KKBUNDLE_PROGRAM")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o := operator(t, &hosts.Program{Path: path, Environment: hosts.Environment(t.TempDir())})
	h := hosts.Host{
		Name: "prod-cp-x", InternalIPv4: "10.0.0.7", KnownHosts: []byte("127.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGk6Gz0wGvZdAzp2QNpHXFR1XzzCmXSJ0rlMHxVhmnPN\n"),
		Login: hosts.Login{Address: "127.0.0.1", Port: int32(port), User: "ops", Password: []byte("word"), SudoPassword: []byte("word")},
	}
	var f *hosts.Failure
	if _, err := o.Clean(t.Context(), h, cluster()); !errors.As(err, &f) || !f.Unreachable() || !strings.Contains(err.Error(), "refused") {
		t.Errorf("reset of a host that is not there: %v", err)
	}
	h.Bastions = []hosts.Login{{Address: "localhost", Port: int32(port), User: "j", Password: []byte("word")}}
	if _, err := o.Clean(t.Context(), h, cluster()); !errors.As(err, &f) || !f.Unreachable() || !strings.Contains(err.Error(), "bastion") {
		t.Errorf("reset behind a bastion that is not there: %v", err)
	}
	h.Bastions = nil
	if err := o.Check(t.Context(), "prod-cp-x", []byte("#cloud-config\nruncmd: [kubeadm init]\n")); err != nil {
		t.Errorf("a document: %v", err)
	}
	if err := o.Check(t.Context(), "prod-cp-x", []byte("#cloud-config\npackages: [vim]\n")); !errors.As(err, &f) || !f.Input() || !strings.Contains(err.Error(), "packages") {
		t.Errorf("a document with a mistake: %v", err)
	}
	if _, err := o.Inspect(t.Context(), hosts.Bundle{Source: "file:///none.kkb"}); !errors.As(err, &f) || !strings.Contains(err.Error(), "none.kkb") {
		t.Errorf("a bundle that is not there: %v", err)
	}
	if bundle := os.Getenv("KKBUNDLE_BUNDLE"); bundle != "" { // one with a cluster
		if err := os.Symlink(bundle, filepath.Join(o.Bundles, "site.kkb")); err != nil {
			t.Fatal(err)
		}
		c, err := o.Inspect(t.Context(), hosts.Bundle{Source: "file:///site.kkb"})
		if err != nil || len(c.Versions) == 0 || !c.HasCluster {
			t.Fatalf("%+v, %v", c, err)
		}
		t.Logf("%+v", c)
		settings := cluster()
		settings.Version = c.Versions[len(c.Versions)-1]
		settings.Registry.CA = nil
		_, err = o.Provision(t.Context(), hosts.Work{Host: h, Cluster: settings, Bundle: hosts.File{Path: filepath.Join(o.Bundles, "site.kkb")}, Document: []byte("#cloud-config\nruncmd: [kubeadm init]\n")}, func(string) {})
		if !errors.As(err, &f) || !f.Unreachable() {
			t.Errorf("provision of a host that is not there: %v", err)
		}
	}
}
