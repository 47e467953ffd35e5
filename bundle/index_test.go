package bundle

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

func testItem(kind, ref, platform string) Item {
	it := Item{Kind: kind, Ref: ref, Name: "n", Version: "1", Descriptor: ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(kind + ref + platform), Size: 7,
	}}
	if os, arch, ok := strings.Cut(platform, "/"); ok {
		arch, variant, _ := strings.Cut(arch, "/")
		it.Descriptor.Platform = &ocispec.Platform{OS: os, Architecture: arch, Variant: variant}
	}
	return it
}

func testIndex() Index {
	windows := testItem(KindImage, "mcr.example/windows:1", "windows/amd64")
	windows.Descriptor.Platform.OSVersion, windows.Descriptor.Platform.OSFeatures = "10.0", []string{"win32k", "x"}
	sparse := testItem(KindImage, "docker.io/library/nginx:1.29", "")
	sparse.Absent = []digest.Digest{digest.FromString("a"), digest.FromString("b"), digest.FromString("c")}
	slices.Sort(sparse.Absent)
	odd := testItem(KindFile, `local/a "quoted" \ name é <&>`, "")
	odd.Descriptor.Annotations = map[string]string{"x.y": `va"lue\`, "a": ""}
	odd.Descriptor.ArtifactType = ArtifactTypeFile
	return Index{
		Name: "site", Version: "1.4.0", Platforms: []string{"linux/amd64", "linux/arm64"},
		Annotations: map[string]string{"policy": "strict"},
		Items: []Item{
			odd, windows, sparse,
			testItem(KindFile, "local/tool", "linux/amd64"), testItem(KindFile, "local/tool", "linux/arm64/v8"),
			testItem(KindChart, "local/demo:0.1.0", ""),
		},
	}
}

func TestIndexRoundTrip(t *testing.T) {
	t.Parallel()
	x := testIndex()
	data, err := x.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseIndex(data)
	if err != nil {
		t.Fatal(err)
	}
	want := x
	want.Items = slices.Clone(x.Items)
	slices.SortFunc(want.Items, compareItems)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	slices.Reverse(x.Items)
	slices.Reverse(x.Platforms)
	if again, err := x.Marshal(); err != nil || !bytes.Equal(again, data) {
		t.Errorf("another order gave other bytes: %v", err)
	}
	// Other programs read it as an OCI index.
	var oci ocispec.Index
	if err := json.Unmarshal(data, &oci); err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, m := range oci.Manifests {
		names[m.Annotations[AnnotationRef]] = m.Annotations[ocispec.AnnotationRefName]
	}
	wantNames := map[string]string{
		`local/a "quoted" \ name é <&>`: "", "local/tool": "", "local/demo:0.1.0": "local/demo:0.1.0",
		"mcr.example/windows:1":        "mcr.example/windows:1",
		"docker.io/library/nginx:1.29": "docker.io/library/nginx:1.29",
	}
	if d := cmp.Diff(wantNames, names); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}

func TestIndexEmpty(t *testing.T) {
	t.Parallel()
	data, err := Index{}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseIndex(data); err != nil || cmp.Diff(Index{}, got) != "" {
		t.Errorf("%s: %+v, %v", data, got, err)
	}
}

func TestIndexMarshalRefuses(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(x *Index){
		"kind":           func(x *Index) { x.Items[0].Kind = "Image" },
		"reference":      func(x *Index) { x.Items[0].Ref = "" },
		"control":        func(x *Index) { x.Items[0].Name = "a\x1b[31m" },
		"line separator": func(x *Index) { x.Items[0].Name = "a\u2028" },
		"UTF-8":          func(x *Index) { x.Items[0].Ref = "a\xff" },
		"sha512":         func(x *Index) { x.Items[0].Descriptor.Digest = digest.SHA512.FromString("a") },
		"upper case": func(x *Index) {
			x.Items[0].Descriptor.Digest = digest.Digest("sha256:" +
				strings.Repeat("A", 64))
		},
		"size":            func(x *Index) { x.Items[0].Descriptor.Size = -1 },
		"media type":      func(x *Index) { x.Items[0].Descriptor.MediaType = "" },
		"urls":            func(x *Index) { x.Items[0].Descriptor.URLs = []string{"https://a"} },
		"absent":          func(x *Index) { x.Items[0].Absent = []digest.Digest{"x"} },
		"twice":           func(x *Index) { x.Items = append(x.Items, x.Items[0]) },
		"own annotation":  func(x *Index) { x.Items[0].Descriptor.Annotations = map[string]string{AnnotationKind: "x"} },
		"top annotation":  func(x *Index) { x.Annotations = map[string]string{annotationTitle: "x"} },
		"platform":        func(x *Index) { x.Items[0].Descriptor.Platform = &ocispec.Platform{} },
		"comma":           func(x *Index) { x.Platforms = []string{"a,b"} },
		"long annotation": func(x *Index) { x.Items[0].Name = strings.Repeat("x", format.MaxString+1) },
	} {
		x := testIndex()
		edit(&x)
		if data, err := x.Marshal(); err == nil {
			t.Errorf("%s: accepted as %s", name, data)
		}
	}
}

func TestParseIndexRefuses(t *testing.T) {
	t.Parallel()
	data, err := testIndex().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range [][2]string{
		{`{"schemaVersion":2,`, `{"schemaVersion":2, `},
		{`"annotations":{"io.kkbundle.kind"`, `"annotations":{"zz":"a","io.kkbundle.kind"`},
		{`"size":7`, `"size":07`},
		{`"size":7`, `"size":-7`},
		{`"size":7`, `"size":7.0`},
		{`"size":7`, `"size":99999999999999999999`},
		{`"sha256:`, `"sha512:`},
		{`é`, `\u00e9`},
		{`io.kkbundle.kind":"chart"`, `io.kkbundle.Kind":"chart"`},
		{`,"org.opencontainers.image.ref.name":"docker.io/library/nginx:1.29"`, ``},
		{`linux/amd64,linux/arm64`, `linux/arm64,linux/amd64`},
		{`linux/amd64,linux/arm64`, ``},
		{`"manifests":[`, `"manifests":[,`},
		{`}]`, `},]`},
		{`"os":"windows"`, `"os":"windows","os.version":""`},
		{`"io.kkbundle.absent":"`, `"io.kkbundle.absent":",`},
		{`"mediaType"`, `"mediatype"`},
	} {
		bad := bytes.Replace(data, []byte(edit[0]), []byte(edit[1]), 1)
		if bytes.Equal(bad, data) {
			t.Fatalf("%q is not there", edit[0])
		}
		if _, err := ParseIndex(bad); err == nil {
			t.Errorf("%q instead of %q was accepted", edit[1], edit[0])
		}
	}
	for n := range data {
		if _, err := ParseIndex(data[:n]); err == nil {
			t.Fatalf("the first %d bytes were accepted", n)
		}
	}
}

func FuzzParseIndex(f *testing.F) {
	data, err := testIndex().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(indexHead + "]}"))
	f.Add([]byte(indexHead + `{"mediaType":"\\\"","digest":"sha256:`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := ParseIndex(data)
		if err != nil {
			return
		}
		if again, err := x.Marshal(); err != nil || !bytes.Equal(again, data) {
			t.Errorf("accepted %q, writes %q: %v", data, again, err)
		}
	})
}
