package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/deb"
	"github.com/kkbundle/kkbundle/fetch/packages/iso"
	"github.com/kkbundle/kkbundle/fetch/packages/rpm"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// networkFiles reads repositories on servers. Lists go through the store, so that they are fetched once.
type networkFiles struct{ web *webFiles }

// Get implements packages.Files.
func (n networkFiles) Get(ctx context.Context, address string, limit int64) ([]byte, error) {
	data, err := n.web.page(ctx, address, limit)
	return data, missing(err)
}

// missing marks the error for a file that a server does not have: object stores answer 403 for it.
func missing(err error) error {
	if upstream.Lacking(err, http.StatusNotFound, http.StatusGone, http.StatusForbidden) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// Open implements packages.Files.
func (n networkFiles) Open(ctx context.Context, address string, size int64, sum string) (io.ReadCloser, error) {
	want := digest.NewDigestFromEncoded(digest.SHA256, sum)
	if err := upstream.CheckDigest(want); err != nil {
		return nil, err
	}
	d, err := n.web.urlDownload(address, want, size)
	if err != nil {
		return nil, err
	}
	if err := n.web.loader.Fetch(ctx, d); err != nil {
		if errors.Is(err, upstream.ErrMismatch) {
			err = fmt.Errorf("%w: the mirror is being updated or is damaged; try again later, or use another mirror",
				err)
		}
		return nil, missing(err)
	}
	rc, err := n.web.loader.Cache.Store.Open(ctx, want)
	if err != nil {
		return nil, &upstream.StoreError{Cause: err}
	}
	return rc, nil
}

// A diskImage is an open disk image.
type diskImage struct {
	*iso.Image
	file     *os.File
	verified manifest.Verification
}

// openImage opens a local image and checks its sha256, if given.
func (l *localFiles) openImage(ctx context.Context, name, sum string) (*diskImage, error) {
	f, err := os.Open(l.dir.Path(name))
	if err != nil {
		return nil, err
	}
	d := &diskImage{file: f, verified: manifest.VerifiedFirstUse}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil && sum != "" {
		d.verified = manifest.VerifiedManifest
		err = hashes(ctx, f, sum)
	}
	if err == nil {
		d.Image, err = iso.Open(f, info.Size())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(err, f.Close()))
	}
	return d, nil
}

// hashes checks that the content has that sha256.
func hashes(ctx context.Context, r io.Reader, want string) error {
	h := sha256.New()
	if _, err := io.Copy(h, upstream.Stopping(ctx, r)); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%w: sha256 is %s instead of %s", upstream.ErrMismatch, got, want)
	}
	return nil
}

// Close ends the use of the image.
func (d *diskImage) Close() error { return d.file.Close() }

// Get implements packages.Files.
func (d *diskImage) Get(_ context.Context, name string, limit int64) ([]byte, error) {
	f, err := d.Image.Open(name)
	if err != nil {
		return nil, err
	}
	if f.Size() > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return io.ReadAll(f)
}

// Open implements packages.Files.
func (d *diskImage) Open(ctx context.Context, name string, _ int64, sum string) (io.ReadCloser, error) {
	f, err := d.Image.Open(name)
	if err != nil {
		return nil, err
	}
	if err := hashes(ctx, f, sum); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, err = f.Seek(0, io.SeekStart)
	return io.NopCloser(f), err
}

// loadImage reads all repositories in an image. Their content is trusted like the image itself.
func (c *choice) loadImage(ctx context.Context, d *diskImage) error {
	var suites, lists, directories []string
	err := d.Walk(func(name string, _ int64) error {
		dir, base := path.Split(name)
		switch parts := strings.Split(name, "/"); {
		case base == "repomd.xml" && path.Base(dir) == "repodata":
			directories = append(directories, path.Dir(path.Clean(dir)))
		case base == "Release" && len(parts) >= 3 && parts[len(parts)-3] == "dists":
			suites = append(suites, path.Clean(dir))
		case isPackageList(base) && !strings.Contains("/"+name, "/dists/"):
			lists = append(lists, name)
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	if len(suites)+len(lists)+len(directories) == 0 {
		return fmt.Errorf("%s has no repository: it needs dists/SUITE/Release, Packages or repodata/repomd.xml",
			c.set.ISO)
	}
	if err := c.prepare(len(directories) == 0); err != nil {
		return err
	}
	for _, dir := range directories {
		r := &rpm.Repository{URL: dir, Arch: c.arch, Base: c.isBase}
		if _, err := r.Load(ctx, d, c.universe, time.Now()); err != nil {
			return err
		}
	}
	for _, dir := range suites {
		r := deb.Repository{URL: path.Dir(path.Dir(dir)), Suite: path.Base(dir), Arch: c.arch, AllowExpired: true}
		if _, err := r.Load(ctx, d, c.universe, time.Now()); err != nil {
			return err
		}
	}
	if len(suites) > 0 || len(directories) > 0 {
		return nil
	}
	for _, name := range lists {
		if err := c.loadList(ctx, d, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func isPackageList(base string) bool {
	suffix, ok := strings.CutPrefix(base, "Packages")
	return ok && slices.Contains(packages.ListForms(), suffix)
}

// loadList reads a list without a Release, as made by dpkg-scanpackages.
func (c *choice) loadList(ctx context.Context, d *diskImage, name string) error {
	f, err := d.Image.Open(name)
	if err != nil {
		return err
	}
	in, err := packages.Unpack(name, upstream.Stopping(ctx, f))
	if err != nil {
		return err
	}
	defer in.Close()
	return deb.Read(in, c.arch, path.Dir(name), func(p *packages.Package) error {
		c.universe.Add(p)
		return nil
	})
}

// packageFetch copies a pinned package out of a disk image.
func (l *localFiles) packageFetch(pin manifest.Pin, image, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := upstream.Once(&l.cache.Flights, "image "+image+"/"+name, func() (ocispec.Descriptor, error) {
			d, err := l.openImage(ctx, image, "")
			if err != nil {
				return ocispec.Descriptor{}, err
			}
			defer d.Close()
			f, err := d.Image.Open(name)
			if err != nil {
				return ocispec.Descriptor{}, fmt.Errorf("%s: %w", image, err)
			}
			desc, err := l.cache.CopyIn(ctx, "image "+image+"/"+name, pin.Digest, func(w io.Writer) error {
				_, err := io.Copy(w, upstream.Stopping(ctx, f))
				return err
			})
			if errors.Is(err, upstream.ErrMismatch) {
				err = fmt.Errorf("%s: %s: %w; the image changed since the lock was written: write a new lock with kkbundle lock", image, name, err)
			}
			return desc, err
		})
		return err
	}
}
