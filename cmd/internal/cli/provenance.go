package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/plain"
	"github.com/kkbundle/kkbundle/provenance"
	"github.com/kkbundle/kkbundle/trust"
)

// What the files are called that say how NAME.kkb was built: as build writes it, and signed.
const (
	provenanceSuffix       = ".provenance.json"
	signedProvenanceSuffix = ".provenance.signed.json"
)

// writeProvenance says beside the bundle how it was built.
func (b *builder) writeProvenance(ctx context.Context, sum bundle.Summary) error {
	files, err := b.outputFiles(ctx, sum)
	if err != nil {
		return err
	}
	p := provenance.Build{
		Name: b.manifest.Metadata.Name, Version: b.manifest.Metadata.Version, Platforms: b.manifest.Platforms,
		Identity: sum.Digest, Files: files, Pins: b.lock.Items, Encoder: b.cache.Encoder(), Program: programVersion(),
		Locked: b.wasLocked, Started: b.started, Finished: time.Now(),
	}
	documents, err := b.documents(b.lock)
	if err != nil {
		return err
	}
	lock, err := b.lock.Marshal()
	if err != nil {
		return err
	}
	documents = append(documents, document{bundle.KindLock, documentLock, lock})
	for i, d := range documents {
		f := provenance.File{Name: d.ref, Digest: digest.FromBytes(d.data)}
		if i == 0 {
			p.Manifest = f // loadProject puts it first
			continue
		}
		p.Inputs = append(p.Inputs, f)
	}
	data, err := provenance.New(p)
	if err != nil {
		return err
	}
	return writeFile(b.output+provenanceSuffix, 0o644, bytes.NewReader(data))
}

// outputFiles are those that the bundle is in, by their last names.
func (b *builder) outputFiles(ctx context.Context, sum bundle.Summary) ([]provenance.File, error) {
	paths := []string{b.output}
	if sum.Parts > 0 {
		paths = nil
		for n := range sum.Parts {
			paths = append(paths, bundle.PartName(b.output, n+1))
		}
	}
	m := b.newMeter("hash")
	defer m.stop()
	var done int64
	files := make([]provenance.File, 0, len(paths))
	for _, path := range paths {
		d, err := digestOfFile(ctx, path, func(n int) {
			done += int64(n)
			m.set(done, sum.Size)
		})
		if err != nil {
			return nil, err
		}
		files = append(files, provenance.File{Name: filepath.Base(path), Digest: d})
	}
	return files, nil
}

// digestOfFile reads a whole file; progress is told of the bytes that were read.
func digestOfFile(ctx context.Context, path string, progress func(n int)) (digest.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	d := digest.SHA256.Digester()
	buf := make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		_, _ = d.Hash().Write(buf[:n]) // a hash never fails
		progress(n)
		if errors.Is(err, io.EOF) {
			return d.Digest(), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", context.Cause(ctx)
}

// staleProvenance warns of statements that lie beside a bundle that was just written and are not about it.
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

// readProvenanceFile reads a statement, whoever signed it.
func readProvenanceFile(file string) (provenanceFile, error) {
	data, err := readSmall(file)
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
	return provenanceFile{}, &inputError{fmt.Errorf("%s: %w", file, err)}
}

// builtResult is what verify says of a bundle's provenance.
type builtResult struct {
	Path     string        `json:"path"`
	Program  string        `json:"program"` // version of kkbundle
	Manifest digest.Digest `json:"manifest"`
	Started  string        `json:"started"`
	Finished string        `json:"finished"`
	Key      digest.Digest `json:"key,omitempty"` // fingerprint of the trusted key that signed it
	// SameFile says that the file is byte for byte the one that was built, and not only the same content.
	SameFile bool `json:"sameFile"`
}

// String says it in a sentence.
func (r *builtResult) String() string {
	text := fmt.Sprintf("built with kkbundle %s from manifest %s, finished %s", plain.Line(r.Program), shortDigest(r.Manifest.String()), plain.Line(r.Finished))
	if !r.SameFile {
		text += "; the same content in another file than was built"
	}
	if r.Key == "" {
		return text + ", as " + r.Path + " says, which nobody vouches for"
	}
	return text + ", as " + r.Path + " says, signed with the key " + r.Key.String()
}

// checkProvenance wants a statement to be about a bundle, and where keys are trusted, signed by one of them.
func (g *globals) checkProvenance(ctx context.Context, path, file string, identity digest.Digest) (*builtResult, error) {
	data, err := readProvenanceFile(file)
	if err != nil {
		return nil, err
	}
	r := &builtResult{Path: file}
	keys, err := g.trust.load()
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		e := &signatureError{bundle: file, identity: identity, keys: keys}
		if data.signed == nil {
			e.tried = []error{errors.New("it is a statement without a signature, which kkbundle sign --provenance makes")}
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
		return nil, &inputError{fmt.Errorf("%s: %w", file, err)}
	}
	d := s.Predicate.BuildDefinition
	r.Manifest = digest.NewDigestFromEncoded(digest.SHA256, d.ExternalParameters.Manifest.Digest["sha256"])
	r.Program = s.Predicate.RunDetails.Builder.Version["kkbundle"]
	r.Started, r.Finished = s.Predicate.RunDetails.Metadata.StartedOn, s.Predicate.RunDetails.Metadata.FinishedOn
	r.SameFile, err = sameFiles(ctx, path, s)
	return r, err
}

// sameFiles tells whether a bundle's file, or each of its parts, is one that the statement is about.
func sameFiles(ctx context.Context, path string, s provenance.Statement) (bool, error) {
	paths := []string{path}
	if base := bundle.BaseName(path); !exists(base) {
		paths = nil
		for n := 1; exists(bundle.PartName(base, n)); n++ {
			paths = append(paths, bundle.PartName(base, n))
		}
	}
	for _, p := range paths {
		d, err := digestOfFile(ctx, p, func(int) {})
		if err != nil || !s.HasFile(d) {
			return false, err
		}
	}
	return true, nil
}

// signProvenance signs the statement that lies beside a bundle.
func signProvenance(ctx context.Context, g *globals, path string, o signOptions) error {
	base := bundle.BaseName(path)
	out := signResult{Version: 1, Path: o.output}
	if out.Path == "" {
		out.Path = base + signedProvenanceSuffix
	}
	if err := checkOutput(out.Path); err != nil {
		return err
	}
	data, err := readProvenanceFile(base + provenanceSuffix)
	if err != nil {
		return err
	}
	artifact, err := indexOf(path)
	if err != nil {
		return err
	}
	out.Digest = digest.FromBytes(artifact)
	s, err := provenance.Parse(data.statement)
	if err == nil {
		err = s.About(out.Digest)
	}
	if err != nil {
		return &inputError{fmt.Errorf("%s: %w", base+provenanceSuffix, err)}
	}
	if exists(out.Path) && !o.force {
		return fmt.Errorf("%s is there: move it away, or replace it with --force", out.Path)
	}
	key, err := g.readPrivateKey(ctx, o.key, o.passwordStdin)
	if err != nil {
		return err
	}
	signed, err := key.SignStatement(data.statement)
	if err == nil {
		err = writeFile(out.Path, 0o644, bytes.NewReader(signed))
	}
	if err != nil {
		return err
	}
	out.Key = key.Public().Fingerprint()
	if g.json {
		return printJSON(g.Out, out)
	}
	g.note("how %s was built is signed with the key %s", path, out.Key)
	return g.result("%s", out.Path)
}
