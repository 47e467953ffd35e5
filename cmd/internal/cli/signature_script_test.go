package cli_test

import (
	"errors"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

type signersKey struct{}

// signers are a script's keys by the file that has the public one.
func signers(env *testscript.Env) { env.Values[signersKey{}] = map[string]*trusttest.Signer{} }

// find returns something in the source registry.
func (u *upstream) find(path string) (name.Repository, v1.Descriptor, []remote.Option, error) {
	options := []remote.Option{
		remote.WithAuthFromKeychain(u.source.Keychain()),
		remote.WithTransport(u.source.Transport()),
	}
	ref, err := name.ParseReference(u.source.Host + "/" + path)
	if err != nil {
		return name.Repository{}, v1.Descriptor{}, nil, err
	}
	desc, err := remote.Head(ref, options...)
	if err != nil {
		return name.Repository{}, v1.Descriptor{}, nil, err
	}
	return ref.Context(), *desc, options, nil
}

// sign KEY PATH [bundle|tampered|other] signs an image in the source registry with the key whose public half is in the
// file KEY, which is made where there is none: with a tag, as a bundle, or wrongly.
func sign(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: sign KEY PATH [bundle|tampered|other]")
	}
	keys := ts.Value(signersKey{}).(map[string]*trusttest.Signer)
	if keys[args[0]] == nil {
		s, err := trusttest.New("p256")
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[0]), s.PEM, 0o600))
		keys[args[0]] = s
	}
	s := keys[args[0]]
	repo, desc, options, err := of(ts).find(args[1])
	ts.Check(err)
	d, how := digest.Digest(desc.Digest.String()), strings.Join(args[2:], "")
	if how == "bundle" {
		data, err := s.Bundle(d, trust.PredicateSign)
		ts.Check(err)
		_, err = trusttest.Attach(repo, desc, trust.MediaTypeBundle, data, options...)
		ts.Check(err)
		return
	}
	signed := d
	if how == "other" {
		signed = digest.FromString("other")
	}
	signature, err := s.Simple(args[1], signed)
	if how == "tampered" {
		signature.Payload = []byte(strings.Replace(string(signature.Payload), "null", `{"a":1}`, 1))
	}
	ts.Check(errors.Join(err, trusttest.PushSimple(repo, d, []trust.SimpleSignature{signature}, options...)))
}

// attach PATH TYPE FILE attaches a file to an image in the source registry.
func attach(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: attach PATH TYPE FILE")
	}
	repo, desc, options, err := of(ts).find(args[0])
	ts.Check(err)
	_, err = trusttest.Attach(repo, desc, args[1], []byte(ts.ReadFile(args[2])), options...)
	ts.Check(err)
}
