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
agree. All damage is listed, with the items it concerns. Prints the bundle's digest, its identity.

With - the bundle is read from standard input, in one pass and without a temporary file; a named pipe will do too.`,
		Example: "  kkbundle verify site-1.4.0.kkb\n  cat site-1.4.0.kkb.[0-9]* | kkbundle verify -",
		Args:    takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVerify(cmd.Context(), g, args[0])
		},
	}
}

func runVerify(ctx context.Context, g *globals, path string) error {
	report, err := verify(ctx, g, path)
	if err != nil {
		return err
	}
	if g.json {
		return printJSON(g.Out, verifyResult{1, report.Digest, report.Size, report.Items, report.Blobs})
	}
	if path == standardStream {
		path = "the bundle"
	}
	g.note("%s: %s, %s, %s: all whole", path, count(report.Items, "item"), count(report.Blobs, "blob"), size(report.Size))
	return g.result("%s", report.Digest)
}

// verify reads from a file, from parts or from a pipe.
func verify(ctx context.Context, g *globals, path string) (bundle.Report, error) {
	pipe, err := g.openPipe(path)
	if err != nil {
		return bundle.Report{}, err
	}
	if pipe != nil {
		defer pipe.Close()
		m := g.newMeter("verify")
		defer m.stop()
		return bundle.VerifyStream(ctx, pipe, bundle.VerifyOptions{Progress: m.set})
	}
	r, err := bundle.Open(path) // a warning would be an error here
	if err != nil {
		return bundle.Report{}, err
	}
	defer r.Close()
	m := g.newMeter("verify")
	defer m.stop()
	return r.Verify(ctx, bundle.VerifyOptions{Progress: m.set})
}

// verifyResult is what verify prints with --json about a bundle that is whole.
type verifyResult struct {
	Version int           `json:"version"` // 1
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"` // bytes
	Items   int           `json:"items"`
	Blobs   int           `json:"blobs"`
}
