// Package provenance describes how a bundle was built: an in-toto Statement v1 with a SLSA Provenance v1 predicate
// (https://slsa.dev/spec/v1.0/provenance). It lies beside the bundle, NAME.kkb.provenance.json, because it has times
// and a bundle has none. Its subjects are the bundle's files and its identity, so it also holds for a copy with the
// same identity that is compressed or split differently.
package provenance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	// BuildType identifies the meaning of parameters and dependencies. It changes with them.
	BuildType = "https://github.com/kkbundle/kkbundle/builder/v1"
	// Builder names the program. The build machine is unknown. Only a signature identifies the person.
	Builder = "https://github.com/kkbundle/kkbundle"

	// IndexName is the subject for the bundle's identity.
	IndexName = "index.json"
	// MaxSize bounds a statement, in bytes; one of 10,000 items has 3 MB.
	MaxSize = 4 << 20
)

// A Build holds the facts about a build.
type Build struct {
	// Name and Version are the bundle's.
	Name, Version string
	Platforms     []string
	// Identity is the digest of index.json. Files are the bundle's file or its parts.
	Identity digest.Digest
	Files    []File
	// Manifest is the manifest that was built. Inputs are the files that it names, and the lock.
	Manifest File
	Inputs   []File
	Pins     []manifest.Pin
	Encoder  string
	Program  string // version of kkbundle
	// Locked means an existing lock determined the content.
	Locked            bool
	Started, Finished time.Time
}

// A File is a file's name and digest.
type File struct {
	Name   string
	Digest digest.Digest
}

// Statement is an in-toto statement, its keys in the order of the specification.
type Statement struct {
	Type          string       `json:"_type"`
	Subject       []Descriptor `json:"subject"`
	PredicateType string       `json:"predicateType"`
	Predicate     Predicate    `json:"predicate"`
}

// A Descriptor is in-toto's ResourceDescriptor, with the fields in use.
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

// BuildDefinition is the input of the build.
type BuildDefinition struct {
	BuildType            string             `json:"buildType"`
	ExternalParameters   ExternalParameters `json:"externalParameters"`
	InternalParameters   InternalParameters `json:"internalParameters"`
	ResolvedDependencies []Descriptor       `json:"resolvedDependencies"`
}

// ExternalParameters are chosen by the user.
type ExternalParameters struct {
	Manifest  Descriptor `json:"manifest"`
	Name      string     `json:"name"`
	Version   string     `json:"version,omitempty"`
	Platforms []string   `json:"platforms"`
	Locked    bool       `json:"locked"`
}

// InternalParameters affect the bytes, but not the content.
type InternalParameters struct {
	Encoder string `json:"encoder"`
}

// RunDetails describe this one build.
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

// New returns the statement as JSON. Times are in UTC, in seconds. Addresses have no secrets.
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
		err = fmt.Errorf("the statement has %d bytes; at most %d are allowed", len(data), MaxSize)
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

// pinned returns the source of a pinned item.
func pinned(p manifest.Pin) Descriptor {
	d := Descriptor{Name: p.Kind + " " + scalar.WithoutSecrets(p.Ref), Digest: sums(p.Digest)}
	if p.Platform != "" {
		d.Name += " " + p.Platform
	}
	switch {
	case p.From != "":
		d.URI = scalar.WithoutSecrets(p.From)
	case p.Kind == manifest.ItemImage, p.Kind == manifest.ItemReferrer:
		d.URI = "oci://" + p.Ref
	case manifest.IsLocal(p.Ref): // a path on the build machine is useless elsewhere
	case p.URL != "":
		d.URI = scalar.WithoutSecrets(p.URL)
	default:
		d.URI = scalar.WithoutSecrets(p.Ref)
	}
	return d
}

// Parse reads a statement of this kind. Only a signature can prove it true.
func Parse(data []byte) (Statement, error) {
	var s Statement
	if len(data) > MaxSize {
		return s, fmt.Errorf("the statement has %d bytes; at most %d are read", len(data), MaxSize)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("not an in-toto statement: %w", err)
	}
	switch {
	case s.Type != statementType:
		return s, fmt.Errorf("not an in-toto statement: its type is %.80q, not %s", s.Type, statementType)
	case s.PredicateType != predicateType:
		return s, fmt.Errorf("not a provenance statement: its predicate is %.80q, not %s", s.PredicateType,
			predicateType)
	case s.Predicate.BuildDefinition.BuildType != BuildType:
		return s, fmt.Errorf("provenance of something else: its build type is %.80q, not %s",
			s.Predicate.BuildDefinition.BuildType, BuildType)
	}
	return s, nil
}

// ErrOther means the statement is about another bundle.
var ErrOther = errors.New("provenance of another bundle, or of an earlier build of this one")

// About returns nil if the statement is about the bundle with this identity, else ErrOther.
func (s Statement) About(identity digest.Digest) error {
	if s.has(func(d Descriptor) bool { return d.Name == IndexName }, identity) {
		return nil
	}
	return ErrOther
}

// HasFile reports whether the build wrote a file with this digest.
func (s Statement) HasFile(sum digest.Digest) bool {
	return s.has(func(d Descriptor) bool { return d.Name != IndexName }, sum)
}

func (s Statement) has(is func(Descriptor) bool, d digest.Digest) bool {
	return slices.ContainsFunc(s.Subject, func(o Descriptor) bool {
		return is(o) && o.Digest[d.Algorithm().String()] == d.Encoded()
	})
}
