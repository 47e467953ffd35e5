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

// Compare pulls images from a registry on this machine, as crane does: all platforms and all layers, each held against its
// digest. It compares each image's digest with that of the upstream at addr, whose State directory is state.
// DOCKER_CONFIG names the credentials.
func Compare(ctx context.Context, state, addr, site string, images []string, out io.Writer) error {
	ca, err := os.ReadFile(filepath.Join(state, "ca.pem"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(transport), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, image := range images {
		there, err := name.ParseReference(addr + "/" + image)
		if err != nil {
			return err
		}
		here, err := name.ParseReference(site+"/"+image, name.Insecure)
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
			return fmt.Errorf("pull %s from %s: %w", image, site, err)
		}
		fmt.Fprintf(out, "  %-32s %.16s %.16s  %d bytes pulled\n", image, want.Digest.Hex, got.Digest.Hex, n)
		if want.Digest != got.Digest {
			return fmt.Errorf("%s: the digests differ", image)
		}
	}
	fmt.Fprintf(out, "%d images, all the same.\n", len(images))
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
