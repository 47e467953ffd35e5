package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

func TestFind(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	for _, p := range []*ocispec.Platform{
		nil,
		{OS: "linux", Architecture: "amd64"},
		{OS: "linux", Architecture: "arm64", Variant: "v8"},
	} {
		b.File("local/it", "it", p, []byte(bundle.PlatformString(p)))
	}
	r := b.Bundle().Reader
	for platform, want := range map[string]string{
		"": "", "linux/amd64": "linux/amd64", "linux/arm64": "linux/arm64/v8", "linux/arm64/v8": "linux/arm64/v8",
		"linux/riscv64": "", "linux/arm": "",
	} {
		it, ok := r.Find(bundle.KindFile, "local/it", platform)
		if got := bundle.PlatformString(it.Descriptor.Platform); !ok || got != want {
			t.Errorf("%q: got %q, %v; want %q", platform, got, ok, want)
		}
	}
	if _, ok := r.Find(bundle.KindImage, "local/it", ""); ok {
		t.Error("found an image of the file's name")
	}
}

func TestContentOf(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	for kind, want := range map[string]string{
		bundle.KindFile:  bundletest.FileContent,
		bundle.KindChart: string(bundletest.ChartArchive(t, "demo", "0.1.0")),
	} {
		for _, it := range b.Reader.Index().Items {
			if it.Kind != kind {
				continue
			}
			d, err := b.Reader.ContentOf(t.Context(), it)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := b.Reader.ReadBlob(t.Context(), d.Digest, 1<<20); err != nil || string(got) != want {
				t.Errorf("%s: %d bytes, %v", it, len(got), err)
			}
		}
	}
	it, _ := b.Reader.Find(bundle.KindImage, bundletest.ImageRef, "")
	if _, err := b.Reader.ContentOf(t.Context(), it); err == nil {
		t.Error("an image has a content")
	}
}

func TestReadBlobRefuses(t *testing.T) {
	t.Parallel()
	r := bundletest.New(t).Reader
	if _, err := r.ReadBlob(t.Context(), digest.FromString("absent"), 10); err == nil {
		t.Error("read an absent blob")
	}
	d := r.Blobs()[0]
	if _, err := r.ReadBlob(t.Context(), d.Digest, d.Size-1); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("read more than allowed: %v", err)
	}
	if _, err := r.ReadBlob(t.Context(), "sha512:00", 10); err == nil {
		t.Error("read a sha512 blob")
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, bundletest.Text(1, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, other, filepath.Join(dir, "absent"), os.DevNull} {
		if r, err := bundle.Open(path); err == nil {
			t.Errorf("opened %s as %s", path, r.Digest())
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not name %s", err, path)
		}
	}
	if _, err := bundle.Open(other); !errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("got %v, want ErrDamaged", err)
	}
}

func TestReadInParallel(t *testing.T) {
	t.Parallel()
	r := large(t).Bundle().Reader
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for _, d := range r.Blobs() {
				rc, err := r.Blob(t.Context(), d.Digest, 0)
				if err != nil {
					t.Error(err)
					return
				}
				v := d.Digest.Verifier()
				if n, err := io.Copy(v, rc); err != nil || n != d.Size || !v.Verified() {
					t.Errorf("%s: %d bytes, %v", d.Digest, n, err)
				}
				if err := rc.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// TestReadHonoursTheContext in the middle of a blob.
func TestReadHonoursTheContext(t *testing.T) {
	t.Parallel()
	r := large(t).Bundle().Reader
	ctx, cancel := context.WithCancel(t.Context())
	rc, err := r.Blob(ctx, digest.FromBytes(bundletest.Random(12, 2*frameSize+77)), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if _, err := io.ReadFull(rc, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, rc); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := r.Verify(ctx, bundle.VerifyOptions{}); !errors.Is(err, context.Canceled) ||
		errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("verify: got %v", err)
	}
}

// TestVerifyNamesAllDamage flips a bit in several blobs and wants each of them, with its items, and no other.
func TestVerifyNamesAllDamage(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[digest.Digest]string{}
	for i, n := range []int{frameSize, 2*frameSize + 77, 100_000} { // stored, so their bytes are in the file
		content := bundletest.Random(map[int]int64{frameSize: 10, 2*frameSize + 77: 12, 100_000: 8}[n], n)
		at := bytes.Index(data, content[1000:1500])
		if at < 0 {
			t.Fatalf("blob %d is not there as it is", i)
		}
		data[at+100] ^= 4
		want[digest.FromBytes(content)] = fmt.Sprintf("file https://files.example/random/%d", n)
	}
	r, err := bundle.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	rep, err := r.Verify(t.Context(), bundle.VerifyOptions{Jobs: 3, Progress: func(done, total int64) {
		if done < last || done > total || total != int64(len(data)) {
			t.Errorf("progress %d after %d of %d", done, last, total)
		}
		last = done
	}})
	if !errors.Is(err, bundle.ErrDamaged) || len(rep.Damage) != len(want) {
		t.Fatalf("%d damages: %v", len(rep.Damage), err)
	}
	pipe, err := bundle.VerifyStream(t.Context(), bytes.NewReader(data), bundle.VerifyOptions{})
	if !errors.Is(err, bundle.ErrDamaged) || len(pipe.Damage) != len(want) {
		t.Errorf("from a pipe, %d damages: %v", len(pipe.Damage), err)
	}
	for _, d := range append(rep.Damage, pipe.Damage...) {
		if owner, ok := want[d.Blob]; !ok || len(d.Items) != 1 || d.Items[0] != owner || d.Offset < 0 {
			t.Errorf("%v", d)
		}
		rc, err := r.Blob(t.Context(), d.Blob, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, rc); !errors.Is(err, bundle.ErrDamaged) {
			t.Errorf("reading %s: %v", d.Blob, err)
		}
		if err := rc.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOddGraphs has what images in the wild have: nested and sparse indexes, unknown media types, attestations,
// subjects.
func TestOddGraphs(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	docker, err := random.Image(500, 2)
	if err != nil {
		t.Fatal(err)
	}
	b.Image("docker.io/library/docker:1", docker)
	sparse := bundletest.MultiImage(t, 4)
	b.ImageIndex("docker.io/library/sparse:1", sparse,
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "arm64" })
	b.ImageIndex("docker.io/library/list:1", mutate.IndexMediaType(bundletest.MultiImage(t, 5),
		types.DockerManifestList))
	b.ImageIndex("docker.io/library/none:1", empty.Index)

	odd := b.Bytes([]byte("something opaque"))
	odd.MediaType = "application/vnd.example.unknown"
	nested := ocispec.Index{
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{b.Index.Items[1].Descriptor, odd},
	}
	nested.SchemaVersion = 2
	d := b.JSON(nested)
	d.MediaType = nested.MediaType
	b.Item(bundle.Item{
		Kind: bundle.KindImage, Ref: "docker.io/library/nested:1", Descriptor: d,
		Absent: b.Index.Items[1].Absent,
	})

	config := b.Bytes([]byte("{}"))
	config.MediaType = bundle.MediaTypeEmpty
	subject := b.Index.Items[0].Descriptor
	referrer := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.example.sig",
		Config: config, Layers: []ocispec.Descriptor{config, odd}, Subject: &subject,
	}
	referrer.SchemaVersion = 2
	d = b.JSON(referrer)
	d.MediaType, d.ArtifactType = referrer.MediaType, referrer.ArtifactType
	b.Item(bundle.Item{Kind: bundle.KindSBOM, Ref: "docker.io/library/docker:1", Descriptor: d})

	b.Item(bundle.Item{Kind: bundle.KindLock, Ref: "lock", Descriptor: odd})
	made := b.Bundle()
	if _, err := made.Reader.Verify(t.Context(), bundle.VerifyOptions{}); err != nil {
		t.Error(err)
	}
	verifyPipe(t, made)
	absent := made.Reader.Index().Items[3].Absent
	for _, it := range made.Reader.Index().Items {
		if it.Ref == "docker.io/library/sparse:1" {
			absent = it.Absent
		}
	}
	if len(absent) != 1 {
		t.Fatalf("absent: %v", absent)
	}
	if _, ok := made.Reader.Stat(absent[0]); ok {
		t.Error("the absent child is there")
	}
}
