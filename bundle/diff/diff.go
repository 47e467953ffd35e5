package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// errDiffers ends a command with the exit code 1 and no message: what differs was printed.
var errDiffers = errors.New("there are differences")

type diffOptions struct {
	loginFlags
	exitCode bool
}

func newDiffCmd(g *globals) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare two bundles or locks",
		Long: `Says what a bundle has that another one lacks: items added, removed, updated (another version) and changed (another digest
or platforms under the same reference), and how many bytes would have to be carried to who has OLD. Either may be a lock
file, to see what a build would change; how many bytes its images have is not known then. Either may be a bundle that publish
put into a registry, oci://HOST/PATH[:TAG]: of it only manifests are fetched.`,
		Example: `  kkbundle diff site-1.4.0.kkb site-1.5.0.kkb
  kkbundle diff --exit-code site-1.4.0.kkb manifest.lock.yaml
  kkbundle diff oci://registry.corp.example/bundles/site:latest site-1.5.0.kkb`,
		Args: takes("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDiff(cmd.Context(), g, [2]string{args[0], args[1]}, o)
		},
	}
	o.loginFlags.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "end with exit code 1 if there are differences")
	g.addTrust(cmd.Flags())
	return cmd
}

// diffResult is what diff prints with --json.
type diffResult struct {
	Version int          `json:"version"` // 1
	Old     diffSide     `json:"old"`
	New     diffSide     `json:"new"`
	Changes []diffChange `json:"changes"`
	Same    int          `json:"same"`  // items
	Carry   *diffBytes   `json:"carry"` // null if one side is a lock
}

type diffSide struct {
	Path    string        `json:"path"`
	Name    string        `json:"name"`
	Version string        `json:"version"`
	Digest  digest.Digest `json:"digest,omitempty"` // the identity of a bundle
}

// A diffChange is an item that is not the same.
type diffChange struct {
	Change       string        `json:"change"` // added, removed, updated or changed
	Kind         string        `json:"kind"`
	Name         string        `json:"name"` // the reference, or of an update the name
	Platform     string        `json:"platform,omitempty"`
	OldRef       string        `json:"oldRef,omitempty"`
	NewRef       string        `json:"newRef,omitempty"`
	OldVersion   string        `json:"oldVersion,omitempty"`
	NewVersion   string        `json:"newVersion,omitempty"`
	OldDigest    digest.Digest `json:"oldDigest,omitempty"`
	NewDigest    digest.Digest `json:"newDigest,omitempty"`
	OldPlatforms string        `json:"oldPlatforms,omitempty"` // of an image
	NewPlatforms string        `json:"newPlatforms,omitempty"`
	Bytes        int64         `json:"bytes"` // of its blobs that OLD lacks and no change above needs; of a lock's item as far as known

	old, new *listedItem
}

// diffBytes is what NEW has that OLD lacks, and what both have.
type diffBytes struct {
	Blobs       int   `json:"blobs"`
	Bytes       int64 `json:"bytes"`  // uncompressed
	Stored      int64 `json:"stored"` // as they are in NEW; of blobs that share a frame about
	SharedBlobs int   `json:"sharedBlobs"`
	SharedBytes int64 `json:"sharedBytes"`
}

func runDiff(ctx context.Context, g *globals, sides [2]string, o diffOptions) (err error) {
	before, err := g.openListing(ctx, sides[0], o.loginFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	after, err := g.openListing(ctx, sides[1], o.loginFlags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, after.Close()) }()
	r, err := compare(ctx, before, after)
	if err != nil {
		return err
	}
	r.Old.Path, r.New.Path = sides[0], sides[1]
	if g.json {
		err = printJSON(g.Out, r)
	} else {
		err = printDiff(g, r)
	}
	if err == nil && o.exitCode && len(r.Changes) > 0 {
		err = errDiffers
	}
	return err
}

// compare says how the second listing differs from the first.
func compare(ctx context.Context, before, after *listing) (*diffResult, error) {
	r := &diffResult{
		Version: 1,
		Old:     diffSide{Name: before.name, Version: before.version, Digest: before.identity},
		New:     diffSide{Name: after.name, Version: after.version, Digest: after.identity},
	}
	bundles := before.catalog != nil && after.catalog != nil
	if !bundles {
		if err := errors.Join(before.likeLock(ctx), after.likeLock(ctx)); err != nil {
			return nil, err
		}
	}
	r.Changes, r.Same = changes(before.items, after.items)
	if !bundles {
		for i := range r.Changes {
			if c := &r.Changes[i]; c.new != nil {
				c.Bytes = c.new.size
			}
		}
		return r, nil
	}
	return r, r.carry(ctx, before, after)
}

// carry counts the bytes that NEW has and OLD lacks.
func (r *diffResult) carry(ctx context.Context, before, after *listing) error {
	r.Carry = &diffBytes{}
	for _, b := range after.blobs.Blobs() {
		if _, ok := before.blobs.Stat(b.Digest); ok {
			r.Carry.SharedBlobs++
			r.Carry.SharedBytes += b.Size
			continue
		}
		r.Carry.Blobs++
		r.Carry.Bytes += b.Size
		r.Carry.Stored += after.blobs.Stored(b.Digest)
	}
	id := func(it bundle.Item) string { return it.String() + " " + it.Descriptor.Digest.String() }
	var items []bundle.Item
	needs := map[string]*diffChange{}
	for i := range r.Changes {
		if c := &r.Changes[i]; c.new != nil {
			it := after.catalog.Index().Items[c.new.at]
			items, needs[id(it)] = append(items, it), c
		}
	}
	seen := map[digest.Digest]bool{}
	return after.blobs.Needs(ctx, items, func(it bundle.Item, b ocispec.Descriptor) {
		if _, ok := before.blobs.Stat(b.Digest); !ok && !seen[b.Digest] {
			seen[b.Digest] = true
			needs[id(it)].Bytes += b.Size
		}
	})
}

// changes compares items and returns what changed, sorted by kind, name and platform, and how many are the same.
func changes(before, after []listedItem) (all []diffChange, same int) {
	type key struct{ kind, ref, platform string }
	old := map[key]*listedItem{}
	for i := range before {
		it := &before[i]
		old[key{it.kind, it.ref, it.platform}] = it
	}
	var added []*listedItem
	for i := range after {
		it := &after[i]
		k := key{it.kind, it.ref, it.platform}
		was, ok := old[k]
		delete(old, k)
		switch {
		case !ok:
			added = append(added, it)
		case was.digest == it.digest && (was.platforms == it.platforms || was.platforms == "" || it.platforms == ""):
			same++
		default:
			all = append(all, newChange("changed", was, it))
		}
	}
	var removed []*listedItem
	for i := range before {
		it := &before[i]
		if old[key{it.kind, it.ref, it.platform}] == it {
			removed = append(removed, it)
		}
	}
	all = append(all, updates(removed, added)...)
	slices.SortStableFunc(all, func(a, b diffChange) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.OldRef+a.NewRef, b.OldRef+b.NewRef))
	})
	return all, same
}

// updates pairs what was removed with what was added under the same name in another version, the newest of both first.
func updates(removed, added []*listedItem) (all []diffChange) {
	type key struct{ kind, name, platform string }
	versions := map[key][2][]*listedItem{}
	for side, items := range [][]*listedItem{removed, added} {
		for _, it := range items {
			k := key{it.kind, it.name, it.platform}
			if it.name == "" {
				k.name = it.ref
			}
			pair := versions[k]
			pair[side] = append(pair[side], it)
			versions[k] = pair
		}
	}
	for _, pair := range versions {
		for _, side := range pair {
			slices.SortFunc(side, func(a, b *listedItem) int {
				return cmp.Or(manifest.CompareVersions(b.version, a.version), cmp.Compare(a.ref, b.ref))
			})
		}
		n := min(len(pair[0]), len(pair[1]))
		for i := range n {
			all = append(all, newChange("updated", pair[0][i], pair[1][i]))
		}
		for _, it := range pair[0][n:] {
			all = append(all, newChange("removed", it, nil))
		}
		for _, it := range pair[1][n:] {
			all = append(all, newChange("added", nil, it))
		}
	}
	return all
}

func newChange(what string, before, after *listedItem) diffChange {
	c := diffChange{Change: what, old: before, new: after}
	if before != nil {
		c.Kind, c.Name, c.Platform = before.kind, before.ref, before.platform
		c.OldRef, c.OldVersion, c.OldDigest, c.OldPlatforms = before.ref, before.version, before.digest, before.platforms
	}
	if after != nil {
		c.Kind, c.Name, c.Platform = after.kind, after.ref, after.platform
		c.NewRef, c.NewVersion, c.NewDigest, c.NewPlatforms = after.ref, after.version, after.digest, after.platforms
	}
	if what == "updated" && after.name != "" {
		c.Name = after.name
	}
	return c
}

// printDiff prints a table of the changes and what they come to.
func printDiff(g *globals, r *diffResult) error {
	rows := make([][]string, 0, len(r.Changes))
	numbers := map[string]int{}
	for _, c := range r.Changes {
		numbers[c.Change]++
		before, after := c.shown()
		bytes := ""
		if c.new != nil && (r.Carry != nil || c.Kind != bundle.KindImage) {
			bytes = plain.Size(c.Bytes)
		}
		platform := c.Platform
		if c.Kind == bundle.KindImage && c.Change != "changed" {
			platform = cmp.Or(c.NewPlatforms, c.OldPlatforms)
		}
		rows = append(rows, []string{c.Change, c.Kind, c.Name, platform, before, after, bytes})
	}
	if len(rows) > 0 {
		if err := printTable(g.Out, []string{"CHANGE", "KIND", "NAME", "PLATFORM", "OLD", "NEW", "BYTES"}, rows); err != nil {
			return err
		}
	}
	var parts []string
	for _, what := range []string{"added", "removed", "updated", "changed"} {
		if numbers[what] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", numbers[what], what))
		}
	}
	parts = append(parts, fmt.Sprintf("%d the same", r.Same))
	g.note("%s", strings.Join(parts, ", "))
	if b := r.Carry; b != nil {
		g.note("to carry: %s, %s (%s in %s); shared: %s, %s", plain.Count(b.Blobs, "blob"), plain.Size(b.Bytes), plain.Size(b.Stored), r.New.Path,
			plain.Count(b.SharedBlobs, "blob"), plain.Size(b.SharedBytes))
	}
	return nil
}

// shown returns what tells old and new apart: versions, platforms or digests.
func (c *diffChange) shown() (before, after string) {
	switch {
	case c.Change == "updated" && c.OldVersion != c.NewVersion:
		return cmp.Or(c.OldVersion, "-"), cmp.Or(c.NewVersion, "-")
	case c.Change == "changed" && c.OldDigest == c.NewDigest:
		return c.OldPlatforms, c.NewPlatforms
	}
	return shortDigest(c.OldDigest.String()), shortDigest(c.NewDigest.String())
}
