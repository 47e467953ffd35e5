package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// resolve returns the values of a manifest for its build.
func (l loading) resolve(t values.Table, src *document.Tree) (*values.Set, error) {
	given := slices.Concat(l.locked, l.Values)
	if l.Variable != nil {
		given = append(given, t.Environment(values.Build, l.Variable)...)
	}
	return t.Resolve(context.Background(), src, values.Options{At: values.Build, Given: given})
}

// ReadManifest reads a manifest with the files that it includes, and with the values that LoadWith reads it with. Like
// manifest.ParseBundle, it returns what could be read beside an error.
func ReadManifest(file string, data []byte, o LoadOptions) (*manifest.Bundle, error) {
	locked := lockBeside(file, o.Variant).Given(false)
	return parse(file, data, o.Variant, loading{locked: locked, LoadOptions: o}.resolve)
}

// SampleManifest is ReadManifest with examples for the values that must be given, for the names in a manifest.
func SampleManifest(file string, data []byte) (*manifest.Bundle, error) {
	return parse(file, data, "", func(t values.Table, src *document.Tree) (*values.Set, error) {
		return t.Resolve(context.Background(), src, values.Options{Sample: true})
	})
}

// parse reads a manifest in a file.
func parse(file string, data []byte, variant string, resolve manifest.ResolveFunc) (*manifest.Bundle, error) {
	dir, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return &manifest.Bundle{}, &InputError{err}
	}
	defer dir.Close()
	return manifest.ParseVariant(file, data, dir.FS(), variant, resolve)
}

// VariantNames returns the names of a manifest's variants, in its order; none without variants.
func VariantNames(file string, data []byte) ([]string, error) {
	dir, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return nil, &InputError{err}
	}
	defer dir.Close()
	return manifest.VariantNames(file, data, dir.FS())
}

// expand returns the text of a file besides the manifest and its cluster files, with its values.
func (p *Project) expand(name string, data []byte) ([]byte, error) {
	return p.Manifest.Set.YAML(name, data, imagesAreKnown)
}

// imagesAreKnown refuses values of the site in images: the bundle must have those.
func imagesAreKnown(path string, v values.Value) string {
	key := path[strings.LastIndexByte(path, '.')+1:]
	if v.IsAt(values.Site) && key == "image" {
		return "is given at the site, and the bundle must have the image; write at: build"
	}
	return ""
}

// readText reads a file as it is, and as it is with its values.
func (p *Project) readText(name string) (data, text []byte, err error) {
	if data, err = ReadFile(name); err != nil {
		return nil, nil, err
	}
	text, err = p.expand(name, data)
	return data, text, err
}

func (p *Project) readExpanded(name string) ([]byte, error) {
	_, text, err := p.readText(name)
	return text, err
}

// expandTexts expands the files that the manifest itself names and the bundle does not carry for the site, so that
// every problem with values is found before anything is downloaded.
func (p *Project) expandTexts() error {
	m, err := p.match()
	if err != nil && p.Manifest.Set == nil {
		return nil //nolint:nilerr // CheckFiles and the search for images report it
	}
	if err != nil {
		return err
	}
	names := m.files
	for _, c := range p.charts {
		names = append(names, c.Values...)
	}
	problems := p.checkHooks()
	for _, name := range names {
		_, _, err := p.readText(p.beside(name))
		if found, ok := errors.AsType[document.Problems](err); ok {
			problems = append(problems, found...)
		} else if err != nil && p.Manifest.Set != nil {
			return err
		}
	}
	return problems.Err()
}

// useHooks carries the scripts that the manifest names for hosts, as they are written.
func (p *Project) useHooks() error {
	dir := p.Manifest.Hooks
	if dir == "" {
		return nil
	}
	refuse := func(text string) error { return p.Manifest.Problem("hooks", text) }
	hooks, err := engine.DirHooks(p.beside(dir))
	switch {
	case errors.As(err, new(*fs.PathError)):
		return refuse(dir + " is no directory that can be read")
	case err != nil:
		return refuse(err.Error())
	case len(hooks.Names) == 0:
		return refuse(dir + " has no script; want pre_install.sh, GROUP/pre_install.sh or pre_install_HOST.sh, or the same of post_install")
	}
	for _, name := range hooks.Names {
		if _, err := engine.ParseHook(name); err != nil {
			return refuse(err.Error())
		}
		data, err := hooks.Read(name)
		if err != nil {
			return refuse(hooks.Place(name) + ": " + err.Error())
		}
		if err := engine.CheckScript(data); err != nil {
			return refuse(hooks.Place(name) + ": " + err.Error())
		}
		if len(data) > bundle.MaxDocument {
			return refuse(fmt.Sprintf("%s has %s; at most %s are carried", hooks.Place(name), plain.Size(int64(len(data))), plain.Size(bundle.MaxDocument)))
		}
		p.extras = append(p.extras, bundle.Document{
			Kind: bundle.KindManifest, Ref: bundle.DocumentHooks + name, Data: data,
		})
	}
	return nil
}

// checkHooks checks the values of scripts that install runs: those that the bundle carries, or else those of --hooks,
// where they are usually kept, in hooks beside the manifest.
func (p *Project) checkHooks() (problems document.Problems) {
	hooks, err := engine.DirHooks(p.beside(cmp.Or(p.Manifest.Hooks, "hooks")))
	if err != nil {
		return nil // there are none, or useHooks reports it
	}
	for _, name := range hooks.Names {
		data, err := hooks.Read(name)
		if err != nil {
			continue // no hook; useHooks or install reports it
		}
		_, err = p.Manifest.Set.Script(hooks.Place(name), data)
		if found, ok := errors.AsType[document.Problems](err); ok {
			problems = append(problems, found...)
		}
	}
	return problems
}

// optedIn returns a problem for each file of a kustomization that opts in to values: kustomize reads it by itself.
func (p *Project) optedIn(names []string) (problems []string) {
	for _, name := range names {
		data, err := ReadFile(p.beside(name))
		if err != nil {
			continue // inputsOf reports it
		}
		if yes, err := values.OptsIn(name, data); yes || err != nil {
			problems = append(problems, fmt.Sprintf(
				"%s: kustomize reads this file, and values are not expanded there: remove the comment, or list the file under manifests", name))
		}
	}
	return problems
}

// CarriedManifest reads the manifest that a bundle carries, with the values that it was built with.
func CarriedManifest(ctx context.Context, c *bundle.Catalog) (*manifest.Bundle, error) {
	data, err := c.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
	if err != nil {
		return nil, err
	}
	return parseCarried(ctx, c, data)
}

// parseCarried reads the manifest that a bundle carries, with the values of its lock. Values of the site have their
// defaults and examples.
func parseCarried(ctx context.Context, c *bundle.Catalog, data []byte) (*manifest.Bundle, error) {
	given, err := CarriedValues(ctx, c)
	if err != nil {
		return nil, err
	}
	return manifest.ParseBundleWith(bundle.DocumentManifest, data,
		func(t values.Table, src *document.Tree) (*values.Set, error) {
			return t.Resolve(ctx, src, values.Options{At: values.Build, Given: given, Sample: true})
		})
}

// CarriedValues returns the values that a bundle was built with: those of its lock.
func CarriedValues(ctx context.Context, c *bundle.Catalog) ([]values.Given, error) {
	if _, ok := c.Find(bundle.KindLock, bundle.DocumentLock, ""); !ok {
		return nil, nil
	}
	data, err := c.Document(ctx, bundle.KindLock, bundle.DocumentLock)
	if err != nil {
		return nil, err
	}
	l, err := manifest.ParseLock(bundle.DocumentLock, data)
	if err != nil {
		return nil, err
	}
	return l.Given(true), nil
}
