package packagesets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/deb"
	"github.com/kkbundle/kkbundle/fetch/packages/iso"
	"github.com/kkbundle/kkbundle/fetch/packages/rpm"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Image is an open disk image.
type Image struct {
	*iso.Image
	file     *os.File
	verified manifest.Verification
}

// OpenImage opens a local image and checks its sha256, if given.
func OpenImage(ctx context.Context, dir upstream.BaseDir, name, sum string) (*Image, error) {
	f, err := os.Open(dir.Path(name))
	if err != nil {
		return nil, err
	}
	d := &Image{file: f, verified: manifest.VerifiedFirstUse}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil && sum != "" {
		d.verified = manifest.VerifiedManifest
		want, _ := packages.ParseSum(sum) // the manifest checks it
		err = hashes(ctx, f, want)
	}
	if err == nil {
		d.Image, err = iso.Open(f, info.Size())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(err, f.Close()))
	}
	return d, nil
}

// hashes checks that the content has that sum.
func hashes(ctx context.Context, r io.Reader, want packages.Sum) error {
	err := want.Check(upstream.Stopping(ctx, r))
	if errors.Is(err, packages.ErrSum) {
		err = fmt.Errorf("%w: %w", upstream.ErrMismatch, err)
	}
	return err
}

// Close ends the use of the image.
func (d *Image) Close() error { return d.file.Close() }

// Get implements packages.Files.
func (d *Image) Get(_ context.Context, name string, limit int64) ([]byte, error) {
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
func (d *Image) Open(ctx context.Context, name string, _ int64, sum packages.Sum) (io.ReadCloser, error) {
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
func (c *choice) loadImage(ctx context.Context, d *Image) error {
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
func (c *choice) loadList(ctx context.Context, d *Image, name string) error {
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
