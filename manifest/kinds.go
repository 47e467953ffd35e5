package manifest

import (
	"fmt"
	"reflect"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Schema returns the JSON Schema (draft 2020-12) of a kind of file, generated from the decoder's type and tags. It
// covers the shape only; parsing checks the rest (names, networks, hosts in groups).
func Schema(kind string) ([]byte, error) {
	var t reflect.Type
	switch kind {
	case KindBundle:
		t = reflect.TypeFor[Bundle]()
	case KindCluster:
		t = reflect.TypeFor[Cluster]()
	case KindInventory:
		t = reflect.TypeFor[Inventory]()
	case KindLock:
		t = reflect.TypeFor[Lock]()
	case KindPrecheckRules:
		t = reflect.TypeFor[PrecheckRules]()
	case KindTrust:
		t = reflect.TypeFor[Trust]()
	case KindCatalog:
		t = reflect.TypeFor[catalogfile.Catalog]()
	default:
		return nil, fmt.Errorf("no schema for kind %q; known: %s", kind, document.Or(Kinds()))
	}
	return formatOf(kind).Schema(t)
}

// Kinds lists the kinds for Schema.
func Kinds() []string {
	return []string{KindBundle, KindCluster, KindInventory, KindLock, KindPrecheckRules, KindTrust, KindCatalog}
}
