// Command release describes and signs the files of a release, for `make dist`: a bill of materials of the programs (CycloneDX 1.6), their
// provenance (SLSA v1 in an in-toto statement), their checksums, and with a key a signature of the checksums. The same programs and
// commit give the same bytes: there are no times.
package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
	"github.com/package-url/packageurl-go"

	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/provenance"
	"github.com/kkbundle/kkbundle/trust"
)

const (
	usage     = "usage: release DIR VERSION COMMIT [KEY]   (the password of KEY is $COSIGN_PASSWORD)"
	buildType = "https://github.com/kkbundle/kkbundle/dist/v1"
	source    = "git+https://github.com/kkbundle/kkbundle"
	sums      = "SHA256SUMS"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 && len(args) != 4 {
		return errors.New(usage)
	}
	r := release{dir: args[0], version: args[1], commit: args[2]}
	if err := r.read(); err != nil {
		return err
	}
	if err := r.describe(); err != nil || len(args) == 3 {
		return err
	}
	return r.sign(args[3])
}

// A release is the programs of a directory.
type release struct {
	dir, version, commit string
	files                []provenance.Descriptor // name and digest of every program
	modules              map[string]debug.Module // linked into any of them, by path
	goVersion            string
}

func (r *release) read() error {
	programs, err := filepath.Glob(filepath.Join(r.dir, "kkbundle-*-*"))
	if err != nil || len(programs) == 0 {
		return fmt.Errorf("%s has no programs kkbundle-SYSTEM-ARCHITECTURE: %w", r.dir, errors.Join(err, os.ErrNotExist))
	}
	r.modules = map[string]debug.Module{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		r.goVersion = info.GoVersion
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			r.modules[module.Path] = *module
		}
		file, err := os.Open(program)
		if err != nil {
			return err
		}
		sum, err := digest.SHA256.FromReader(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		r.files = append(r.files, provenance.Descriptor{Name: filepath.Base(program), Digest: map[string]string{"sha256": sum.Encoded()}})
	}
	return nil
}

// describe writes the bill of materials, the provenance, and the checksums of all files.
func (r *release) describe() error {
	for name, content := range map[string]any{"kkbundle.cdx.json": r.bill(), "kkbundle.provenance.json": r.statement()} {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		if err := e.Encode(content); err != nil {
			return err
		}
		sum := digest.SHA256.FromBytes(text.Bytes()).Encoded()
		if err := disk.WriteFile(filepath.Join(r.dir, name), 0o644, &text); err != nil {
			return err
		}
		r.files = append(r.files, provenance.Descriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	slices.SortFunc(r.files, func(a, b provenance.Descriptor) int { return cmp.Compare(a.Name, b.Name) })
	var list bytes.Buffer
	for _, file := range r.files {
		fmt.Fprintf(&list, "%s  %s\n", file.Digest["sha256"], file.Name)
	}
	return disk.WriteFile(filepath.Join(r.dir, sums), 0o644, &list)
}

func (r *release) bill() cdx.BOM {
	const root = "kkbundle"
	components, refs := []cdx.Component{}, []string{}
	for _, module := range slices.Sorted(maps.Keys(r.modules)) {
		version := r.modules[module].Version
		url := packageurl.NewPackageURL(packageurl.TypeGolang, path.Dir(module), path.Base(module), version, nil, "").ToString()
		components = append(components, cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: module, Version: version, PackageURL: url})
		refs = append(refs, url)
	}
	return cdx.BOM{
		JSONSchema: "http://cyclonedx.org/schema/bom-1.6.schema.json", BOMFormat: cdx.BOMFormat, SpecVersion: cdx.SpecVersion1_6, Version: 1,
		Metadata:     &cdx.Metadata{Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: root, Name: root, Version: r.version}},
		Components:   &components,
		Dependencies: &[]cdx.Dependency{{Ref: root, Dependencies: &refs}},
	}
}

// statement is the provenance (https://slsa.dev/spec/v1.0/provenance) without times.
func (r *release) statement() any {
	type object = map[string]any
	return object{
		"_type": "https://in-toto.io/Statement/v1", "subject": r.files, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":            buildType,
				"externalParameters":   object{"version": r.version},
				"internalParameters":   object{"go": r.goVersion},
				"resolvedDependencies": []provenance.Descriptor{{URI: source, Digest: map[string]string{"gitCommit": r.commit}}},
			},
			"runDetails": object{"builder": object{"id": provenance.Builder + "/make-dist"}},
		},
	}
}

// sign signs the checksums as `cosign sign-blob` does.
func (r *release) sign(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key, err := trust.ParsePrivateKey(text, func() ([]byte, error) { return []byte(os.Getenv("COSIGN_PASSWORD")), nil })
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	list, err := os.ReadFile(filepath.Join(r.dir, sums))
	if err != nil {
		return err
	}
	signature, err := key.SignBlob(list)
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(r.dir, sums+".sigstore.json"), 0o644, bytes.NewReader(signature))
}
