// Command release completes a release, for `make dist`. It packs programs into container images (image.go), names the
// release in the files of Cluster API's provider (provider.go), writes a Homebrew formula (formula.go), a bill of
// materials of the programs (CycloneDX 1.6), the provenance of all files (SLSA v1 in an in-toto statement), the
// checksums, and with a key a signature of the checksums. The same files and commit give the same bytes: the only time
// is that of the commit.
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
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"
	"github.com/package-url/packageurl-go"

	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/proof/provenance"
	"github.com/kkbundle/kkbundle/proof/trust"
)

const (
	usage     = "usage: release DIR VERSION COMMIT DATE [KEY]   (DATE in RFC 3339; KEY is a file or env://NAME, its password $COSIGN_PASSWORD)"
	buildType = "https://github.com/kkbundle/kkbundle/dist/v1"
	source    = "git+https://github.com/kkbundle/kkbundle"

	bill            = "kkbundle.cdx.json"
	statement       = "kkbundle.provenance.json"
	sums            = "SHA256SUMS"
	signatureSuffix = ".sigstore.json"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 && len(args) != 5 {
		return errors.New(usage)
	}
	date, err := time.Parse(time.RFC3339, args[3])
	if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	r := release{dir: args[0], version: args[1], commit: args[2], date: date.UTC()}
	for _, step := range []func() error{
		r.readPrograms, r.writeManual, r.writeImages, r.writeProvider, r.readFiles, r.writeFormula,
		r.describe,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if len(args) == 4 {
		return nil
	}
	return r.sign(args[4])
}

// A release is the files of a directory.
type release struct {
	dir, version, commit string
	date                 time.Time               // of the commit
	programs             []string                // names, kkbundle-SYSTEM-ARCHITECTURE
	files                []provenance.Descriptor // name and digest of every file
	modules              map[string]debug.Module // linked into any program, by path and version
	goVersion            string
}

// readPrograms reads Go's record of the modules in each program.
func (r *release) readPrograms() error {
	found, err := filepath.Glob(filepath.Join(r.dir, "kkbundle-*-*"))
	if err != nil {
		return err
	}
	providers, err := filepath.Glob(filepath.Join(r.dir, providerProgram+"*"))
	if err != nil {
		return err
	}
	for _, program := range append(found, providers...) {
		if filepath.Ext(program) != "" { // a package
			continue
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		r.goVersion = info.GoVersion
		r.link(info.Deps)
		if !slices.Contains(providers, program) {
			r.programs = append(r.programs, filepath.Base(program))
		}
	}
	if len(r.programs) == 0 {
		return fmt.Errorf("%s has no programs kkbundle-SYSTEM-ARCHITECTURE: %w", r.dir, os.ErrNotExist)
	}
	return nil
}

// link adds the modules of a program. A program can have two versions of a module: one of them replaces another
// module. A directory that replaces a module (internal/stub) is part of kkbundle.
func (r *release) link(modules []*debug.Module) {
	if r.modules == nil {
		r.modules = map[string]debug.Module{}
	}
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		if strings.HasPrefix(module.Path, "./") {
			continue
		}
		r.modules[module.Path+" "+module.Version] = *module
	}
}

// readFiles computes the digests of all files but those that later steps write.
func (r *release) readFiles() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if slices.Contains([]string{formula, bill, statement, sums, sums + signatureSuffix}, entry.Name()) ||
			!entry.Type().IsRegular() {
			continue
		}
		file, err := os.Open(filepath.Join(r.dir, entry.Name()))
		if err != nil {
			return err
		}
		sum, err := digest.SHA256.FromReader(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		r.add(entry.Name(), sum)
	}
	return nil
}

func (r *release) add(name string, sum digest.Digest) {
	r.files = append(r.files, provenance.Descriptor{Name: name, Digest: map[string]string{"sha256": sum.Encoded()}})
}

// sum returns the SHA-256 of a file in hex, "" if there is no such file.
func (r *release) sum(name string) string {
	i := slices.IndexFunc(r.files, func(file provenance.Descriptor) bool { return file.Name == name })
	if i < 0 {
		return ""
	}
	return r.files[i].Digest["sha256"]
}

// describe writes the bill of materials, the provenance, and the checksums of all files.
func (r *release) describe() error {
	written := map[string]digest.Digest{}
	for name, content := range map[string]any{bill: r.bill(), statement: r.statement()} {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		if err := e.Encode(content); err != nil {
			return err
		}
		written[name] = digest.SHA256.FromBytes(text.Bytes())
		if err := disk.WriteFile(filepath.Join(r.dir, name), 0o644, &text); err != nil {
			return err
		}
	}
	for name, sum := range written {
		r.add(name, sum)
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
	for _, key := range slices.Sorted(maps.Keys(r.modules)) {
		name, version := r.modules[key].Path, r.modules[key].Version
		url := packageurl.NewPackageURL(packageurl.TypeGolang, path.Dir(name), path.Base(name), version, nil,
			"").ToString()
		components = append(components, cdx.Component{
			Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: name,
			Version: version, PackageURL: url,
		})
		refs = append(refs, url)
	}
	return cdx.BOM{
		JSONSchema: "http://cyclonedx.org/schema/bom-1.6.schema.json", BOMFormat: cdx.BOMFormat,
		SpecVersion: cdx.SpecVersion1_6, Version: 1,
		Metadata: &cdx.Metadata{Component: &cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: root,
			Name: root, Version: r.version,
		}},
		Components:   &components,
		Dependencies: &[]cdx.Dependency{{Ref: root, Dependencies: &refs}},
	}
}

// statement is the provenance (https://slsa.dev/spec/v1.0/provenance) without times.
func (r *release) statement() any {
	type object = map[string]any
	return object{
		"_type": "https://in-toto.io/Statement/v1", "subject": r.files,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          buildType,
				"externalParameters": object{"version": r.version},
				"internalParameters": object{"go": r.goVersion},
				"resolvedDependencies": []provenance.Descriptor{{
					URI:    source,
					Digest: map[string]string{"gitCommit": r.commit},
				}},
			},
			"runDetails": object{"builder": object{"id": provenance.Builder + "/make-dist"}},
		},
	}
}

// keyText reads a private key from a file, or from the variable of env://NAME, as cosign does.
func keyText(key string) ([]byte, error) {
	name, inEnvironment := strings.CutPrefix(key, "env://")
	if !inEnvironment {
		return os.ReadFile(key)
	}
	text := os.Getenv(name)
	if text == "" {
		return nil, fmt.Errorf("%s: the variable is not set", key)
	}
	return []byte(text), nil
}

// sign signs the checksums as `cosign sign-blob` does.
func (r *release) sign(file string) error {
	text, err := keyText(file)
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
	return disk.WriteFile(filepath.Join(r.dir, sums+signatureSuffix), 0o644, bytes.NewReader(signature))
}
