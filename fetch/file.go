package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/logins"
	"github.com/kkbundle/kkbundle/web/proxy"
)

const (
	fileArtifact = "application/vnd.kkbundle.file.v1"
	fileContent  = "application/octet-stream"
	fileMode     = "io.kkbundle.mode"
	localPrefix  = "local/"
)

// files pins and brings single files.
type files struct {
	kept      kept
	web       *webFiles
	local     *localFiles
	cache     *upstream.Cache
	self      Program
	platforms []string // of the run
	// contentLater means that items are finished before their content of known size arrives.
	contentLater bool
}

// described returns the pin of a file as far as the manifest describes it, with the digest that it names, "" for none.
func (f *files) described(file manifest.File, platform string) (pin manifest.Pin, known digest.Digest, err error) {
	pin = manifest.Pin{
		Kind:     manifest.ItemFile,
		Ref:      manifest.FileURL(file, platform),
		Name:     file.Name,
		Version:  file.Version,
		Platform: platform,
		Mode:     file.Mode,
	}
	sumFor := platform
	if sumFor == "" && len(f.platforms) > 0 {
		sumFor = f.platforms[0]
	}
	if sum := cmp.Or(f.web.overrideSum(pin.Ref, platform), file.Sum(sumFor)); sum != "" {
		known = digest.NewDigestFromEncoded(digest.SHA256, strings.ToLower(sum))
		pin.Verified = manifest.VerifiedManifest
		if err := upstream.CheckDigest(known); err != nil {
			return pin, "", err
		}
	}
	return pin, known, nil
}

// resolve pins a file for a platform, "" if the file is the same for all.
func (f *files) resolve(ctx context.Context, file manifest.File, platform string) (manifest.Pin, error) {
	pin, known, err := f.described(file, platform)
	if err != nil {
		return pin, err
	}
	if local, ok := file.LocalPath(platform); ok {
		pin.URL = local
		return f.pinLocal(ctx, pin, known)
	}
	checksums := scalar.Expand(file.Checksums, platform)
	if known == "" && checksums != "" {
		pin.Checksums, _ = f.web.override(checksums)
	}
	if known == "" {
		if old, ok := f.kept.file(pin, f.web); ok {
			return old, nil
		}
	}
	if pin.Checksums != "" {
		sum, err := f.web.checksum(ctx, checksums, pin.Ref)
		if err != nil {
			return pin, fmt.Errorf("checksums %s: %w", checksums, err)
		}
		known = sum
		if pin.Verified, err = f.web.vouchesFor(checksums); err != nil {
			return pin, err
		}
	}
	return f.web.pinURL(ctx, pin, pin.Ref, known)
}

// pinLocal stores and pins a local file.
func (f *files) pinLocal(ctx context.Context, pin manifest.Pin, known digest.Digest) (manifest.Pin, error) {
	desc, err := f.local.store(ctx, pin.URL, known, false)
	if err != nil {
		return pin, err
	}
	pin.Digest, pin.Size = desc.Digest, desc.Size
	pin.Verified = cmp.Or(pin.Verified, manifest.VerifiedFirstUse)
	return pin, nil
}

// webFiles reads files of web servers.
type webFiles struct {
	network   *upstream.Network
	loader    *upstream.Downloader
	log       *slog.Logger
	logins    logins.Netrc
	overrides []manifest.Override
	platforms []string // of the run

	mu    sync.Mutex
	pages map[string][]byte // indexes of Helm repositories and files of checksums, by URL
}

// pinURL pins the file at an address. Without a published digest, it fetches the file and pins the result.
func (w *webFiles) pinURL(ctx context.Context, pin manifest.Pin, address string,
	known digest.Digest,
) (manifest.Pin, error) {
	d, err := w.urlDownload(address, known, -1)
	if err != nil {
		return pin, err
	}
	pin.From = d.From
	if known == "" {
		pin.Verified = manifest.VerifiedFirstUse
		desc, err := upstream.Once(&w.loader.Cache.Flights, "url "+address,
			func() (ocispec.Descriptor, error) { return w.firstUse(ctx, pin, d) })
		if pin.Digest, pin.Size = desc.Digest, desc.Size; err != nil {
			return pin, err
		}
		head, err := w.loader.Cache.Head(ctx, pin.Digest, content.MaxHead)
		if err != nil {
			return pin, err
		}
		doubt, err := content.Check(head, pin, address, d.HTML)
		if doubt != "" {
			w.log.WarnContext(ctx, "a file without a checksum may not be what its name says", "file", address,
				"reason", doubt)
		}
		return pin, err
	}
	pin.Digest = known
	size, ok, err := w.loader.Cache.Store.Stat(ctx, known)
	if err != nil {
		return pin, &upstream.StoreError{Cause: err}
	}
	desc := ocispec.Descriptor{Size: size}
	if !ok {
		desc, ok, err = w.loader.Dirs.Find(ctx, d)
	}
	if err != nil || ok {
		pin.Size = desc.Size
		return pin, err
	}
	if pin.Size, err = d.Head(ctx); err != nil || pin.Size > 0 {
		return pin, err
	}
	// Lock files must not depend on the cache, so the size is always looked up.
	desc, err = upstream.Once(&w.loader.Cache.Flights, "blob "+known.String(),
		func() (ocispec.Descriptor, error) { return d.Run(ctx) })
	pin.Size = desc.Size
	return pin, err
}

// firstUse fetches a file without a published digest: from a directory that has it, or from upstream unless it is
// unchanged there. Charts are always fetched: a file that turns out to be no chart must not be recorded.
func (w *webFiles) firstUse(ctx context.Context, pin manifest.Pin, d *upstream.Download) (ocispec.Descriptor, error) {
	desc, ok, err := w.loader.Dirs.Find(ctx, d)
	if err != nil || ok {
		return desc, err
	}
	d.Remember = pin.Kind == manifest.ItemFile && w.loader.Records != nil
	return d.Run(ctx)
}

// urlDownload returns the download of a file or chart archive.
func (w *webFiles) urlDownload(address string, want digest.Digest, size int64) (*upstream.Download, error) {
	asked, replaced := w.override(address)
	places, err := w.network.Route(asked)
	if err != nil {
		return nil, err
	}
	d := &upstream.Download{
		Loader: w.loader, What: address, Names: upstream.FileNames(address, want), Want: want,
		Size: size,
	}
	if replaced {
		d.From = asked
		d.What = address + " (fetched from " + asked + ")"
	}
	for _, o := range places {
		o.Header = http.Header{}
		o.Client = func(context.Context) (*http.Client, error) { return o.Peer.WebClient(), nil }
		if l, ok := w.logins.Find(o.URL.Hostname()); ok {
			req := http.Request{Header: o.Header}
			req.SetBasicAuth(l.User, l.Password)
		}
		o.Explain = func(err error) error { return explainStatus(o.Peer, err) }
		d.Places = append(d.Places, o)
	}
	return d, nil
}

// override returns the replacement of an address, if the manifest has one.
func (w *webFiles) override(address string) (string, bool) {
	for _, o := range w.overrides {
		for _, platform := range append([]string{""}, w.platforms...) {
			if with, ok := o.Apply(address, platform); ok {
				return with, true
			}
		}
	}
	return address, false
}

// overrideSum returns the sha256 that the manifest sets in place of the upstream's, "" for none.
func (w *webFiles) overrideSum(address, platform string) string {
	for _, o := range w.overrides {
		if sum := o.Sum(address, platform); sum != "" {
			return sum
		}
	}
	return ""
}

// explainStatus adds cause and remedy to a web server's refusal.
func explainStatus(p *upstream.Peer, err error) error {
	status := web.Status(err)
	if status == nil {
		return err
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("no such file on %s: %w", p, err)
	case http.StatusUnauthorized:
		return fmt.Errorf("%s requires a login or rejects the one given: put user and password for it into netrc (~/.netrc or $NETRC): %w", p.Host, err)
	case http.StatusForbidden:
		return fmt.Errorf("%s denies access: check that the file exists, and the login in netrc (~/.netrc or $NETRC): %w", p.Host, err)
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("%s: %w", proxy.LoginText(p.Host), err)
	}
	return err
}

// plan returns the plan of a pinned file.
func (f *files) plan(pin manifest.Pin) (*plan, error) {
	if strings.HasPrefix(pin.Ref, localPrefix) {
		return f.localPlan(pin), nil
	}
	b := blob{digest: pin.Digest, size: pinnedSize(pin)}
	if image, file, ok := manifest.ImageOfPackage(pin.URL); ok {
		b.fetch = f.local.packageFetch(pin, image, file)
	} else {
		d, err := f.web.urlDownload(cmp.Or(pin.URL, pin.Ref), pin.Digest, b.size)
		if err != nil {
			return nil, err
		}
		b = pinnedBlob(d, pin)
	}
	return &plan{
		blobs:  []blob{b},
		finish: func(ctx context.Context) (ocispec.Descriptor, error) { return f.manifest(ctx, pin) },
	}, nil
}

// pinnedBlob returns the blob of a pin, with the remedy for other content.
func pinnedBlob(d *upstream.Download, pin manifest.Pin) blob {
	b := blobOf(d)
	fetch := b.fetch
	b.fetch = func(ctx context.Context) error { return distrust(pin, fetch(ctx)) }
	return b
}

// distrust adds the remedy for content that differs from the lock, depending on the source of the digest.
func distrust(pin manifest.Pin, err error) error {
	if !errors.Is(err, upstream.ErrMismatch) {
		return err
	}
	switch pin.Verified {
	case manifest.VerifiedManifest:
		return fmt.Errorf("%w: if this is the right file, correct its sha256 in the manifest", err)
	case manifest.VerifiedUpstream, manifest.VerifiedMirror, manifest.VerifiedSignature, manifest.VerifiedUnsigned:
		return fmt.Errorf("%w: not the file of upstream's checksum: write a new lock with kkbundle lock, or get the file from another source", err)
	}
	return fmt.Errorf("%w: changed since the lock was written: if that is expected, write a new lock with kkbundle lock", err)
}

// pinnedSize returns -1 if the lock does not have the size.
func pinnedSize(pin manifest.Pin) int64 {
	if pin.Size == 0 {
		return -1
	}
	return pin.Size
}

// localPlan returns the plan of a pinned local file. The file is read again also where the cache has the pinned
// content: a bundle must not have another content than the file beside its manifest.
func (f *files) localPlan(pin manifest.Pin) *plan {
	var read atomic.Bool
	fetch := func(ctx context.Context) error {
		path, err := f.localPath(pin)
		if err == nil {
			_, err = f.local.store(ctx, path, pin.Digest, pin.Size > 0)
		}
		read.Store(err == nil)
		return changedLocally(err)
	}
	finish := func(ctx context.Context) (ocispec.Descriptor, error) {
		if read.Load() {
			return f.manifest(ctx, pin)
		}
		path, err := f.localPath(pin)
		if err == nil {
			err = f.local.compare(ctx, path, pin.Digest)
		}
		if err != nil {
			return ocispec.Descriptor{}, changedLocally(err)
		}
		return f.manifest(ctx, pin)
	}
	return &plan{blobs: []blob{{digest: pin.Digest, size: pinnedSize(pin), fetch: fetch}}, finish: finish}
}

// localPath returns the path of a pinned local file. The lock names none of the program that builds.
func (f *files) localPath(pin manifest.Pin) (string, error) {
	if pin.URL != "" {
		return pin.URL, nil
	}
	own, err := f.self.orRunning()
	return own.Path, err
}

// changedLocally adds the remedy for a local file that differs from the lock.
func changedLocally(err error) error {
	if errors.Is(err, upstream.ErrMismatch) {
		return fmt.Errorf("%w; changed since the lock was written: write a new lock with kkbundle lock", err)
	}
	return err
}

// localFiles brings files of this machine into the cache.
type localFiles struct {
	dir   upstream.BaseDir
	cache *upstream.Cache
}

// open opens a regular file.
func (l *localFiles) open(name string) (*os.File, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// compare returns an upstream.ErrMismatch if a local file has another digest.
func (l *localFiles) compare(ctx context.Context, file string, want digest.Digest) error {
	f, _, err := l.open(l.dir.Path(file))
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := digest.SHA256.FromReader(upstream.Stopping(ctx, f))
	if err == nil && have != want {
		err = fmt.Errorf("%s: %w: %s, want %s", filepath.ToSlash(file), upstream.ErrMismatch, have, want)
	}
	return err
}

// store stores a local file. planned means that its size is already in the session's total.
func (l *localFiles) store(ctx context.Context, file string, want digest.Digest,
	planned bool,
) (ocispec.Descriptor, error) {
	name := l.dir.Path(file)
	return upstream.Once(&l.cache.Flights, "local "+name+" "+want.String(), func() (ocispec.Descriptor, error) {
		f, size, err := l.open(name)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		defer f.Close()
		if !planned {
			l.cache.Count(size, 0, 0)
		}
		desc, err := l.cache.CopyIn(ctx, "local "+name, want, func(w io.Writer) error {
			n, err := io.Copy(w, upstream.Stopping(ctx, f))
			if err == nil && n != size {
				err = fmt.Errorf("changed while it was read: %d bytes became %d", size, n)
			}
			return err
		})
		if err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("%s: %w", filepath.ToSlash(file), err)
		}
		return desc, nil
	})
}

// manifest makes the artifact of a file in the store. Its bytes depend only on the pin.
func (f *files) manifest(ctx context.Context, pin manifest.Pin) (ocispec.Descriptor, error) {
	size, ok, err := f.cache.Store.Stat(ctx, pin.Digest)
	if err != nil {
		return ocispec.Descriptor{}, &upstream.StoreError{Cause: err}
	}
	switch {
	case ok:
	case f.contentLater && pin.Size > 0:
		size = pin.Size
	default:
		return ocispec.Descriptor{}, &upstream.StoreError{
			Cause: fmt.Errorf("blob %s has disappeared from the cache", pin.Digest),
		}
	}
	layer := ocispec.Descriptor{
		MediaType:   fileContent,
		Digest:      pin.Digest,
		Size:        size,
		Annotations: map[string]string{ocispec.AnnotationTitle: fileTitle(pin)},
	}
	if pin.Mode != 0 {
		layer.Annotations[fileMode] = pin.Mode.String()
	}
	empty := ocispec.DescriptorEmptyJSON
	if err := f.cache.Put(ctx, empty.Data, empty.Digest); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := putManifest(ctx, f.cache, ocispec.Manifest{
		ArtifactType: fileArtifact,
		Config:       ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size},
		Layers:       []ocispec.Descriptor{layer},
	})
	if err != nil {
		return desc, err
	}
	desc.ArtifactType = fileArtifact
	desc.Platform = parsePlatform(pin.Platform)
	return desc, nil
}

// putManifest writes an OCI manifest. Its JSON has the fields in the order of the type, and sorted annotations.
func putManifest(ctx context.Context, c *upstream.Cache, m ocispec.Manifest) (ocispec.Descriptor, error) {
	m.Versioned = specs.Versioned{SchemaVersion: 2}
	m.MediaType = ocispec.MediaTypeImageManifest
	data, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: m.MediaType, Digest: upstream.SHA256Of(data), Size: int64(len(data))}
	return desc, c.Put(ctx, data, desc.Digest)
}

// fileTitle returns the name under which tools write an unpacked file: the last part of its address.
func fileTitle(pin manifest.Pin) string {
	if strings.HasPrefix(pin.Ref, localPrefix) && pin.URL != "" {
		return path.Base(filepath.ToSlash(pin.URL))
	}
	u, err := url.Parse(pin.Ref)
	if err != nil {
		return pin.Name
	}
	base := path.Base(u.Path)
	if base == "." || base == "/" || base == ".." ||
		strings.ContainsFunc(base, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }) {
		return pin.Name
	}
	return base
}

func parsePlatform(p string) *ocispec.Platform {
	parts := strings.SplitN(p, "/", 3)
	if len(parts) < 2 {
		return nil
	}
	out := &ocispec.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		out.Variant = parts[2]
	}
	return out
}
