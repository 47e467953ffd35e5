package registries

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
)

func TestNextURL(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("http://r.site:5000/v2/app/tags/list?n=1000")
	if err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		`</v2/app/tags/list?n=2&last=b>; rel="next"`:                           "n=2&last=b",
		`<http://r.site/repository/proxy/v2/app/tags/list?last=b>; rel="next"`: "last=b",
		`<https://internal:8080/v2/app/tags/list?last=b>;rel=next`:             "last=b",
		`</v2/app/tags/list?n=2>; rel="prev", <?last=b>; rel="next"`:           "last=b",
		`<?last=b>; title="a, b"; REL='next last', <?last=z>; rel="last"`:      "last=b",
		`/v2/app/tags/list?last=b; rel="next"`:                                 "last=b",
		`</v2/app/tags/list?n=2>; rel="prev"`:                                  "",
		`<?last=b>; rel="nextish"; title="next"`:                               "",
		``:                                                                     "",
	} {
		to, err := nextURL(at, http.Header{"Link": {`<?first>; rel="first"`, link}})
		switch {
		case err != nil, (to == nil) != (want == ""):
			t.Errorf("%s: %v, %v", link, to, err)
		case to != nil && to.String() != "http://r.site:5000/v2/app/tags/list?"+want:
			t.Errorf("%s leads to %s", link, to)
		}
	}
}

// FuzzParseManifest holds for whatever a registry sends: no panic, and what is accepted has digests and sizes that
// can be asked for.
func FuzzParseManifest(f *testing.F) {
	d := upstream.SHA256Of(nil).String()
	f.Add(true, []byte(`{"manifests":[{"digest":"`+d+
		`","size":1,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	f.Add(false, []byte(`{"config":{"digest":"`+d+`"},"layers":[{"digest":"`+d+`","size":2}],"subject":{"digest":"`+d+
		`"},"annotations":{"a":"b"}}`))
	f.Add(false, []byte(`{"layers":null,"blobs":[{"digest":"sha512:00","size":-1}]}`))
	f.Fuzz(func(t *testing.T, index bool, data []byte) {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}
		if index {
			desc.MediaType = ocispec.MediaTypeImageIndex
		}
		doc, err := ParseManifest(desc, data)
		if err != nil {
			return
		}
		w := &imageWalk{wanted: []string{"linux/arm/v7", "linux/amd64"}}
		chosen := w.choose(doc.Manifests)
		for _, child := range doc.Manifests {
			if CheckDescriptor(child) != nil {
				t.Errorf("accepted: %+v", child)
			}
			w.takes(child, chosen)
		}
		doc.artifactType()
	})
}

// TestHostileManifest refuses a manifest of a million empty descriptors before they are made.
func TestHostileManifest(t *testing.T) {
	t.Parallel()
	data := []byte(`{"schemaVersion":2,"layers":[` + strings.Repeat("{},", maxManifest/3-20) + `{}]}`)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}
	if _, err := ParseManifest(desc, data); err == nil || !strings.Contains(err.Error(), "values") {
		t.Error(err)
	}
	if bytes.Count(data, []byte(",")) < MaxValues {
		t.Error("the manifest is not large enough")
	}
}
