package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/encoders"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

type buildOptions struct {
	projectFlags
	listed  listedFlags
	output  string
	variant string
	locked  bool
	noCache bool
	// provenance writes a statement of how the bundle was built beside it.
	provenance bool
	overwrite  overwrite
	split      usage.Size
	encrypt    encryptFlags
}

func newBuildCmd(g *globals) *cobra.Command {
	o := buildOptions{split: usage.Size{Least: minSplit}}
	cmd := &cobra.Command{
		Use:   "build [MANIFEST|DIR]",
		Short: "Build a bundle from a manifest",
		Long: `Downloads all items of a manifest and writes them to one file, NAME-VERSION.kkb. MANIFEST is manifest.yaml of this
directory by default; DIR stands for the manifest in it.

What happens: a matching lock file beside the manifest is used; without one, build looks up the digests of tags.
Charts are rendered and Kubernetes YAML is read to find images that nobody listed. Everything is downloaded into the
cache, once, and written to the bundle. The same lock gives the same bytes. An item that an installation, a chart or
YAML needs and the bundle lacks is an error that names its user (see kkbundle inspect --closure). Downloads stay in
the cache: an interrupted build continues, and the next one downloads only new items.

Of a lock that does not match, the pins of unchanged items are used, unless --update is given. Texts that may be
images are reported; --strict makes them an error. A bundle of the same name and version is replaced; any other file
needs --force.

  --variant      one variant of a manifest with variants. Without it, each becomes a bundle of its own,
                 NAME-VARIANT-VERSION.kkb, and what they share is looked up and downloaded once
  --image        (or --chart) the items of the command line and their images, without a manifest and a lock. What
                 needs more than a name, such as values of a chart, is written in a manifest
  --split        parts of that size, NAME.kkb.001 and on, and NAME.kkb.parts.json; every command reads parts directly.
                 FAT32 holds files below 4 GiB: --split 4GB
  -o -           the bundle goes to standard output, results to standard error
  --no-cache     space for the bundle and a few blobs is enough, but an interrupted build starts over
  --encrypt-to   (or -R, --passphrase) an age file, NAME-VERSION.kkb.age; commands read it with --identity FILE. The
                 digest and signatures are those of the content. Cache and lock file are not encrypted
  --provenance   NAME.kkb.provenance.json, an in-toto statement with SLSA provenance; it is not part of the bundle

Guides: docs/start/bundle.md, docs/build/composition.md, docs/build/completeness.md, docs/build/encryption.md.`,
		Example: `  kkbundle build manifest.yaml
  kkbundle build --locked -o /media/disk/site.kkb manifest.yaml
  kkbundle build --split 4GB -o /media/stick/site.kkb manifest.yaml
  kkbundle build --encrypt-to age1... -o /media/stick/site.kkb.age manifest.yaml
  kkbundle build --image nginx:1.29 --chart oci://ghcr.io/stefanprodan/charts/podinfo:6.9.0 -o web.kkb
  kkbundle build -o - manifest.yaml | ssh gate kkbundle push --registry harbor.site -`,
		Args: takes("[MANIFEST|DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := o.family(g, cmd.Flags(), args)
			if err != nil {
				return err
			}
			return runBuild(cmd.Context(), g, f, o)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "",
		"the file to write, - for standard output (default NAME-VERSION.kkb, with .age if it is encrypted)")
	addVariant(cmd.Flags(), &o.variant, " (default all)")
	cmd.Flags().Var(&o.split, "split", "write parts of this size, such as 4GB, 4GiB or 700MB")
	o.encrypt.add(g, cmd.Flags())
	o.listed.add(cmd.Flags())
	o.add(cmd.Flags())
	o.addUpdate(cmd.Flags())
	cmd.Flags().BoolVar(&o.locked, "locked", false, "fail unless the lock file matches the manifest")
	cmd.Flags().BoolVar(&o.provenance, "provenance", false, "write NAME.kkb.provenance.json, which describes the build")
	o.overwrite.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.noCache, "no-cache", false,
		"download directly into the bundle, for small disks; an interrupted build starts over")
	return cmd
}

// buildResult is the JSON output of build.
type buildResult struct {
	Version  int            `json:"version"` // 1
	Variant  string         `json:"variant,omitempty"`
	Path     string         `json:"path"`
	Digest   string         `json:"digest"`
	Replaced string         `json:"replaced,omitempty"` // digest of the bundle that Path had before
	Size     int64          `json:"size"`               // bytes, as are the others
	Parts    int            `json:"parts,omitempty"`    // files, with --split
	Items    int            `json:"items"`
	Blobs    int            `json:"blobs"`
	Content  int64          `json:"content"` // unpacked
	Fetched  int64          `json:"fetched"` // downloaded
	Cached   int64          `json:"cached"`  // found in the cache
	Duration plain.Duration `json:"duration"`
	// Layers counts the bytes of the images' gzip layers: made again by a known encoder, kept as they are, not
	// examined.
	Layers   *encoders.Coverage `json:"layers,omitempty"`
	Warnings []string           `json:"warnings,omitempty"`
	// Undecided lists texts that may be images and are not in the bundle.
	Undecided []string `json:"undecided,omitempty"`
	// Assumed lists assumptions of the catalog.
	Assumed []string `json:"assumed,omitempty"`
}

// family loads what to build: a manifest with its variants, or the items that the command line lists.
func (o *buildOptions) family(g *globals, fs *pflag.FlagSet, args []string) (*builder.Family, error) {
	switch {
	case !o.listed.set():
		if err := o.listed.checkUnset(fs); err != nil {
			return nil, err
		}
		file, err := manifestFile(args)
		if err != nil {
			return nil, err
		}
		return g.loadFamily(file, o.variant, o.projectFlags)
	case len(args) > 0:
		return nil, usage.Errorf("--image and --chart stand in place of a manifest: add them to %s, or leave it out",
			plain.Line(args[0]))
	case fs.Changed("set") || fs.Changed("values") || fs.Changed("assume") || fs.Changed("update") || fs.Changed("variant"):
		return nil, usage.Errorf("--set, --values, --variant, --assume and --update go with a manifest: write one for values of a chart")
	case o.locked:
		return nil, usage.Errorf("--locked goes with a manifest: items of the command line have no lock; pin images by digest")
	}
	p, err := o.listed.project(o.output)
	return &builder.Family{Projects: []*builder.Project{p}}, err
}

// runBuild builds a bundle, or one for each variant.
func runBuild(ctx context.Context, g *globals, f *builder.Family, o buildOptions) error {
	if len(f.Projects) == 1 {
		r, err := buildOne(ctx, g, f.Projects[0], o)
		if err != nil {
			return err
		}
		return g.printBuild(r)
	}
	var names []string
	for _, p := range f.Projects {
		names = append(names, p.Variant)
	}
	switch {
	case o.output != "":
		return usage.Errorf("-o names one file, and the manifest has variants (%s): pick one with --variant, or leave -o out", strings.Join(names, ", "))
	case o.noCache:
		return usage.Errorf("--no-cache downloads for one bundle, and the manifest has variants (%s): pick one with --variant, or use the cache", strings.Join(names, ", "))
	}
	for _, p := range f.Projects { // before anything is downloaded
		if _, err := o.prepared(g, p); err != nil {
			return err
		}
	}
	opts, err := o.options(g)
	if err != nil {
		return err
	}
	if err := f.Settle(ctx, opts); err != nil {
		return err
	}
	all := builtVariants{Version: 1}
	for _, p := range f.Projects {
		r, err := buildOne(ctx, g, p, o)
		if err != nil {
			return fmt.Errorf("variant %s: %w", p.Variant, err)
		}
		if r.Variant = p.Variant; g.JSON {
			all.Variants = append(all.Variants, r)
		} else if err := g.printBuild(r); err != nil {
			return err
		}
	}
	if g.JSON {
		return g.PrintJSON(all)
	}
	return nil
}

// builtVariants is the JSON output of build for a manifest with variants.
type builtVariants struct {
	Version  int           `json:"version"` // 1
	Variants []buildResult `json:"variants"`
}

// prepared returns the options with the output of a bundle, which can be written.
func (o buildOptions) prepared(g *globals, p *builder.Project) (buildOptions, error) {
	if o.output == "" {
		o.output = bundle.FileName(p.Manifest.Metadata.Name, p.Manifest.Metadata.Version) + o.encrypt.suffix()
	}
	if err := checkBundleOutput(g, o.output, o.split.Bytes); err != nil {
		return o, err
	}
	before, err := o.replaced(g, p.Manifest.Metadata)
	switch {
	case err != nil:
		return o, err
	case before == "" && p.Reads(o.output):
		return o, usage.Errorf("the bundle would replace %s, which it is made from: name another file with -o",
			plain.Line(o.output))
	}
	if o.provenance {
		return o, o.overwrite.statement(o.output + provenanceSuffix)
	}
	return o, nil
}

// buildOne builds a bundle.
func buildOne(ctx context.Context, g *globals, p *builder.Project, o buildOptions) (r buildResult, err error) {
	start := time.Now()
	switch {
	case o.provenance && o.output == standardStream:
		return r, usage.Errorf("--provenance needs a file: name one with -o")
	case o.provenance && o.encrypt.set():
		return r, usage.Errorf("--provenance writes names and digests of all items in clear beside the bundle: build without encryption, then encrypt with kkbundle copy --encrypt-to")
	}
	if o, err = o.prepared(g, p); err != nil {
		return r, err
	}
	replaced, err := o.replaced(g, p.Manifest.Metadata)
	if err != nil {
		return r, err
	}
	opts, err := o.options(g)
	if err != nil {
		return r, err
	}
	built, err := p.Build(ctx, opts)
	if err != nil {
		return r, err
	}
	if built.Provenance != nil {
		if err := disk.WriteFile(o.output+provenanceSuffix, 0o644, bytes.NewReader(built.Provenance)); err != nil {
			return r, err
		}
	}
	return buildResult{
		Version: 1, Path: o.output, Digest: built.Digest.String(), Size: built.Size, Parts: built.Parts,
		Items: len(built.Index.Items), Blobs: built.Blobs,
		Content: built.Content, Fetched: built.Fetched, Cached: built.Cached,
		Duration: plain.Duration(time.Since(start)),
		Warnings: slices.Concat(warnings(shortfallsOf(built.Index.Items)), staleSignatures(o.output, built.Index),
			staleProvenance(o.output, built.Digest)),
		Layers: built.Layers, Undecided: built.Lock.Undecided, Assumed: p.Assumptions, Replaced: replaced.String(),
	}, nil
}

// options returns the options of the library.
func (o *buildOptions) options(g *globals) (builder.Options, error) {
	if o.noCache && o.cache != "" {
		return builder.Options{}, usage.Errorf("--cache and --no-cache exclude each other")
	}
	opts, err := o.projectFlags.options(g)
	opts.Output, opts.PartSize, opts.Locked, opts.NoCache = o.output, o.split.Bytes, o.locked, o.noCache
	opts.Provenance, opts.Program = o.provenance, programVersion()
	if err == nil {
		opts.Recipients, err = o.encrypt.recipients(g)
	}
	if o.output == standardStream {
		opts.Output, opts.Stream = "", g.Out
	}
	return opts, err
}

func (g *globals) printBuild(r buildResult) error {
	switch {
	case g.JSON && r.Path == standardStream:
		return json.NewEncoder(g.Err).Encode(r) // a line like the events
	case g.JSON:
		return g.PrintJSON(r)
	case r.Path == standardStream:
		g.Out = g.Err // standard output has the bundle
	}
	g.NoteAll(r.Warnings)
	g.Note("%s: %s, %s (%s unpacked) in %s", r.name(), plain.Size(r.Size), plain.Count(r.Items, "item"),
		plain.Size(r.Content), r.Duration.Round(100*time.Millisecond))
	if r.Replaced != "" && r.Replaced != r.Digest {
		g.Note("replaced %s", r.Replaced)
	}
	if text := layersText(r.Layers); text != "" {
		g.Note("%s", text)
	}
	return g.Result("%s", r.Digest)
}

// layersText says how much of the layers delta and pack can unpack; "" if no layer was examined.
func layersText(c *encoders.Coverage) string {
	if c == nil || c.Rebuilt+c.Kept == 0 {
		return ""
	}
	text := fmt.Sprintf("gzip layers: %s can be made again", plain.Size(c.Rebuilt))
	if c.Kept > 0 {
		text += fmt.Sprintf(", %s cannot", plain.Size(c.Kept))
	}
	if c.Unexamined > 0 {
		text += fmt.Sprintf(", %s not examined (see kkbundle inspect --layers)", plain.Size(c.Unexamined))
	}
	return text
}

// replaced returns the digest of the bundle that the new one replaces, or "". Without --force, only a bundle of the
// same name and version is replaced.
func (o *buildOptions) replaced(g *globals, m manifest.Metadata) (digest.Digest, error) {
	if o.output == standardStream {
		return "", nil
	}
	return o.overwrite.bundle(g, o.output, func(r *bundle.Reader) string {
		if x := r.Index(); x.Name != m.Name || x.Version != m.Version {
			return fmt.Sprintf("it is %s %s, the manifest's is %s %s", x.Name, x.Version, m.Name, m.Version)
		}
		return ""
	})
}

// minSplit is the smallest size of parts in bytes. With smaller ones, opening a bundle would read more than its first
// and last part.
const minSplit = 1 << 20

// checkBundleOutput checks that a bundle can be written to output, in parts if partSize is not 0, before anything is
// downloaded.
func checkBundleOutput(g *globals, output string, partSize int64) error {
	inParts := partSize > 0
	switch {
	case output == standardStream && inParts:
		return usage.Errorf("--split and -o - exclude each other")
	case output == standardStream && terminal.IsTerminal(g.Out):
		return usage.Errorf("a bundle is not written to a terminal: name a file with -o, or use a pipe")
	case output == standardStream:
		return nil
	}
	file := output
	if inParts {
		file = parts.Name(output, 1)
	}
	if err := disk.CheckOutput(file); err != nil {
		return err
	}
	if err := parts.CheckTarget(output, inParts); err != nil {
		return fmt.Errorf("cannot write %s: %w", output, err)
	}
	return nil
}

// name returns the name of the bundle for people.
func (r buildResult) name() string {
	switch {
	case r.Path == standardStream:
		return "the bundle"
	case r.Parts > 0:
		return fmt.Sprintf("%s in %s", r.Path, plain.Count(r.Parts, "part"))
	}
	return r.Path
}

// assumed prints the assumptions of the catalog.
func (g *globals) assumed(lines []string) {
	for _, line := range lines {
		g.Note("assumed: %s", plain.Line(line))
	}
}
