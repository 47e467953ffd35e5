package config_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/provider/config"
)

var update = flag.Bool("update", false, "write the generated files anew; -generator names controller-gen")

var generator = flag.String("generator", "", "controller-gen, which writes crd/ and the deep copies")

const componentsFile = "infrastructure-components.yaml"

// TestGenerated: deep copies and CRDs are those that controller-gen makes of the types. It is run where -generator names it (make provider-test).
func TestGenerated(t *testing.T) {
	if *generator == "" {
		t.Skip("no controller-gen: -generator names it, see make provider-test")
	}
	dir := t.TempDir()
	crds, code := filepath.Join(dir, "crd"), filepath.Join(dir, "code")
	if *update {
		crds, code = "crd", "../api/v1alpha1"
	}
	cmd := exec.CommandContext(t.Context(), *generator, "object", "crd:crdVersions=v1", "paths=./api/...", "output:crd:dir="+abs(t, crds), "output:object:dir="+abs(t, code))
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if *update {
		return
	}
	for made, kept := range map[string]string{crds: "crd", code: "../api/v1alpha1"} {
		entries, err := os.ReadDir(made)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !bytes.Equal(read(t, filepath.Join(made, e.Name())), read(t, filepath.Join(kept, e.Name()))) {
				t.Errorf("%s is not what the types say; run make provider-generate", e.Name())
			}
		}
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestComponents: the file is up to date and keeps clusterctl's rules: one Namespace, a container named manager, labels everywhere.
func TestComponents(t *testing.T) {
	made, err := config.Components(config.Image)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(componentsFile, made, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made, read(t, componentsFile)) {
		t.Errorf("%s is not what config.go makes; run make provider-generate", componentsFile)
	}
	kinds := map[string]int{}
	for text := range strings.SplitSeq(string(made), "---\n") {
		if text == "" {
			continue
		}
		var o struct {
			Kind     string
			Metadata struct {
				Name, Namespace string
				Labels          map[string]string
			}
		}
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		kinds[o.Kind]++
		if o.Metadata.Labels["cluster.x-k8s.io/provider"] != "infrastructure-kkbundle" {
			t.Errorf("%s %s has no label of the provider", o.Kind, o.Metadata.Name)
		}
		if o.Metadata.Name == "kkbundle-provider-capi" {
			for _, manager := range []string{"", "kubeadm.controlplane."} {
				if o.Metadata.Labels[manager+"cluster.x-k8s.io/aggregate-to-manager"] != "true" {
					t.Errorf("%scluster.x-k8s.io's manager may not use our kinds", manager)
				}
			}
		}
		switch o.Kind {
		case "CustomResourceDefinition":
			if o.Metadata.Labels["cluster.x-k8s.io/v1beta2"] != "v1alpha1" {
				t.Errorf("%s does not name its contract", o.Metadata.Name)
			}
			if _, moved := o.Metadata.Labels["clusterctl.cluster.x-k8s.io/move"]; moved != strings.HasPrefix(o.Metadata.Name, "kkhosts.") {
				t.Errorf("%s: clusterctl moves all objects: %v", o.Metadata.Name, moved)
			}
		case "Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
		default:
			if o.Metadata.Namespace != "kkbundle-provider-system" {
				t.Errorf("%s %s is in namespace %q", o.Kind, o.Metadata.Name, o.Metadata.Namespace)
			}
		}
	}
	if kinds["Namespace"] != 1 || kinds["CustomResourceDefinition"] != len(config.Kinds()) || kinds["Deployment"] != 1 {
		t.Errorf("kinds: %v", kinds)
	}
	if !strings.Contains(string(made), "- name: manager\n") && !strings.Contains(string(made), "name: manager\n") {
		t.Error("no container is named manager")
	}
	var metadata struct {
		APIVersion    string                      `json:"apiVersion"`
		ReleaseSeries []struct{ Contract string } `json:"releaseSeries"`
	}
	if err := yaml.Unmarshal(read(t, "metadata.yaml"), &metadata); err != nil || metadata.APIVersion != "clusterctl.cluster.x-k8s.io/v1alpha3" || metadata.ReleaseSeries[0].Contract != "v1beta2" {
		t.Errorf("%+v, %v", metadata, err)
	}
}
