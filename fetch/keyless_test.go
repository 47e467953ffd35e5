package fetch_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// A keylessPublisher signs its image as an identity. Its Sigstore stands in for the public one.
type keylessPublisher struct {
	*publisher
	sigstore *trusttest.Sigstore
	image    v1.Image
}

const (
	releaser = "https://github.com/acme/app/.github/workflows/release.yaml@refs/tags/v1"
	actions  = "https://token.actions.githubusercontent.com"
)

func (p *keylessPublisher) simple(subject string) {
	p.t.Helper()
	d := digestString(p.t, p.image)
	s, err := p.sigstore.Simple(subject, actions, "registry.k8s.io/app", d)
	if err == nil {
		err = trusttest.PushSimple(p.repo(), d, []trust.SimpleSignature{s}, p.remote()...)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *keylessPublisher) bundle(subject, predicate string) {
	p.t.Helper()
	raw, err := p.image.RawManifest()
	if err != nil {
		p.t.Fatal(err)
	}
	data, err := p.sigstore.Bundle(subject, actions, raw, predicate)
	if err != nil {
		p.t.Fatal(err)
	}
	p.attach(p.image.(partial.Describable), trust.MediaTypeBundle, data)
}

// TestVerifyIdentity locks an image that an identity signed, in cosign's old and new format, and checks it again from
// the lock.
func TestVerifyIdentity(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		publish func(p *keylessPublisher)
		says    []string // nil: it is signed
	}{
		"old format": {func(p *keylessPublisher) { p.simple(releaser) }, nil},
		"new format": {func(p *keylessPublisher) { p.bundle(releaser, trust.PredicateSign) }, nil},
		"unsigned": {func(*keylessPublisher) {}, []string{
			"is not signed by " + releaser + " (" + actions + ")",
			"no signature was found",
		}},
		"another, old": {
			func(p *keylessPublisher) { p.simple("https://github.com/evil/app") },
			[]string{"not signed by this identity"},
		},
		"another, new": {
			func(p *keylessPublisher) { p.bundle("https://github.com/evil/app", trust.PredicateSign) },
			[]string{"not signed by this identity"},
		},
		"an attestation": {
			func(p *keylessPublisher) { p.bundle(releaser, "https://slsa.dev/provenance/v1") },
			[]string{"an attestation (https://slsa.dev/provenance/v1), not a signature"},
		},
		"a key's": {
			func(p *keylessPublisher) { d := digestString(p.t, p.image); p.sign(d, d) },
			[]string{"is not signed by " + releaser},
		},
		"another's, both": {func(p *keylessPublisher) {
			p.simple("https://github.com/evil/app")
			p.bundle(releaser, trust.PredicateSign)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := trusttest.NewSigstore()
			if err != nil {
				t.Fatal(err)
			}
			p := &keylessPublisher{
				newPublisher(t, registrytest.Options{Referrers: true}), s,
				platformImage(t, "linux/amd64"),
			}
			p.pushImage(appRepo+":1", p.image)
			c.publish(p)
			o := p.options(newStore(t))
			o.Dir = t.TempDir()
			root := filepath.Join(o.Dir, "root.json")
			if err := os.WriteFile(root, s.Root, 0o600); err != nil {
				t.Fatal(err)
			}
			b := app()
			b.Images[0].Verify, b.Trust.Root = &manifest.Verify{Identity: releaser, Issuer: actions}, "root.json"
			o.Platforms = nil
			l, err := fetch.Resolve(t.Context(), b, o)
			if c.says != nil {
				var unsigned *fetch.UnsignedError
				if wantError(t, err, c.says...); !errors.As(err, &unsigned) {
					t.Errorf("%#v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if pin := l.Items[0]; pin.Identity != releaser || pin.Issuer != actions || pin.Root != "root.json" ||
				pin.RootDigest == "" || pin.Key != "" {
				t.Errorf("%+v", pin)
			}
			o.Store = newStore(t)
			items, err := fetch.All(t.Context(), l, o)
			if err != nil || items[0].Descriptor.Annotations["io.kkbundle.signed-by"] != releaser+" "+actions {
				t.Fatalf("%+v, %v", items, err)
			}
			// Another root than the lock's does not count, though it is in the same place.
			other, err := trusttest.NewSigstore()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root, other.Root, 0o600); err != nil {
				t.Fatal(err)
			}
			o.Store = newStore(t)
			_, err = fetch.All(t.Context(), l, o)
			wantError(t, err, "differs from the root of the lock")
		})
	}
}
