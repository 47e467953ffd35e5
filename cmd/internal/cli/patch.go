package cli

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/pull"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newPatchCmd(g *globals) *cobra.Command {
	var f deltaFiles
	cmd := &cobra.Command{
		Use:   "patch OLD DELTA -o NEW",
		Short: "Make a bundle from an older one and a delta",
		Long: `Makes the bundle NEW from the bundle OLD and a file of kkbundle delta, byte for byte. Check its signature with
kkbundle verify --key, as that of any bundle.

What happens: an OLD that the delta was not made against is refused before anything is written. Temporary files, as
large as the changed layers unpacked, and NEW lie in the output's directory. NEW gets its name once its sha256 is the
one recorded in the delta. After an interruption, run the command again.

OLD may also be a published bundle, oci://HOST/PATH[:TAG|@DIGEST]: its blobs are downloaded to the cache, each once.

push, install, upgrade, verify, inspect and diff take OLD+DELTA in place of NEW, and write no file: OLD.kkb+x.kkd, or
a chain, OLD.kkb+x.kkd+y.kkd. Temporary files lie in $TMPDIR. The signature of NEW lies beside the last delta:
x.kkb.sigstore.json for x.kkd.

` + overwriteHelp + ` Guide: docs/site/updates.md.`,
		Example: `  kkbundle patch site-1.4.0.kkb site-1.5.0.kkd -o site-1.5.0.kkb
  kkbundle verify --key cosign.pub site-1.5.0.kkb
  kkbundle patch oci://registry.corp.example/bundles/site:1.4.0 site-1.5.0.kkd -o site-1.5.0.kkb
  kkbundle push --registry harbor.site site-1.4.0.kkb+site-1.5.0.kkd`,
		Args: takes("OLD", "DELTA"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.old, f.delta = args[0], args[1]
			return runPatch(cmd.Context(), g, f)
		},
	}
	f.login.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	f.add(cmd.Flags(), "the bundle to write (required)")
	return cmd
}

func newUnpackCmd(g *globals) *cobra.Command {
	var f deltaFiles
	cmd := &cobra.Command{
		Use:   "unpack PACK -o NEW",
		Short: "Make a bundle from its smaller form",
		Long:  `Gives back the bundle of a file that kkbundle pack wrote, byte for byte. The rules of kkbundle patch apply.`,
		Example: `  kkbundle unpack site-1.4.0.kkp -o site-1.4.0.kkb
  kkbundle verify --key cosign.pub site-1.4.0.kkb`,
		Args: takes("PACK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.delta = args[0]
			return runPatch(cmd.Context(), g, f)
		},
	}
	f.add(cmd.Flags(), "the bundle to write (required)")
	return cmd
}

// patchResult is the JSON output of patch and unpack.
type patchResult struct {
	Version  int            `json:"version"` // 1
	Path     string         `json:"path"`
	Digest   digest.Digest  `json:"digest"`
	Size     int64          `json:"size"`  // bytes
	Blobs    int            `json:"blobs"` // of the bundle
	Duration plain.Duration `json:"duration"`
}

// openOld opens OLD, if there is one. The blobs of a published bundle come to the cache.
func (g *globals) openOld(ctx context.Context, f deltaFiles) (*bundle.From, error) {
	if !usage.IsAddress(f.old) {
		old, _, err := g.openBoth(f.old, "")
		return old, err
	}
	head, err := delta.Check(f.delta)
	if err != nil {
		return nil, err
	}
	r, err := g.openPublished(ctx, inRegistry{address: f.old, want: head.Old, scratch: filepath.Dir(f.output)}, f.login)
	if err != nil {
		return nil, err
	}
	return &bundle.From{Name: f.old, Reader: r}, nil
}

// An inRegistry names a bundle in a registry that is read like a file.
type inRegistry struct {
	address string
	want    digest.Digest // its identity; "" for any
	scratch string        // directory for temporary files
}

// openPublished downloads the blobs of a published bundle to the cache and opens the bundle there.
func (g *globals) openPublished(ctx context.Context, p inRegistry, login loginFlags) (*bundle.Reader, error) {
	o := pullOptions{loginFlags: login, fetchFlags: fetchFlags{level: bundle.LevelDefault.String()}}
	options, err := o.library(g, p.address)
	if err != nil {
		return nil, err
	}
	options.Want = p.want
	return pull.OpenWhole(ctx, options, p.scratch)
}

func runPatch(ctx context.Context, g *globals, f deltaFiles) (err error) {
	start := time.Now()
	if err := f.check(); err != nil {
		return err
	}
	if err := usage.CheckFile(f.delta); err != nil {
		return err
	}
	head, err := delta.ReadHead(f.delta)
	if err != nil {
		return err
	}
	if _, err := f.overwrite.bundle(g, f.output, sameBundle(head.New)); err != nil {
		return err
	}
	old, err := g.openOld(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBundles(old)) }()
	progress, stop := g.Phases()
	a, err := delta.Apply(ctx, f.delta, delta.Options{Old: old, Output: f.output, Progress: progress})
	stop()
	if err != nil {
		return err
	}
	r := patchResult{
		Version: 1, Path: f.output, Digest: a.Digest, Size: a.Summary.Size, Blobs: a.Blobs,
		Duration: plain.Duration(time.Since(start)),
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	g.Note("%s: %s, %s in %s", r.Path, plain.Size(r.Size), plain.Count(r.Blobs, "blob"),
		r.Duration.Round(100*time.Millisecond))
	return g.Result("%s", r.Digest)
}
