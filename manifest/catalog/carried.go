package catalog

import (
	"errors"
	"maps"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// otherRelease is the remedy for a bundle's catalog that this program cannot read.
const otherRelease = "use the release of kkbundle that built the bundle, or a newer one"

const carriedHeader = `# Written by kkbundle build: the catalog that the versions and names of the items in this bundle come from.
# install and every other command with this bundle read it in place of their own.
`

// Carried returns the program's catalog as a bundle carries it: without zones, which serve builds only.
func Carried() ([]byte, error) {
	k, err := builtin()
	if err != nil {
		return nil, err
	}
	out := *k
	out.Zones = nil
	return manifest.MarshalCatalog(&out, carriedHeader)
}

// ParseCarried reads the catalog that a bundle carries, as the Base of its clusters. Zones are refused: they name
// files of the machine that reads them. Components and packages that the catalog lacks come from the program, whose
// tasks may ask for names that the builder did not know yet; the bundle has no items for them.
func ParseCarried(file string, data []byte) (*catalogfile.Catalog, error) {
	k, err := manifest.ParseCatalog(file, data)
	if err != nil {
		return nil, plain.Advise(err, otherRelease)
	}
	if len(k.Zones) > 0 {
		return nil, k.Problem("zones", "a bundle's catalog has no mirrors: they count only in a file of yours")
	}
	if len(k.Releases) == 0 || len(k.Components) == 0 {
		return nil, plain.Advise(errors.New(file+": lists no releases or no components"), otherRelease)
	}
	own, err := builtin()
	if err != nil {
		return nil, err
	}
	maps.Copy(k.Components, missing(k.Components, own.Components))
	if k.Packages == nil {
		k.Packages = map[string]catalogfile.CatalogPackage{}
	}
	maps.Copy(k.Packages, missing(k.Packages, own.Packages))
	return k, nil
}

// missing returns the entries of all that have lacks.
func missing[T any](have, all map[string]T) map[string]T {
	more := maps.Clone(all)
	maps.DeleteFunc(more, func(name string, _ T) bool { _, ok := have[name]; return ok })
	return more
}
