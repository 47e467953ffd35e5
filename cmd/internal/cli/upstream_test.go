package cli_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

const (
	cachePiece = 4 << 20  // what the cache writes at once
	bigFile    = 14 << 20 // large enough that two thirds of it are two pieces
)

// An upstream is what a script downloads from, and where it pushes to: three real registries and a real file server.
type upstream struct {
	source *registrytest.Server // TLS, tokens: has the images
	plain  *registrytest.Server // HTTP, empty
	secure *registrytest.Server // TLS, basic authentication, empty
	files  *fileServer
	ca     string // PEM file with the authorities of all

	kept  *exec.Cmd // the process whose download stalled, or that has a child
	child string    // its directory in /proc
}

func startUpstream(dir string) (*upstream, error) {
	u := &upstream{ca: filepath.Join(dir, "ca.pem"), files: newFileServer()}
	var err error
	start := func(s **registrytest.Server, o registrytest.Options) {
		if err == nil {
			*s, err = registrytest.New(o)
		}
	}
	start(&u.source, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	start(&u.plain, registrytest.Options{})
	start(&u.secure, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	if err == nil {
		err = u.publish(dir)
	}
	if err != nil {
		u.stop()
	}
	return u, err
}

func (u *upstream) stop() {
	for _, s := range []*registrytest.Server{u.source, u.plain, u.secure} {
		if s != nil {
			_ = s.Close() // its own tests look at this
		}
	}
	u.files.stop()
}

// registry returns the server that scripts call by this name.
func (u *upstream) registry(name string) (*registrytest.Server, bool) {
	s, ok := map[string]*registrytest.Server{"source": u.source, "plain": u.plain, "secure": u.secure}[name]
	return s, ok
}

// environment is what scripts and the files in them may refer to.
func (u *upstream) environment(dir string) []string {
	return []string{
		"REGISTRY=" + u.source.Host, "FILES=" + u.files.host, "CA=" + u.ca,
		"PLAIN=" + u.plain.Host, "SECURE=" + u.secure.Host, "USERNAME=" + u.secure.Username, "PASSWORD=" +
			u.secure.Password,
		"DOCKER_CONFIG=" + filepath.Join(dir, "docker"), "KKBUNDLE_CACHE=" + filepath.Join(dir, "cache"),
		"NETRC=" + filepath.Join(dir, "netrc"),
	}
}

// publish fills the source registry and the file server, and writes what a client needs to be let in.
func (u *upstream) publish(dir string) error {
	var cas []byte
	for _, s := range []*registrytest.Server{u.source, u.secure} {
		b, err := os.ReadFile(s.CAFile)
		if err != nil {
			return err
		}
		cas = append(cas, b...)
	}
	cas = append(cas, u.files.certificate()...)
	auth := base64.StdEncoding.EncodeToString([]byte(u.source.Username + ":" + u.source.Password))
	docker := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, u.source.Host, auth)
	err := errors.Join(
		os.WriteFile(u.ca, cas, 0o600),
		os.Mkdir(filepath.Join(dir, "docker"), 0o700),
		os.WriteFile(filepath.Join(dir, "docker", "config.json"), []byte(docker), 0o600),
		u.publishImages(),
		u.files.makeChart(filepath.Join(dir, ".chart")),
	)
	u.files.publish()
	u.forget()
	return err
}

// forget empties the list of what was asked for.
func (u *upstream) forget() {
	u.files.forget()
	for _, s := range []*registrytest.Server{u.source, u.plain, u.secure} {
		s.ForgetRequests()
	}
}

// publishImages makes an index for two platforms with attestations, as docker's builder does, and an image without
// index.
func (u *upstream) publishImages() error {
	source := rand.New(rand.NewSource(1)) // the same images every time: scripts compare digests
	var idx v1.ImageIndex = empty.Index
	for _, p := range []string{"linux/amd64", "linux/arm64"} {
		img, err := randomImage(source, p)
		if err != nil {
			return err
		}
		d, err := img.Digest()
		if err != nil {
			return err
		}
		attestation, err := randomImage(source, "unknown/unknown")
		if err != nil {
			return err
		}
		idx = mutate.AppendManifests(idx,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: parsePlatform(p)}},
			mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{
				Platform: parsePlatform("unknown/unknown"),
				Annotations: map[string]string{
					"vnd.docker.reference.type":   "attestation-manifest",
					"vnd.docker.reference.digest": d.String(),
				},
			}})
	}
	single, err := randomImage(source, "linux/amd64")
	if err != nil {
		return err
	}
	options := []remote.Option{
		remote.WithAuthFromKeychain(u.source.Keychain()),
		remote.WithTransport(u.source.Transport()),
	}
	multiRef, err := name.ParseReference(u.source.Host + "/hub/library/app:1.0")
	if err != nil {
		return err
	}
	singleRef, err := name.ParseReference(u.source.Host + "/hub/team/tool:2.0")
	if err != nil {
		return err
	}
	return errors.Join(remote.WriteIndex(multiRef, idx, options...), remote.Write(singleRef, single, options...))
}

func randomImage(source rand.Source, platform string) (v1.Image, error) {
	img, err := random.Image(10_000, 2, random.WithSource(source))
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	p := parsePlatform(platform)
	config.OS, config.Architecture, config.Created = p.OS, p.Architecture, v1.Time{}
	return mutate.ConfigFile(img, config)
}

func parsePlatform(s string) *v1.Platform {
	system, arch, _ := strings.Cut(s, "/")
	return &v1.Platform{OS: system, Architecture: arch}
}

// A fileServer serves files with ranges and entity tags over TLS, and remembers what it was asked for. The first time
// that a file under /slow/ is asked for, it stops in the middle. It stops there again where somebody goes on with
// that file, until forget: a client that takes a busy machine for a server that sends nothing has no more than it
// had.
type fileServer struct {
	host   string
	server *httptest.Server
	chart  []byte

	mu       sync.Mutex
	content  map[string][]byte
	requests []string        // "GET /path bytes=0-"
	stalling map[string]bool // by path; false once that is over
	stalled  chan struct{}   // gets something when the first answer of a path stopped in the middle
	quit     chan struct{}
}

func newFileServer() *fileServer {
	s := &fileServer{
		content: map[string][]byte{}, stalling: map[string]bool{}, stalled: make(chan struct{}, 8),
		quit: make(chan struct{}),
	}
	s.server = httptest.NewUnstartedServer(s)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients are killed on purpose
	s.server.StartTLS()
	s.host = s.server.Listener.Addr().String()
	return s
}

func (s *fileServer) stop() {
	close(s.quit)
	s.server.CloseClientConnections()
	s.server.Close()
}

func (s *fileServer) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
}

func (s *fileServer) put(path string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content[path] = data
}

func (s *fileServer) remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.content, path)
}

// publish adds a tool for two platforms with checksums, files without, large files, and a chart repository.
func (s *fileServer) publish() {
	for _, arch := range []string{"amd64", "arm64"} {
		data := noise(arch, 300_000)
		sum := sha256.Sum256(data)
		s.put("/tool/v1/tool_linux_"+arch, data)
		s.put("/tool/v1/tool_linux_"+arch+".sha256", []byte(hex.EncodeToString(sum[:])+"\n"))
		s.put("/tool/v1/wrong_linux_"+arch+".sha256", []byte(strings.Repeat("0", 64)+"\n"))
	}
	s.put("/github/distribution/distribution/releases/download/v3.1.2/registry_3.1.2_linux_amd64.tar.gz",
		[]byte("\x1f\x8bregistry\n"))
	s.put("/notes.txt", []byte("read me\n"))
	s.put("/slow/big", noise("big", bigFile))
	s.put("/slow/other", noise("other", bigFile))
	s.put("/slow/third", noise("third", bigFile))
	s.put("/big", noise("big", bigFile))
	s.put("/sizeless/big", noise("big", bigFile))
	s.put("/charts/web-1.2.3.tgz", s.chart)
	s.put("/charts/index.yaml",
		[]byte("apiVersion: v1\nentries:\n  web:\n  - {apiVersion: v2, name: web, version: 1.2.3, urls: [web-1.2.3.tgz]}\n"))
}

func (s *fileServer) makeChart(dir string) (err error) {
	s.chart, err = chartArchive(dir)
	return err
}

// ServeHTTP implements http.Handler.
func (s *fileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
	data, ok := s.content[r.URL.Path]
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if to, ok := bytes.CutPrefix(data, []byte("Location: ")); ok { // as GitHub answers for a latest release
		http.Redirect(w, r, strings.TrimSpace(string(to)), http.StatusFound)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(data)))
	if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/slow/") {
		if first, stops := s.stops(r); stops {
			left := max(len(data)*2/3-rangeStart(r), 0)
			w = &stallingWriter{ResponseWriter: w, left: left, stop: func() { s.stall(r, first) }}
		}
	}
	if strings.HasPrefix(r.URL.Path, "/sizeless/") {
		serveInChunks(w, r, data)
		return
	}
	http.ServeContent(w, r, "", time.Unix(0, 0), bytes.NewReader(data))
}

// serveInChunks answers as servers do that make the content while they send it: nobody knows its size before its end.
func serveInChunks(w http.ResponseWriter, r *http.Request, data []byte) {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet && http.NewResponseController(w).Flush() == nil {
		_, _ = w.Write(data) // the client may have no room
	}
}

// stops reports whether the answer to a request has to stop in the middle, and whether it is the first of its path.
func (s *fileServer) stops(r *http.Request) (first, stops bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stalling, known := s.stalling[r.URL.Path]
	if !known {
		s.stalling[r.URL.Path] = true
	}
	return !known, !known || stalling && r.Header.Get("Range") != ""
}

// stall waits until the client is gone.
func (s *fileServer) stall(r *http.Request, first bool) {
	if first {
		s.stalled <- struct{}{}
	}
	select { // the test ends the client
	case <-r.Context().Done():
	case <-s.quit:
	}
}

// rangeStart is the first byte that a request asks for.
func rangeStart(r *http.Request) (from int) {
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from) // there may be no such header
	return from
}

func (s *fileServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

func (s *fileServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
	for path := range s.stalling {
		s.stalling[path] = false
	}
}

// noise does not compress and is the same for the same seed.
func noise(seed string, n int) []byte {
	var number int64
	for _, c := range seed {
		number = number*131 + int64(c)
	}
	out := make([]byte, n)
	_, _ = rand.New(rand.NewSource(number)).Read(out)
	return out
}

func chartArchive(dir string) ([]byte, error) {
	for file, text := range map[string]string{
		"Chart.yaml":        "apiVersion: v2\nname: web\nversion: 1.2.3\ndescription: test\n",
		"templates/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n",
	} {
		path := filepath.Join(dir, "web", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	c, err := charts.LoadDir(filepath.Join(dir, "web"))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = c.Archive(&b)
	return b.Bytes(), errors.Join(err, os.RemoveAll(dir))
}
