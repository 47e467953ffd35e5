//go:build linux

package scale

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// corpusImages are the Debian packages of which each image of the corpus has one, with what it depends on and no
// image before it has: apt-get names only what is not downloaded yet. So no package is in two images.
func corpusImages() []string {
	return []string{
		"apache2", "bind9", "default-jdk-headless", "default-jre-headless", "gcc", "golang-go", "haproxy",
		"mariadb-server", "memcached",
		"nginx", "nodejs", "php-fpm", "postgresql", "prometheus", "rabbitmq-server", "redis-server", "ruby", "squid",
		"tomcat10", "varnish",
	}
}

// corpusLayer is about how much one layer above the first has, unpacked.
const corpusLayer = 100 << 20

// A corpus is a directory of real content: gzip layers of Debian packages, as images of applications are made of.
type corpus struct {
	dir    string
	names  []string // of the images to make
	apt    []string // options of apt-get
	Images []corpusImage
}

type corpusImage struct {
	Name     string
	Manifest ocispec.Descriptor
	Layers   []ocispec.Descriptor
}

// loadCorpus makes the corpus, once for all runs: Debian's packages are downloaded by apt, unpacked and compressed
// again.
func loadCorpus(t testing.TB) corpus {
	t.Helper()
	return loadCorpusOf(t, corpus{dir: corpusDir(t, "corpus-1"), names: corpusImages()})
}

func corpusDir(t testing.TB, name string) string {
	t.Helper()
	base, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "kkbundle-bench", name)
}

// loadCorpusOf makes the corpus that c describes, or reads it.
func loadCorpusOf(t testing.TB, c corpus) corpus {
	t.Helper()
	if data, err := os.ReadFile(filepath.Join(c.dir, "corpus.json")); err == nil {
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("the corpus is made of Debian packages: it needs apt-get and dpkg-deb")
	}
	t.Log("making the corpus, which takes some minutes, once")
	if err := c.make(t); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *corpus) make(t testing.TB) error {
	debs := filepath.Join(c.dir, "debs")
	if err := errors.Join(os.MkdirAll(filepath.Join(debs, "partial"), 0o755),
		os.MkdirAll(filepath.Join(c.dir, "blobs"), 0o755)); err != nil {
		return err
	}
	status := filepath.Join(c.dir, "status") // an empty one: apt takes nothing for installed
	if err := os.WriteFile(status, nil, 0o600); err != nil {
		return err
	}
	apt := func(more ...string) (string, error) {
		args := append([]string{
			"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + debs, "-o",
			"APT::Install-Recommends=false",
			"-o", "APT::Sandbox::User=root", "-y", "-q",
		}, append(slices.Clone(c.apt), more...)...)
		cmd := exec.CommandContext(t.Context(), "apt-get", args...)
		var out, problems bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &problems
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("apt-get: %w\n%s", err, problems.String())
		}
		return out.String(), nil
	}
	closures := map[string][]string{}
	name := regexp.MustCompile(`(?m)^'[^']*' (\S+\.deb) `)
	for _, image := range c.names {
		out, err := apt("install", "--print-uris", image)
		if err != nil {
			return err
		}
		for _, m := range name.FindAllStringSubmatch(out, -1) {
			closures[image] = append(closures[image], m[1])
		}
		slices.Sort(closures[image])
		if _, err := apt("install", "--download-only", image); err != nil {
			return err
		}
	}
	if err := c.compose(t, debs, closures); err != nil {
		return err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "corpus.json"), data, 0o600); err != nil {
		return err
	}
	return os.RemoveAll(debs)
}

// compose makes the images of packages.
func (c *corpus) compose(t testing.TB, debs string, closures map[string][]string) error {
	var shared []string
	for _, deb := range closures[c.names[0]] {
		everywhere := true
		for _, closure := range closures {
			everywhere = everywhere && slices.Contains(closure, deb)
		}
		if everywhere {
			shared = append(shared, deb)
		}
	}
	first, err := c.layers(t, debs, shared)
	if err != nil {
		return err
	}
	for _, image := range c.names {
		own := slices.DeleteFunc(slices.Clone(closures[image]),
			func(deb string) bool { return slices.Contains(shared, deb) })
		more, err := c.layers(t, debs, own)
		if err != nil {
			return err
		}
		made, err := c.image(image, slices.Concat(first, more))
		if err != nil {
			return err
		}
		c.Images = append(c.Images, made)
	}
	return nil
}

// layers packs packages into layers of about corpusLayer bytes.
func (c *corpus) layers(t testing.TB, debs string, names []string) ([]ocispec.Descriptor, error) {
	var list []ocispec.Descriptor
	for len(names) > 0 {
		temp, err := os.CreateTemp(c.dir, "layer-")
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		compressed := gzip.NewWriter(io.MultiWriter(temp, hash))
		layer := tar.NewWriter(compressed)
		for size := int64(0); len(names) > 0 && size < corpusLayer; names = names[1:] {
			n, err := addPackage(t, layer, filepath.Join(debs, names[0]))
			if err != nil {
				return nil, err
			}
			size += n
		}
		if err := errors.Join(layer.Close(), compressed.Close()); err != nil {
			return nil, err
		}
		size, err := temp.Seek(0, io.SeekCurrent)
		desc := ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayerGzip,
			Digest:    digest.NewDigest(digest.SHA256, hash), Size: size,
		}
		if err := errors.Join(err, temp.Close(), os.Rename(temp.Name(), c.blob(desc.Digest))); err != nil {
			return nil, err
		}
		list = append(list, desc)
	}
	return list, nil
}

// addPackage adds the files of a Debian package to a layer.
func addPackage(t testing.TB, layer *tar.Writer, deb string) (size int64, err error) {
	cmd := exec.CommandContext(t.Context(), "dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	files := tar.NewReader(bufio.NewReaderSize(out, 1<<20))
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, out)
			return size, errors.Join(err, cmd.Wait())
		}
		if err == nil {
			err = layer.WriteHeader(h)
		}
		if err == nil {
			_, err = io.Copy(layer, files)
		}
		if err != nil {
			return 0, errors.Join(fmt.Errorf("%s: %w", deb, err), cmd.Process.Kill(), cmd.Wait())
		}
		size += h.Size
	}
}

func (c *corpus) blob(d digest.Digest) string { return filepath.Join(c.dir, "blobs", d.Encoded()) }

// put keeps a small document.
func (c *corpus) put(mediaType string, document any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(document)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return desc, os.WriteFile(c.blob(desc.Digest), data, 0o600)
}

// image makes an image of layers. Its layers' uncompressed digests are left out: nothing here unpacks them.
func (c *corpus) image(name string, layers []ocispec.Descriptor) (corpusImage, error) {
	config := ocispec.Image{
		Author: name, Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS: ocispec.RootFS{Type: "layers"},
	}
	made, err := c.put(ocispec.MediaTypeImageConfig, config)
	if err != nil {
		return corpusImage{}, err
	}
	manifest, err := c.put(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: made,
		Layers: layers,
	})
	return corpusImage{Name: name, Manifest: manifest, Layers: layers}, err
}

// blobs are all layers, each once.
func (c *corpus) blobs() []ocispec.Descriptor {
	var list []ocispec.Descriptor
	for _, image := range c.Images {
		for _, layer := range image.Layers {
			if !slices.ContainsFunc(list, func(d ocispec.Descriptor) bool { return d.Digest == layer.Digest }) {
				list = append(list, layer)
			}
		}
	}
	return list
}

// serve answers pulls from the corpus as plainly as can be, so that what is measured is the client.
func (c *corpus) serve(t testing.TB) (host string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/{name}/manifests/{reference}", func(w http.ResponseWriter, r *http.Request) {
		for _, image := range c.Images {
			if image.Name == r.PathValue("name") {
				w.Header().Set("Content-Type", image.Manifest.MediaType)
				w.Header().Set("Docker-Content-Digest", image.Manifest.Digest.String())
				http.ServeFile(w, r, c.blob(image.Manifest.Digest))
				return
			}
		}
		http.NotFound(w, r)
	})
	mux.HandleFunc("GET /v2/{name}/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		d, err := digest.Parse(r.PathValue("digest"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", `"`+d.String()+`"`)
		http.ServeFile(w, r, c.blob(d))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// manifest asks for all images of the corpus but those that are left out.
func (c *corpus) manifest(t testing.TB, host string, without ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: corpus, version: 1}\nplatforms: [linux/amd64]\n")
	fmt.Fprintf(&b, "sources:\n  - {host: %q, plainHTTP: true}\nimages:\n", host)
	for _, image := range c.Images {
		if !slices.Contains(without, image.Name) {
			fmt.Fprintf(&b, "  - %s/%s:1\n", host, image.Name)
		}
	}
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
