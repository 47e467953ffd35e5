package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/proof/provenance"
	"github.com/kkbundle/kkbundle/proof/trust"
)

// Suffixes of the provenance of NAME.kkb: as build writes it, and signed.
const (
	provenanceSuffix       = ".provenance.json"
	signedProvenanceSuffix = ".provenance.signed.json"
)

// staleProvenance warns of statements beside a new bundle that describe another one.
func staleProvenance(path string, identity digest.Digest) []string {
	var lines []string
	for _, file := range []string{path + provenanceSuffix, path + signedProvenanceSuffix} {
		if !exists(file) {
			continue
		}
		data, err := readProvenanceFile(file)
		if err == nil {
			var s provenance.Statement
			if s, err = provenance.Parse(data.statement); err == nil {
				err = s.About(identity)
			}
		}
		if err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v: remove it, or build with --provenance and sign that", file, err))
		}
	}
	return lines
}

// A provenanceFile is a statement, and the signature around it if there is one.
type provenanceFile struct {
	statement []byte // unchecked
	signed    []byte // the whole file; nil if it is not signed
}

// readProvenanceFile reads a statement without checking its signature.
func readProvenanceFile(file string) (provenanceFile, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return provenanceFile{}, err
	}
	if _, err := provenance.Parse(data); err == nil {
		return provenanceFile{statement: data}, nil
	}
	statement, err := trust.UncheckedStatement(data)
	if err == nil {
		return provenanceFile{statement, data}, nil
	}
	_, err = provenance.Parse(data)
	return provenanceFile{}, &builder.InputError{Err: fmt.Errorf("%s: %w", file, err)}
}

// builtResult is the provenance in the output of verify.
type builtResult struct {
	Path     string        `json:"path"`
	Program  string        `json:"program"` // version of kkbundle
	Manifest digest.Digest `json:"manifest"`
	Started  string        `json:"started"`
	Finished string        `json:"finished"`
	Key      digest.Digest `json:"key,omitempty"` // fingerprint of the trusted key that signed it
	// SameFile means that the file is byte for byte the built one, not only of the same content.
	SameFile bool `json:"sameFile"`
}

// String returns a sentence.
func (r *builtResult) String() string {
	text := fmt.Sprintf("built with kkbundle %s from manifest %s, finished %s", plain.Line(r.Program),
		shortDigest(r.Manifest.String()), plain.Line(r.Finished))
	if !r.SameFile {
		text += "; the same content in another file than was built"
	}
	if r.Key == "" {
		return text + ", as " + r.Path + " says, which nobody vouches for"
	}
	return text + ", as " + r.Path + " says, signed with the key " + r.Key.String()
}

// checkProvenance checks that a statement describes a bundle, and with trusted keys, that one of them signed it.
func (g *globals) checkProvenance(ctx context.Context, path, file string,
	identity digest.Digest,
) (*builtResult, error) {
	data, err := readProvenanceFile(file)
	if err != nil {
		return nil, err
	}
	r := &builtResult{Path: file}
	demands, err := g.demands()
	if err != nil {
		return nil, err
	}
	for _, d := range demands {
		keys := d.keys
		if d.empty() {
			continue
		}
		e := &signatureError{bundle: file, identity: identity, trusted: d}
		if data.signed == nil {
			e.tried = []error{errors.New("statement without a signature: sign it with kkbundle sign --provenance")}
			return nil, e
		}
		statement, key, err := trust.VerifyStatement(keys, data.signed)
		if err != nil {
			e.tried = []error{err}
			return nil, e
		}
		data.statement, r.Key = statement, key.Fingerprint()
	}
	s, err := provenance.Parse(data.statement)
	if err == nil {
		err = s.About(identity)
	}
	if err != nil {
		return nil, &builder.InputError{Err: fmt.Errorf("%s: %w", file, err)}
	}
	d := s.Predicate.BuildDefinition
	r.Manifest = digest.NewDigestFromEncoded(digest.SHA256, d.ExternalParameters.Manifest.Digest["sha256"])
	r.Program = s.Predicate.RunDetails.Builder.Version["kkbundle"]
	r.Started, r.Finished = s.Predicate.RunDetails.Metadata.StartedOn, s.Predicate.RunDetails.Metadata.FinishedOn
	r.SameFile, err = sameFiles(ctx, path, s)
	return r, err
}

// sameFiles reports whether the statement has the digest of the bundle's file, or of each of its parts.
func sameFiles(ctx context.Context, path string, s provenance.Statement) (bool, error) {
	paths := []string{path}
	if base, split := parts.Locate(path); split {
		paths = nil
		for n := 1; exists(parts.Name(base, n)); n++ {
			paths = append(paths, parts.Name(base, n))
		}
	}
	for _, p := range paths {
		d, err := disk.Digest(ctx, p, func(int) {})
		if err != nil || !s.HasFile(d) {
			return false, err
		}
	}
	return true, nil
}

// signProvenance signs the statement beside a bundle.
func signProvenance(ctx context.Context, g *globals, path string, o signOptions) error {
	base := bundle.BaseName(path)
	out := signResult{Version: 1, Path: o.output}
	out.Path = cmp.Or(out.Path, base+signedProvenanceSuffix)
	if err := disk.CheckOutput(out.Path); err != nil {
		return err
	}
	data, err := readProvenanceFile(base + provenanceSuffix)
	if err != nil {
		return err
	}
	artifact, err := g.indexOf(path)
	if err != nil {
		return err
	}
	out.Digest = digest.FromBytes(artifact)
	s, err := provenance.Parse(data.statement)
	if err == nil {
		err = s.About(out.Digest)
	}
	if err != nil {
		return &builder.InputError{Err: fmt.Errorf("%s: %w", base+provenanceSuffix, err)}
	}
	if exists(out.Path) && !o.force {
		return fmt.Errorf("%s exists: move it away, or replace it with --force", out.Path)
	}
	key, err := g.readPrivateKey(ctx, o.key, o.passwordStdin)
	if err != nil {
		return err
	}
	signed, err := key.SignStatement(data.statement)
	if err == nil {
		err = disk.WriteFile(out.Path, 0o644, bytes.NewReader(signed))
	}
	if err != nil {
		return err
	}
	out.Key = key.Public().Fingerprint()
	if g.JSON {
		return g.PrintJSON(out)
	}
	g.Note("how %s was built is signed with the key %s", path, out.Key)
	return g.Result("%s", out.Path)
}
