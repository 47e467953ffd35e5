package cli_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
)

// A writer is a command that writes a file where the user says.
type writer struct {
	args  []string // FILE is the path; the command's words are first
	file  string   // that a user has in the way, after FILE
	again bool     // the command can be run again
	force bool     // it has --force
	alone bool     // it needs hosts and is refused before it asks them
}

// TestNoFileIsReplacedUnasked has a file of the user's where each command writes.
func TestNoFileIsReplacedUnasked(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"1", "2"} {
		put(version+".yaml", "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: "+version+
			".0.0}\nplatforms: [linux/amd64]\nfiles:\n  - {name: words, path: words"+version+".txt}\n")
		put("words"+version+".txt", "words of version "+version+"\n")
	}
	put("images.list", "docker.io/library/nginx:1.29\n")
	put("inventory.yaml", "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  a: {address: 127.0.0.1, internalIPv4: 10.0.0.1, ssh: {port: 1}}\n"+
		"groups: {kube_control_plane: [a], kube_worker: [a]}\n")
	put("cluster.yaml", "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\nkubernetes: {version: v1.34.1}\n")
	must := func(args ...string) {
		t.Helper()
		if code, _, text := run(t, "", args...); code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, text)
		}
	}
	must("build", "--cache", at("cache"), "-o", at("a.kkb"), at("1.yaml"))
	must("build", "--cache", at("cache"), "-o", at("b.kkb"), at("2.yaml"))
	must("delta", at("a.kkb"), at("b.kkb"), "-o", at("d.kkd"))
	must("pack", at("a.kkb"), "-o", at("p.kkp"))
	site := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(site.Close)
	hosts := []string{"-i", at("inventory.yaml"), "-c", at("cluster.yaml"), "-o", "FILE"}

	all := []writer{
		{args: []string{"build", "--cache", at("cache"), "-o", "FILE", at("1.yaml")}, again: true, force: true},
		{
			args: []string{"build", "--cache", at("cache"), "--split", "1MiB", "-o", "FILE", at("1.yaml")}, file: ".001",
			again: true, force: true,
		},
		{
			args: []string{"build", "--cache", at("cache"), "--split", "1MiB", "-o", "FILE", at("1.yaml")},
			file: ".parts.json", again: true, force: true,
		},
		{
			args: []string{"build", "--cache", at("cache"), "--provenance", "-o", "FILE", at("1.yaml")},
			file: ".provenance.json", again: true, force: true,
		},
		{args: []string{"copy", at("a.kkb"), "-o", "FILE"}, again: true, force: true},
		{args: []string{"delta", at("a.kkb"), at("b.kkb"), "-o", "FILE"}, again: true, force: true},
		{args: []string{"patch", at("a.kkb"), at("d.kkd"), "-o", "FILE"}, again: true, force: true},
		{args: []string{"pack", at("a.kkb"), "-o", "FILE"}, again: true, force: true},
		{args: []string{"unpack", at("p.kkp"), "-o", "FILE"}, again: true, force: true},
		{args: []string{"pull", "--plain-http", "-o", "FILE", site.URL + "/a.kkb"}, again: true, force: true},
		{args: []string{"extract", at("a.kkb"), "manifest.yaml", "-o", "FILE"}, force: true},
		{args: []string{"extract", at("a.kkb"), "--format", "oci-archive", "-o", "FILE"}, force: true},
		{args: []string{"extract", at("a.kkb"), "-o", "FILE"}, file: "/mine", force: true},
		{
			args: []string{"extract", at("a.kkb"), "--format", "tree", "-o", "FILE"}, file: "/documents/manifest.yaml",
			force: true,
		},
		{args: []string{"precheck", "-i", at("inventory.yaml"), "-o", "html=FILE"}, alone: true},
		{args: append([]string{"support-bundle"}, hosts...), alone: true},
		{args: []string{"adopt", "-i", at("inventory.yaml"), "-o", "FILE"}, file: "/cluster.yaml", alone: true},
		{args: append([]string{"handover", "--namespace", "site", "-o", "FILE"}, hosts...), alone: true},
		{args: append([]string{"certs", "backup"}, hosts...), alone: true},
		{args: append([]string{"etcd", "backup"}, hosts...), alone: true},
		{args: append([]string{"etcd", "fetch", "--copy", "a/etcd-20261123T060000Z.db"}, hosts...), alone: true},
		{args: []string{"catalog", "update", "-o", "FILE"}, alone: true},
		{args: []string{"keygen", "-o", "FILE"}, file: ".key"},
		{args: []string{"keygen", "age", "-o", "FILE"}},
		{args: []string{"convert", at("images.list"), "-o", "FILE"}, file: "/manifest.yaml", alone: true},
		{args: []string{"docs", "-o", "FILE"}, file: "/mine"},
		{args: []string{"sign", "--key", at("k.key"), "-o", "FILE", at("a.kkb")}, again: true, force: true},
	}
	t.Setenv("COSIGN_PASSWORD", "x")
	must("keygen", "-o", at("k"))
	known := []string{"mirror-config"} // hostfile's tests
	for _, w := range all {
		known = append(known, strings.Join(words(w.args), " "))
		t.Run(strings.Join(words(w.args), " ")+w.file, func(t *testing.T) { w.try(t) })
	}

	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "kkbundle ")
		if f := c.LocalFlags().Lookup("output"); f != nil && !strings.HasPrefix(f.Usage, "table") &&
			!slices.Contains(known, name) {
			t.Errorf("%s has -o and is not tried", name)
		}
		for _, one := range c.Commands() {
			walk(one)
		}
	}
	walk(cli.Commands())
}

// words returns the names of a command and of the one below it.
func words(args []string) []string {
	if slices.Contains([]string{"certs", "etcd", "catalog"}, args[0]) || args[1] == "age" {
		return args[:2]
	}
	return args[:1]
}

// to returns the arguments for a path.
func (w writer) to(path string) []string {
	args := slices.Clone(w.args)
	for i, arg := range args {
		args[i] = strings.Replace(arg, "FILE", path, 1)
	}
	return args
}

func (w writer) try(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	args := w.to(path)
	mine := path + w.file
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	const text = "mine\n"
	if err := os.WriteFile(mine, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, says := run(t, "", args...)
	have, err := os.ReadFile(mine)
	if code == 0 || err != nil || string(have) != text {
		t.Fatalf("exit code %d, the user's file: %q %v\n%s", code, have, err, says)
	}
	if !strings.Contains(says, path) {
		t.Errorf("the path is not named: %s", says)
	}
	if w.alone {
		return
	}
	if w.force {
		if code, _, says := run(t, "", append(slices.Clone(args), "--force")...); code != 0 {
			t.Errorf("--force: exit code %d: %s", code, says)
		}
	}
	if !w.again {
		return
	}
	again := w.to(filepath.Join(t.TempDir(), "out"))
	for i := range 2 {
		if code, _, says := run(t, "", again...); code != 0 {
			t.Errorf("run %d: exit code %d: %s", i+1, code, says)
		}
	}
}
