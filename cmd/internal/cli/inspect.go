package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/proof/closure"
)

func newInspectCmd(g *globals) *cobra.Command {
	var raw, closure, sbom, layers, listing, table bool
	var login loginFlags
	cmd := &cobra.Command{
		Use:   "inspect BUNDLE",
		Short: "List the contents of a bundle",
		Long: `Lists the items of a bundle. Their content is not read: verify checks it. Of a published bundle,
oci://HOST/PATH[:TAG], only manifests are downloaded; its size is the size of its content. Of a bundle on a web
server, https://HOST/PATH/NAME.kkb, only the two ends and the manifests are read.

After the items come the refs of Git repositories with their commits, the hooks, which install runs on hosts, and the
groups of the bundle, with the bytes of each. A blob that several groups need counts in each.

DIGEST is that of the item's manifest, by which a registry knows it. SHA256 is that of the bytes of a file, chart or
document, as sha256sum prints it.

Each of these prints one thing instead:

  --closure   the users of each item, as build proved them: a task of the installation, a program started by it, or a
              place in a chart or in YAML. Extra items are listed in the manifest and have no user
  --index     the bundle's index.json, byte for byte. Its sha256 is the bundle's digest, which sign signs
  --layers    the encoders that made the bundle's gzip streams; kkbundle delta works on the content of these. The
              first time takes minutes for a large bundle. Guide: docs/site/updates.md
  --listing   digest and size of each blob, as JSON, for kkbundle delta in place of the bundle
  --sbom      the bill of materials in the bundle, CycloneDX 1.6 as JSON
  --values    the values of the manifest's table: those that the bundle was built with, and those that the site gives.
              Guide: docs/build/values.md

With --json: {"version", "name", "bundleVersion", "digest", "size", "items": [{"kind", "name", "digest", "mediaType",
"platforms", "size"}]}, and if they apply "groups": [{"name", "description", "optional", "absent", "items", "size"}],
"hooks": [{"name", "kind", "group", "host"}], and of items "groups", "sha256", "artifactType", "lacks" (platforms),
"referrers" ("unknown"), "signedBy", "verified" (what vouches for the digest, as in the lock) "repository" (its name
at the site) and "refs" of a Git repository. With --closure: {"version", "items": [{"kind", "ref", "digest",
"platforms", "neededBy": [{"task", "program", "roles", "source", "file", "object", "path"}]}], "undecided"}. With
--layers: {"version", "digest", "encoders": [{"encoder", "blobs", "size"}], "unknown": [{"digest", "size"}]}.`,
		Example: "  kkbundle inspect site-1.4.0.kkb\n  kkbundle inspect --closure site-1.4.0.kkb\n  kkbundle inspect --sbom site-1.4.0.kkb > site.cdx.json\n  kkbundle inspect --json site-1.4.0.kkb | jq '.items[] | select(.kind == \"image\") | .name'",
		Args:    takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case moreThanOne(raw, closure, sbom, layers, listing, table):
				return usage.Errorf("--index, --closure, --sbom, --layers, --listing and --values each print one thing: leave out the others")
			case raw:
				return runInspectIndex(cmd.Context(), g, args[0], login)
			case closure:
				return runInspectClosure(cmd.Context(), g, args[0], login)
			case sbom:
				return runInspectSBOM(cmd.Context(), g, args[0], login)
			case listing:
				return runInspectListing(cmd.Context(), g, args[0], login)
			case table:
				return runInspectValues(cmd.Context(), g, args[0], login)
			case layers:
				return runInspectLayers(cmd.Context(), g, args[0], login)
			}
			return runInspect(cmd.Context(), g, args[0], login)
		},
	}
	cmd.Flags().BoolVar(&raw, "index", false, "print index.json")
	cmd.Flags().BoolVar(&closure, "closure", false, "show the users of each item")
	cmd.Flags().BoolVar(&sbom, "sbom", false, "print the bill of materials")
	cmd.Flags().BoolVar(&layers, "layers", false, "show the encoders of the layers")
	cmd.Flags().BoolVar(&listing, "listing", false, "print the digests of all blobs, for kkbundle delta")
	cmd.Flags().BoolVar(&table, "values", false, "show the values of the manifest's table")
	login.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	return cmd
}

// moreThanOne reports whether at least two flags are set.
func moreThanOne(flags ...bool) bool {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n > 1
}

// runInspectListing prints the digests of all blobs.
func runInspectListing(ctx context.Context, g *globals, path string, login loginFlags) error {
	if usage.IsAddress(path) {
		return usage.Errorf("kkbundle delta takes the address itself: --listing is for a bundle in a file")
	}
	r, err := g.openRead(ctx, path, login)
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := published.Listing(r)
	if err != nil {
		return err
	}
	_, err = g.Out.Write(append(data, '\n'))
	return err
}

func runInspectIndex(ctx context.Context, g *globals, path string, login loginFlags) error {
	x, err := g.inspect(ctx, path, login)
	if err != nil {
		return err
	}
	data, err := x.index.Marshal()
	if err != nil {
		return err
	}
	_, err = g.Out.Write(data)
	return err
}

func runInspectClosure(ctx context.Context, g *globals, path string, login loginFlags) error {
	return g.withCatalog(ctx, path, login, func(c *bundle.Catalog) error {
		r, err := builder.ReadClosure(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return g.printClosure(r)
	})
}

func runInspectSBOM(ctx context.Context, g *globals, path string, login loginFlags) error {
	return g.withCatalog(ctx, path, login, func(c *bundle.Catalog) error {
		data, err := c.Document(ctx, bundle.KindSBOM, bundle.DocumentSBOM)
		if err == nil && !json.Valid(data) { // valid JSON has no control characters for a terminal
			err = errors.New("the bill of materials is not valid JSON")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, err = g.Out.Write(data)
		return err
	})
}

// withCatalog calls f with a bundle here or in a registry.
func (g *globals) withCatalog(ctx context.Context, path string, login loginFlags, f func(*bundle.Catalog) error) error {
	if usage.IsAddress(path) {
		r, end, err := g.openRemote(ctx, path, login)
		if err != nil {
			return err
		}
		defer end()
		return f(&r.Catalog)
	}
	r, err := g.openRead(ctx, path, login)
	if err != nil {
		return err
	}
	defer r.Close()
	return f(&r.Catalog)
}

// inspection is the JSON output of inspect.
type inspection struct {
	Version       int             `json:"version"` // 1
	Name          string          `json:"name"`
	BundleVersion string          `json:"bundleVersion"`
	Digest        string          `json:"digest"`
	Size          int64           `json:"size"`
	Items         []inspectedItem `json:"items"`
	// Groups are the parts of the bundle that can be selected.
	Groups []inspectedGroup `json:"groups,omitempty"`
	// Hooks are the scripts that install runs on hosts.
	Hooks []inspectedHook `json:"hooks,omitempty"`
	index bundle.Index
}

type inspectedItem struct {
	Kind         string   `json:"kind"`
	Name         string   `json:"name"` // the upstream reference
	Digest       string   `json:"digest"`
	SHA256       string   `json:"sha256,omitempty"` // of the bytes of a file, chart or document, in hexadecimal digits
	MediaType    string   `json:"mediaType"`
	Platforms    []string `json:"platforms"`
	Size         int64    `json:"size"`                   // bytes of all its blobs, as pulled
	Groups       []string `json:"groups,omitempty"`       // none for an item of every selection
	ArtifactType string   `json:"artifactType,omitempty"` // of a referrer
	Lacks        []string `json:"lacks,omitempty"`        // platforms missing upstream
	Referrers    string   `json:"referrers,omitempty"`    // "unknown": the list of referrers may be incomplete
	SignedBy     string   `json:"signedBy,omitempty"`     // fingerprint of the key that the build checked
	Verified     string   `json:"verified,omitempty"`     // what vouches for the digest, as in the lock
	// Repository is the name of a Git repository at the site.
	Repository string `json:"repository,omitempty"`
	// Refs are the branches and tags of a Git repository.
	Refs []git.DocumentRef `json:"refs,omitempty"`
}

func runInspect(ctx context.Context, g *globals, path string, login loginFlags) error {
	x, err := g.inspect(ctx, path, login)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(x)
	}
	rows := make([][]string, 0, len(x.Items))
	for _, it := range x.Items {
		rows = append(rows, []string{
			it.Kind, it.Name, it.platformsText(), plain.Size(it.Size), shortDigest(it.Digest),
			it.SHA256[:min(len(it.SHA256), shortSum)],
		})
	}
	_, err = fmt.Fprintf(g.Out, "%s %s  %s  %s  %s\n", plain.Line(x.Name), plain.Line(x.BundleVersion),
		strings.Join(x.index.Platforms, ","), plain.Size(x.Size), x.Digest)
	if err != nil {
		return err
	}
	g.NoteAll(warnings(shortfallsOf(x.index.Items)))
	if err := g.PrintTable([]string{"KIND", "NAME", "PLATFORMS", "SIZE", "DIGEST", "SHA256"}, rows); err != nil {
		return err
	}
	if err := errors.Join(g.printRefs(x.Items), g.printHooks(x.Hooks)); err != nil {
		return err
	}
	return g.printGroups(x.Groups)
}

func (it inspectedItem) platformsText() string {
	text := strings.Join(it.Platforms, ",")
	if len(it.Lacks) > 0 {
		text += " (lacks " + strings.Join(it.Lacks, ",") + ")"
	}
	return strings.TrimSpace(text)
}

// inspect reads a bundle here or in a registry.
func (g *globals) inspect(ctx context.Context, path string, login loginFlags) (inspection, error) {
	if usage.IsAddress(path) {
		r, end, err := g.openRemote(ctx, path, login)
		if err != nil {
			return inspection{}, err
		}
		defer end()
		contents, err := r.Survey(ctx)
		x := inspectionOf(&r.Catalog, contents, r.Size())
		if err == nil {
			x.Groups, err = inspectGroups(ctx, r)
		}
		x.Hooks = hooksOf(ctx, &r.Catalog)
		return x, errors.Join(err, x.addRefs(ctx, &r.Catalog))
	}
	r, err := g.openRead(ctx, path, login)
	if err != nil {
		return inspection{}, err
	}
	defer r.Close()
	contents, err := r.Survey(ctx)
	x := inspectionOf(&r.Catalog, contents, r.Size())
	if err == nil {
		x.Groups, err = inspectGroups(ctx, r)
	}
	x.Hooks = hooksOf(ctx, &r.Catalog)
	return x, errors.Join(err, x.addRefs(ctx, &r.Catalog))
}

// addRefs adds the refs of Git repositories.
func (x *inspection) addRefs(ctx context.Context, c *bundle.Catalog) error {
	for i := range x.Items {
		if x.Items[i].Kind != bundle.KindGit {
			continue
		}
		_, data, err := c.Git(ctx, x.index.Items[i], git.MaxDocument)
		if err != nil {
			return err
		}
		_, d, err := git.ParseDocument(data)
		if err != nil {
			return fmt.Errorf("%s: %w", x.index.Items[i], err)
		}
		x.Items[i].Repository, x.Items[i].Refs = x.index.Items[i].Name, d.Refs
	}
	return nil
}

// printRefs prints the refs of Git repositories.
func (g *globals) printRefs(items []inspectedItem) error {
	var rows [][]string
	for _, it := range items {
		for _, r := range it.Refs {
			rows = append(rows, []string{it.Repository, r.Name, cmp.Or(r.Peeled, r.ID)})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return g.PrintTable([]string{"REPOSITORY", "REF", "COMMIT"}, rows)
}

// inspectionOf is empty without contents.
func inspectionOf(c *bundle.Catalog, contents []bundle.Contents, size int64) inspection {
	index := c.Index()
	if len(contents) < len(index.Items) {
		return inspection{}
	}
	x := inspection{
		Version: 1, Name: index.Name, BundleVersion: index.Version, Digest: c.Digest().String(), Size: size,
		index: index, Items: make([]inspectedItem, 0, len(index.Items)),
	}
	short := shortfallsOf(index.Items)
	for i, it := range index.Items {
		x.Items = append(x.Items, inspectedItem{
			Kind: it.Kind, Name: it.Ref, Digest: it.Descriptor.Digest.String(), SHA256: sumOf(contents[i].File),
			MediaType: it.Descriptor.MediaType,
			Platforms: append([]string{}, contents[i].Platforms...), Size: contents[i].Size,
			Lacks:     short[i].lacks,
			Referrers: it.Descriptor.Annotations[bundle.AnnotationReferrers],
			SignedBy:  it.Descriptor.Annotations[bundle.AnnotationSignedBy],
			Verified:  it.Descriptor.Annotations[bundle.AnnotationVerified],
			Groups:    groups.Names(it),
		})
		if it.Kind == bundle.KindReferrer {
			x.Items[i].ArtifactType = it.Descriptor.ArtifactType
		}
	}
	return x
}

// shortSum is the number of digits of a checksum that tables show.
const shortSum = 12

// shortDigest returns the beginning of a digest.
func shortDigest(d string) string {
	return d[:min(len(d), len("sha256:")+shortSum)]
}

// sumOf returns the digits of a digest, as sha256sum prints them; "" for none.
func sumOf(d digest.Digest) string {
	if d == "" {
		return ""
	}
	return d.Encoded()
}

// printClosure prints the items with their users.
func (g *globals) printClosure(r closure.Record) error {
	if g.JSON {
		return g.PrintJSON(r)
	}
	var rows [][]string
	extra := 0
	for _, e := range r.Items {
		by := "nobody: extra"
		switch n := len(e.NeededBy); {
		case n == 0:
			extra++
		case n == 1:
			by = e.NeededBy[0].String()
		default:
			by = fmt.Sprintf("%s; and %d more", e.NeededBy[0], n-1)
		}
		rows = append(rows, []string{e.Kind, e.Ref, strings.Join(e.Platforms, ","), by})
	}
	if err := g.PrintTable([]string{"KIND", "NAME", "PLATFORMS", "NEEDED BY"}, rows); err != nil {
		return err
	}
	g.Note("%s, %d that nobody needs (they are listed in the manifest); undecided: %d", plain.Count(len(rows), "item"),
		extra, len(r.Undecided))
	for _, text := range r.Undecided {
		g.Note("undecided: %s", plain.Line(text))
	}
	return nil
}
