package cli

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type copyOptions struct {
	output, prefer, name, version string
	items, platforms              []string
	group                         groupFlag
	images, charts                []string // to add
	cache                         string
	encrypt                       encryptFlags
	decrypt                       bool // write encrypted content in clear
	overwrite                     overwrite
}

func newCopyCmd(g *globals) *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "copy BUNDLE... -o BUNDLE",
		Short: "Copy items of bundles to a new bundle",
		Long: `Copies items to a new bundle, without compressing them again, and but for --add without network: a part of one bundle
(--item, --platform), several bundles in one, or both. Every blob's digest is checked, and a damaged source leaves no result. A
copy of everything in one bundle has the same bytes. Any other copy records its sources, whose signatures do not apply
to it.

` + itemsHelp + `
Signatures and other referrers are copied with their image. With --item, manifests and locks (manifest/*, lock/*) are copied only if
they are named; a lock is reduced to the items copied. Different content under one name is an error without --prefer; parts of one
image for different platforms are joined.

With --group, the items of other groups are left out, and the new bundle names their groups no longer among those to select. Guide:
docs/build/composition.md.

With --add or --add-chart, an image or a chart is downloaded as by build --image, for the platforms of the bundle, and added to
everything of one bundle, without its manifest. Images in the chart are found, and added. Other content under a name that the bundle
has needs --prefer last.

With --encrypt-to, -R or --passphrase the new bundle is encrypted, as build writes it. Without them, an encrypted bundle is copied only
with --decrypt, since the copy is in clear.

` + overwriteHelp,
		Example: `  kkbundle copy site-1.4.0.kkb --platform linux/arm64 -o site-arm64.kkb
  kkbundle copy site-1.4.0.kkb --item nginx:1.29 --item 'chart/*' -o part.kkb
  kkbundle copy site-1.4.0.kkb --add docker.io/library/nginx:1.29 --version 1.4.1 -o site-1.4.1.kkb
  kkbundle copy --encrypt-to age1... site-1.4.0.kkb -o site-1.4.0.kkb.age
  kkbundle copy base.kkb apps.kkb --name all --version 1 -o all.kkb`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return takes("BUNDLE...")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runCopy(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", "", "the file to write (required)")
	f.StringArrayVar(&o.items, "item", nil, "copy only this item (may be repeated; * matches any characters)")
	o.group.add(f, "copy")
	f.StringSliceVar(&o.platforms, "platform", nil, "copy only this platform (may be repeated)")
	f.StringArrayVar(&o.images, "add", nil, "download this `image`, and add it (may be repeated)")
	f.StringArrayVar(&o.charts, "add-chart", nil, "download this `chart`, written as for build --chart, and add it with its images (may be repeated)")
	f.StringVar(&o.cache, "cache", "", "cache directory of --add (default $KKBUNDLE_CACHE, else the user's cache directory)")
	o.encrypt.add(g, f)
	f.BoolVar(&o.decrypt, "decrypt", false, "write the content of encrypted bundles in clear")
	o.overwrite.add(f)
	f.StringVar(&o.prefer, "prefer", "", "which bundle wins if they differ under one name: first or last")
	f.StringVar(&o.name, "name", "", "name of the result (default that of the sources)")
	f.StringVar(&o.version, "version", "", "version of the result (default that of the sources)")
	return cmd
}

// copyResult is the JSON output of copy.
type copyResult struct {
	Version      int             `json:"version"` // 1
	Path         string          `json:"path"`
	Digest       digest.Digest   `json:"digest"`
	Size         int64           `json:"size"` // bytes, as are the others
	Items        int             `json:"items"`
	Blobs        int             `json:"blobs"`
	Content      int64           `json:"content"`      // unpacked
	Recompressed int64           `json:"recompressed"` // unpacked bytes of frames that were compressed again
	From         []digest.Digest `json:"from"`         // digests of the sources
	LeftOut      []string        `json:"leftOut"`      // items that were not copied, with reasons
	Duration     plain.Duration  `json:"duration"`
}

func runCopy(ctx context.Context, g *globals, paths []string, o copyOptions) (err error) {
	start := time.Now()
	platforms, err := o.check(len(paths))
	if err != nil {
		return err
	}
	recipients, err := o.encrypt.recipients(g)
	if err != nil {
		return err
	}
	var from []bundle.From
	defer func() {
		for _, f := range from {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, path := range paths {
		r, err := g.openBundle(path)
		if err != nil {
			return err
		}
		from = append(from, bundle.From{Name: path, Reader: r})
		if r.Encrypted() && !o.decrypt && !o.encrypt.set() {
			return usage.Errorf("%s is encrypted: give --encrypt-to RECIPIENT to encrypt the copy, or --decrypt to write the copy in clear", path)
		}
	}
	addition, err := o.addition(ctx, g, from)
	if err != nil {
		return err
	}
	if addition != nil {
		defer func() { err = errors.Join(err, addition.remove()) }()
	}
	progress, stop := g.Phases()
	c, err := transfer.Copy(ctx, from, transfer.CopyOptions{
		Addition: addition.from(),
		Selection: transfer.Selection{
			Name: o.name, Version: o.version, Items: o.items, Groups: o.group.names, Platforms: platforms,
			Prefer: transfer.Prefer(o.prefer),
		},
		Output: o.output, Recipients: recipients, Progress: progress,
		Check: func(x bundle.Index) error { return o.overwrite.with(g, o.output, x) },
	})
	stop()
	if errors.Is(err, transfer.ErrNames) {
		return &usage.Error{Err: err}
	}
	if err != nil {
		return err
	}
	r := copyResult{
		Version: 1, Path: o.output, Digest: c.Digest, Size: c.Size, Items: len(c.Index.Items), Blobs: c.Blobs,
		Content:      c.Content,
		Recompressed: c.Recompressed, From: c.From, LeftOut: c.LeftOut, Duration: plain.Duration(time.Since(start)),
	}
	g.noteSignatures(from, r, c.Index)
	if addition != nil && c.Digest != from[0].Digest() && exists(sidecarName(paths[0], "")) {
		g.Note("the signature of %s does not apply to %s: sign it with kkbundle sign", paths[0], r.Path)
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	for _, text := range r.LeftOut {
		g.Note("left out: %s", plain.Line(text))
	}
	if r.Recompressed > 0 {
		g.Note("%s compressed again, because the bundles have frames of different sizes", plain.Size(r.Recompressed))
	}
	g.Note("%s: %s, %s (%s unpacked) in %s", r.Path, plain.Size(r.Size), plain.Count(r.Items, "item"),
		plain.Size(r.Content), r.Duration.Round(100*time.Millisecond))
	return g.Result("%s", r.Digest)
}

// An addition is the bundle of the images and charts of --add, in the scratch space of the cache, which has such
// content in clear, too. The next run removes the rest of a killed one.
type addition struct {
	bundle.From
	scratch *cache.Scratch
}

func (a *addition) from() *bundle.From {
	if a == nil {
		return nil
	}
	return &a.From
}

func (a *addition) remove() error { return errors.Join(a.Close(), a.scratch.Close()) }

// occupied refuses an output that cannot be the copy, before anything is downloaded.
func (o *copyOptions) occupied(g *globals, base digest.Digest) error {
	_, err := o.overwrite.bundle(g, o.output, func(r *bundle.Reader) string {
		if strings.Contains(r.Index().Annotations[bundle.AnnotationFrom], base.String()) {
			return ""
		}
		return sameBundle(base)(r)
	})
	return err
}

// addition downloads the images and charts of --add for the platforms of the bundle. It is nil without them.
func (o *copyOptions) addition(ctx context.Context, g *globals, from []bundle.From) (a *addition, err error) {
	if len(o.images)+len(o.charts) == 0 {
		return nil, nil //nolint:nilnil // most copies add nothing
	}
	base := from[0]
	if err := o.occupied(g, base.Digest()); err != nil {
		return nil, err
	}
	x := base.Index()
	list := listedFlags{
		images: o.images, charts: o.charts, platforms: x.Platforms, chartFlag: "--add-chart",
		name: cmp.Or(x.Name, o.name), version: cmp.Or(x.Version, o.version, "0"),
	}
	p, err := list.project("")
	if err != nil {
		return nil, err
	}
	opts, err := (&projectFlags{fetchFlags: fetchFlags{
		cache: o.cache, level: bundle.LevelDefault.String(), jobs: fetch.DefaultJobs,
	}}).options(g)
	if err != nil {
		return nil, err
	}
	opts.Level = base.Level()
	downloads, err := cache.Open(opts.Cache, opts.Level) // makes the directory
	if err != nil {
		return nil, err
	}
	scratch, err := cache.OpenScratch(opts.Cache, opts.Level)
	if err = errors.Join(err, downloads.Close()); err != nil {
		return nil, err
	}
	opts.Output = filepath.Join(scratch.Dir(), "added.kkb")
	if _, err = p.Build(ctx, opts); err == nil {
		var r *bundle.Reader
		if r, err = bundle.Open(opts.Output); err == nil {
			return &addition{bundle.From{Name: "--add", Reader: r}, scratch}, nil
		}
	}
	return nil, errors.Join(err, scratch.Close())
}

// check returns the platforms, or an error of the command line.
func (o *copyOptions) check(bundles int) (transfer.Platforms, error) {
	switch {
	case o.output == "":
		return nil, usage.Errorf("name the bundle to write with -o")
	case o.output == "-":
		return nil, usage.Errorf("a bundle is written to a file: name one with -o")
	case len(o.images)+len(o.charts) > 0 && (bundles > 1 || len(o.items)+len(o.platforms)+len(o.group.names) > 0):
		return nil, usage.Errorf("--add adds to everything of one bundle: leave out other bundles, --item, --group and --platform")
	case o.cache != "" && len(o.images)+len(o.charts) == 0:
		return nil, usage.Errorf("--cache goes with --add and --add-chart")
	case o.decrypt && o.encrypt.set():
		return nil, usage.Errorf("--decrypt and --encrypt-to exclude each other")
	case o.prefer != "" && o.prefer != "first" && o.prefer != "last":
		return nil, usage.Errorf("--prefer %s: want first or last", o.prefer)
	}
	platforms, err := parsePlatforms(o.platforms)
	if err != nil {
		return nil, err
	}
	return platforms, disk.CheckOutput(o.output)
}

// itemsHelp explains names of items.
const itemsHelp = `An item is named by its reference as inspect shows it, by its short name, by name:version, or by its digest or the first digits of
it, with its kind in front if it is ambiguous (file/tool or file:tool). An image is also named by the end of its name (coredns, or
team/app:1). * matches any characters, ? one.`

// parsePlatforms reads the values of --platform.
func parsePlatforms(texts []string) (transfer.Platforms, error) {
	platforms, err := transfer.ParsePlatforms(texts)
	if err != nil {
		return nil, usage.Errorf("--platform: %w", err)
	}
	return platforms, nil
}
