package clusterapi

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// TestConfig: clusterctl's configuration names the files that the repository's task brings, at the paths where
// clusterctl looks for them.
func TestConfig(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "clusterAPI: {version: v1.14.2, provider: v0.3.1}\n")
	all, err := parts(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := featuresOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := string(config(all, nil, f))
	tasktest.Golden(t, "clusterctl.yaml", []byte(got))
	places := map[string]bool{}
	for _, p := range repositoryTask(all, nil).Files {
		if places[p.Path] {
			t.Errorf("%s is there twice", p.Path)
		}
		places[p.Path] = true
	}
	for _, word := range strings.FieldsFunc(got, func(r rune) bool { return strings.ContainsRune(" {},\n", r) }) {
		if strings.HasPrefix(word, Dir+"/") && word != ConfigFile && !places[word] {
			t.Errorf("the configuration names %s, which no task brings", word)
		}
	}
	if tasks := Tasks(tasktest.Cluster(t, "")); len(tasks) > 0 || len(Images(tasktest.Cluster(t, ""))) > 0 {
		t.Errorf("a cluster without clusterAPI has tasks: %v", tasks)
	}
}

// TestRepository: files have the names that they are published under, and those of the provider are what a release of
// kkbundle has: components, metadata, and each template of a cluster.
func TestRepository(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\n")
	var names []string
	for _, p := range layout() {
		for _, f := range p.files {
			url, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: f.component}, "linux/amd64")
			if err != nil || path.Base(url) != f.name {
				t.Errorf("%s is published as %s, and clusterctl has it as %s: %v", f.component, url, f.name, err)
			}
			if p.Name == "kkbundle" {
				names = append(names, f.name)
			}
		}
	}
	published := []string{"infrastructure-components.yaml", "metadata.yaml"}
	templates, err := filepath.Glob("../../provider/templates/cluster*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range templates {
		published = append(published, filepath.Base(file))
	}
	slices.Sort(names)
	slices.Sort(published)
	if diff := cmp.Diff(published, names); diff != "" {
		t.Errorf("the repository lacks (-) what provider/ has, or has (+) what is not there:\n%s", diff)
	}
}

// TestFurtherProviders: what an operator adds to the providers of the configuration stays, and the bundle's own do not
// stay in the versions of an earlier bundle.
func TestFurtherProviders(t *testing.T) {
	t.Parallel()
	all, err := parts(tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []provider{
		{"in-cluster", "IPAMProvider", "/srv/ipam-in-cluster/v1.1.0/ipam-components.yaml"},
		{"kubeadm", "InfrastructureProvider", `/srv/"a: }b/v1.0.0/c.yaml`},
	}
	next := slices.Clone(all)
	next[0].Version, next[3].Version = "v1.14.4", "v0.2.0"
	got, err := furtherProviders(config(all, want, features{}), next)
	if diff := cmp.Diff(got, want); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
	if got, err := furtherProviders(nil, all); len(got) > 0 || err != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	if got, err := furtherProviders([]byte("providers: ["), all); err == nil {
		t.Errorf("half a file: %v", got)
	}
}

// TestFeatures: what an operator has switched off stays so, also written without quotes.
func TestFeatures(t *testing.T) {
	t.Parallel()
	all, err := parts(tasktest.Cluster(t, "clusterAPI: {version: v1.14.2}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]features{
		"": {"true", "true"},
		"EXP_RUNTIME_SDK: \"false\"\nEXP_IN_PLACE_UPDATES: false\n": {"false", "false"},
		"EXP_IN_PLACE_UPDATES: \"false\"\n":                         {"true", "false"},
		"EXP_RUNTIME_SDK:\n":                                        {"true", "true"},
	} {
		got, err := featuresOf([]byte(text))
		if err == nil {
			got, err = featuresOf(config(all, nil, got))
		}
		if got != want || err != nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestVersions: the provider has the catalog's version unless the file names one, and versions under components count.
func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"clusterAPI: {version: v1.14.4}\n": "v1.14.4 v1.14.4 v1.14.4 v0.1.0 v1.21.1",
		"clusterAPI: {version: v1.14.4, provider: v0.2.0}\ncomponents: {cert-manager: {version: v1.22.0}}\n": "v1.14.4 v1.14.4 v1.14.4 v0.2.0 v1.22.0",
	} {
		all, err := parts(tasktest.Cluster(t, text))
		var got []string
		for _, p := range all {
			got = append(got, p.Version)
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	all, err := parts(tasktest.Cluster(t, "clusterAPI: {version: v1.13.0}\n"))
	if err == nil || !strings.Contains(err.Error(), "cert-manager") {
		t.Errorf("a release without a known cert-manager: %v, %v", all, err)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	want := []part{{dir: "a", Kind: "Core", Name: "a", Version: "v1.10.0"}, {dir: "b", Kind: "Infra", Name: "b", Version: "v0.2.0"}}
	for _, c := range []struct {
		have map[string]string
		want []string // missing, older, later
	}{
		{nil, []string{"a b", "", ""}},
		{map[string]string{"Core/a": "v1.10.0", "Infra/b": "v0.2.0"}, []string{"", "", ""}},
		{map[string]string{"Core/a": "v1.9.0"}, []string{"b", "a", ""}},
		{map[string]string{"Core/a": "v1.10.0", "Infra/b": "v0.2.0-rc.1", "Infra/other": "v9.0.0"}, []string{"", "b", ""}},
		{map[string]string{"Core/a": "v1.10.1", "Infra/b": "v0.2.0"}, []string{"", "", "a"}},
	} {
		d := compare(want, c.have)
		var got []string
		for _, list := range [][]part{d.missing, d.older, d.later} {
			var names []string
			for _, p := range list {
				names = append(names, p.dir)
			}
			got = append(got, strings.Join(names, " "))
		}
		if diff := cmp.Diff(got, c.want); diff != "" {
			t.Errorf("%v (-got +want):\n%s", c.have, diff)
		}
	}
}
