package fetch_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const signInPage = "\n<!-- portal --><!DOCTYPE html><html><body>Sign in</body></html>"

const lfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// tarArchive returns an archive with one file.
func tarArchive(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644}), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// answerPage makes a server answer requests for a path with status 200 and a page, as one does after redirecting to
// its login.
func answerPage(s *site, path, contentType, body string) {
	s.fault(func(w http.ResponseWriter, r *http.Request, _ siteFile) bool {
		if r.URL.Path != path {
			return false
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(body))
		return true
	})
}

// TestContentIsWhatTheNameSays wants a file without a checksum to be refused if it is a page for people, or otherwise
// not what its name or mode says; with its sha256, anything is taken.
func TestContentIsWhatTheNameSays(t *testing.T) {
	t.Parallel()
	iso := strings.Repeat("\x00", 16*2048) + "\x01CD001\x01"
	for name, c := range map[string]struct {
		file, contentType, body string
		mode                    scalar.FileMode
		want                    string
	}{
		"a page as an archive": {
			"tool.tgz", "text/html; charset=utf-8", signInPage, 0,
			"is a web page (HTML) and no gzip archive",
		},
		"a page called an archive": {
			"tool.tgz", "application/gzip", signInPage, 0,
			"is a web page (HTML) and no gzip archive",
		},
		"an archive called a page": {"tool.tgz", "text/html", "\x1f\x8b\x08", 0, ""},
		"a page with a query": {
			"tool.zip?download=1", "text/html", signInPage, 0,
			"is a web page (HTML) and no zip archive",
		},
		"a page as a program": {
			"tool", "text/html", signInPage, 0o755,
			"is a web page (HTML) and no program",
		},
		"an error as a program": {
			"tool", "application/json", `{"error": "denied"}`, 0o755,
			"is JSON and no program, as its name or mode says",
		},
		"a script":  {"tool", "text/html", "#!/bin/sh\n", 0o755, ""},
		"a program": {"tool", "", "\x7fELF\x02", 0o755, ""},
		"a page of no kind": {
			"notes", "", signInPage, 0,
			"is a web page (HTML): the server may want a login",
		},
		"text called a page": {
			"notes.txt", "text/html", "Please sign in.", 0,
			"is a web page (HTML): the server may want a login",
		},
		"text":          {"notes.txt", "text/plain", "<not a page>", 0, ""},
		"a page wanted": {"notes.html", "text/html", signInPage, 0, ""},
		"a page as JSON": {
			"list.json", "text/html", signInPage, 0,
			"is a web page (HTML) and no JSON",
		},
		"an error in XML as YAML": {
			"crd.yaml", "application/xml", `<?xml version="1.0"?><Error/>`, 0,
			"is XML and no YAML",
		},
		"YAML":      {"crd.yaml", "text/plain", "<<: {a: b}\n", 0, ""},
		"a package": {"a.rpm", "", "\xed\xab\xee\xdb", 0, ""},
		"no package": {
			"a.deb", "", "\xed\xab\xee\xdb", 0,
			"is an RPM package and no Debian package",
		},
		"a disk image":                    {"a.iso", "", iso, 0, ""},
		"an unknown kind as a disk image": {"a.iso", "", iso[:4096], 0, ""},
		"xz, and not bzip2":               {"a.tar.xz", "", "BZh9", 0, "is a bzip2 archive and no xz archive"},
		"zstd":                            {"a.tar.zst", "", "\x28\xb5\x2f\xfd", 0, ""},
		"zstd after a skippable frame":    {"a.zst", "", "\x50\x2a\x4d\x18\x00\x00\x00\x00", 0, ""},
		"an empty archive":                {"a.tar.gz", "", "", 0, "is empty and no gzip archive"},
		"a tar archive without a member":  {"a.tar", "", strings.Repeat("\x00", 1024), 0, ""},
		"an unknown kind as an archive":   {"a.tar", "", strings.Repeat("x", 1024), 0, ""},
		"words as an archive":             {"a.tgz", "text/plain", "404: Not Found", 0, "is a text about an error and no gzip archive"},
		"a refusal as a program":          {"tool", "text/plain", "Error: access denied", 0o755, "is a text about an error and no program"},
		"a script without its mark":       {"tool", "", "set -e\n", 0o755, ""},
		"an unpacked archive":             {"a.tgz", "", tarArchive(t), 0, "is a tar archive and no gzip archive"},
		"a pointer to a large file":       {"model", "text/plain", lfsPointer, 0, "is a pointer of Git LFS and not the file"},
		"a pointer to a large archive":    {"a.zip", "text/plain", lfsPointer, 0, "is a pointer of Git LFS and no zip archive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, true)
			path, _, _ := strings.Cut(c.file, "?")
			s.put("/"+path, []byte(c.body))
			if c.contentType != "" {
				answerPage(s, "/"+path, c.contentType, c.body)
				answerPage(s, "/"+path, c.contentType, c.body)
			}
			b := &manifest.Bundle{
				Metadata: manifest.Metadata{Name: "b", Version: "1"},
				Files:    []manifest.File{{Name: "it", URL: s.url + "/" + c.file, Mode: c.mode}},
			}
			o := options(newStore(t), s)
			_, err := fetch.Resolve(t.Context(), b, o)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if c.want == "" {
				return
			}
			// What was refused is not taken from the cache, either.
			if _, err := fetch.Resolve(t.Context(), b, o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("again: got %v", err)
			}
			b.Files[0].SHA256 = manifest.Sums{scalar.AllPlatforms: digestOf([]byte(c.body)).Encoded()}
			if _, err := fetch.Resolve(t.Context(), b, o); err != nil {
				t.Errorf("with its sha256: %v", err)
			}
		})
	}
}

// TestUnknownContentIsADoubt wants a warning for a file that begins neither as its name says nor as anything known.
func TestUnknownContentIsADoubt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"tool.tgz":    {"tool", "does not begin as a gzip archive does"},
		"kubectl":     {`{"message": "API rate limit exceeded"}`, "a text about an error"},
		"kubelet":     {"Not Found\n", "a text about an error"},
		"data":        {`{"items": []}`, ""},
		"errors.json": {`{"errors": []}`, ""},
	} {
		s := newSite(t, true)
		s.put("/"+name, []byte(c.body))
		var log bytes.Buffer
		b := &manifest.Bundle{
			Metadata: manifest.Metadata{Name: "b", Version: "1"},
			Files:    []manifest.File{{Name: "it", URL: s.url + "/" + name}},
		}
		o := options(newStore(t), s)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if _, err := fetch.Resolve(t.Context(), b, o); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); !strings.Contains(text, c.want) || (c.want != "") != strings.Contains(text, "WARN") {
			t.Errorf("%s: log: %s", name, text)
		}
	}
}

// TestPageInPlaceOfAnIndex wants pages in place of charts, a repository's index and checksums to be named as what
// they are.
func TestPageInPlaceOfAnIndex(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	s.put("/tool", []byte("tool"))
	for _, path := range []string{"/charts/index.yaml", "/app-1.0.0.tgz", "/SHA256SUMS"} {
		s.put(path, []byte(signInPage))
	}
	for _, b := range []*manifest.Bundle{
		oneChart(manifest.Chart{Name: "app", Repo: s.url + "/charts", Version: "1.0.0"}),
		oneChart(manifest.Chart{URL: s.url + "/app-1.0.0.tgz"}),
		{
			Metadata: manifest.Metadata{Name: "b", Version: "1"},
			Files:    []manifest.File{{Name: "tool", URL: s.url + "/tool", Checksums: s.url + "/SHA256SUMS"}},
		},
	} {
		if _, err := fetch.Resolve(t.Context(), b, options(newStore(t), s)); err == nil ||
			!strings.Contains(err.Error(), "is a web page (HTML)") || !strings.Contains(err.Error(), "netrc") {
			t.Errorf("got %v", err)
		}
	}
}
