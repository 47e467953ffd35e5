package inplace

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

func machineOf(version, kind, group string) clusterv1.Machine {
	return clusterv1.Machine{Spec: clusterv1.MachineSpec{
		Version: version, InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: "m"},
	}}
}

func objectsOf(version, config string) runtimehooksv1.CanUpdateMachineRequestObjects {
	return runtimehooksv1.CanUpdateMachineRequestObjects{
		Machine: machineOf(version, "KKMachine", infrav1.GroupVersion.Group), BootstrapConfig: runtime.RawExtension{Raw: []byte(config)},
	}
}

// TestCanUpdate: patches are of exactly what a host is brought to. What is in none of them makes Cluster API replace
// the machine.
func TestCanUpdate(t *testing.T) {
	t.Parallel()
	const etcd = `{"spec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "3.6.13-0"}}}}}`
	other := objectsOf("v1.37.2", `{"spec": {}}`)
	other.Machine = machineOf("v1.37.2", "DockerMachine", "infrastructure.cluster.x-k8s.io")
	for name, c := range map[string]struct {
		from, to        runtimehooksv1.CanUpdateMachineRequestObjects
		machine, config string
	}{
		"a minor release":      {objectsOf("v1.36.3", `{"spec": {}}`), objectsOf("v1.37.2", `{"spec": {}}`), `{"spec":{"version":"v1.37.2"}}`, ""},
		"a patch release":      {objectsOf("v1.36.3", `{"spec": {}}`), objectsOf("v1.36.4", `{"spec": {}}`), `{"spec":{"version":"v1.36.4"}}`, ""},
		"nothing to bootstrap": {objectsOf("v1.36.3", ""), objectsOf("v1.36.4", ""), `{"spec":{"version":"v1.36.4"}}`, ""},
		"two minor releases":   {objectsOf("v1.35.3", `{"spec": {}}`), objectsOf("v1.37.2", `{"spec": {}}`), "", ""},
		"an older one":         {objectsOf("v1.37.2", `{"spec": {}}`), objectsOf("v1.36.3", `{"spec": {}}`), "", ""},
		"another major one":    {objectsOf("v1.36.3", `{"spec": {}}`), objectsOf("v2.36.3", `{"spec": {}}`), "", ""},
		"no version":           {objectsOf("", `{"spec": {}}`), objectsOf("v1.36.3", `{"spec": {}}`), "", ""},
		"another provider's":   {objectsOf("v1.36.3", `{"spec": {}}`), other, "", ""},
		"images of etcd and CoreDNS": {
			objectsOf("v1.36.3", etcd), objectsOf("v1.37.2", `{"spec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "3.7.0-0"}}, "dns": {"imageTag": "v1.14.6"}}}}`),
			`{"spec":{"version":"v1.37.2"}}`, `{"spec":{"clusterConfiguration":{"dns":{"imageTag":"v1.14.6"},"etcd":{"local":{"imageTag":"3.7.0-0"}}}}}`,
		},
		"etcd's image alone": {
			objectsOf("v1.36.3", `{"spec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "3.6.8-0"}}}}}`), objectsOf("v1.36.3", etcd),
			`{"spec":{"version":"v1.36.3"}}`, `{"spec":{"clusterConfiguration":{"etcd":{"local":{"imageTag":"3.6.13-0"}}}}}`,
		},
		"an image no more": {
			objectsOf("v1.36.3", etcd), objectsOf("v1.36.3", `{"spec": {}}`),
			`{"spec":{"version":"v1.36.3"}}`, `{"spec":{"clusterConfiguration":{"etcd":{"local":{"imageTag":null}}}}}`,
		},
		"files, arguments and commands": {
			objectsOf("v1.36.3", etcd), objectsOf("v1.37.2", `{"spec": {"files": [{"path": "/etc/motd"}], "preKubeadmCommands": ["true"], "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [{"name": "v", "value": "4"}]}},
				"clusterConfiguration": {"apiServer": {"extraArgs": [{"name": "v", "value": "4"}]}, "etcd": {"local": {"imageTag": "3.6.13-0"}}}}}`),
			`{"spec":{"version":"v1.37.2"}}`, "", // the changes stay
		},
		"kubeadm's patches": {
			objectsOf("v1.36.3", patched("a", "maxPods: 50")), objectsOf("v1.36.3", patched("a", "maxPods: 99")),
			`{"spec":{"version":"v1.36.3"}}`, `{"spec":{"files":[{"path":"/p/etcda.yaml","content":"maxPods: 99"}]}}`,
		},
		"a patch in another directory": {
			objectsOf("v1.36.3", patched("a", "x")), objectsOf("v1.36.3", patched("/../sub/etcd", "x")), `{"spec":{"version":"v1.36.3"}}`, "",
		},
		"another bootstrap provider's": {
			objectsOf("v1.36.3", `{"kind": "OtherConfig", "spec": {"files": "none"}}`), objectsOf("v1.36.4", `{"kind": "OtherConfig", "spec": {"files": "none"}}`),
			`{"spec":{"version":"v1.36.4"}}`, "",
		},
		"patches that are nowhere": {objectsOf("v1.36.3", `{"spec": {}}`), objectsOf("v1.37.2", `{"spec": {"joinConfiguration": {"patches": {"directory": "patches"}}}}`), "", ""},
	} {
		machine, config, err := canUpdate(c.from, c.to)
		if err != nil || string(machine.Patch) != c.machine || string(config.Patch) != c.config {
			t.Errorf("%s: %s and %s, %v; want %s and %s", name, machine.Patch, config.Patch, err, c.machine, c.config)
		}
		for _, p := range []runtimehooksv1.Patch{machine, config} {
			if (p.PatchType == "") != (len(p.Patch) == 0) {
				t.Errorf("%s: a patch of the type %q: %s", name, p.PatchType, p.Patch)
			}
		}
	}
	if _, _, err := canUpdate(objectsOf("v1.36.3", "{"), objectsOf("v1.37.2", "{")); err == nil {
		t.Error("a request that cannot be read was answered")
	}
}

// patched is a KubeadmConfig with a patch of kubeadm.
func patched(name, content string) string {
	return `{"spec": {"joinConfiguration": {"patches": {"directory": "/p"}}, "files": [{"path": "/p/etcd` + name + `.yaml", "content": "` + content + `"}]}}`
}

// TestCanUpdateSet: of workers, only the version and kubeadm's patches.
func TestCanUpdateSet(t *testing.T) {
	t.Parallel()
	set := func(version, kind, group string) runtimehooksv1.CanUpdateMachineSetRequestObjects {
		var s clusterv1.MachineSet
		s.Spec.Template.Spec = machineOf(version, kind, group).Spec
		return runtimehooksv1.CanUpdateMachineSetRequestObjects{MachineSet: s}
	}
	ours := infrav1.GroupVersion.Group
	for dir, want := range map[string]bool{"/etc/kubernetes/patches": true, "patches": false} {
		to := set("v1.37.2", "KKMachineTemplate", ours)
		to.BootstrapConfigTemplate.Raw = []byte(`{"spec": {"template": {"spec": {"joinConfiguration": {"patches": {"directory": "` + dir + `"}}}}}}`)
		if got, _, err := canUpdateSet(set("v1.36.3", "KKMachineTemplate", ours), to); err != nil || got.IsDefined() != want {
			t.Errorf("patches in %s: %s, %v", dir, got.Patch, err)
		}
	}
	for to, want := range map[string]string{"v1.37.2": `{"spec":{"template":{"spec":{"version":"v1.37.2"}}}}`, "v1.38.0": "", "v1.35.9": ""} {
		got, _, err := canUpdateSet(set("v1.36.3", "KKMachineTemplate", ours), set(to, "KKMachineTemplate", ours))
		if err != nil || string(got.Patch) != want {
			t.Errorf("to %s: %s, %v; want %s", to, got.Patch, err, want)
		}
	}
	other := set("v1.36.4", "KKMachineTemplate", ours)
	other.BootstrapConfigTemplate.Raw = []byte(`{"kind": "OtherConfigTemplate", "spec": {"template": {"spec": {"files": "none"}}}}`)
	if got, _, err := canUpdateSet(set("v1.36.3", "KKMachineTemplate", ours), other); err != nil || !got.IsDefined() {
		t.Errorf("workers of another bootstrap provider: %s, %v", got.Patch, err)
	}
	from, to := set("v1.36.3", "KKMachineTemplate", ours), set("v1.36.3", "KKMachineTemplate", ours)
	from.BootstrapConfigTemplate.Raw = []byte(`{"spec": {"template": ` + patched("a", "maxPods: 50") + `}}`)
	to.BootstrapConfigTemplate.Raw = []byte(`{"spec": {"template": ` + patched("a", "maxPods: 99") + `}}`)
	machines, template, err := canUpdateSet(from, to)
	if want := `{"spec":{"template":{"spec":{"files":[{"path":"/p/etcda.yaml","content":"maxPods: 99"}]}}}}`; err != nil || !machines.IsDefined() || string(template.Patch) != want {
		t.Errorf("kubeadm's patches: %s and %s, %v; want %s", machines.Patch, template.Patch, err, want)
	}
	if got, _, err := canUpdateSet(set("v1.36.3", "DockerMachineTemplate", "infrastructure.cluster.x-k8s.io"), set("v1.37.2", "DockerMachineTemplate", "infrastructure.cluster.x-k8s.io")); err != nil || got.IsDefined() {
		t.Errorf("workers of another provider: %s, %v", got.Patch, err)
	}
}

// TestIDOf: an update is another one if and only if something else is brought about.
func TestIDOf(t *testing.T) {
	t.Parallel()
	id := func(version, config string) string {
		spec, err := specOf(runtime.RawExtension{Raw: []byte(config)})
		if err != nil {
			t.Fatal(err)
		}
		id, err := idOf(version, &spec)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := id("v1.37.2", `{"spec": {"clusterConfiguration": {"dns": {"imageTag": "a"}, "etcd": {}}, "joinConfiguration": {"discovery": {"bootstrapToken": {"token": "one"}}}}}`)
	if again := id("v1.37.2", `{"spec": {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": "two"}}}, "clusterConfiguration": {"etcd": {}, "dns": {"imageTag": "a"}}}}`); again != first {
		t.Errorf("%s and %s: another token is another update", first, again)
	}
	for _, other := range []string{
		id("v1.37.3", `{"spec": {"clusterConfiguration": {"dns": {"imageTag": "a"}, "etcd": {}}}}`), id("v1.37.2", `{"spec": {"clusterConfiguration": {"dns": {"imageTag": "b"}, "etcd": {}}}}`),
		id("v1.37.2", `{"spec": {"clusterConfiguration": {"dns": {"imageTag": "a"}, "etcd": {}}, "joinConfiguration": {"patches": {"directory": "/p"}}}}`),
		id("v1.37.2", patched("a", "x")), id("v1.37.2", patched("a", "y")),
	} {
		if other == first {
			t.Errorf("%s is that of two updates", other)
		}
	}
}
