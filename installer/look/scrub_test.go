//go:build linux

package look

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// planted are secrets as files of hosts have them; each has the word hunter2 or is named beside it.
const planted = `apiVersion: v1
password: hunter2
  nested_password: "hunter2 with spaces"
dbPasswd=hunter2
client-key-data: aHVudGVyMg==hunter2
caBundle: PUBLIC
secretName: PUBLIC
token: |
  hunter2-first
  hunter2-second
after: PUBLIC
args: ["--cloud-password=hunter2", "--token hunter2", --api-key hunter2]
Authorization = ["Basic aHVudGVyMjpodW50ZXIy"]
url: https://user:hunter2@registry.site/v2/
admin:$2y$10$hunter2hunter2hunter2hu
jwt eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJl
abcdef.0123456789abcdef
{"auth": "hunter2", "image": "PUBLIC"}
SECRET_KEY=hunter2
JWT_SIGNING_KEY: hunter2
export MYSQL_PWD=hunter2
requirepass hunter2
DefaultEndpointsProtocol=https;AccountName=PUBLIC;AccountKey=aHVudGVyMg==hunter2;EndpointSuffix=x
notify: https://hooks.slack.com/services/hunter2/hunter2
alert = https://chat.example/hooks/hunter2
url: https://PUBLIC.example/index.html
topologyKey: PUBLIC
-----BEGIN RSA PRIVATE KEY-----
hunter2
-----END RSA PRIVATE KEY-----
`

func TestScrub(t *testing.T) {
	t.Parallel()
	s := newScrubber(task.NewMasker())
	got := s.text(planted)
	for _, secret := range []string{"hunter2", "aHVudGVy", "eyJ", "0123456789abcdef"} {
		if strings.Contains(got, secret) {
			t.Errorf("%s is still in\n%s", secret, got)
		}
	}
	if n := strings.Count(got, "PUBLIC"); n != 7 {
		t.Errorf("%d of 7 that are no secrets are left in\n%s", n, got)
	}
	objects, err := s.objects([]byte(`{"items":[{"kind":"Pod","metadata":{"managedFields":["hunter2"]},"spec":{"env":[{"name":"DB_PASSWORD","value":"hunter2"},{"name":"MODE","value":"hunter2"},{"name":"POD","valueFrom":{"fieldRef":"PUBLIC"}}],"args":["--password=hunter2"]}},
		{"kind":"Secret","data":{"a":"hunter2"}},{"kind":"ConfigMap","metadata":{"name":"coredns","namespace":"team"},"data":{"app.conf":"mode = hunter2"},"binaryData":{"x":"hunter2"}},
		{"kind":"ConfigMap","metadata":{"name":"coredns","namespace":"kube-system"},"data":{"Corefile":"password = hunter2\nmode = PUBLIC"}}]}`))
	if err != nil || bytes.Contains(objects, []byte("hunter2")) || bytes.Count(objects, []byte("PUBLIC")) != 2 {
		t.Errorf("%v: %s", err, objects)
	}
}

// TestScrubWithValues: asked for, values stay that do not look like secrets.
func TestScrubWithValues(t *testing.T) {
	t.Parallel()
	s := newScrubber(task.NewMasker())
	s.values = true
	objects, err := s.objects([]byte(`{"items":[{"kind":"Pod","spec":{"env":[{"name":"DB_PWD","value":"hunter2"},{"name":"MODE","value":"PUBLIC"}]}},
		{"kind":"ConfigMap","metadata":{"name":"app","namespace":"team"},"data":{"SIGNING_KEY":"hunter2","mode":"PUBLIC"}}]}`))
	if err != nil || bytes.Contains(objects, []byte("hunter2")) || bytes.Count(objects, []byte("PUBLIC")) != 2 {
		t.Errorf("%v: %s", err, objects)
	}
}

// TestSupportBundleNamespaces: objects of other namespaces stay at the site unless they are asked for.
func TestSupportBundleNamespaces(t *testing.T) {
	t.Parallel()
	const list = `{"kind":"List","items":[{"metadata":{"name":"n1"}},{"metadata":{"namespace":"kube-system","name":"dns"}},{"metadata":{"namespace":"kube-flannel","name":"f"}},{"metadata":{"namespace":"team","name":"shop"}}]}`
	cluster := new(manifest.Cluster)
	cluster.CNI.Type = manifest.NetworkFlannel
	for want, o := range map[string]SupportOptions{
		"kube-system, kube-flannel":        {},
		"kube-system, kube-flannel, team":  {Namespaces: []string{"team"}},
		"kube-system, kube-flannel, team ": {AllNamespaces: true},
	} {
		o.Cluster = cluster
		out, err := inNamespaces([]byte(list), o.namespaces())
		if err != nil || !bytes.Contains(out, []byte(`"n1"`)) {
			t.Fatalf("%v: %s", err, out)
		}
		for _, one := range []string{"kube-system", "kube-flannel", "team"} {
			if got := bytes.Contains(out, []byte(`"namespace":"`+one+`"`)); got != strings.Contains(want, one) {
				t.Errorf("%q: %s is collected: %t", want, one, got)
			}
		}
	}
}

// TestSupportBundle collects from a host that prints secrets with everything, and from one that is gone.
func TestSupportBundle(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("node1")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	h := s.Hosts["cp1"]
	h.Put(t, member.Path, "lab v1.34.3\n")
	for _, name := range []string{"sh", "kubectl", "uname"} { // the scripts name paths of this machine
		h.Answer(name, func(ctx context.Context, cmd host.Cmd) error {
			if name == "sh" && host.WithoutText(cmd.Args)[0] != "support-bundle.sh" { // the helper is put there
				cmd.Args = append([]string{"env"}, cmd.Args...)
				return h.Run(ctx, cmd)
			}
			text := planted
			switch {
			case name == "uname":
				text = "x86_64\n"
			case name == "kubectl":
				text = `{"items":[{"kind":"ConfigMap","data":{"password":"hunter2"}}]}`
			}
			if cmd.Stdout == nil {
				return nil
			}
			_, err := io.WriteString(cmd.Stdout, text)
			return err
		})
	}
	r := s.Run(t, nil)
	for name, text := range map[string]string{
		task.LogFile:          planted,
		task.RegistryPassFile: "known-secret-of-the-registry", diagnose.FailuresDir +
			"/x/kubelet.log": "says known-secret-of-the-registry",
	} {
		if err := r.Dir.Write(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	said, err := WriteSupportBundle(t.Context(), SupportOptions{StatusOptions: StatusOptions{
		Options:    s.Options,
		AnyCluster: true,
	}}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(said.Unreached) != 1 || !strings.HasPrefix(said.Unreached[0], "node1: ") {
		t.Errorf("not reached: %q", said.Unreached)
	}
	files := unpack(t, &out)
	for name, text := range files {
		for _, secret := range []string{"hunter2", "known-secret-of-the-registry", "0123456789abcdef"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", name, secret)
			}
		}
	}
	for _, name := range []string{
		"README.txt", "status.json", "work/install.log", "work/failures/x/kubelet.log",
		"hosts/cp1/configuration.txt", "hosts/cp1/units.log", "cluster/configmaps.json",
	} {
		if files["support/"+name] == "" {
			t.Errorf("%s is not in it", name)
		}
	}
	if text := files["support/README.txt"]; !strings.Contains(text, "node1: ") {
		t.Errorf("README: %s", text)
	}
}

func unpack(t *testing.T, from io.Reader) map[string]string {
	t.Helper()
	z, err := zstd.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string]string{}
	for a := tar.NewReader(z); ; {
		header, err := a.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(data)
	}
}
