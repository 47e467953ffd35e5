package kubekey_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

var update = flag.Bool("update", false, "write the golden files anew; review the change")

// secret is in every file that has passwords and keys, and must be in nothing that is made of them.
const secret = "hunter2"

// Every file is read both ways; the .txt beside it has what comes out, or what is wrong, and all notes.
func TestRead(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := inventory(filepath.Base(file), data) + "\n" + cluster(filepath.Base(file), data)
			if strings.Contains(got, secret) {
				t.Errorf("shows a secret:\n%s", got)
			}
			text := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(text, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, string(want)); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

func inventory(file string, data []byte) string {
	inv, notes, err := kubekey.ReadInventory(file, data)
	return "# inventory\n" + shown(inv, notes, err)
}

func cluster(file string, data []byte) string {
	c, notes, err := kubekey.ReadCluster(file, data)
	return "# cluster\n" + shown(c, notes, err)
}

func shown[T any](v *T, notes kubekey.Notes, err error) string {
	var b strings.Builder
	if err != nil {
		b.WriteString("refused:\n" + err.Error() + "\n")
	} else if text, err := yaml.Marshal(v); err != nil {
		b.WriteString(err.Error())
	} else {
		b.Write(text)
	}
	for _, n := range notes {
		b.WriteString("note: " + n.String() + "\n")
	}
	return b.String()
}

// The secrets arrive where they are used, and what is written of them is read again without.
func TestSecrets(t *testing.T) {
	inv := readInventory(t, "v4-inventory.yaml")
	hosts := inv.Hosts()
	if got := hosts[0].SSH.Password.Reveal(); got != secret {
		t.Errorf("SSH password: %q", got)
	}
	if got := hosts[0].Sudo.Password.Reveal(); got != secret {
		t.Errorf("sudo password of a user other than root: %q", got)
	}
	if got := hosts[1].SSH.PrivateKey.Reveal(); !strings.Contains(got, secret) ||
		!strings.HasPrefix(got, "-----BEGIN") {
		t.Errorf("key: %q", got)
	}
	written, err := yaml.Marshal(inv)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.ParseInventory("written", written); err != nil || strings.Contains(string(written), secret) {
		t.Errorf("%v\n%s", err, written)
	}
}

// A problem is at its place in the foreign file, under kkbundle's name for it.
func TestPlaces(t *testing.T) {
	_, _, err := kubekey.ReadInventory("f",
		[]byte("apiVersion: kubekey.kubesphere.io/v1\nkind: Inventory\nspec:\n  hosts:\n    a: {connector: {host: 10.0.0.1, port: 99999}}\n  groups:\n    kube_control_plane: {hosts: [a]}\n    kube_worker: {hosts: [b]}\n"))
	want := "f:5:43: hosts[a].ssh.port: 99999 is not between 1 and 65535\nf:8:27: groups.kube_worker[0]: b is not a host of this inventory; did you mean a?"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// Merge keys (<<) bring a host the settings of another, as in KubeKey: without them it would have the default login.
func TestMergeKeys(t *testing.T) {
	inv, notes, err := kubekey.ReadInventory("f", []byte(`apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
spec:
  hosts:
  - &host {name: n1, address: 10.0.0.1, user: admin, port: 2222, labels: &labels {rack: a}}
  - {<<: *host, name: n2, address: 10.0.0.2, labels: {<<: *labels, row: b}}
  roleGroups: {etcd: [n1], control-plane: [n1], worker: [n2]}
`))
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	two := inv.Hosts()[1]
	if two.SSH.User != "admin" || two.SSH.Port != 2222 || two.Address != "10.0.0.2" || two.Labels["rack"] != "a" ||
		two.Labels["row"] != "b" {
		t.Errorf("n2: %+v %v", two.SSH, two.Labels)
	}
}

// Settings are laid over a foreign file as over one of kkbundle's, but for secrets.
func TestSettings(t *testing.T) {
	data, err := os.ReadFile("testdata/capkk.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := kubekey.ReadCluster("f", data, "kubernetes.version=v1.35.0")
	if err != nil || c.Kubernetes.Version != "v1.35.0" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, _, err := kubekey.ReadCluster("f", data, "imageRegistry.auth.password="+secret); err == nil ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("a password on the command line: %v", err)
	}
}

// A file of kkbundle's own is read by its own parsers, KubeKey's name in a comment or not.
func TestOwn(t *testing.T) {
	text := "# was kubekey.kubesphere.io/v1\napiVersion: kkbundle.io/v1\nkind: Inventory\nhosts: {a: }\ngroups: {kube_control_plane: [a]}\n"
	if inv, notes, err := kubekey.ReadInventory("f", []byte(text)); err != nil || notes != nil ||
		len(inv.Hosts()) != 1 {
		t.Errorf("%v %v", notes, err)
	}
}

func readInventory(t *testing.T, name string) *manifest.Inventory {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	inv, _, err := kubekey.ReadInventory(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// FuzzRead holds for any bytes: no panic; an error is Problems; what is accepted can be written out and read as a
// file of kkbundle's own.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, notes, err := kubekey.ReadInventory("f", data)
		checkRead(t, inv, notes, err, func(written []byte) error {
			inv.Hosts()
			_, err := manifest.ParseInventory("written", written)
			return err
		})
		c, notes, err := kubekey.ReadCluster("f", data)
		checkRead(t, c, notes, err, func(written []byte) error {
			c.Values()
			_, err := manifest.ParseCluster("written", written)
			return err
		})
	})
}

func checkRead[T any](t *testing.T, v *T, notes kubekey.Notes, err error, again func([]byte) error) {
	t.Helper()
	if len(notes) > 300 {
		t.Fatalf("%d notes", len(notes))
	}
	if err != nil {
		var problems document.Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("error %T: %v", err, err)
		}
		return
	}
	written, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := again(written); err != nil {
		t.Fatalf("accepted, written and refused:\n%v\n%s", err, written)
	}
}
