package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/diff"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// errDiffers ends a command with exit code 1 without a message: the differences were printed.
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
		Long: `Compares two bundles: items added, removed, updated (another version) and changed (another digest or platforms under
the same reference), and the number of bytes to transfer to a site that has OLD. Either may be a lock file, to preview
a build; the size of its images is unknown. Either may be a published bundle, oci://HOST/PATH[:TAG], of which only
manifests are downloaded.`,
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
	r, err := diff.Compare(ctx, before, after)
	if err != nil {
		return err
	}
	r.Old.Path, r.New.Path = sides[0], sides[1]
	if g.JSON {
		err = g.PrintJSON(r)
	} else {
		err = printDiff(g, r)
	}
	if err == nil && o.exitCode && len(r.Changes) > 0 {
		err = errDiffers
	}
	return err
}

// printDiff prints a table of the changes and their sums.
func printDiff(g *globals, r *diff.Result) error {
	rows := make([][]string, 0, len(r.Changes))
	numbers := map[string]int{}
	for _, c := range r.Changes {
		numbers[c.Change]++
		before, after := shown(&c)
		bytes := ""
		if c.NewRef != "" && (r.Carry != nil || c.Kind != bundle.KindImage && c.Kind != bundle.KindGit) {
			bytes = plain.Size(c.Bytes)
		}
		platform := c.Platform
		if c.Kind == bundle.KindImage && c.Change != "changed" {
			platform = cmp.Or(c.NewPlatforms, c.OldPlatforms)
		}
		rows = append(rows, []string{c.Change, c.Kind, c.Name, platform, before, after, bytes})
		for _, r := range c.Refs {
			rows = append(rows, []string{"", "", "  " + r.Name, "", shortID(r.Old), shortID(r.New), ""})
		}
	}
	if len(rows) > 0 {
		if err := g.PrintTable([]string{"CHANGE", "KIND", "NAME", "PLATFORM", "OLD", "NEW", "BYTES"},
			rows); err != nil {
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
	g.Note("%s", strings.Join(parts, ", "))
	if b := r.Carry; b != nil {
		g.Note("to carry: %s, %s (%s in %s); shared: %s, %s", plain.Count(b.Blobs, "blob"), plain.Size(b.Bytes),
			plain.Size(b.Stored), r.New.Path,
			plain.Count(b.SharedBlobs, "blob"), plain.Size(b.SharedBytes))
	}
	return nil
}

// shortID returns the beginning of the name of a commit, - for none.
func shortID(id string) string { return cmp.Or(id[:min(len(id), shortSum)], "-") }

// shown returns the different versions, platforms or digests.
func shown(c *diff.Change) (before, after string) {
	switch {
	case c.Change == "updated" && c.OldVersion != c.NewVersion:
		return cmp.Or(c.OldVersion, "-"), cmp.Or(c.NewVersion, "-")
	case c.Change == "changed" && c.OldDigest == c.NewDigest:
		return c.OldPlatforms, c.NewPlatforms
	}
	return shortDigest(c.OldDigest.String()), shortDigest(c.NewDigest.String())
}

// openListing reads a bundle, local or published, or a lock. Close it afterwards.
func (g *globals) openListing(ctx context.Context, path string, login loginFlags) (*diff.Listing, error) {
	if usage.IsAddress(path) {
		return g.remoteListing(ctx, path, login)
	}
	if usage.IsYAML(path) {
		data, err := builder.ReadLock(path)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(path, data)
		if err != nil {
			return nil, err
		}
		return diff.OfLock(l), nil
	}
	r, err := g.openRead(ctx, path, login)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		_ = r.Close() // report the first error
		return nil, err
	}
	return diff.OfBundle(&r.Catalog, contents, r, r.Close), nil
}

func (g *globals) remoteListing(ctx context.Context, address string, login loginFlags) (*diff.Listing, error) {
	r, end, err := g.openRemote(ctx, address, login)
	if err != nil {
		return nil, err
	}
	contents, err := r.Survey(ctx)
	if err != nil {
		end()
		return nil, err
	}
	return diff.OfBundle(&r.Catalog, contents, r, func() error { end(); return nil }), nil
}
