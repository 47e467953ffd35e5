package charts

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/go-digest"
	"helm.sh/helm/v3/pkg/chart"
)

// TestArchiveBytes holds the bytes of a packaged chart: a lock has its digest, and no release of Go may change it. The
// digests are those that Go 1.26's compress/gzip gave.
func TestArchiveBytes(t *testing.T) {
	t.Parallel()
	random := make([]byte, 200_000)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(random)
	for n, want := range map[int]digest.Digest{
		0:    "sha256:78ba4107f2836141712cea255f8e36aee7f3f02b431b6bc4e413fc4d22f93bbc",
		1000: "sha256:3cf6e5e1e3a00effd45d72c42677c026b5151d68be4801e468b5c2152ede8f67",
		// with tar's headers and end, near one block
		storedBlock - 2048:   "sha256:6fd2247aae60983797cbc04e6cb5d037e52e4c74ea42a183802fdfe2c6e7ace8",
		storedBlock:          "sha256:c0bb990bb2c9167eb04462fab9282564ffbf162c70b99385ec9ce6a53a28523a",
		2*storedBlock - 2048: "sha256:9502d496e8663c6c75148337af0c795f6baa152067ad73f33d6fe6649c40a6d2",
		len(random):          "sha256:0f03ccf0a41657ec01635ec8feed88e821672140ba0fc49164c119c3b4bc54ae",
	} {
		c := &Chart{helm: &chart.Chart{
			Metadata: &chart.Metadata{Name: "demo", Version: "1.0.0"},
			Raw: []*chart.File{
				{Name: "values.yaml", Data: random[:n]},
				{Name: "Chart.yaml", Data: []byte("name: demo\nversion: 1.0.0\n")},
			},
		}}
		var b bytes.Buffer
		if err := c.Archive(&b); err != nil {
			t.Fatal(err)
		}
		if got := digest.FromBytes(b.Bytes()); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
		zr, err := gzip.NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, zr); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestStoredWriter compares with the reader of the standard library, for writes of any size.
func TestStoredWriter(t *testing.T) {
	t.Parallel()
	random := make([]byte, 3*storedBlock+1)
	_, _ = rand.NewChaCha8([32]byte{10}).Read(random)
	var whole []byte
	for _, step := range []int{1, 511, storedBlock, storedBlock + 1, len(random)} {
		var b bytes.Buffer
		w := newStored(&b)
		for rest := random; len(rest) > 0; {
			n, err := w.Write(rest[:min(step, len(rest))])
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if whole == nil {
			whole = bytes.Clone(b.Bytes())
		} else if !bytes.Equal(whole, b.Bytes()) {
			t.Errorf("writes of %d bytes change the result", step)
		}
		zr, err := gzip.NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := io.ReadAll(zr); err != nil || !bytes.Equal(back, random) {
			t.Errorf("writes of %d bytes: %v", step, err)
		}
	}
}
