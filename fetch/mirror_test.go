package fetch_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// TestMirrorsInTurn has a mirror that is broken, one that lacks something and has something wrong, and the host itself.
func TestMirrorsInTurn(t *testing.T) {
	t.Parallel()
	broken, second, upstream := newSite(t, false), newSite(t, false), newSite(t, false)
	var pins []manifest.Pin
	for i := range 5 {
		data := noise(uint64(410+i), 2000)
		name := fmt.Sprintf("/f%d", i)
		broken.put("/m"+name, data)
		upstream.put(name, data)
		switch i {
		case 0: // it lacks this one
		case 1:
			second.put("/x/y"+name, noise(1, 2000))
		default:
			second.put("/x/y"+name, data)
		}
		pins = append(pins, filePin(upstream.url+name, data))
	}
	for range 100 {
		broken.fault(answer(http.StatusBadGateway))
	}
	said := &lines{}
	o := options(newStore(t), broken, second)
	o.Jobs, o.Logger, o.Hosts = 1, said.logger(), fetch.NewHosts()
	o.Sources = append(o.Sources, sources.Source{Host: upstream.host, Mirrors: sources.Mirrors{
		broken.host + "/m",
		second.host + "/x/y",
	}, PlainHTTP: true})
	l := lock(pins...)
	// With mirrors, the host itself is asked with TLS; a test has none, so it is named under another name too.
	if _, err := fetch.All(t.Context(), lock(pins[2:]...), o); err != nil {
		t.Fatal(err)
	}
	if n := broken.count("", ""); n != 3 {
		t.Errorf("the mirror that is down was asked %d times", n)
	}
	if n := said.count("a mirror does not deliver"); n != 1 {
		t.Errorf("that was said %d times", n)
	}
	if n := upstream.count("", ""); n != 0 {
		t.Errorf("upstream was asked %d times", n)
	}
	_, err := fetch.All(t.Context(), l, o)
	wantError(t, err, "2 of 5 items", "502", "404", upstream.host)
	if n := broken.count("", ""); n != 3 {
		t.Errorf("asked again in another call of the run: %d", n)
	}
	if got := second.count("", "/x/y/f0"); got != 1 {
		t.Errorf("the second mirror was asked for the first file %d times", got)
	}
}

// TestMirrorThenUpstream goes on to the host itself where a mirror lacks something, lies or is gone.
func TestMirrorThenUpstream(t *testing.T) {
	t.Parallel()
	data := noise(420, 3000)
	for what, prepare := range map[string]func(mirror *site) string{
		"lacks it": func(m *site) string { return m.host },
		"lies":     func(m *site) string { m.put("/f", noise(421, 3000)); return m.host },
		"another size": func(m *site) string {
			m.put("/f", noise(421, 3001))
			return m.host
		},
		"cuts": func(m *site) string {
			m.put("/f", data)
			m.fault(cutAfter(1000), cutAfter(0), cutAfter(0), cutAfter(0), cutAfter(0), cutAfter(0), cutAfter(0),
				cutAfter(0))
			return m.host
		},
		"is gone": func(*site) string { return "127.0.0.1:1" },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			mirror, upstream := newSite(t, true), newSite(t, true)
			pin := filePin(upstream.put("/f", data), data)
			o := options(newMemoryStore(), mirror)
			o.Sources = append(o.Sources, sources.Source{
				Host:    upstream.host,
				Mirrors: sources.Mirrors{prepare(mirror)}, CA: upstream.ca,
			})
			if _, err := fetch.All(t.Context(), lock(pin), o); err != nil {
				t.Fatal(err)
			}
			if n := upstream.count("GET", "/f"); n != 1 {
				t.Errorf("upstream was asked %d times", n)
			}
			if rng := upstream.seen()[0].rng; what == "cuts" && rng != "bytes=1000-" {
				t.Errorf("upstream was asked for %q", rng)
			}
			o.Store, o.Sources[1].MirrorOnly = newMemoryStore(), true
			if _, err := fetch.All(t.Context(), lock(pin), o); what != "cuts" && err == nil {
				t.Error("upstream was asked though it is not to be")
			}
			if n := upstream.count("GET", "/f"); n != 1 {
				t.Errorf("upstream was asked %d times", n)
			}
		})
	}
}

// TestHostPattern reaches hosts that only a pattern names.
func TestHostPattern(t *testing.T) {
	t.Parallel()
	data := noise(425, 100)
	s := newSite(t, false)
	s.put("/f", data)
	for host, ok := range map[string]bool{
		"a.corp.example": true, "a.b.corp.example": true, "corp.example": false,
		"own.corp.example": false,
	} {
		o := options(newStore(t))
		o.Sources = []sources.Source{
			{Host: "*.corp.example", Mirrors: sources.Mirrors{s.host}, MirrorOnly: true, PlainHTTP: true},
			{Host: "own.corp.example", Mirrors: sources.Mirrors{"127.0.0.1:1"}, MirrorOnly: true, PlainHTTP: true},
			{Host: "corp.example", Mirrors: sources.Mirrors{"127.0.0.1:1"}, MirrorOnly: true, PlainHTTP: true},
		}
		_, err := fetch.All(t.Context(), lock(filePin("https://"+host+"/f", data)), o)
		if (err == nil) != ok {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestDirectory takes what is there already, by whatever name, if it is right.
func TestDirectory(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newSite(t, false)
	write := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	byPath, byName, wrong, layout, unpinned := noise(440, 900), noise(441, 900), noise(442, 900), noise(443, 900),
		noise(444, 900)
	write("files.example/v1/path", byPath)
	write("name", byName)
	write("v1/wrong", noise(1, 900))
	write("blobs/sha256/"+digestOf(layout).Encoded(), layout)
	write("files.example/v1/unpinned", unpinned)
	write("unpinned-by-name", unpinned)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	s.put("/v1/wrong", wrong)
	file := func(name string, data []byte) manifest.File {
		f := manifest.File{Name: name, URL: "https://files.example/v1/" + name}
		if data != nil {
			f.SHA256 = manifest.Sums{scalar.AllPlatforms: digestOf(data).Encoded()}
		}
		return f
	}
	b := &manifest.Bundle{Files: []manifest.File{
		file("path", byPath), file("name", byName), file("wrong", wrong), file("layout", layout), file("unpinned", nil),
	}}
	said := &lines{}
	o := options(newStore(t))
	o.Logger = said.logger()
	o.Sources = []sources.Source{
		{Directory: dir},
		{Host: "files.example", Mirrors: sources.Mirrors{s.host}, MirrorOnly: true, PlainHTTP: true},
	}
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if items, err := fetch.All(t.Context(), l, o); err != nil || len(items) != 5 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	for _, r := range s.seen() {
		if r.path != "/v1/wrong" {
			t.Errorf("%s was asked for", r.path)
		}
	}
	if said.count("without a published checksum") != 1 || said.count("has other content") == 0 {
		t.Errorf("said: %s", said.String())
	}
	// A last name alone does not make a file the one that is meant.
	_, err = fetch.Resolve(t.Context(), &manifest.Bundle{Files: []manifest.File{file("unpinned-by-name", nil)}}, o)
	wantError(t, err, "404")
	_, err = fetch.Resolve(t.Context(), &manifest.Bundle{Files: []manifest.File{file("link", nil)}}, o)
	wantError(t, err, "404")
	o.Sources[0].Directory = filepath.Join(dir, "none")
	_, err = fetch.Resolve(t.Context(), b, o)
	wantError(t, err, "sources: directory", "no such file")
}

// TestDirectoryLayout fetches a locked image out of an OCI image layout, without any registry.
func TestDirectoryLayout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address, stop := serveFront(&front{next: w, at: -1})
	good := build(t.Context(), newMemoryStore(), address, thrice())
	stop()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.content {
		if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", digestOf(c.data).Encoded()), c.data,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options(newStore(t))
	o.Sources = []sources.Source{{Directory: dir}, {
		Host: "registry.example", Mirrors: sources.Mirrors{"127.0.0.1:1"},
		MirrorOnly: true,
	}}
	o.Platforms = []string{"linux/amd64", "linux/arm64"}
	items, err := fetch.All(t.Context(), &manifest.Lock{Items: good.lock}, o)
	if err != nil || len(items) != len(good.items) {
		t.Fatalf("%d items of %d: %v", len(items), len(good.items), err)
	}
}

func TestOverride(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	own, release := noise(450, 500), noise(451, 500)
	s.put("/own/tool-amd64", own)
	s.put("/k8s/v1/kubelet", release)
	o := options(newStore(t), s)
	o.Overrides = []manifest.Override{
		{
			URL: "https://files.example/tool_{arch}", With: s.url + "/own/tool-{arch}",
			SHA256: manifest.Sums{"linux/amd64": digestOf(own).Encoded()},
		},
		{Host: "dl.example", Path: "/release", With: s.url + "/k8s"},
	}
	b := &manifest.Bundle{Files: []manifest.File{
		{Name: "tool", URL: "https://files.example/tool_{arch}", Checksums: "https://files.example/sums"},
		{Name: "kubelet", URL: "https://dl.example/release/v1/kubelet"},
	}}
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range l.Items {
		want := map[string][2]string{
			"tool":    {"https://files.example/tool_amd64", s.url + "/own/tool-amd64"},
			"kubelet": {"https://dl.example/release/v1/kubelet", s.url + "/k8s/v1/kubelet"},
		}[pin.Name]
		if got := [2]string{pin.Ref, pin.From}; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if who := map[string]manifest.Verification{
			"tool":    manifest.VerifiedManifest,
			"kubelet": manifest.VerifiedFirstUse,
		}[pin.Name]; pin.Verified != who {
			t.Errorf("%s: verified by %s", pin.Name, pin.Verified)
		}
	}
	o.Store = newStore(t)
	if _, err := fetch.All(t.Context(), l, o); err != nil {
		t.Fatal(err)
	}
	s.put("/own/tool-amd64", noise(1, 500))
	o.Store = newStore(t)
	_, err = fetch.All(t.Context(), l, o)
	wantError(t, err, "file https://files.example/tool_amd64", s.url+"/own/tool-amd64", "wrong content")
}
