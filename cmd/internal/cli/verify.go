package cli

import (
	"context"

	"github.com/opencontainers/go-digest"
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
		Args:    takes("BUNDLE"),
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
		return printJSON(g.Out, verifyResult{1, r.Digest(), r.Size(), len(r.Index().Items), report.Blobs})
	}
	g.note("%s: %s, %s, %s: all whole", path, count(len(r.Index().Items), "item"), count(report.Blobs, "blob"), size(r.Size()))
	return g.result("%s", r.Digest())
}

// verifyResult is what verify prints with --json about a bundle that is whole.
type verifyResult struct {
	Version int           `json:"version"` // 1
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"` // bytes
	Items   int           `json:"items"`
	Blobs   int           `json:"blobs"`
}
