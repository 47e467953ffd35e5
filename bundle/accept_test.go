package bundle_test

import (
	"errors"
	"os"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestVerifyAccepts asks before contents are read, with what the bundle's identity is the digest of.
func TestVerifyAccepts(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	f, err := os.Open(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	refused, asked := errors.New("not this one"), 0
	o := bundle.VerifyOptions{
		Accept: func(x bundle.Index) error {
			if len(x.Items) != len(b.Reader.Index().Items) {
				t.Errorf("%d items", len(x.Items))
			}
			asked++
			return refused
		},
		Progress: func(done, _ int64) { t.Errorf("%d bytes were read", done) },
	}
	if _, err := b.Reader.Verify(t.Context(), o); !errors.Is(err, refused) {
		t.Errorf("file: %v", err)
	}
	if _, err := bundle.VerifyStream(t.Context(), f, o); !errors.Is(err, refused) {
		t.Errorf("pipe: %v", err)
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}
