package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A Comparison is of images in two registries on this machine.
type Comparison struct {
	// State is the state directory of the upstream at the address Upstream; Site is the address of the other registry.
	State, Upstream, Site string
	Images                []string
}

// Compare pulls images from the site's registry, as crane does: all platforms and all layers, each held against its
// digest. It compares each image's digest with the upstream's. DOCKER_CONFIG names the credentials.
func Compare(ctx context.Context, c Comparison, out io.Writer) error {
	ca, err := os.ReadFile(filepath.Join(c.State, "ca.pem"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(transport),
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
	}
	for _, image := range c.Images {
		there, err := name.ParseReference(c.Upstream + "/" + image)
		if err != nil {
			return err
		}
		here, err := name.ParseReference(c.Site+"/"+image, name.Insecure)
		if err != nil {
			return err
		}
		want, err := remote.Head(there, options...)
		if err != nil {
			return err
		}
		got, err := remote.Get(here, options...)
		if err != nil {
			return err
		}
		n, err := pull(got)
		if err != nil {
			return fmt.Errorf("pull %s from %s: %w", image, c.Site, err)
		}
		fmt.Fprintf(out, "  %-32s %.16s %.16s  %d bytes pulled\n", image, want.Digest.Hex, got.Digest.Hex, n)
		if want.Digest != got.Digest {
			return fmt.Errorf("%s: the digests differ", image)
		}
	}
	fmt.Fprintf(out, "%d images, all the same.\n", len(c.Images))
	return nil
}

// pull reads all layers of an image or index.
func pull(d *remote.Descriptor) (total int64, err error) {
	if !d.MediaType.IsIndex() {
		img, err := d.Image()
		if err != nil {
			return 0, err
		}
		return layers(img)
	}
	index, err := d.ImageIndex()
	if err != nil {
		return 0, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return 0, err
	}
	for _, child := range m.Manifests {
		if child.Platform != nil && child.Platform.OS == "unknown" { // an attestation
			continue
		}
		img, err := index.Image(child.Digest)
		if err != nil {
			return total, err
		}
		n, err := layers(img)
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

func layers(img v1.Image) (total int64, err error) {
	if _, err := img.RawConfigFile(); err != nil {
		return 0, err
	}
	list, err := img.Layers()
	if err != nil {
		return 0, err
	}
	for _, l := range list {
		r, err := l.Compressed() // held against its digest while it is read
		if err != nil {
			return total, err
		}
		n, err := io.Copy(io.Discard, r)
		if total += n; err != nil {
			return total, errors.Join(err, r.Close())
		}
		if err := r.Close(); err != nil {
			return total, err
		}
	}
	return total, nil
}
