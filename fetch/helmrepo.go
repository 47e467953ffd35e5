package fetch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	maxIndex = 64 << 20 // bytes of a repository's index.yaml; the largest known has some 20 MB
	// maxWholeIndex bounds an index in YAML, or one chart's part of it, to parse as a whole.
	maxWholeIndex = 8 << 20
	// maxIndexNodes bounds the nodes of YAML to parse, some 300 bytes of memory each.
	maxIndexNodes = 1 << 19
)

// A chartVersion is an entry of a Helm repository's index.
type chartVersion struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// sha256 returns the digest in the index, "" if there is none.
func (v chartVersion) sha256() digest.Digest {
	sum, ok := hexSum(strings.TrimPrefix(v.Digest, "sha256:"))
	if !ok {
		return ""
	}
	return digest.NewDigestFromEncoded(digest.SHA256, sum)
}

// address returns the archive's upstream address.
func (v chartVersion) address(repo string) (string, error) {
	if len(v.URLs) == 0 {
		return "", errors.New("the index has no address for it")
	}
	base, err := url.Parse(strings.TrimSuffix(repo, "/") + "/")
	if err != nil {
		return "", err
	}
	to, err := base.Parse(v.URLs[0])
	if err != nil {
		return "", errors.New("the index has an invalid address for it")
	}
	if name := manifest.SecretParameter(to); name != "" {
		return "", fmt.Errorf("the index has an address for it with a secret in it (%s), which would appear in the lock and soon expire; fetch the archive yourself and name it under path", printable(name))
	}
	return to.String(), nil
}

// versions returns the versions of a chart in a repository.
func (h *helmCharts) versions(ctx context.Context, repo, chart string) ([]chartVersion, error) {
	address := indexAddress(repo)
	index, err := h.web.page(ctx, address, maxIndex)
	if err != nil {
		return nil, err
	}
	if isHTML(index) {
		return nil, fmt.Errorf("%s is a web page (HTML), not an index of charts: %s", address, askedToSignIn)
	}
	versions, err := parseIndex(index, chart)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if len(versions) == 0 {
		return nil, fmt.Errorf("%s: the repository has no chart %s", address, chart)
	}
	return versions, nil
}

func indexAddress(repo string) string { return strings.TrimSuffix(repo, "/") + "/index.yaml" }

// page returns a small file about several items, fetched once per run.
func (w *webFiles) page(ctx context.Context, address string, limit int64) ([]byte, error) {
	return once(&w.loader.cache.flights, "page "+address, func() ([]byte, error) {
		w.mu.Lock()
		known, ok := w.pages[address]
		w.mu.Unlock()
		if ok {
			return known, nil
		}
		d, err := w.urlDownload(address, "", -1)
		if err != nil {
			return nil, err
		}
		data, _, err := d.get(ctx, http.MethodGet, limit)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pages[address] = data
		return data, nil
	})
}

// parseIndex returns the entries of one chart.
func parseIndex(index []byte, chart string) ([]chartVersion, error) {
	if trimmed := bytes.TrimSpace(index); len(trimmed) > 0 && trimmed[0] == '{' {
		versions, err := parseJSONIndex(trimmed, chart)
		if err != nil {
			return nil, fmt.Errorf("not an index of charts: %w", err)
		}
		return versions, nil
	}
	if part, ok := indexSection(index, chart); ok && len(part) <= maxWholeIndex && indexNodes(part) <= maxIndexNodes {
		if entries, err := parseYAML(part); err == nil {
			return yamlVersions(entries, chart)
		}
	}
	if len(index) > maxWholeIndex {
		return nil, fmt.Errorf("chart %s was not found in an index of %d bytes, or has more than %d bytes there", chart, len(index), maxWholeIndex)
	}
	if n := indexNodes(index); n > maxIndexNodes {
		return nil, fmt.Errorf("chart %s was not found in an index of about %d values, or has more than %d there", chart, n, maxIndexNodes)
	}
	doc, err := parseYAML(index)
	if err != nil {
		return nil, fmt.Errorf("not an index of charts: %w", err)
	}
	entries, err := yamlField(doc, "entries")
	if err == nil && entries == nil {
		err = errors.New("it has no entries")
	}
	if err != nil {
		return nil, fmt.Errorf("not an index of charts: %w", err)
	}
	return yamlVersions(entries, chart)
}

// indexSection cuts the lines of one chart out of an index in Helm's layout, so that an index of thousands of charts
// need not be parsed. It returns false for another layout.
func indexSection(index []byte, chart string) ([]byte, bool) {
	inEntries, start, indent, offset := false, -1, 0, 0
	for line := range bytes.Lines(index) {
		begin := offset
		offset += len(line)
		text := bytes.TrimRight(line, " \t\r\n")
		spaces := len(text) - len(bytes.TrimLeft(text, " "))
		switch {
		case len(text) == 0 || text[spaces] == '#':
		case start >= 0:
			if spaces < indent || spaces == indent && text[spaces] != '-' {
				return index[start:begin], true
			}
		case !inEntries:
			inEntries = string(text) == "entries:"
		case spaces == 0 && text[0] != '-':
			return nil, false // end of the entries
		case indent == 0 || spaces == indent:
			indent = spaces
			if key, ok := bytes.CutSuffix(text[spaces:], []byte(":")); ok && strings.Trim(string(key), `"'`) == chart && indent > 0 {
				start = begin
			}
		}
	}
	if start >= 0 {
		return index[start:], true
	}
	return nil, false
}

// pickVersion returns the highest matching version: an exact match, else by the rules of ranges, in which pre-releases
// count only if the range names one. An empty range matches any stable version.
func pickVersion[T any](list []T, want string, version func(T) string) (T, error) {
	var none T
	for _, v := range list {
		if want != "" && version(v) == want {
			return v, nil
		}
	}
	constraint, err := semver.NewConstraint(cmp.Or(want, "*"))
	if err != nil {
		return none, fmt.Errorf("%q is neither a version nor a range: %w", want, err)
	}
	type candidate struct {
		item    T
		version *semver.Version
	}
	var all []candidate
	for _, item := range list {
		if v, err := semver.NewVersion(version(item)); err == nil {
			all = append(all, candidate{item, v})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return b.version.Compare(a.version) })
	for _, c := range all {
		if constraint.Check(c.version) {
			return c.item, nil
		}
	}
	if len(all) == 0 {
		return none, errors.New("there are no versions")
	}
	var newest []string
	for _, c := range all[:min(len(all), 5)] {
		newest = append(newest, printable(version(c.item)))
	}
	return none, fmt.Errorf("there is no version %s; the newest are %s", cmp.Or(want, "that is stable"), strings.Join(newest, ", "))
}
