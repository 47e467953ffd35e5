package cli

import (
	"context"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newPartsCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parts",
		Short: "Check the parts of a split bundle",
		Long: `Checks the parts of a split bundle.

A bundle that build --split wrote is NAME.kkb.001, NAME.kkb.002 and so on, and NAME.kkb.parts.json. Every command
takes any of these names, or NAME.kkb, and reads across the parts where they lie. To join them by hand: cat
NAME.kkb.[0-9]* > NAME.kkb`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPartsVerifyCmd(g))
	return cmd
}

func newPartsVerifyCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "verify BUNDLE",
		Short: "List missing and damaged parts",
		Long: `Compares each part with the size and the sha256 that NAME.kkb.parts.json has for it, and names every part that is
missing, bad, or does not belong there: copy those again. BUNDLE is the name of any part, or NAME.kkb. If only a
sha256 differs, the bundle is read: where all of its content is whole, NAME.kkb.parts.json is the file that is bad.

With --json: {"version", "size", "parts": [{"path", "size", "digest", "state", "error"}]}; state is good, bad, missing
or surplus.`,
		Example: "  kkbundle parts verify site-1.4.0.kkb.001",
		Args:    takes("BUNDLE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runPartsVerify(cmd.Context(), g, args[0]) },
	}
}

// partsResult is the JSON output of parts verify.
type partsResult struct {
	Version int          `json:"version"` // 1
	Size    int64        `json:"size"`    // bytes of the bundle
	Parts   []partResult `json:"parts"`
}

type partResult struct {
	Path   string        `json:"path"`
	Size   int64         `json:"size"` // bytes it must have
	Digest digest.Digest `json:"digest,omitempty"`
	State  parts.State   `json:"state"`
	Error  string        `json:"error,omitempty"`
}

// whole reports whether a bundle can be read, and all of its content has its digest. An encrypted one cannot be read
// without a key.
func (g *globals) whole(ctx context.Context, path string, progress func(done, total int64)) bool {
	r, err := g.openUnchecked(path)
	if err != nil {
		return false
	}
	defer r.Close()
	_, err = r.Verify(ctx, bundle.VerifyOptions{Progress: progress})
	return err == nil
}

func runPartsVerify(ctx context.Context, g *globals, path string) error {
	m := g.NewMeter("verify")
	reports, err := parts.Verify(ctx, path, 0, m.Set,
		func(ctx context.Context) bool { return g.whole(ctx, path, m.Set) })
	m.Stop()
	if len(reports) == 0 {
		return err
	}
	out := partsResult{Version: 1}
	good := 0
	for _, r := range reports {
		p := partResult{Path: r.Path, Size: r.Size, Digest: r.Digest, State: r.State}
		if r.Err != nil {
			p.Error = r.Err.Error()
		} else {
			good++
		}
		out.Size += r.Size
		out.Parts = append(out.Parts, p)
	}
	if g.JSON {
		if printErr := g.PrintJSON(out); printErr != nil {
			return printErr
		}
		return err
	}
	for _, p := range out.Parts {
		if err := g.Result("%-8s %s", p.State, plain.Line(filepath.Base(p.Path))); err != nil {
			return err
		}
	}
	if err == nil {
		g.Note("%s, %s: all good", plain.Count(good, "part"), plain.Size(out.Size))
	}
	return err
}
