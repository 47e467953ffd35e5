package cli

import (
	"context"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/plain"
)

func newVerifyCmd(g *globals) *cobra.Command {
	var key string
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify BUNDLE",
		Short: "Verify the content and the signature of a bundle",
		Long: `Checks every byte of a bundle: each frame, each digest, that every item is whole, and that the directory and the archive
agree. All damage is listed, with the items it concerns. Prints the bundle's digest, its identity.

With --key the bundle must be signed by that key, which is checked first; see kkbundle sign. NAME.kkb.sigstore.json and
NAME.kkb.SIGNER.sigstore.json are looked for beside the bundle.

With --closure it is also compared with the proof that it carries, and with what this version of kkbundle asks a bundle for when it
installs the cluster that the bundle carries: everything must be there, for every platform. See inspect --closure.

With --provenance FILE the statement in FILE (build --provenance) must be about this bundle. Where a key is trusted (--key, --trust),
one of these must have signed it (sign --provenance).

With - the bundle is read from standard input, in one pass and without a temporary file; a named pipe will do too.`,
		Example: `  kkbundle verify site-1.4.0.kkb
  kkbundle verify --key cosign.pub site-1.4.0.kkb
  kkbundle verify --closure --provenance site-1.4.0.kkb.provenance.json site-1.4.0.kkb
  cat site-1.4.0.kkb.[0-9]* | kkbundle verify --key cosign.pub --signature site-1.4.0.kkb.sigstore.json -`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key != "" {
				if len(g.trust.keys) > 0 {
					return usage.Errorf("--key and --trust both say who is trusted: leave out one of them")
				}
				g.trust.keys, g.trust.require = []string{key}, true
			}
			return runVerify(cmd.Context(), g, args[0], o)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file of the public key that must have signed the bundle: --trust KEY --require-signature")
	cmd.Flags().BoolVar(&o.closure, "closure", false, "check that nothing is missing that an installation needs")
	cmd.Flags().StringVar(&o.provenance, "provenance", "", "file that says how the bundle was built, which must be about it")
	g.addTrust(cmd.Flags())
	return cmd
}

type verifyOptions struct {
	closure    bool
	provenance string // file
}

func runVerify(ctx context.Context, g *globals, path string, o verifyOptions) error {
	if (o.closure || o.provenance != "") && (path == standardStream || isNamedPipe(path)) {
		return usage.Errorf("--closure and --provenance need a file: name one in place of a pipe")
	}
	r := verifyResult{Version: 1}
	m := g.NewMeter("verify")
	report, err := verify(ctx, g, path, bundle.VerifyOptions{Progress: m.Set, Accept: func(x bundle.Index) (err error) {
		r.Signature, err = g.checkTrust(path, x)
		return err
	}}, func(c *bundle.Catalog) (err error) {
		if o.closure {
			r.Needed, err = build.CheckClosure(ctx, path, c)
		}
		return err
	})
	m.Stop()
	if err == nil && o.provenance != "" {
		r.Provenance, err = g.checkProvenance(ctx, path, o.provenance, report.Digest)
	}
	if err != nil {
		return err
	}
	r.Digest, r.Size, r.Items, r.Blobs = report.Digest, report.Size, report.Items, report.Blobs
	if g.JSON {
		return g.PrintJSON(r)
	}
	g.Note("%s: %s, %s, %s: all whole", bundleName(path), plain.Count(report.Items, "item"), plain.Count(report.Blobs, "blob"), plain.Size(report.Size))
	if by := r.Signature; by != nil {
		g.Note("signed with the key %s (%s)", by.Key, by.Path)
	}
	if o.closure {
		g.Note("everything that is needed is there: %s", plain.Count(r.Needed, "item"))
	}
	if r.Provenance != nil {
		g.Note("%s", r.Provenance)
	}
	return g.Result("%s", report.Digest)
}

// verify reads from a file, from parts or from a pipe. What is whole is handed to then.
func verify(ctx context.Context, g *globals, path string, o bundle.VerifyOptions, then func(*bundle.Catalog) error) (bundle.Report, error) {
	pipe, err := g.openPipe(path)
	if err != nil {
		return bundle.Report{}, err
	}
	if pipe != nil {
		defer pipe.Close()
		return bundle.VerifyStream(ctx, pipe, o)
	}
	if err := usage.CheckFile(path); err != nil {
		return bundle.Report{}, err
	}
	r, err := bundle.Open(path) // a warning would be an error here
	if err != nil {
		return bundle.Report{}, err
	}
	defer r.Close()
	report, err := r.Verify(ctx, o)
	if err == nil {
		err = then(&r.Catalog)
	}
	return report, err
}

// verifyResult is what verify prints with --json about a bundle that is whole.
type verifyResult struct {
	Version   int           `json:"version"` // 1
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"` // bytes
	Items     int           `json:"items"`
	Blobs     int           `json:"blobs"`
	Signature *signed       `json:"signature,omitempty"` // where a key was trusted, and the bundle is signed
	// Needed is how many items somebody needs, with --closure.
	Needed     int          `json:"needed,omitempty"`
	Provenance *builtResult `json:"provenance,omitempty"`
}
