package fetch_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

func TestRedirect(t *testing.T) {
	t.Setenv("NETRC", writeFile(t, "netrc", "machine 127.0.0.1 login anna password s3cret"))
	data := noise(10, 1000)
	origin, cdn := newSite(t, false), newSite(t, false)
	pin := filePin(origin.put("/f", data), data)
	// Another host, not only another port: net/http itself would keep the credentials.
	target := strings.Replace(cdn.put("/x", data), "127.0.0.1", "localhost", 1)
	origin.fault(answer(302, "Location", target+"?signature=hidden"))
	elsewhere := &site{host: strings.Replace(cdn.host, "127.0.0.1", "localhost", 1)}
	_, err := fetch.All(t.Context(), lock(pin), options(newStore(t), origin))
	wantError(t, err, elsewhere.host, "plainHTTP: true")
	origin.fault(answer(302, "Location", target+"?signature=hidden"))
	if _, err := fetch.All(t.Context(), lock(pin), options(newStore(t), origin, elsewhere)); err != nil {
		t.Fatal(err)
	}
	if got := origin.seen()[0].auth; !strings.HasPrefix(got, "Basic ") {
		t.Errorf("the origin got %q", got)
	}
	if got := cdn.seen()[0].auth; got != "" {
		t.Errorf("the other host got %q", got)
	}

	// An error after a redirect does not show the signed address.
	origin.fault(answer(302, "Location", "http://localhost:1/x?signature=hidden"),
		answer(302, "Location", "http://localhost:1/x?signature=hidden"),
		answer(302, "Location", "http://localhost:1/x?signature=hidden"),
		answer(302, "Location", "http://localhost:1/x?signature=hidden"))
	_, err = fetch.All(t.Context(), lock(pin), options(newStore(t), origin, &site{host: "localhost:1"}))
	wantError(t, err, "refused")
	for _, secret := range []string{"hidden", "s3cret", "YW5uYTpzM2NyZXQ"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows %q: %v", secret, err)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	data := noise(11, 1000)
	secure, plain := newSite(t, true), newSite(t, false)
	pin := filePin(secure.put("/f", data), data)
	if _, err := fetch.All(t.Context(), lock(pin), options(newStore(t), secure)); err != nil {
		t.Fatal(err)
	}
	t.Run("unknown authority", func(t *testing.T) {
		t.Parallel()
		_, err := fetch.All(t.Context(), lock(pin), options(newStore(t)))
		wantError(t, err, "unknown authority", "sources (ca)")
		if strings.Contains(err.Error(), "tried") {
			t.Errorf("tried again: %v", err)
		}
	})
	t.Run("plain where TLS is expected", func(t *testing.T) {
		t.Parallel()
		bad := filePin(strings.Replace(plain.put("/f", data), "http:", "https:", 1), data)
		_, err := fetch.All(t.Context(), lock(bad), options(newStore(t)))
		wantError(t, err, "plainHTTP")
	})
	t.Run("plain to this machine", func(t *testing.T) {
		t.Parallel()
		if _, err := fetch.All(t.Context(), lock(filePin(plain.put("/f", data), data)),
			options(newStore(t))); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("redirect to plain", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, true)
		p := filePin(s.put("/f", data), data)
		s.fault(answer(302, "Location", plain.put("/f", data)))
		_, err := fetch.All(t.Context(), lock(p), options(newStore(t), s))
		wantError(t, err, "plain HTTP")
	})
	t.Run("credentials in the address", func(t *testing.T) {
		t.Parallel()
		bad := filePin(strings.Replace(pin.Ref, "://", "://anna:s3cret@", 1), data)
		_, err := fetch.All(t.Context(), lock(bad), options(newStore(t), secure))
		wantError(t, err, "netrc")
	})
}

func TestMirror(t *testing.T) {
	t.Parallel()
	data := noise(12, 1000)
	s := newSite(t, false)
	s.put("/k8s/files/release/v1/kubeadm", data)
	o := options(newStore(t))
	o.Sources = []sources.Source{{
		Host: "dl.k8s.io", Mirrors: sources.Mirrors{s.host + "/k8s/files"},
		MirrorOnly: true, PlainHTTP: true,
	}}
	b := &manifest.Bundle{
		Platforms: []string{"linux/amd64"},
		Files:     []manifest.File{{Name: "kubeadm", URL: "https://dl.k8s.io/release/v1/kubeadm"}},
	}
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Items[0].Ref; got != "https://dl.k8s.io/release/v1/kubeadm" {
		t.Errorf("ref %s is not upstream's", got)
	}
	b.Files[0].URL += ".gone"
	_, err = fetch.Resolve(t.Context(), b, o)
	wantError(t, err, "https://dl.k8s.io/release/v1/kubeadm.gone", "http://"+s.host+
		"/k8s/files/release/v1/kubeadm.gone", "no such file")
}

// TestMaxConcurrent counts how many requests are open at once. One that is about to have its last byte counts no
// more: the client may have that, and ask for the next file, before the handler is told to go on.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	var open, most atomic.Int32
	two, once := make(chan struct{}), sync.Once{}
	var pins []manifest.Pin
	for i := range 12 {
		data := noise(uint64(20+i), 100_000)
		pins = append(pins, filePin(s.put(fmt.Sprintf("/f%d", i), data), data))
		s.fault(func(w http.ResponseWriter, r *http.Request, f siteFile) bool {
			now := open.Add(1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			if now == 2 {
				once.Do(func() { close(two) })
			}
			<-two
			time.Sleep(10 * time.Millisecond) // for one too many to come; if the machine is slow, it is among the next
			w.Header().Set("Content-Length", strconv.Itoa(len(f.content)))
			_, _ = w.Write(f.content[:len(f.content)-1])
			w.(http.Flusher).Flush()
			open.Add(-1)
			_, _ = w.Write(f.content[len(f.content)-1:])
			return true
		})
	}
	o := options(newStore(t), s)
	o.Jobs, o.Sources[0].MaxConcurrent = 12, 2
	if _, err := fetch.All(t.Context(), lock(pins...), o); err != nil {
		t.Fatal(err)
	}
	if n := most.Load(); n != 2 {
		t.Errorf("%d requests at once, want 2", n)
	}
}
