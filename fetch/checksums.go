package fetch

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/upstream"
)

const maxChecksums = 1 << 20 // bytes of a checksum file

// checksum returns the digest of the file at an address from an upstream checksum file.
func (w *webFiles) checksum(ctx context.Context, address, of string) (digest.Digest, error) {
	data, err := w.page(ctx, address, maxChecksums)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(of)
	if err != nil {
		return "", err
	}
	return findChecksum(data, u.Path)
}

// A checksumLine is one entry; name is "" in a file that consists of a single sum.
type checksumLine struct {
	sum  string // 64 lower case hexadecimal digits
	name string
}

// findChecksum returns the sha256 of the file at a path. It reads a bare sum, lines of sha256sum (sum, space, space or
// asterisk, name), and lines of BSD and openssl (SHA256 (name) = sum). An entry whose name is the end of
// the path wins over one with only the same base name. Sums of other lengths and algorithms are ignored.
func findChecksum(data []byte, filePath string) (digest.Digest, error) {
	var exact, base, bare, all []checksumLine
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	for line := range bytes.Lines(data) {
		e, ok := parseChecksum(string(bytes.TrimSpace(line)))
		if !ok {
			continue
		}
		all = append(all, e)
		name := strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(e.name, `\`, "/")), "/")
		switch {
		case e.name == "" || e.name == "-":
			bare = append(bare, e)
		case strings.Contains(name, "/") && strings.HasSuffix(path.Clean("/"+filePath), "/"+name),
			name == path.Base(filePath):
			exact = append(exact, e)
		case path.Base(name) == path.Base(filePath):
			base = append(base, e)
		}
	}
	for _, found := range [][]checksumLine{exact, base} {
		if len(found) > 0 {
			return agreed(found, path.Base(filePath))
		}
	}
	switch {
	case len(bare) == 1 && len(all) == 1:
		return agreed(bare, path.Base(filePath))
	case len(all) == 0 && content.IsHTML(data):
		return "", fmt.Errorf("no sha256 found: the file is a web page (HTML): %s", content.AskedToSignIn)
	case len(all) == 0:
		return "", fmt.Errorf("no sha256 found: %s", understood(data))
	}
	return "", fmt.Errorf("%d sha256 sums, but none for %s", len(all), upstream.Printable(path.Base(filePath)))
}

// understood describes the accepted formats of checksum files, and the problem with this one.
func understood(data []byte) string {
	const forms = `want a sha256 alone, lines of sha256 and file name as sha256sum writes them, or lines such as "SHA256 (name) = …"; name another file of upstream's, or write the sum under sha256`
	for line := range bytes.Lines(data) {
		columns := bytes.Fields(line)
		if len(columns) > 2 && len(bytes.Trim(columns[1], "0123456789abcdefABCDEF")) == 0 {
			return "the lines have several unlabelled hashes of a file; " + forms
		}
	}
	return forms
}

func agreed(found []checksumLine, name string) (digest.Digest, error) {
	for _, e := range found {
		if e.sum != found[0].sum {
			return "", fmt.Errorf("different sha256 sums for %s", upstream.Printable(name))
		}
	}
	return digest.NewDigestFromEncoded(digest.SHA256, found[0].sum), nil
}

func parseChecksum(line string) (checksumLine, bool) {
	if part := labelled.FindStringSubmatch(line); part != nil {
		sum, ok := hexSum(part[2])
		return checksumLine{sum: sum, name: part[1]}, ok
	}
	first, name, _ := strings.Cut(line, " ")
	if i := strings.IndexByte(first, '\t'); i >= 0 {
		first, name = line[:i], line[i+1:]
	}
	// sha256sum marks names with escaped characters with a backslash; others write digests as registries do.
	sum, ok := hexSum(strings.TrimPrefix(strings.TrimPrefix(first, `\`), "sha256:"))
	name = strings.TrimLeft(name, " \t")
	return checksumLine{sum: sum, name: strings.TrimPrefix(name, "*")}, ok
}

// labelled matches lines of BSD, and of openssl dgst before and since its version 3.
var labelled = regexp.MustCompile(`^SHA(?:-?256|2-256) ?\((.*)\) ?= (\S+)$`)

func hexSum(s string) (string, bool) {
	s = strings.ToLower(s)
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return "", false
	}
	return s, true
}
