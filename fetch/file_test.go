package fetch_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestResolveFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	amd, arm, one := noise(70, 5000), noise(71, 6000), noise(72, 7000)
	s.put("/tool_linux_amd64", amd)
	s.put("/tool_linux_arm64", arm)
	s.put("/one", one)
	s.put("/SHA256SUMS", fmt.Appendf(nil, "%s  tool_linux_amd64\n%s *./tool_linux_arm64\n", digestOf(amd).Encoded(),
		digestOf(arm).Encoded()))
	s.put("/one.sha256", []byte(digestOf(one).Encoded()+"\n"))
	b := &manifest.Bundle{
		Metadata:  manifest.Metadata{Name: "b", Version: "1"},
		Platforms: []string{"linux/amd64", "linux/arm64"}, Files: []manifest.File{
			{
				Name: "tool", Version: "v1", URL: s.url + "/tool_{os}_{arch}", Checksums: s.url + "/SHA256SUMS",
				Mode: 0o755,
			},
			{Name: "one", URL: s.url + "/one", Checksums: s.url + "/one.sha256"},
		},
	}
	o := options(newStore(t), s)
	o.Platforms = nil
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.ParseLock("lock.yaml", text); err != nil {
		t.Errorf("the lock is not one: %v\n%s", err, text)
	}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"/tool_linux_amd64", "/tool_linux_arm64", "/one"} {
		if n := s.count("GET", p); n != 0 {
			t.Errorf("%s was fetched %d times though its checksum is known", p, n)
		}
	}
	if n := s.count("GET", "/SHA256SUMS"); n != 1 {
		t.Errorf("SHA256SUMS was fetched %d times", n)
	}
	sums := s.url + "/SHA256SUMS"
	want := []manifest.Pin{
		{
			Kind: "file", Ref: s.url + "/one", Name: "one", Checksums: s.url + "/one.sha256", Digest: digestOf(one),
			Size: 7000, Verified: "upstream",
		},
		{
			Kind: "file", Ref: s.url + "/tool_linux_amd64", Name: "tool", Version: "v1", Platform: "linux/amd64",
			Checksums: sums, Digest: digestOf(amd), Size: 5000, Mode: 0o755, Verified: "upstream",
		},
		{
			Kind: "file", Ref: s.url + "/tool_linux_arm64", Name: "tool", Version: "v1", Platform: "linux/arm64",
			Checksums: sums, Digest: digestOf(arm), Size: 6000, Mode: 0o755, Verified: "upstream",
		},
	}
	for i, w := range want {
		if got := fmt.Sprintf("%+v", l.Items[i]); got != fmt.Sprintf("%+v", w) {
			t.Errorf("pin %d: got %s, want %+v", i, got, w)
		}
	}
	if _, err := fetch.All(t.Context(), l, o); err != nil {
		t.Fatal(err)
	}
	before := s.count("", "")
	if _, err := fetch.All(t.Context(), l, o); err != nil || s.count("", "") != before {
		t.Errorf("a second All asked %d times, error %v", s.count("", "")-before, err)
	}
}

func TestResolveFileFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	data := noise(73, 1000)
	s.put("/f", data)
	s.put("/sums", []byte("nothing of use\n"))
	s.put("/others", []byte(digestOf(nil).Encoded()+"  other\n"))
	cases := map[string]struct {
		file manifest.File
		says []string
	}{
		"no such file": {
			manifest.File{URL: s.url + "/gone", SHA256: manifest.Sums{"": digestOf(data).Encoded()}},
			[]string{"/gone", "no such file"},
		},
		"no such checksums": {
			manifest.File{URL: s.url + "/f", Checksums: s.url + "/gone"},
			[]string{"checksums", "/gone", "no such file"},
		},
		"useless checksums": {manifest.File{URL: s.url + "/f", Checksums: s.url + "/sums"}, []string{"no sha256"}},
		"other's checksums": {manifest.File{URL: s.url + "/f", Checksums: s.url + "/others"}, []string{"none for f"}},
		"local is missing":  {manifest.File{Name: "x", Path: "not/there"}, []string{"not/there", "no such file"}},
		"local is a folder": {manifest.File{Name: "x", Path: "."}, []string{"not a regular file"}},
		"ftp":               {manifest.File{URL: "ftp://host/f"}, []string{"want an https URL"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(newStore(t), s)
			o.Dir = t.TempDir()
			_, err := fetch.Resolve(t.Context(), &manifest.Bundle{Files: []manifest.File{c.file}}, o)
			wantError(t, err, c.says...)
		})
	}
}

func TestLocalFile(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "script.sh", "echo 1\n")
	o := options(newStore(t))
	o.Dir = filepath.Dir(path)
	b := &manifest.Bundle{Files: []manifest.File{{Name: "script", Path: "script.sh", Mode: 0o700}}}
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	p := l.Items[0]
	if p.Ref != "local/script" || p.URL != "script.sh" || p.Size != 7 || p.Verified != manifest.VerifiedFirstUse {
		t.Errorf("pin: %+v", p)
	}
	if _, err := fetch.All(t.Context(), l, o); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("echo 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	warm := o.Store // its cache has the content of the lock
	for _, store := range []fetch.Store{warm, newStore(t)} {
		o.Store = store
		_, err = fetch.All(t.Context(), l, o)
		wantError(t, err, "local/script", "kkbundle lock")
	}
	b.Files[0].SHA256 = manifest.Sums{"": digestOf([]byte("echo 1\n")).Encoded()}
	_, err = fetch.Resolve(t.Context(), b, o)
	wantError(t, err, "wrong content")
}

// TestFirstUseIsAnnounced: the sizes of files without a published digest are known before any of them is downloaded.
// An error of the caller, such as a full disk, downloads none.
func TestFirstUseIsAnnounced(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	for i, path := range []string{"/a", "/b", "/summed"} {
		s.put(path, noise(uint64(90+i), 1000*(i+1)))
	}
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Files: []manifest.File{
			{Name: "a", URL: s.url + "/a"},
			{Name: "again", URL: s.url + "/a"},
			{Name: "b", URL: s.url + "/b"},
			{Name: "summed", URL: s.url + "/summed", SHA256: manifest.Sums{scalar.AllPlatforms: digestOf(noise(92, 3000)).Encoded()}},
			{Name: "local", Path: writeFile(t, "local", "text")},
		},
	}
	o := options(newStore(t), s)
	o.Memory = t.TempDir()
	full := errors.New("no space")
	o.FirstUse = func(fetch.FirstUse) error { return full }
	if _, err := fetch.Resolve(t.Context(), b, o); !errors.Is(err, full) || s.count("GET", "/a")+s.count("GET", "/b") > 0 {
		t.Errorf("got %v, and the files were fetched %d times", err, s.count("GET", "/a")+s.count("GET", "/b"))
	}
	var told []fetch.FirstUse
	o.FirstUse = func(f fetch.FirstUse) error {
		if n := s.count("GET", "/a") + s.count("GET", "/b"); n > 0 {
			t.Errorf("%d downloads began before", n)
		}
		told = append(told, f)
		return nil
	}
	for range 2 { // the second time, both are remembered
		if _, err := fetch.Resolve(t.Context(), b, o); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 1 || !slices.Equal(slices.Sorted(slices.Values(told[0].Sizes)), []int64{1000, 2000}) ||
		told[0].Unknown != 0 {
		t.Errorf("told %+v", told)
	}
}

// TestFirstUseWithoutWhatIsThere: of an interrupted download, only the bytes that are not in the store yet are announced.
func TestFirstUseWithoutWhatIsThere(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	s.put("/big", noise(95, 6<<20))
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Files: []manifest.File{{Name: "big", URL: s.url + "/big"}},
	}
	o := options(newStore(t), s)
	var told []int64
	o.FirstUse = func(f fetch.FirstUse) error {
		told = append(told, f.Sizes...)
		return nil
	}
	s.fault(cutAfter(5<<20), answer(404))
	if _, err := fetch.Resolve(t.Context(), b, o); err == nil {
		t.Fatal("the first run was not interrupted")
	}
	if _, err := fetch.Resolve(t.Context(), b, o); err != nil {
		t.Fatal(err)
	}
	// The store keeps whole frames, of 4 MiB.
	if want := []int64{6 << 20, 2 << 20}; !slices.Equal(told, want) {
		t.Errorf("told %d, want %d", told, want)
	}
}
