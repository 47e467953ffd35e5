package fetch

import (
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

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/helmindex"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const maxIndex = 64 << 20 // bytes of a repository's index.yaml; the largest known has some 20 MB

// archiveDigest returns the digest in the index, "" if there is none.
func archiveDigest(v helmindex.Version) digest.Digest {
	sum, ok := hexSum(strings.TrimPrefix(v.Digest, "sha256:"))
	if !ok {
		return ""
	}
	return digest.NewDigestFromEncoded(digest.SHA256, sum)
}

// archiveAddress returns the archive's upstream address.
func archiveAddress(v helmindex.Version, repo string) (string, error) {
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
	if name := scalar.SecretParameter(to); name != "" {
		return "", fmt.Errorf("the index has an address for it with a secret in it (%s), which would appear in the lock and soon expire; fetch the archive yourself and name it under path", upstream.Printable(name))
	}
	return to.String(), nil
}

// versions returns the versions of a chart in a repository.
func (h *helmCharts) versions(ctx context.Context, repo, chart string) ([]helmindex.Version, error) {
	address := indexAddress(repo)
	index, err := h.web.page(ctx, address, maxIndex)
	if err != nil {
		return nil, err
	}
	if content.IsHTML(index) {
		return nil, fmt.Errorf("%s is a web page (HTML), not an index of charts: %s", address, content.AskedToSignIn)
	}
	versions, err := helmindex.Parse(index, chart)
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
	return upstream.Once(&w.loader.Cache.Flights, "page "+address, func() ([]byte, error) {
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
		data, _, err := d.Get(ctx, http.MethodGet, limit)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pages[address] = data
		return data, nil
	})
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
		newest = append(newest, upstream.Printable(version(c.item)))
	}
	return none, fmt.Errorf("there is no version %s; the newest are %s", cmp.Or(want, "that is stable"),
		strings.Join(newest, ", "))
}
