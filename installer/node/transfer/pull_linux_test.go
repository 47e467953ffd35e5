package transfer

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A registryStandIn answers as a registry does for blobs.
type registryStandIn struct {
	Registry
	asked []string // "range path"
}

func startRegistry(t *testing.T, blob http.HandlerFunc) *registryStandIn {
	t.Helper()
	r := new(registryStandIn)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked = append(r.asked, strings.TrimSpace(req.Header.Get("Range")+" "+req.URL.Path))
		if req.Header.Get("Authorization") != "Basic eDp5" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		blob(w, req)
	}))
	t.Cleanup(server.Close)
	r.Registry = Registry{
		Address: server.Listener.Addr().String(), Authorization: "Basic eDp5",
		CA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}
	return r
}

// blobs serves content by digest, with ranges.
func blobs(s *source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		data, ok := s.blobs[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(data)))
	}
}

// TestPull: a host takes what registries have, continues what one of them began, and gets all else from the other side.
func TestPull(t *testing.T) {
	t.Parallel()
	var s source
	kubelet := s.file("kubelet", random(3<<20, 1), "/usr/local/bin/kubelet", 0o755)
	kubelet.Repository = "dl.k8s.io/kubelet"
	own := s.file("own", random(1<<20, 2), "/usr/local/bin/own", 0o755)
	lost := s.file("lost", random(1<<20, 3), "/usr/local/bin/lost", 0o755)
	lost.Repository = "dl.k8s.io/lost"
	had := &source{blobs: map[string][]byte{kubelet.Digest: s.blobs[kubelet.Digest]}}

	broken := startRegistry(t, func(w http.ResponseWriter, r *http.Request) {
		data, ok := had.blobs[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:2<<20])
		panic(http.ErrAbortHandler)
	})
	whole := startRegistry(t, blobs(had))
	plan := Plan{
		Files:      []PlannedFile{kubelet, own, lost},
		Registries: []Registry{broken.Registry, whole.Registry},
	}
	root := t.TempDir()
	got := mustConverse(t, root, plan, &s)
	if want := int64(2 << 20); got.Sent != want {
		t.Errorf("sent %d bytes, want %d", got.Sent, want)
	}
	wantFile(t, root, kubelet.Path, s.blobs[kubelet.Digest], 0o755)
	wantFile(t, root, own.Path, s.blobs[own.Digest], 0o755)
	wantFile(t, root, lost.Path, s.blobs[lost.Digest], 0o755)
	noLitter(t, root)
	// A registry that breaks off is not asked for other content.
	if want := []string{"/v2/dl.k8s.io/kubelet/blobs/" + kubelet.Digest}; !cmp.Equal(broken.asked, want) {
		t.Errorf("the first was asked for %q", broken.asked)
	}
	if len(whole.asked) != 2 || !strings.HasPrefix(whole.asked[0], "bytes=") ||
		!strings.HasSuffix(whole.asked[1], "/v2/dl.k8s.io/lost/blobs/"+lost.Digest) {
		t.Errorf("the second was asked for %q", whole.asked)
	}
	var bytes int64
	problems := map[string]string{}
	for _, p := range s.pulled {
		bytes += p.Bytes
		if p.Problem != "" {
			problems[p.Registry] += p.Problem
		}
	}
	if bytes != kubelet.Size || len(problems) != 2 || !strings.Contains(problems[whole.Address], "404") {
		t.Errorf("%d bytes were told of, and %q", bytes, problems)
	}
	if got := mustConverse(t, root, plan, &s); got.Sent != 0 || len(got.Changed) != 0 || len(whole.asked) != 2 {
		t.Errorf("again: %+v, asked %q", got, whole.asked)
	}
}

// TestPullKeeps: what is kept for later comes from registries, too, and is not asked for again.
func TestPullKeeps(t *testing.T) {
	t.Parallel()
	var s source
	file := s.file("kubelet", random(1<<20, 1), "/usr/local/bin/kubelet", 0o755)
	file.Repository = "kubelet"
	r := startRegistry(t, blobs(&s))
	plan, root := Plan{Files: []PlannedFile{file}, Registries: []Registry{r.Registry}}, t.TempDir()
	for range 2 {
		got, err, hostErr := converseWith(t, root, func(ctx context.Context, in io.Writer, out io.Reader) (Summary, error) {
			return Keep(ctx, in, out, plan, s.from())
		}, -1)
		if err != nil || hostErr != nil || got.Sent != 0 {
			t.Fatalf("%+v, %v, %v", got, err, hostErr)
		}
	}
	if got := mustConverse(t, root, plan, &s); got.Sent != 0 || len(r.asked) != 1 {
		t.Errorf("sent %d bytes, asked %q", got.Sent, r.asked)
	}
	wantFile(t, root, file.Path, s.blobs[file.Digest], 0o755)
}

// TestPullDistrusts: no answer of a registry gets into a place but the content, and none stops the transfer.
func TestPullDistrusts(t *testing.T) {
	t.Parallel()
	data := random(1<<20, 1)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		blob    http.HandlerFunc
		change  func(*Registry)
		problem string
	}{
		"other bytes": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1048576")
			_, _ = w.Write(random(1<<20, 2))
		}, nil, "digest"},
		"fewer bytes": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data[1:]) }, nil, "are missing"},
		"more bytes":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append(data[:len(data):len(data)], 1)) }, nil, "are missing"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, nil, "307"},
		"another login":     {nil, func(r *Registry) { r.Authorization = "" }, "401"},
		"another authority": {nil, func(r *Registry) { r.CA = "" }, "certificate"},
		"away":              {nil, func(r *Registry) { r.Address = silent.Addr().String() }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s source
			file := s.file("kubelet", data, "/usr/local/bin/kubelet", 0o755)
			file.Repository = "kubelet"
			if c.blob == nil {
				c.blob = blobs(&s)
			}
			r := startRegistry(t, c.blob)
			if c.change != nil {
				c.change(&r.Registry)
			}
			root := t.TempDir()
			got := mustConverse(t, root, Plan{Files: []PlannedFile{file}, Registries: []Registry{r.Registry}}, &s)
			if got.Sent != file.Size || len(s.pulled) == 0 ||
				!strings.Contains(s.pulled[len(s.pulled)-1].Problem, c.problem) {
				t.Errorf("sent %d of %d bytes after %+v", got.Sent, file.Size, s.pulled)
			}
			wantFile(t, root, file.Path, data, 0o755)
			noLitter(t, root)
		})
	}
}

// TestPullRefusesPlaces: addresses and repositories cannot lead elsewhere.
func TestPullRefusesPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ address, repository string }{
		{"registry/x", "a"},
		{"user@registry", "a"},
		{"", "a"},
		{"registry", "../a"},
		{"registry", "/a"},
		{"registry", "a?b"},
		{"registry", "a//b"},
		{"registry", "a%2fb"},
	} {
		var s source
		file := s.file("f", []byte("f"), "/usr/local/bin/f", 0o755)
		file.Repository = c.repository
		root := t.TempDir()
		plan := Plan{Files: []PlannedFile{file}, Registries: []Registry{{Address: c.address}}}
		if _, err, _ := converse(t, root, plan, &s, -1); err == nil {
			t.Errorf("%+v is taken", c)
		}
		if _, err := os.Lstat(filepath.Join(root, file.Path)); err == nil {
			t.Errorf("%+v: a file is there", c)
		}
	}
}
