// Package closure proves completeness: everything that an installation, and the installed programs, will request is
// among the items of a lock or of a bundle, for every platform. It names the users of each item.
//
// For a cluster (OfCluster) it covers the needs that tasks declare, the images that kubeadm and containerd pull by
// their configuration, and the charts and files named in the cluster file. Package discover finds the references in
// charts, rendered as for installation, and in Kubernetes YAML (OfImages). Check compares the needs with the items.
//
// The package is pure except for Contents, which reads manifests through a function of the caller.
package closure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A User is a user of an item: a task of the installation, a program that it starts, or a place in a chart or in YAML.
type User struct {
	Task    string          `json:"task,omitempty"`
	Program string          `json:"program,omitempty"`
	Roles   []manifest.Role `json:"roles,omitempty"` // groups of hosts, for a task or program
	discover.Place
}

// String returns the user's description: "task kubelet on k8s_cluster", "chart web 1.2.3: …".
func (u User) String() string {
	var text string
	switch {
	case u.Task != "":
		text = "task " + u.Task
	case u.Program != "":
		text = u.Program
	default:
		return u.Place.String()
	}
	if len(u.Roles) == 0 {
		return text
	}
	roles := make([]string, len(u.Roles))
	for i, r := range u.Roles {
		roles[i] = string(r)
	}
	return text + " on " + strings.Join(roles, ", ")
}

// A Need is an item that must exist.
type Need struct {
	// Kind is an item's kind: image, chart, file, or manifest for a file written by a user. OfPackages has its own.
	Kind string
	// Ref is the item's reference, exactly. If it is "", Name alone identifies the item.
	Ref, Name string
	// Platforms are the required platforms; none if any will do.
	Platforms []string
	// Lenient tolerates a platform that upstream lacks if the manifest permits that (platformPolicy: warn).
	Lenient bool
	By      User
}

// An Item is an existing item.
type Item struct {
	Kind, Ref, Name string
	Digest          digest.Digest
	// Platforms are the item's platforms; nil if it serves every platform.
	Platforms []string
	// Lacks are the requested platforms that upstream does not have.
	Lacks []string
	// Packages are the names provided by an operating system package.
	Packages []string
}

// A MissingError lists the missing needs, a sorted sentence for each.
type MissingError struct{ Missing []string }

// Error has a line for each need.
func (e *MissingError) Error() string {
	if len(e.Missing) == 1 {
		return e.Missing[0]
	}
	return fmt.Sprintf("%d needed items are missing:\n  %s", len(e.Missing), strings.Join(e.Missing, "\n  "))
}

// Check compares needs with the existing items. It returns a record of the users of each item, sorted, in which
// unneeded items have no users, and a *MissingError. Files written by a user are recorded only if somebody needs them.
func Check(needs []Need, there []Item) (Record, error) {
	byRef, byName := map[[2]string][]int{}, map[[2]string][]int{}
	r := Record{Version: recordVersion, Items: make([]Entry, len(there))}
	for i, it := range there {
		byRef[[2]string{it.Kind, it.Ref}] = append(byRef[[2]string{it.Kind, it.Ref}], i)
		byName[[2]string{it.Kind, it.Name}] = append(byName[[2]string{it.Kind, it.Name}], i)
		for _, name := range it.packages() {
			byName[[2]string{kindPackage, name}] = append(byName[[2]string{kindPackage, name}], i)
		}
		r.Items[i] = Entry{
			Kind: it.Kind, Ref: scalar.WithoutSecrets(it.Ref), Digest: it.Digest,
			Platforms: it.Platforms, NeededBy: []User{},
		}
	}
	missing := map[gone][]User{}
	for _, n := range needs {
		found := byRef[[2]string{n.Kind, n.Ref}]
		if n.Ref == "" {
			found = byName[[2]string{n.Kind, n.Name}]
		}
		for _, i := range found {
			r.Items[i].NeededBy = append(r.Items[i].NeededBy, n.By)
		}
		for _, g := range n.gone(there, found) {
			missing[g] = append(missing[g], n.By)
		}
	}
	r.Items = slices.DeleteFunc(r.Items, func(e Entry) bool {
		return e.Kind == bundle.KindManifest && len(e.NeededBy) == 0 // a source file of the bundle
	})
	r.sort()
	if len(missing) == 0 {
		return r, nil
	}
	e := &MissingError{}
	for g, users := range missing {
		e.Missing = append(e.Missing, g.sentence(users))
	}
	slices.Sort(e.Missing)
	return r, e
}

// gone is a missing item or platform.
type gone struct {
	kind, name string
	platform   string // "" if the whole item is missing
}

// gone returns the missing parts of the need, given the matching items.
func (n Need) gone(there []Item, found []int) []gone {
	g := gone{kind: n.Kind, name: scalar.WithoutSecrets(cmp.Or(n.Ref, n.Name))}
	if len(found) == 0 {
		if len(n.Platforms) == 1 && n.Kind == manifest.ItemFile {
			g.platform = n.Platforms[0] // each platform has its own file
		}
		return []gone{g}
	}
	var list []gone
	for _, platform := range n.Platforms {
		serves := func(i int) bool {
			return there[i].serves(platform) || n.Lenient && slices.Contains(there[i].Lacks, platform)
		}
		if !slices.ContainsFunc(found, serves) {
			list = append(list, gone{g.kind, g.name, platform})
		}
	}
	return list
}

// serves reports whether the item serves hosts of a platform. An older variant serves a newer one, as in containerd,
// and any variant serves a platform without one.
func (it Item) serves(platform string) bool {
	if it.Platforms == nil {
		return true
	}
	want, variant := cutVariant(platform)
	return slices.ContainsFunc(it.Platforms, func(p string) bool {
		have, has := cutVariant(p)
		return have == want && (variant == "" || has == "" || has <= variant)
	})
}

// cutVariant splits linux/arm/v7 into linux/arm and v7.
func cutVariant(platform string) (rest, variant string) {
	parts := strings.SplitN(platform, "/", 3)
	if len(parts) < 3 {
		return platform, ""
	}
	return parts[0] + "/" + parts[1], parts[2]
}

// mostUsers is the number of users that a sentence names.
const mostUsers = 3

func (g gone) sentence(users []User) string {
	text := g.kind + " " + g.name
	if g.platform != "" {
		text += " for " + g.platform
	}
	var names []string
	for _, u := range sortedUsers(users) {
		names = append(names, u.String())
	}
	names = slices.Compact(names)
	text += " is missing: " + names[0] + " needs it"
	more := names[1:]
	if len(more) == 0 {
		return text
	}
	if rest := len(names) - mostUsers; rest > 0 {
		more = append(slices.Clone(names[1:mostUsers]), fmt.Sprintf("%d more", rest))
	}
	return text + ", and also " + strings.Join(more, "; ")
}
