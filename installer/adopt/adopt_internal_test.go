package adopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestTasksAreDescribed: the report has a line for every task that install would run with a described cluster, or the
// table says that there is none.
func TestTasksAreDescribed(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.36.3}\ncni: {type: none}\n"
	for _, more := range []string{
		"imageRegistry: {type: none}\n",
		"imageRegistry: {type: existing, address: r.example}\netcd: {type: internal, quota: 8Gi}\n",
		"imageRegistry: {type: existing, address: r.example}\ncri: {type: docker, takeOver: true}\n",
		"imageRegistry: {type: none}\ncri: {type: crio}\ncontrolPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}\n",
		"imageRegistry: {type: none}\ncontrolPlaneEndpoint: {type: external, address: \"a.example:6443\"}\n" +
			"etcd: {type: provided, endpoints: [\"https://10.0.0.1:2379\"], ca: a, cert: b, key: c}\n",
	} {
		c, err := manifest.ParseCluster("cluster.yaml", []byte(head+more))
		if err != nil {
			t.Fatal(err)
		}
		known := taskChanges(c)
		for _, phase := range plan.Plan(c) {
			for _, step := range phase.Tasks {
				if _, ok := known[step.Name]; !ok && phase.Name != task.VerifyPhase {
					t.Errorf("the table has no task %s", step.Name)
				}
			}
		}
	}
}

// TestContainerd reads registries from configurations of containerd 1.x and 2.x.
func TestContainerd(t *testing.T) {
	t.Parallel()
	got, err := parseContainerd(`version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
  endpoint = ["https://user:hunter2@mirror.example:5000/v2/proxy", "https://docker.io"]
`)
	if want := (containerdConfig{Mirrors: []mirror{{"docker.io", "mirror.example:5000/proxy"}}}); err != nil ||
		!cmp.Equal(got, want, cmp.AllowUnexported(mirror{})) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	got, err = parseContainerd("version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/etc/containerd/certs.d'\n")
	if err != nil || got.ConfigPath != certsDir {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseContainerd("password = hunter2\n"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error repeats the file: %v", err)
	}
}

// TestRegistriesElsewhere: a directory of registries that is not read is said, since its mirrors are missing.
func TestRegistriesElsewhere(t *testing.T) {
	t.Parallel()
	for dirs, read := range map[string]bool{"/etc/containerd/certs.d:/etc/docker/certs.d": true, "/opt/certs.d": false} {
		h := Host{Files: map[string]string{
			containerdTOML: "version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '" + dirs + "'\n",
		}}
		if _, err := h.mirrors(); (err == nil) != read || !read && !strings.Contains(err.Error(), "/opt/certs.d") {
			t.Errorf("%s: %v", dirs, err)
		}
	}
}

// TestHosts: the first host that pulls counts.
func TestHosts(t *testing.T) {
	t.Parallel()
	got, err := parseHosts("_default", `server = "https://a"
[host."https://push.example"]
  capabilities = ["push"]
[host."http://10.0.0.9:5000/v2"]
  capabilities = ["pull", "resolve"]
  skip_verify = true
[host."https://second.example"]
`)
	if want := (mirror{"_default", "10.0.0.9:5000"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestTagOf(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.36.3":          "v1.36.3",
		"r.example:5000/etcd":                             "",
		"r.example:5000/etcd:3.6.10-0@sha256:0123":        "3.6.10-0",
		"dockerhub.kubekey.local/kubernetes/pause:3.10.1": "3.10.1",
	} {
		if got := tagOf(image); got != want {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
}

// FuzzTexts: whatever a host or the API server says, the readers end, and find nothing that is not there.
func FuzzTexts(f *testing.F) {
	for _, seed := range []string{
		"kind: ClusterConfiguration\nkubernetesVersion: v1.36.3\n",
		"kind: Pod\nspec: {containers: [{name: a, image: b:c, command: [x, --y=z]}]}\n",
		"kind: KubeletConfiguration\nmaxPods: 110\n",
		"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
		"version = 2\n[plugins.x.registry.mirrors.y]\nendpoint = [\"https://z\"]\n",
		"[host.\"https://a\"]\ncapabilities = [\"pull\"]\n",
		"ETCD_INITIAL_CLUSTER=a=https://b:2380,c=https://d:2380\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := parseKubeadm(text); err == nil && c.Raw == nil {
			t.Error("a configuration without content")
		}
		if c, err := parseConfig("x", text, "KubeletConfiguration"); err == nil && c != nil {
			without(c, nil, kubeletZeros())
		}
		if pod, err := parseStaticPod("x", text); err == nil {
			pod.flags()
			tagOf(pod.image())
			vipOf(&pod)
		}
		if c, err := parseContainerd(text); err == nil {
			for _, m := range c.Mirrors {
				if strings.Contains(m.host, "@") && !strings.Contains(m.host, "/") {
					t.Errorf("a login in %q", m.host)
				}
			}
		}
		_, _ = parseHosts("x", text)
		if names := etcdMembers(parseEnv(text)); slices.Contains(names, "\n") {
			t.Errorf("%q", names)
		}
	})
}

// TestBounds: a host cannot make adopt read or keep more than the bounds.
func TestBounds(t *testing.T) {
	t.Parallel()
	hostile := func(entries int) *Host {
		h := &Host{Name: "h", Files: map[string]string{}}
		dir := node.Path{Path: kube.ManifestsDir, Type: "dir"}
		for i := range entries {
			dir.Entries = append(dir.Entries, fmt.Sprintf("%d.yaml", i))
		}
		h.Facts.Paths = []node.Path{dir}
		return h
	}
	reads := 0
	full := func(_ string, most int) ([]byte, error) {
		reads++
		if most < maxText {
			return nil, errors.New("the command printed more")
		}
		return make([]byte, most), nil
	}
	h := hostile(maxManifests + 1)
	_, refused := errors.AsType[*RefusedError](h.read(full))
	if !refused || reads != 0 {
		t.Errorf("refused %v after %d reads", refused, reads)
	}
	h = hostile(maxManifests)
	if err := h.read(full); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes in all") {
		t.Errorf("got %v, want a refusal", err)
	}
	kept := 0
	for _, text := range h.Files {
		kept += len(text)
	}
	if kept > maxHost {
		t.Errorf("%d bytes were kept", kept)
	}
	empty := func(string, int) ([]byte, error) { return nil, nil }
	if err := hostile(maxManifests).read(empty); err != nil {
		t.Error(err)
	}
}
