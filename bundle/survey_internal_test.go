package bundle

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// TestSurveyOfAManifestInSeveralFrames reads a large manifest in a bundle of another writer, whose frames are small.
func TestSurveyOfAManifestInSeveralFrames(t *testing.T) {
	t.Parallel()
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	config := put(t, c, []byte("{}"))
	config.MediaType = MediaTypeEmpty
	m := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Annotations: map[string]string{"long": strings.Repeat("text ", 300_000)},
	}
	m.SchemaVersion = 2
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := put(t, c, data)
	d.MediaType = m.MediaType
	var b bytes.Buffer
	if _, err := Write(t.Context(), &b, c, Index{
		Name: "large", Version: "1",
		Items: []Item{{Kind: KindImage, Ref: "docker.io/library/large:1", Descriptor: d}},
	},
		WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	const small = 1 << 20 // as many digits as the writer's own size, so that the directory stays as long
	frames := contents(t, b.Bytes())
	at := slices.IndexFunc(frames, func(content []byte) bool { return bytes.Equal(content, data) })
	frames = slices.Concat(frames[:at], slices.Collect(slices.Chunk(data, small)), frames[at+1:])
	place := len(frames) - 2
	dir, err := format.ParseDirectory(frames[place])
	if err != nil {
		t.Fatal(err)
	}
	dir.FrameSize = small
	for i, blob := range dir.Blobs {
		if int(blob.Frame) > at {
			dir.Blobs[i].Frame += uint32(len(data) / small)
		}
	}
	if frames[place], err = dir.Marshal(); err != nil {
		t.Fatal(err)
	}
	r, err := openBytes(assemble(frames))
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Survey(t.Context())
	if err != nil || len(got) != 1 || got[0].Size != int64(len(data))+config.Size {
		t.Errorf("%+v, %v; the image has %d bytes", got, err, int64(len(data))+config.Size)
	}
}
