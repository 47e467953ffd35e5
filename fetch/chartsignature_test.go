package fetch_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	helmprovenance "helm.sh/helm/v3/pkg/provenance"
	helmregistry "helm.sh/helm/v3/pkg/registry"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// chartKey makes a key and writes its public part.
func chartKey(t *testing.T, file string) *openpgp.Entity {
	t.Helper()
	e, err := openpgp.NewEntity("test", "", "test@example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := e.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	packagestest.WriteFile(t, file, b.Bytes())
	return e
}

// signedChart returns the provenance file that Helm's own code (helm package --sign) writes for an archive.
func signedChart(t *testing.T, by *openpgp.Entity, name string, archive []byte) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := (&helmprovenance.Signatory{Entity: by}).ClearSign(file)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

// TestChartProvenance has a chart pinned only with a provenance file by the manifest's key, for this chart and archive.
func TestChartProvenance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := chartKey(t, dir+"/keys.gpg")
	chartKey(t, dir+"/other.gpg")
	one, two := chartArchive(t, "1.0.0"), chartArchive(t, "2.0.0")
	good := signedChart(t, key, "app-1.0.0.tgz", one)
	for name, c := range map[string]struct {
		prov    []byte
		key     string
		problem string
	}{
		"signed":      {prov: good, key: "keys.gpg"},
		"not signed":  {key: "keys.gpg", problem: "no provenance file"},
		"another key": {prov: good, key: "other.gpg", problem: "no given key signed it"},
		"another chart": {
			prov: signedChart(t, key, "app-2.0.0.tgz", two), key: "keys.gpg",
			problem: "signed for chart app 2.0.0",
		},
		"another archive": {
			prov: signedChart(t, key, "app-1.0.0.tgz", repacked(t, one)), key: "keys.gpg",
			problem: "none of its 1 files",
		},
		"changed": {
			prov: bytes.Replace(good, []byte("name: app"), []byte("name: apq"), 1), key: "keys.gpg",
			problem: "provenance file",
		},
		"no key file": {prov: good, key: "none.gpg", problem: "none.gpg"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, true)
			helmRepo(t, s, true, "1.0.0")
			if c.prov != nil {
				s.put("/repo/app-1.0.0.tgz.prov", c.prov)
			}
			o := options(newStore(t), s)
			o.Dir = dir
			for _, chart := range []manifest.Chart{
				{Name: "app", Repo: s.url + "/repo", Version: "1.0.0"},
				{URL: s.url + "/repo/app-1.0.0.tgz"},
			} {
				chart.Verify = &manifest.ChartVerify{Key: c.key}
				b := oneChart(chart)
				l, err := fetch.Resolve(t.Context(), b, o)
				if c.problem != "" {
					if err == nil || !strings.Contains(err.Error(), c.problem) {
						t.Errorf("error %v, want %q", err, c.problem)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := l.Items[0].Verified; got != manifest.VerifiedSignature {
					t.Errorf("verified %q", got)
				}
				if err := l.Covers(b); err != nil {
					t.Error(err)
				}
				l.Items[0].Verified = manifest.VerifiedUpstream
				if err := l.Covers(b); err == nil || !strings.Contains(err.Error(), "signed by keys.gpg") {
					t.Errorf("a lock without the signature: %v", err)
				}
			}
		})
	}
}

// repacked returns the same chart in an archive with another digest.
func repacked(t *testing.T, archive []byte) []byte {
	t.Helper()
	out := bytes.Clone(archive)
	out[9] ^= 1 // the operating system in gzip's header
	return out
}

// TestOCIChartProvenance is TestChartProvenance for a chart that Helm pushed into a registry.
func TestOCIChartProvenance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := chartKey(t, dir+"/keys.gpg")
	chartKey(t, dir+"/other.gpg")
	u := newUpstream(t, registrytest.Options{})
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
	if err != nil {
		t.Fatal(err)
	}
	one, two := chartArchive(t, "1.0.0"), chartArchive(t, "2.0.0")
	if _, err := client.Push(one, u.Host+"/hub/charts/app:1.0.0",
		helmregistry.PushOptProvData(signedChart(t, key, "app-1.0.0.tgz", one))); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Push(two, u.Host+"/hub/charts/app:2.0.0"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ version, key, problem string }{
		{"1.0.0", "keys.gpg", ""},
		{"1.0.0", "other.gpg", "no given key signed it"},
		{"2.0.0", "keys.gpg", "no provenance file"},
	} {
		o := u.options(newStore(t))
		o.Dir = dir
		b := oneChart(manifest.Chart{
			Name: "app", Repo: "oci://docker.io/charts", Version: c.version,
			Verify: &manifest.ChartVerify{Key: c.key},
		})
		l, err := fetch.Resolve(t.Context(), b, o)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Items[0]; got.Verified != manifest.VerifiedSignature || got.Provenance != "" {
			t.Errorf("pin %+v", got)
		}
		if _, err := fetch.All(t.Context(), l, o); err != nil {
			t.Error(err)
		}
	}
}

// TestVerifiedByMirror has the lock say what published a digest: upstream's own server over TLS, or another.
func TestVerifiedByMirror(t *testing.T) {
	t.Parallel()
	upstream, mirror, plain := newSite(t, true), newSite(t, true), newSite(t, false)
	data := []byte("a tool")
	for _, s := range []*site{upstream, mirror, plain} {
		helmRepo(t, s, true, "1.0.0")
		s.put("/tool", data)
		s.put("/tool.sha256", []byte(digestOf(data).Encoded()))
	}
	for name, c := range map[string]struct {
		url       string
		sources   []sources.Source
		overrides []manifest.Override
		want      manifest.Verification
	}{
		"upstream": {
			url: upstream.url, sources: []sources.Source{{Host: upstream.host, CA: upstream.ca}},
			want: manifest.VerifiedUpstream,
		},
		"mirror": {
			url: upstream.url,
			sources: []sources.Source{
				{Host: upstream.host, Mirrors: []string{mirror.host}, CA: mirror.ca},
				{Host: mirror.host, CA: mirror.ca},
			}, want: manifest.VerifiedMirror,
		},
		"without TLS": {
			url: plain.url, sources: []sources.Source{{Host: plain.host, PlainHTTP: true}},
			want: manifest.VerifiedMirror,
		},
		"override": {
			url: upstream.url, sources: []sources.Source{
				{Host: upstream.host, CA: upstream.ca},
				{Host: mirror.host, CA: mirror.ca},
			},
			overrides: []manifest.Override{{Host: upstream.host, With: mirror.url}}, want: manifest.VerifiedMirror,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := oneChart(manifest.Chart{Name: "app", Repo: c.url + "/repo", Version: "1.0.0"})
			b.Files = []manifest.File{{Name: "tool", URL: c.url + "/tool", Checksums: c.url + "/tool.sha256"}}
			l, err := fetch.Resolve(t.Context(), b, fetch.Options{
				Store: newStore(t), Sources: c.sources,
				Overrides: c.overrides,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, pin := range l.Items {
				if pin.Verified != c.want {
					t.Errorf("%s: verified %q, want %q", pin.Ref, pin.Verified, c.want)
				}
			}
		})
	}
}
