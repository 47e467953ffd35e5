package provenance_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/provenance"
)

func build() provenance.Build {
	return provenance.Build{
		Name: "site", Version: "1.0", Platforms: []string{"linux/amd64"},
		Identity: digest.FromString("index"), Files: []provenance.File{{"site-1.0.kkb", digest.FromString("file")}},
		Manifest: provenance.File{Name: "manifest.yaml", Digest: digest.FromString("manifest")},
		Inputs:   []provenance.File{{"manifest.lock.yaml", digest.FromString("lock")}},
		Pins: []manifest.Pin{
			{Kind: "image", Ref: "docker.io/library/app:1.0", Digest: digest.FromString("image")},
			{
				Kind: "file", Ref: "https://files.example/it", Platform: "linux/amd64",
				From: "https://me:secret@files.site/it?token=secret", Digest: digest.FromString("it"),
			},
			{Kind: "file", Ref: "local/notes", URL: "/home/secret/notes", Digest: digest.FromString("notes")},
		},
		Encoder: "zstd", Program: "v1.2.3", Locked: true,
		Started: time.Unix(0, 1), Finished: time.Unix(60, 0).In(time.FixedZone("", 3600)),
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	data, err := provenance.New(build())
	if err != nil {
		t.Fatal(err)
	}
	sum := func(s string) string { return `{"sha256":"` + digest.FromString(s).Encoded() + `"}` }
	want := `{"_type":"https://in-toto.io/Statement/v1",
"subject":[{"name":"site-1.0.kkb","digest":` + sum("file") + `},{"name":"index.json","digest":` + sum("index") + `}],
"predicateType":"https://slsa.dev/provenance/v1",
"predicate":{"buildDefinition":{"buildType":"https://github.com/kkbundle/kkbundle/builder/v1",
"externalParameters":{"manifest":{"name":"manifest.yaml","digest":` + sum("manifest") + `},"name":"site","version":"1.0","platforms":["linux/amd64"],"locked":true},
"internalParameters":{"encoder":"zstd"},
"resolvedDependencies":[{"name":"manifest.yaml","digest":` + sum("manifest") + `},{"name":"manifest.lock.yaml","digest":` + sum("lock") + `},
{"name":"image docker.io/library/app:1.0","uri":"oci://docker.io/library/app:1.0","digest":` + sum("image") + `},
{"name":"file https://files.example/it linux/amd64","uri":"https://files.site/it","digest":` + sum("it") + `},
{"name":"file local/notes","digest":` + sum("notes") + `}]},
"runDetails":{"builder":{"id":"https://github.com/kkbundle/kkbundle","version":{"kkbundle":"v1.2.3"}},
"metadata":{"startedOn":"1970-01-01T00:00:00Z","finishedOn":"1970-01-01T00:01:00Z"}}}}`
	if diff := cmp.Diff(strings.ReplaceAll(want, "\n", ""), string(data)); diff != "" {
		t.Error(diff)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	data, err := provenance.New(build())
	if err != nil {
		t.Fatal(err)
	}
	s, err := provenance.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.About(digest.FromString("index")); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"file", "other"} {
		if err := s.About(digest.FromString(other)); !errors.Is(err, provenance.ErrOther) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if !s.HasFile(digest.FromString("file")) || s.HasFile(digest.FromString("index")) {
		t.Error("it does not tell the file from the index")
	}
	for _, change := range []string{
		statement("x", "", ""), statement("", "x", ""), statement("", "", "x"), "", "[]",
		`{"subject":1}`,
	} {
		if _, err := provenance.Parse([]byte(change)); err == nil {
			t.Errorf("%s was read", change)
		}
	}
}

// statement is a statement with something else in place of one of its types.
func statement(a, b, c string) string {
	data, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1" + a, "predicateType": "https://slsa.dev/provenance/v1" + b,
		"predicate": map[string]any{"buildDefinition": map[string]any{"buildType": provenance.BuildType + c}},
	})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func FuzzParse(f *testing.F) {
	data, err := provenance.New(build())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"subject":[{"digest":null}]}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		s, err := provenance.Parse(data)
		if err == nil {
			_ = s.About(digest.FromString("a"))
			_ = s.HasFile(digest.FromString("a"))
		}
	})
}
