package fetch

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/web"
)

// A Newer lists the newer upstream versions of one item.
type Newer struct {
	Pin manifest.Pin
	// Patch, Minor and Latest are the newest version with the same major and minor number, with the same major number,
	// and of all. Each is "" if it is not newer than the item's.
	Patch, Minor, Latest string
	// Moved is the present digest of the item's own tag or version, if different.
	Moved digest.Digest
	// Removed means that upstream, or its mirror, no longer has the item's own version.
	Removed bool
	// Unknown is the reason that nothing can be known; "" if upstream could be asked.
	Unknown string
	// Err is the error of the request.
	Err error
}

// maxStable bounds an answer that names a version.
const maxStable = 256

// Outdated looks up newer versions of each item upstream and returns them in the same order. Items that fail do not
// affect the others: the error is *Errors with all of them, or the context's. Nothing is stored, and Options.Store may
// be nil.
func Outdated(ctx context.Context, pins []manifest.Pin, o Options) ([]Newer, error) {
	s, err := newReader(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	lookup := &versionLookup{web: s.charts.web, registries: s.registries, charts: s.charts}
	all := make([]Newer, len(pins))
	failed := &failures{}
	s.each(len(pins), func(i int) {
		all[i] = Newer{Pin: pins[i]}
		all[i].Err = lookup.newer(ctx, &all[i])
		s.finish(pins[i], all[i].Err, failed)
	})
	return all, failed.err(ctx, len(pins))
}

// A versionLookup asks upstream for versions.
type versionLookup struct {
	web        *webFiles
	registries *registries.Registries
	charts     *helmCharts
	flights    singleflight.Group
}

func (l *versionLookup) newer(ctx context.Context, n *Newer) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case strings.HasPrefix(n.Pin.Ref, localPrefix):
		n.Unknown = "a local file has no newer version"
		return nil
	case manifest.IsPackageRef(n.Pin.Ref):
		n.Unknown = "follows its distribution: kkbundle lock takes the newest packages"
		return nil
	case n.Pin.Kind == manifest.ItemGit:
		n.Unknown = "follows its refs: kkbundle lock --update takes the newest commits"
		return nil
	case n.Pin.Kind == manifest.ItemImage:
		return l.newerImage(ctx, n)
	case n.Pin.Kind == manifest.ItemChart:
		return l.newerChart(ctx, n)
	}
	return l.newerFile(ctx, n)
}

func (l *versionLookup) newerImage(ctx context.Context, n *Newer) error {
	home, tag, _, err := registries.ParseImage(n.Pin.Ref)
	if err != nil {
		return err
	}
	if imageVersion(n.Pin.Ref) == "" {
		n.Unknown = "pinned by a digest without a tag"
		return nil
	}
	return l.newerTag(ctx, n, home, tag)
}

// newerTag compares with the tags of a repository.
func (l *versionLookup) newerTag(ctx context.Context, n *Newer, home name.Repository, tag string) error {
	repo, err := l.registries.Repository(home)
	if err != nil {
		return err
	}
	if n.Pin.Digest != "" {
		d, err := repo.Head(ctx, tag)
		if n.Removed = isGone(err); err != nil && !n.Removed {
			return err
		}
		if err == nil && d != n.Pin.Digest {
			n.Moved = d
		}
	}
	if _, ok := parseVersion(tag); !ok {
		if n.Moved == "" && n.Pin.Digest == "" {
			n.Unknown = "the tag is not a version"
		}
		return nil
	}
	tags, err := upstream.Once(&l.flights, "tags "+repo.String(), func() ([]string, error) { return repo.Tags(ctx) })
	if err != nil {
		return err
	}
	n.pick(tag, tags)
	return nil
}

// pick finds the newest among versions of the same flavour.
func (n *Newer) pick(have string, all []string) {
	own, ok := parseVersion(have)
	if !ok {
		return
	}
	var patch, minor, latest version
	for _, text := range all {
		v, ok := parseVersion(text)
		if !ok || !v.succeeds(own) {
			continue
		}
		latest = newest(latest, v)
		if v.agree(own, 1) {
			minor = newest(minor, v)
		}
		if v.agree(own, 2) {
			patch = newest(patch, v)
		}
	}
	n.Patch, n.Minor, n.Latest = patch.text, minor.text, latest.text
}

func newest(a, b version) version {
	if a.text == "" || b.compare(a) > 0 {
		return b
	}
	return a
}

func (l *versionLookup) newerChart(ctx context.Context, n *Newer) error {
	repo, chart, ok := chartHome(n.Pin)
	if !ok {
		return l.newerFile(ctx, n)
	}
	if isRegistryAddress(repo) {
		home, err := ociRepository(repo, chart)
		if err != nil {
			return err
		}
		if err := l.newerTag(ctx, n, home, asTag(n.Pin.Version)); err != nil {
			return err
		}
		if err := l.unmoved(ctx, n, home); err != nil {
			return err
		}
		for _, v := range []*string{&n.Patch, &n.Minor, &n.Latest} {
			*v = asVersion(*v)
		}
		return nil
	}
	versions, err := l.charts.versions(ctx, repo, chart)
	if err != nil {
		return err
	}
	var all []string
	for _, v := range versions {
		all = append(all, v.Version)
		if now := archiveDigest(v); v.Version == n.Pin.Version && now != "" && n.Pin.Digest != "" &&
			now != n.Pin.Digest {
			n.Moved = now
		}
	}
	n.Removed = n.Pin.Digest != "" && !slices.Contains(all, n.Pin.Version)
	n.pick(n.Pin.Version, all)
	return nil
}

// unmoved clears Removed and Moved of a chart that is where it was: its version need not be a tag if a moving tag led
// to it, and a tag may lead to an index that has it.
func (l *versionLookup) unmoved(ctx context.Context, n *Newer, home name.Repository) error {
	repo, err := l.registries.Repository(home)
	if err != nil {
		return err
	}
	if n.Removed {
		_, err := repo.Head(ctx, n.Pin.Digest.String())
		if n.Removed = isGone(err); n.Removed {
			return nil
		}
		return err
	}
	if n.Moved == "" {
		return nil
	}
	desc, data, err := repo.Peek(ctx, n.Moved.String())
	if err != nil {
		return err
	}
	doc, err := registries.ParseManifest(desc, data)
	if slices.ContainsFunc(doc.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == n.Pin.Digest }) {
		n.Moved = ""
	}
	return err
}

// chartHome splits a chart's reference into its repository and name.
func chartHome(p manifest.Pin) (repo, chart string, ok bool) {
	rest, ok := strings.CutSuffix(p.Ref, ":"+p.Version)
	if !ok || p.Version == "" {
		return "", "", false
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// newerFile looks up newer versions by the catalog's component, or by the releases of a project at GitHub.
func (l *versionLookup) newerFile(ctx context.Context, n *Newer) error {
	if n.Pin.Digest != "" { // of a lock or a bundle
		if err := l.asks(ctx, n); err != nil {
			return err
		}
	}
	if stable, ok, err := catalog.StableOf(n.Pin.Name, n.Pin.Ref); err != nil {
		return err
	} else if ok {
		return l.newerStable(ctx, n, stable)
	}
	project, have, ok := githubRelease(n.Pin.Ref)
	if !ok {
		n.Unknown = "no list of its versions is published"
		return nil
	}
	tags, err := l.releases(ctx, project)
	if err != nil {
		return err
	}
	if len(tags) == 0 {
		n.Unknown = "the project names no latest release"
		return nil
	}
	n.pick(have, tags)
	return nil
}

// asks sets Removed for a file that its own address no longer has.
func (l *versionLookup) asks(ctx context.Context, n *Newer) error {
	address := cmp.Or(n.Pin.URL, n.Pin.Ref)
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil //nolint:nilerr // a package in a disk image, for example
	}
	_, err := l.head(ctx, address, "ask for "+scalar.WithoutSecrets(address), l.exists)
	if n.Removed = isGone(err); n.Removed {
		return nil
	}
	return err
}

// exists returns an error if a server answers that an address has nothing. Other answers tell nothing: some servers
// refuse HEAD.
func (l *versionLookup) exists(ctx context.Context, o upstream.Origin) (string, error) {
	client, err := o.Client(ctx)
	if err != nil {
		return "", err
	}
	req, err := o.Request(ctx, http.MethodHead)
	if err != nil {
		return "", err
	}
	res, err := l.web.loader.Sender.Send(ctx, o.Peer, client, req)
	if err != nil {
		return "", err
	}
	if err := res.Body.Close(); err != nil {
		return "", err
	}
	if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusGone {
		return "", o.Present(ctx, l.web.loader.Sender) // some servers answer so to every HEAD
	}
	return "", nil
}

// isGone reports whether a server answered that it does not have something.
func isGone(err error) bool {
	status := web.Status(err)
	return status != nil && (status.Code == http.StatusNotFound || status.Code == http.StatusGone)
}

// newerStable reads files that name a version.
func (l *versionLookup) newerStable(ctx context.Context, n *Newer, stable catalog.Stable) error {
	var found []string
	for _, address := range []string{stable.Minor, stable.Latest} {
		data, err := l.web.page(ctx, address, maxStable)
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(data))
		if _, ok := parseVersion(text); !ok {
			return fmt.Errorf("%s: %q is not a version", address, upstream.Printable(text))
		}
		found = append(found, text)
	}
	n.pick(stable.Version, found)
	return nil
}

// githubRelease parses the address of a release's file.
func githubRelease(address string) (project, version string, ok bool) {
	u, err := url.Parse(address)
	if err != nil || u.Host != "github.com" {
		return "", "", false
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if len(parts) < 6 || parts[2] != "releases" || parts[3] != "download" {
		return "", "", false
	}
	return parts[0] + "/" + parts[1], parts[4], true
}

// maxFeed bounds a feed of releases. It has the texts of the last ten.
const maxFeed = 4 << 20

// releases returns the tags of a project's releases: the latest, and those of its feed, which has the last ten, of
// older lines too. Mirrors of files have neither, or one.
func (l *versionLookup) releases(ctx context.Context, project string) ([]string, error) {
	latest, err := l.latestRelease(ctx, project)
	data, feedErr := l.web.page(ctx, "https://github.com/"+project+"/releases.atom", maxFeed)
	if feedErr != nil {
		data = nil
	}
	tags := feedTags(data)
	if latest != "" {
		tags = append(tags, latest)
	}
	if err != nil && len(tags) > 0 && isGone(err) {
		err = nil
	}
	return tags, err
}

// feedTags returns the tags in a feed of releases at GitHub; none of a text that is no feed.
func feedTags(data []byte) []string {
	var feed struct {
		Entries []struct {
			Link struct {
				Href string `xml:"href,attr"`
			} `xml:"link"`
		} `xml:"entry"`
	}
	if err := xml.Unmarshal(data, &feed); err != nil {
		return nil
	}
	var tags []string
	for _, e := range feed.Entries {
		_, tag, _ := strings.Cut(e.Link.Href, "/releases/tag/")
		if tag, err := url.PathUnescape(tag); err == nil && tag != "" {
			tags = append(tags, tag)
		}
	}
	return tags
}

// latestRelease returns the tag of a project's latest release, from the redirect of GitHub's address for it. It is ""
// without a redirect, for example on a mirror of files.
func (l *versionLookup) latestRelease(ctx context.Context, project string) (string, error) {
	return upstream.Once(&l.flights, "release "+project, func() (string, error) {
		return l.head(ctx, "https://github.com/"+project+"/releases/latest", "find the latest release of "+project,
			func(ctx context.Context, o upstream.Origin) (string, error) {
				tag, err := l.leadsTo(ctx, o, "/releases/tag/")
				if err == nil && tag == "" && o.Peer.Spare {
					err = &web.StatusError{Code: http.StatusNotFound} // the next place may have it
				}
				return tag, err
			})
	})
}

// head asks each place of an address until one answers.
func (l *versionLookup) head(ctx context.Context, address, what string,
	ask func(context.Context, upstream.Origin) (string, error),
) (text string, err error) {
	d, err := l.web.urlDownload(address, "", -1)
	if err != nil {
		return "", err
	}
	err = d.Each(ctx, func(o upstream.Origin) error {
		return l.web.loader.Sender.Retry(ctx, o.Peer, what, func() (err error) {
			text, err = ask(ctx, o)
			return err
		})
	})
	return text, err
}

// leadsTo requests an address and returns the part after mark in the address that it redirects to, "" if there is no
// redirect.
func (l *versionLookup) leadsTo(ctx context.Context, o upstream.Origin, mark string) (string, error) {
	client, err := o.Client(ctx)
	if err != nil {
		return "", err
	}
	stay := *client
	stay.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, err := o.Request(ctx, http.MethodHead)
	if err != nil {
		return "", err
	}
	res, err := l.web.loader.Sender.Send(ctx, o.Peer, &stay, req)
	if err != nil {
		return "", err
	}
	if err := res.Body.Close(); err != nil {
		return "", err
	}
	_, tag, _ := strings.Cut(res.Header.Get("Location"), mark)
	return url.PathUnescape(tag)
}

// noStore is a Store for lookups that store nothing.
type noStore struct{}

var errNoStore = errors.New("nothing is stored here")

func (noStore) Stat(context.Context, digest.Digest) (int64, bool, error) { return 0, false, nil }

func (noStore) Open(context.Context, digest.Digest) (io.ReadCloser, error) { return nil, errNoStore }

func (noStore) Begin(context.Context, string) (upstream.BlobWriter, int64, error) {
	return nil, 0, errNoStore
}
