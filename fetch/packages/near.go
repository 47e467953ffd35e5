package packages

import (
	"cmp"
	"slices"
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
		if diff := len(other) - len(name); diff > most || -diff > most {
			continue
		}
		if far := distance(name, other); far <= most {
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

// distance returns the number of letters to insert, delete or replace to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost++
			}
			corner = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
