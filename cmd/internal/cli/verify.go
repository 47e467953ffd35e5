package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
)

func newVerifyCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "verify BUNDLE",
		Short: "Check every byte of a bundle",
		Long: `Checks every byte of a bundle: each frame, each digest, that every item is whole, and that the directory and the archive
agree. All damage is listed, with the items it concerns. Prints the bundle's digest, its identity.`,
		Example: "  kkbundle verify site-1.4.0.kkb",
		Args:    exactArgs("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVerify(cmd.Context(), g, args[0])
		},
	}
}

func runVerify(ctx context.Context, g *globals, path string) error {
	r, err := bundle.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	m := g.newMeter("verify")
	report, err := r.Verify(ctx, bundle.VerifyOptions{Progress: m.set})
	m.stop()
	if err != nil {
		return err
	}
	if g.json {
		return printJSON(g.Out, map[string]any{
			"version": 1, "digest": r.Digest(), "size": r.Size(), "items": len(r.Index().Items), "blobs": report.Blobs,
		})
	}
	g.note("%s: %d items, %d blobs, %s: all whole", path, len(r.Index().Items), report.Blobs, size(r.Size()))
	_, err = fmt.Fprintln(g.Out, r.Digest())
	return err
}
