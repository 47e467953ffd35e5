// Package provenance says how a bundle was built: an in-toto Statement v1 with a SLSA Provenance v1 predicate
// (https://slsa.dev/spec/v1.0/provenance). It lies beside the bundle, NAME.kkb.provenance.json, because it has times; a
// bundle has none. Its subjects are the bundle's files and its identity, so that it holds for a copy with the same identity
// however that is compressed or cut.
package provenance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	// BuildType names what the parameters and dependencies mean. It changes when that does.
	BuildType = "https://github.com/kkbundle/kkbundle/build/v1"
	// Builder names the program. What it runs on is not known, and nothing here says who ran it: that is a signature's.
	Builder = "https://github.com/kkbundle/kkbundle"

	// IndexName is the subject that is the bundle's identity.
	IndexName = "index.json"
	// MaxSize bounds a statement, in bytes; one of 10,000 items has 3 MB.
	MaxSize = 4 << 20
)

// A Build is what there is to say.
type Build struct {
	// Name and Version are the bundle's.
	Name, Version string
	Platforms     []string
	// Identity is the digest of index.json, and Files are the bundle's, or its parts'.
	Identity digest.Digest
	Files    []File
	// Manifest is what was built, and Inputs what it names beside it, and the lock.
	Manifest File
	Inputs   []File
	Pins     []manifest.Pin
	Encoder  string
	Program  string // version of kkbundle
	// Locked says that a lock which was there already decided what is in it.
	Locked            bool
	Started, Finished time.Time
}

// A File is a file's name and digest.
type File struct {
	Name   string
	Digest digest.Digest
}

// Statement is what Parse returns and New makes, its keys in the order of the specification.
type Statement struct {
	Type          string       `json:"_type"`
	Subject       []Descriptor `json:"subject"`
	PredicateType string       `json:"predicateType"`
	Predicate     Predicate    `json:"predicate"`
}

// A Descriptor is in-toto's ResourceDescriptor, as far as it is used.
type Descriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

// Predicate is SLSA's provenance.
type Predicate struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition is what was put in.
type BuildDefinition struct {
	BuildType            string             `json:"buildType"`
	ExternalParameters   ExternalParameters `json:"externalParameters"`
	InternalParameters   InternalParameters `json:"internalParameters"`
	ResolvedDependencies []Descriptor       `json:"resolvedDependencies"`
}

// ExternalParameters are what the user chose.
type ExternalParameters struct {
	Manifest  Descriptor `json:"manifest"`
	Name      string     `json:"name"`
	Version   string     `json:"version,omitempty"`
	Platforms []string   `json:"platforms"`
	Locked    bool       `json:"locked"`
}

// InternalParameters decide about bytes and not about content.
type InternalParameters struct {
	Encoder string `json:"encoder"`
}

// RunDetails are of this one build.
type RunDetails struct {
	Builder struct {
		ID      string            `json:"id"`
		Version map[string]string `json:"version"`
	} `json:"builder"`
	Metadata struct {
		StartedOn  string `json:"startedOn"`
		FinishedOn string `json:"finishedOn"`
	} `json:"metadata"`
}

// New returns the statement as JSON. Times are in UTC, in seconds; addresses have no secrets.
func New(b Build) ([]byte, error) {
	s := Statement{Type: statementType, PredicateType: predicateType}
	for _, f := range b.Files {
		s.Subject = append(s.Subject, f.descriptor())
	}
	s.Subject = append(s.Subject, File{IndexName, b.Identity}.descriptor())
	d := &s.Predicate.BuildDefinition
	d.BuildType = BuildType
	d.ExternalParameters = ExternalParameters{b.Manifest.descriptor(), b.Name, b.Version, b.Platforms, b.Locked}
	d.InternalParameters = InternalParameters{b.Encoder}
	for _, f := range append([]File{b.Manifest}, b.Inputs...) {
		d.ResolvedDependencies = append(d.ResolvedDependencies, f.descriptor())
	}
	for _, p := range b.Pins {
		d.ResolvedDependencies = append(d.ResolvedDependencies, pinned(p))
	}
	r := &s.Predicate.RunDetails
	r.Builder.ID, r.Builder.Version = Builder, map[string]string{"kkbundle": b.Program}
	r.Metadata.StartedOn, r.Metadata.FinishedOn = stamp(b.Started), stamp(b.Finished)
	data, err := json.Marshal(s)
	if err == nil && len(data) > MaxSize {
		err = fmt.Errorf("it would have %d bytes, and at most %d are read", len(data), MaxSize)
	}
	if err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	return data, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (f File) descriptor() Descriptor { return Descriptor{Name: f.Name, Digest: sums(f.Digest)} }

func sums(d digest.Digest) map[string]string {
	return map[string]string{d.Algorithm().String(): d.Encoded()}
}

// pinned is where an item of the lock came from.
func pinned(p manifest.Pin) Descriptor {
	d := Descriptor{Name: p.Kind + " " + manifest.WithoutSecrets(p.Ref), Digest: sums(p.Digest)}
	if p.Platform != "" {
		d.Name += " " + p.Platform
	}
	switch {
	case p.From != "":
		d.URI = manifest.WithoutSecrets(p.From)
	case p.Kind == manifest.ItemImage, p.Kind == manifest.ItemReferrer:
		d.URI = "oci://" + p.Ref
	case manifest.IsLocal(p.Ref): // a path of the machine that built says nothing to others
	case p.URL != "":
		d.URI = manifest.WithoutSecrets(p.URL)
	default:
		d.URI = manifest.WithoutSecrets(p.Ref)
	}
	return d
}

// Parse reads a statement of this kind. Whether it is true is for a signature to say.
func Parse(data []byte) (Statement, error) {
	var s Statement
	if len(data) > MaxSize {
		return s, fmt.Errorf("it has %d bytes; at most %d are read", len(data), MaxSize)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("it is no in-toto statement: %w", err)
	}
	switch {
	case s.Type != statementType:
		return s, fmt.Errorf("it is no in-toto statement: its type is %.80q, not %s", s.Type, statementType)
	case s.PredicateType != predicateType:
		return s, fmt.Errorf("it is no provenance: its predicate is %.80q, not %s", s.PredicateType, predicateType)
	case s.Predicate.BuildDefinition.BuildType != BuildType:
		return s, fmt.Errorf("it is the provenance of something else: its build type is %.80q, not %s", s.Predicate.BuildDefinition.BuildType, BuildType)
	}
	return s, nil
}

// ErrOther says that a statement is about something else.
var ErrOther = errors.New("it is the provenance of another bundle, or of this one as it was before it was built again")

// About returns nil if a bundle with this identity is what the statement is about, and ErrOther if not.
func (s Statement) About(identity digest.Digest) error {
	if s.has(func(d Descriptor) bool { return d.Name == IndexName }, identity) {
		return nil
	}
	return ErrOther
}

// HasFile tells whether a file with this digest is what was written, byte for byte.
func (s Statement) HasFile(sum digest.Digest) bool {
	return s.has(func(d Descriptor) bool { return d.Name != IndexName }, sum)
}

func (s Statement) has(is func(Descriptor) bool, d digest.Digest) bool {
	return slices.ContainsFunc(s.Subject, func(o Descriptor) bool {
		return is(o) && o.Digest[d.Algorithm().String()] == d.Encoded()
	})
}
