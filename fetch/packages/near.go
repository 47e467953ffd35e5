package packages

import (
	"cmp"
	"slices"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const maxNear = 3 // names or versions suggested in a message

// near returns the existing names most similar to a missing one.
func (u *Universe) near(name string) []string {
	type one struct {
		name string
		far  int
	}
	var list []one
	most := max(1, len(name)/3)
	for other := range u.byName {
		if far := plain.Distance(name, other, most+1); far <= most {
			list = append(list, one{other, far})
		}
	}
	slices.SortFunc(list, func(a, b one) int { return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(a.name, b.name)) })
	var names []string
	for _, o := range list[:min(len(list), maxNear)] {
		names = append(names, o.name)
	}
	return names
}
