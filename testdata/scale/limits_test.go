//go:build linux

package scale

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"

	kkbuild "github.com/kkbundle/kkbundle/builder"
)

// wideManifest returns a manifest with layers that no other has.
func wideManifest(t *testing.T, number, layers int) []byte {
	t.Helper()
	type desc struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`
	}
	doc := struct {
		SchemaVersion int    `json:"schemaVersion"`
		MediaType     string `json:"mediaType"`
		ArtifactType  string `json:"artifactType"`
		Config        desc   `json:"config"`
		Layers        []desc `json:"layers"`
	}{
		2, "application/vnd.oci.image.manifest.v1+json", "application/x",
		desc{"application/x", digest.FromString("{}").String(), 2},
		nil,
	}
	for l := range layers {
		doc.Layers = append(doc.Layers, desc{
			"application/x",
			fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, number, l))), 1000,
		})
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestTooManyBlobs: what no bundle can hold is an error before the first layer is requested. The registry is a stand-in
// with manifests of 20,000 layers each.
func TestTooManyBlobs(t *testing.T) {
	t.Parallel()
	const images, layers = 30, 20_000 - 1
	manifests := map[string][]byte{}
	var lines strings.Builder
	for i := range images {
		data := wideManifest(t, i, layers)
		manifests[fmt.Sprintf("app%d", i)], manifests[digest.FromBytes(data).String()] = data, data
		fmt.Fprintf(&lines, "  - REGISTRY/app%d:1\n", i)
	}
	var blobs atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
		switch {
		case r.URL.Path == "/v2/":
		case len(parts) == 3 && parts[1] == "blobs":
			blobs.Add(1)
			http.NotFound(w, r)
		case len(parts) == 3 && parts[1] == "manifests":
			data := manifests[parts[0]]
			if strings.HasPrefix(parts[2], "sha256:") {
				data = manifests[parts[2]]
			}
			if parts[2] != "1" && data == nil || strings.HasPrefix(parts[2], "sha256-") {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
			_, _ = w.Write(data)
		default:
			http.NotFound(w, r)
		}
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	dir := t.TempDir()
	file := filepath.Join(dir, "manifest.yaml")
	text := "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: big, version: 1.0.0}\nplatforms: [linux/amd64]\nreferrers: none\n" +
		"sources:\n  - {host: '" + host + "', plainHTTP: true}\nimages:\n" +
		strings.ReplaceAll(lines.String(), "REGISTRY", host)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := kkbuild.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Build(t.Context(), kkbuild.Options{
		Output: filepath.Join(dir, "big.kkb"),
		Cache:  filepath.Join(dir, "cache"),
	})
	if err == nil || !strings.Contains(err.Error(), "split the content") {
		t.Errorf("got %.300v", err)
	}
	if blobs.Load() != 0 {
		t.Errorf("%d blobs were requested before", blobs.Load())
	}
}
