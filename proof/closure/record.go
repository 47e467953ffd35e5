package closure

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
)

const (
	recordVersion = 1
	// MaxRecord bounds a record, in bytes. One of 2,000 images with ten places each has 5 MB.
	MaxRecord = 64 << 20
)

// A Record is the completeness proof in a bundle: every item and its users. It has no time and no address with a
// secret, and the same needs and items give the same bytes.
type Record struct {
	Version int     `json:"version"` // 1
	Items   []Entry `json:"items"`   // sorted by kind, reference and platform
	// Undecided lists texts that may be images and match no item, with their places.
	Undecided []string `json:"undecided,omitempty"`
}

// An Entry is an item and its users.
type Entry struct {
	Kind      string        `json:"kind"`
	Ref       string        `json:"ref"`
	Digest    digest.Digest `json:"digest"`
	Platforms []string      `json:"platforms,omitempty"`
	// NeededBy is empty for an item that nothing refers to, present only because the manifest lists it.
	NeededBy []User `json:"neededBy"`
}

// Marshal returns the record as JSON.
func (r Record) Marshal() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write the closure: %w", err)
	}
	if len(data) > MaxRecord {
		return nil, fmt.Errorf("the closure has %d bytes; at most %d are allowed: too many places need too many images",
			len(data), MaxRecord)
	}
	return append(data, '\n'), nil
}

// ParseRecord reads a record written by Marshal. Its statements are not trusted: see Record.Needs.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if len(data) > MaxRecord+1 {
		return r, fmt.Errorf("the closure has %d bytes; at most %d are read", len(data), MaxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the closure: %w", err)
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("unsupported closure version %d; this kkbundle reads version %d: use a newer one",
			r.Version, recordVersion)
	}
	return r, nil
}

// Compare returns a *MissingError with the needed items of the record that do not exist with the same digest and
// platforms.
func (r Record) Compare(there []Item) error {
	type id struct {
		kind   string
		digest digest.Digest
	}
	have := map[id][]int{}
	for i, it := range there {
		have[id{it.Kind, it.Digest}] = append(have[id{it.Kind, it.Digest}], i)
	}
	missing := map[gone][]User{}
	for _, e := range r.Items {
		if len(e.NeededBy) == 0 {
			continue
		}
		n := Need{Kind: e.Kind, Ref: e.Ref, Platforms: e.Platforms}
		for _, g := range n.gone(there, have[id{e.Kind, e.Digest}]) {
			missing[g] = append(missing[g], e.NeededBy...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	e := &MissingError{}
	for g, users := range missing {
		e.Missing = append(e.Missing, g.sentence(users))
	}
	slices.Sort(e.Missing)
	return e
}

func (r *Record) sort() {
	for i := range r.Items {
		r.Items[i].NeededBy = sortedUsers(r.Items[i].NeededBy)
	}
	slices.SortFunc(r.Items, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref), slices.Compare(a.Platforms, b.Platforms),
			cmp.Compare(a.Digest, b.Digest))
	})
}

// sortedUsers returns tasks first, then programs, then places, without duplicates.
func sortedUsers(users []User) []User {
	users = slices.SortedFunc(slices.Values(users), func(a, b User) int {
		return cmp.Or(
			cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Program, b.Program),
			cmp.Compare(a.Place.String(), b.Place.String()), slices.Compare(a.Roles, b.Roles),
		)
	})
	return append([]User{}, slices.CompactFunc(users, func(a, b User) bool {
		return a.Task == b.Task && a.Program == b.Program && a.Place == b.Place && slices.Equal(a.Roles, b.Roles)
	})...)
}

func (u User) rank() int {
	switch {
	case u.Task != "":
		return 0
	case u.Program != "":
		return 1
	}
	return 2
}
