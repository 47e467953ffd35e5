package config_test

import (
	"os"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

// TestEtcdTags: control planes of a version that the variable etcdTags names get that etcd, and those of other versions
// kubeadm's. hasKey is sprig's, which Cluster API's templates have.
func TestEtcdTags(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../templates/clusterclass-kkbundle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(data), "\n---\n")
	var class struct {
		Spec struct {
			Patches []struct {
				Name, EnabledIf string
				Definitions     []struct {
					JSONPatches []struct {
						ValueFrom struct{ Template string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(first), &class); err != nil || class.Spec.Patches[0].Name != "etcd" {
		t.Fatalf("%v: %+v", err, class)
	}
	patch := class.Spec.Patches[0]
	render := func(text, version string) string {
		var b strings.Builder
		hasKey := func(m map[string]any, key string) bool { _, ok := m[key]; return ok }
		err := template.Must(template.New("").Funcs(template.FuncMap{"hasKey": hasKey}).Parse(text)).Execute(&b, map[string]any{
			"etcdTags": map[string]any{"v1.33.4": "3.5.32-0", "v1.36.3": "3.6.13-0"},
			"builtin":  map[string]any{"controlPlane": map[string]any{"version": version}},
		})
		if err != nil {
			t.Error(err)
		}
		return b.String()
	}
	for version, want := range map[string]string{"v1.33.4": "3.5.32-0", "v1.36.3": "3.6.13-0", "v1.37.2": ""} {
		if got := render(patch.EnabledIf, version); got != map[bool]string{true: "true", false: "false"}[want != ""] {
			t.Errorf("%s: the patch is enabled: %s", version, got)
		}
		var etcd struct {
			Etcd struct{ Local struct{ ImageTag string } }
		}
		if err := yaml.Unmarshal([]byte(render(patch.Definitions[0].JSONPatches[0].ValueFrom.Template, version)), &etcd); want != "" && (err != nil || etcd.Etcd.Local.ImageTag != want) {
			t.Errorf("%s: %v %+v, want %s", version, err, etcd, want)
		}
	}
}
