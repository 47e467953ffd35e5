package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/pull"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

type pullOptions struct {
	loginFlags
	fetchFlags
	output           string
	split            usage.Size
	haves            []string
	items, platforms []string
	levelGiven       bool
	encrypt          encryptFlags
	overwrite        overwrite
}

func newPullCmd(g *globals) *cobra.Command {
	o := pullOptions{split: usage.Size{Least: minSplit}}
	cmd := &cobra.Command{
		Use:   "pull ADDRESS",
		Short: "Pull a bundle from an OCI registry or a web server",
		Long: `Downloads a published bundle to a file, from oci://HOST/PATH[:TAG|@DIGEST] or https://HOST/PATH/NAME.kkb.

From a registry, signatures come with it, and only blobs that are neither in the cache nor in the bundles of --have
are transferred; a repeated pull continues at the byte. Every blob's digest is checked. The digest of the file is that
of the published bundle; its bytes are the same too, if both versions of kkbundle have the same encoder. If published
deltas against a bundle of --have are smaller than the missing blobs, they are downloaded instead.

With trusted keys (--trust, or the default), the bundle must be signed by one of them; this is checked before its
content is downloaded.

  --item, --platform               only that part is downloaded, as copy would write it
  --encrypt-to, -R, --passphrase   the file is encrypted, as build writes it; the cache is not

` + itemsHelp + `

From a web server (a file server, S3, a generic repository of Nexus or Artifactory): downloads NAME.kkb, or its parts side by side if the
server has NAME.kkb.parts.json, and NAME.kkb.sigstore.json. With --have, NAME.kkd is downloaded instead if it was made against that
bundle and is smaller. A later run continues if the server has the same file, by its strong ETag, and starts over otherwise. The bundle gets its name
after NAME.kkb.sha256, if there is one, every byte and the signature are checked. -o names a file or a directory.

` + overwriteHelp + ` A different signature beside
it needs --force, too. Guides: docs/build/pipelines.md, docs/site/updates.md.`,
		Example: `  kkbundle pull oci://registry.corp.example/bundles/site:1.4.0
  kkbundle pull --have site-1.3.0.kkb oci://registry.corp.example/bundles/site:1.4.0
  kkbundle pull --have site-1.3.0.kkb -o . https://files.corp.example/bundles/site-1.4.0.kkb
  kkbundle pull --item 'chart/*' -o charts.kkb oci://registry.corp.example/bundles/site@sha256:6d1f…`,
		Args: takes("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.levelGiven = cmd.Flags().Changed("level")
			return runPull(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	o.loginFlags.add(f)
	o.fetchFlags.add(f)
	f.Lookup("level").Usage = "compression: fast, default, better or best (default that of the published file)"
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", "",
		"the file to write (default NAME-VERSION.kkb, with .age if it is encrypted)")
	o.overwrite.add(f)
	f.Var(&o.split, "split", "write parts of this size, such as 4GB, 4GiB or 700MB")
	o.encrypt.add(g, f)
	f.StringArrayVar(&o.haves, "have", nil, "a local bundle, whose content is not transferred (repeated)")
	f.StringArrayVar(&o.items, "item", nil, "pull only this item (repeated; * matches any characters)")
	f.StringSliceVar(&o.platforms, "platform", nil, "pull only this platform (repeated)")
	return cmd
}

func runPull(ctx context.Context, g *globals, address string, o pullOptions) (err error) {
	if isWeb(address) {
		return runPullWeb(ctx, g, address, o)
	}
	options, err := o.library(g, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(options.Have)) }()
	r, err := pull.Pull(ctx, options)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	for _, text := range r.LeftOut {
		g.Note("left out: %s", plain.Line(text))
	}
	if r.OtherEncoder != "" {
		g.Note("%s has the identity of the published bundle but not its bytes, which another encoder made (%s)", r.Path,
			plain.Line(r.OtherEncoder))
	}
	g.Note("%s: %s, %s (%s fetched, %s here already) in %s", r.Path, plain.Size(r.Size), plain.Count(r.Items, "item"),
		plain.Size(r.Fetched), plain.Size(r.Cached),
		r.Duration.Round(100*time.Millisecond))
	return g.Result("%s", r.Digest)
}

func closeAll(list []bundle.From) error {
	var errs []error
	for _, f := range list {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// A pullView shows a pull on the console.
type pullView struct{ *globals }

// Meter implements pull.View.
func (v pullView) Meter(phase string) (set func(done, total int64), stop func()) {
	m := v.NewMeter(phase)
	return m.Set, m.Stop
}

// Item implements pull.View.
func (v pullView) Item(phase, kind, ref, platform string, err error) {
	v.globals.Item(phase, terminal.ItemName{Kind: kind, Ref: ref, Platform: platform}, err)
}

// library returns the options of package pull. Close Have afterwards.
func (o *pullOptions) library(g *globals, address string) (lib pull.Options, err error) {
	at, err := usage.ParseAddress(address)
	if err != nil {
		return lib, err
	}
	lib = pull.Options{
		Name: at.String(), Reference: at.Reference(), Items: o.items, Level: o.level, LevelGiven: o.levelGiven,
		PartSize: o.split.Bytes, View: pullView{g},
		OpenCache: func(level string) (*cache.Cache, string, error) {
			flags := o.fetchFlags
			flags.level = level
			return flags.openCache()
		},
		Check: func(x bundle.Index, signatures []string, read func(string) ([]byte, error)) error {
			if len(g.trust.signatures) > 0 {
				signatures, read = g.trust.signatures, builder.ReadFile
			}
			n := signaturesOf{
				name: at.String(), none: "it was published without a signature", read: read,
				list: func() ([]string, error) { return signatures, nil },
			}
			_, err := g.checkSignatures(n, x)
			return err
		},
		Output: func(x bundle.Index) (string, error) { return o.file(g, x) }, CheckSignature: o.overwrite.content,
	}
	if lib.Recipients, err = o.encrypt.recipients(g); err != nil {
		return lib, err
	}
	if lib.Platforms, err = parsePlatforms(o.platforms); err != nil {
		return lib, err
	}
	if o.output == standardStream {
		return lib, usage.Errorf("pull writes a file: name it with -o")
	}
	if o.output != "" {
		if err := checkBundleOutput(g, o.output, o.split.Bytes); err != nil {
			return lib, err
		}
	}
	if lib.Fetch.Keychain, err = o.keychain(g); err != nil {
		return lib, err
	}
	if err := o.loginFlags.check(); err != nil {
		return lib, err
	}
	if lib.Repository, err = at.Repo(); err != nil {
		return lib, err
	}
	lib.Fetch.Sources = []sources.Source{{
		Host: at.Host(), CA: o.ca, Cert: o.cert, Key: o.key, PlainHTTP: o.plainHTTP,
		MaxConcurrent: int(o.jobs),
	}}
	lib.Fetch.Jobs, lib.Fetch.Logger = int(o.jobs), g.Logger()
	for _, path := range o.haves {
		r, err := g.openBundle(path)
		if err != nil {
			return lib, errors.Join(err, closeAll(lib.Have))
		}
		lib.Have = append(lib.Have, bundle.From{Name: path, Reader: r})
	}
	return lib, nil
}

// file returns the path to write: -o, or the bundle's name if that is safe.
func (o *pullOptions) file(g *globals, x bundle.Index) (string, error) {
	if o.output != "" {
		return o.output, o.overwrite.with(g, o.output, x)
	}
	name := bundle.FileName(x.Name, x.Version) + o.encrypt.suffix()
	if x.Name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, `/\`) || name != plain.Line(name) ||
		!filepath.IsLocal(name) {
		return "", usage.Errorf("the bundle's name %q is not valid as a file name: name a file with -o",
			plain.Line(x.Name))
	}
	if err := checkBundleOutput(g, name, o.split.Bytes); err != nil {
		return "", err
	}
	return name, o.overwrite.with(g, name, x)
}

// openRemote opens a bundle in a registry. Call the returned function afterwards.
func (g *globals) openRemote(ctx context.Context, address string, login loginFlags) (*bundle.Remote, func(), error) {
	o := pullOptions{loginFlags: login, fetchFlags: fetchFlags{level: bundle.LevelDefault.String()}}
	options, err := o.library(g, address)
	if err != nil {
		return nil, nil, err
	}
	return pull.Open(ctx, options)
}
