// Package content tells by a file's beginning whether it is what its name says: servers answer with a page for
// people, such as one to sign in, where a file was asked for.
package content

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// isoMark is the place of the first volume descriptor's name in an ISO file (ECMA-119, 8.1).
const isoMark = 16*2048 + 1

// ustarMark is the place of the mark in the first header of a tar archive (POSIX.1-2017, pax).
const ustarMark = 257

// MaxHead is how much of a file's beginning tells what it is.
const MaxHead = isoMark + 5

// AskedToSignIn is the likely reason for a page in place of a file, with the remedy.
const AskedToSignIn = "the server may want a login (put user and password into netrc), or the address is that of a page about the file"

// Check returns an error if a file of unknown digest is not what its name says: a page for people, such as one to
// sign in, is answered with status 200, too. head is its beginning, of at most MaxHead bytes. html means that the
// server called the answer a page. A file whose beginning is neither what its name says nor that of something else
// is a doubt, which is returned for a warning.
func Check(head []byte, pin manifest.Pin, address string, html bool) (doubt string, err error) {
	isPage := IsHTML(head)
	if pin.Kind == manifest.ItemChart {
		if isPage {
			return "", fmt.Errorf("%s is a web page (HTML), not a packaged chart: %s", address, AskedToSignIn)
		}
		return "", nil // loading it reports everything else
	}
	set := "; if this is the file, set its sha256"
	if pin.Verified != "" && pin.Verified != manifest.VerifiedFirstUse {
		set = ""
	}
	name := strings.ToLower(path.Base(withoutQuery(address)))
	kind := kindOf(name)
	if kind == nil && pin.Mode&0o111 != 0 {
		kind = program
	}
	switch {
	case kind != nil && !kind.is(head) && (isPage || html):
		return "", fmt.Errorf("%s is a web page (HTML) and no %s: %s%s", address, kind.name, AskedToSignIn, set)
	case kind != nil && !kind.is(head):
		if is := recognized(head); is != "" {
			return "", fmt.Errorf("%s is %s and no %s, as its name or mode says: check the address%s", address, is,
				kind.name, set)
		}
		return "it does not begin as a " + kind.name + " does, which its name or mode says: check the address", nil
	case kind == nil && recognized(head) == lfsPointer:
		return "", fmt.Errorf("%s is %s and not the file: take its address at the server of large files%s", address,
			lfsPointer, set)
	case kind == nil && path.Ext(name) == "" && (recognized(head) == errorMessage || errorObject.Match(head)):
		return "it begins like " + errorMessage + ": check the address", nil
	case kind == nil && !isMarkup(name) && (isPage || html && !program.is(head)):
		return "", fmt.Errorf("%s is a web page (HTML): %s%s", address, AskedToSignIn, set)
	}
	return "", nil
}

// Names of what a file is.
const (
	errorMessage = "a text about an error"
	lfsPointer   = "a pointer of Git LFS"
)

// recognized names what a file is by its beginning, "" if it is of no known kind.
func recognized(head []byte) string {
	begins := bytes.TrimLeft(head, "\xef\xbb\xbf \t\r\n")
	switch {
	case len(head) == 0:
		return "empty"
	case !isNoMarkup(head):
		return "XML"
	case bytes.HasPrefix(begins, []byte("{")), bytes.HasPrefix(begins, []byte("[")):
		return "JSON"
	case bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")):
		return lfsPointer
	case len(head) > ustarMark && bytes.HasPrefix(head[ustarMark:], []byte("ustar")):
		return "a " + kinds["tar"].name
	case program.is(head) && !kinds["zip"].is(head):
		return "a program"
	}
	for _, end := range slices.Sorted(maps.Keys(kinds)) {
		if k := kinds[end]; len(k.begins) > 0 && k.is(head) {
			if end == "rpm" || end == "iso" || end == "xz" {
				return "an " + k.name
			}
			return "a " + k.name
		}
	}
	if errorText.Match(head) {
		return errorMessage
	}
	return ""
}

// errorText matches texts of servers about an error that they answer with status 200, such as "404: Not Found".
var errorText = regexp.MustCompile(`^(?i)\s*(error\b.{0,3})?([45]\d\d\b|not found|no such|access denied|forbidden|unauthorized|bad gateway|service unavailable|rate limit|too many requests)`)

// errorObject matches errors in JSON, such as {"message": "API rate limit exceeded"}.
var errorObject = regexp.MustCompile(`^\s*\{\s*"(?i:message|errors?|code|status|statusCode|detail|title)"\s*:`)

func withoutQuery(address string) string {
	address, _, _ = strings.Cut(address, "#")
	address, _, _ = strings.Cut(address, "?")
	return address
}

// A contentKind is a kind of files that is known by its beginning.
type contentKind struct {
	name   string
	begins []string
	at     int // offset of the beginning
	also   func(head []byte) bool
}

func (k *contentKind) is(head []byte) bool {
	if k.also != nil && k.also(head) {
		return true
	}
	return len(head) >= k.at && slices.ContainsFunc(k.begins,
		func(b string) bool { return bytes.HasPrefix(head[k.at:], []byte(b)) })
}

// program is the kind of executable files: ELF, scripts, Windows, macOS (one and several architectures), zip archives
// of Python.
var program = &contentKind{name: "program", begins: []string{ //nolint:gochecknoglobals // a constant
	"\x7fELF", "#!", "MZ", "\xfe\xed\xfa\xce", "\xfe\xed\xfa\xcf", "\xce\xfa\xed\xfe", "\xcf\xfa\xed\xfe",
	"\xca\xfe\xba\xbe", "PK\x03\x04",
}}

// kinds are the kinds of files by the end of their name.
var kinds = map[string]*contentKind{ //nolint:gochecknoglobals // a constant
	"gz":   {name: "gzip archive", begins: []string{"\x1f\x8b"}},
	"zip":  {name: "zip archive", begins: []string{"PK\x03\x04", "PK\x05\x06", "PK\x07\x08"}},
	"xz":   {name: "xz archive", begins: []string{"\xfd7zXZ\x00"}},
	"zst":  {name: "zstd archive", begins: []string{"\x28\xb5\x2f\xfd"}, also: isSkippable},
	"bz2":  {name: "bzip2 archive", begins: []string{"BZh"}},
	"tar":  {name: "tar archive", also: isTar},
	"rpm":  {name: "RPM package", begins: []string{"\xed\xab\xee\xdb"}},
	"deb":  {name: "Debian package", begins: []string{"!<arch>\n"}},
	"iso":  {name: "ISO file", begins: []string{"CD001", "BEA01"}, at: isoMark},
	"exe":  {name: "Windows program", begins: []string{"MZ"}},
	"json": {name: "JSON", also: isNoMarkup},
	"yaml": {name: "YAML", also: isNoMarkup},
}

// kindOf returns the kind of a name in lower case, nil if its end says nothing.
func kindOf(name string) *contentKind {
	switch end := strings.TrimPrefix(path.Ext(name), "."); end {
	case "tgz":
		return kinds["gz"]
	case "whl":
		return kinds["zip"]
	case "txz":
		return kinds["xz"]
	case "tzst":
		return kinds["zst"]
	case "tbz", "tbz2":
		return kinds["bz2"]
	case "yml":
		return kinds["yaml"]
	default:
		return kinds[end]
	}
}

// isSkippable reports whether a zstd file begins with a skippable frame (RFC 8878, 3.1.2).
func isSkippable(head []byte) bool {
	return len(head) > 4 && head[0]&0xf0 == 0x50 && bytes.HasPrefix(head[1:], []byte("\x2a\x4d\x18"))
}

// isTar reports whether the first header of a tar archive can be read, or its end: old archives have no mark.
func isTar(head []byte) bool {
	_, err := tar.NewReader(bytes.NewReader(head)).Next()
	return err == nil || len(head) >= 512 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
}

// isNoMarkup reports whether a text can be JSON or YAML: neither begins with an angle bracket, except for YAML's
// merge key.
func isNoMarkup(head []byte) bool {
	text := bytes.TrimLeft(head, "\xef\xbb\xbf \t\r\n")
	return !bytes.HasPrefix(text, []byte("<")) || bytes.HasPrefix(text, []byte("<<:"))
}

// IsHTML reports whether a text begins as a page of HTML does, after comments and an XML declaration.
func IsHTML(head []byte) bool {
	text := strings.ToLower(string(head[:min(len(head), 4096)]))
	for {
		text = strings.TrimLeft(text, "\ufeff \t\r\n")
		end := ""
		switch {
		case strings.HasPrefix(text, "<!--"):
			end = "-->"
		case strings.HasPrefix(text, "<?xml"):
			end = "?>"
		default:
			return slices.ContainsFunc([]string{"<!doctype html", "<html", "<head>", "<body", "<title>", "<script"},
				func(tag string) bool { return strings.HasPrefix(text, tag) })
		}
		_, after, closed := strings.Cut(text, end)
		if !closed {
			return false
		}
		text = after
	}
}

// isMarkup reports whether a file of this name may be a page, or text that begins like one.
func isMarkup(name string) bool {
	return slices.Contains([]string{
		".html", ".htm", ".xhtml", ".shtml", ".php", ".asp", ".aspx", ".jsp", ".xml",
		".svg", ".md", ".tmpl", ".tpl", ".gotmpl",
	}, path.Ext(name))
}

// SaysHTML reports whether an answer calls its body a page.
func SaysHTML(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (kind == "text/html" || kind == "application/xhtml+xml")
}
