package ocilayout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// TestExtractionReadsBlobsAtOnce has the first two blobs wait for each other.
func TestExtractionReadsBlobsAtOnce(t *testing.T) {
	t.Parallel()
	if bundle.ReadJobs() < 2 {
		t.Skip("one processor reads one blob at a time")
	}
	root := rootOf(t)
	var both sync.WaitGroup
	both.Add(2)
	x := &extraction{root: root, copyBlob: func(context.Context, io.Writer, ocispec.Descriptor) error {
		both.Done()
		both.Wait()
		return nil
	}}
	if err := x.write(t.Context(), []ocispec.Descriptor{
		{Digest: digest.FromString("1")},
		{Digest: digest.FromString("2")},
	}, []byte("index")); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Stat(format.IndexName); err != nil {
		t.Error(err)
	}
}

// TestExtractionEndsWithItsFirstError leaves no index, and names the blob. Without an error of a blob, that of the
// context counts.
func TestExtractionEndsWithItsFirstError(t *testing.T) {
	t.Parallel()
	blobs := make([]ocispec.Descriptor, 100)
	for i := range blobs {
		blobs[i].Digest = digest.FromString(fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := errors.New("it cannot be read")
	for _, c := range []struct {
		name     string
		copyBlob func(context.Context, io.Writer, ocispec.Descriptor) error
		want     error
	}{
		{"a blob", func(context.Context, io.Writer, ocispec.Descriptor) error { return failed }, failed},
		{
			"the context", func(context.Context, io.Writer, ocispec.Descriptor) error { cancel(); return nil },
			context.Canceled,
		},
	} {
		root := rootOf(t)
		if err := (&extraction{root: root, copyBlob: c.copyBlob}).write(ctx, blobs, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := root.Stat(format.IndexName); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is an index: %v", c.name, err)
		}
	}
}

func rootOf(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}
