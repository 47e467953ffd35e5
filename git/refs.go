package git

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/git/refname"
)

// A Ref is a name of an object.
type Ref struct {
	Name string // refs/heads/main
	ID   ID
	// Peeled is the object that an annotated tag leads to, zero for other refs.
	Peeled ID
}

// Head is the name of the ref that a clone checks out.
const Head = "HEAD"

// MaxRefs bounds the refs of a repository.
const MaxRefs = 20000

// checkRefs requires sorted branches and tags with objects, each once.
func checkRefs(refs []Ref) error {
	if len(refs) == 0 {
		return errors.New("there are no refs")
	}
	if len(refs) > MaxRefs {
		return fmt.Errorf("there are %d refs, and at most %d are carried", len(refs), MaxRefs)
	}
	for i, r := range refs {
		if err := refname.Check(r.Name); err != nil {
			return err
		}
		if r.ID.IsZero() { // which deletes a ref at a push
			return fmt.Errorf("ref %s has no object", r.Name)
		}
		if i > 0 && refs[i-1].Name >= r.Name {
			return fmt.Errorf("ref %s is there twice, or out of order", r.Name)
		}
	}
	return nil
}

func sortedIDs(ids []ID) []ID {
	slices.SortFunc(ids, compareIDs)
	return slices.Compact(ids)
}

func compareIDs(a, b ID) int { return slices.Compare(a[:], b[:]) }
