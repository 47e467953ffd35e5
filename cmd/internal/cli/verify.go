package cli

import (
	"context"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newVerifyCmd(g *globals) *cobra.Command {
	var key string
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify BUNDLE",
		Short: "Verify the content and the signature of a bundle",
		Long: `Checks every byte of a bundle: frames, digests, that each item is whole, and that directory and archive agree. Lists
all damage with the affected items. Prints the bundle's digest. BUNDLE can be - for standard input, in one pass and
without a temporary file, or a named pipe.

  --key          the bundle must be signed by that key, which is checked first; see kkbundle sign. The signatures are
                 NAME.kkb.sigstore.json and NAME.kkb.SIGNER.sigstore.json beside the bundle
  --closure      everything that an installation of the bundle's cluster needs must be there, for every platform:
                 compares the items with the bundle's own proof, and with the needs of this version of kkbundle. See
                 inspect --closure
  --provenance   the statement in FILE (build --provenance) must describe this bundle. With trusted keys (--key,
                 --trust), one of them must have signed it (sign --provenance)

Guides: docs/build/signatures.md, docs/build/completeness.md.`,
		Example: `  kkbundle verify site-1.4.0.kkb
  kkbundle verify --key cosign.pub site-1.4.0.kkb
  kkbundle verify --closure --provenance site-1.4.0.kkb.provenance.json site-1.4.0.kkb
  cat site-1.4.0.kkb.[0-9]* | kkbundle verify --key cosign.pub --signature site-1.4.0.kkb.sigstore.json -`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key != "" {
				if len(g.trust.keys) > 0 {
					return usage.Errorf("--key and --trust exclude each other")
				}
				g.trust.keys, g.trust.require = []string{key}, true
			}
			return runVerify(cmd.Context(), g, args[0], o)
		},
	}
	cmd.Flags().StringVar(&key, "key", "",
		"file of the public key of the required signature, same as --trust KEY --require-signature")
	cmd.Flags().BoolVar(&o.closure, "closure", false, "check that all items for an installation exist")
	cmd.Flags().StringVar(&o.provenance, "provenance", "",
		"file of the statement of build --provenance for this bundle")
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
		r.Warnings = unsignedPackages(shortfallsOf(x.Items))
		r.Signature, err = g.checkTrust(sidecarBase(path), x)
		return err
	}}, func(c *bundle.Catalog) (err error) {
		if o.closure {
			r.Needed, err = builder.CheckClosure(ctx, path, c)
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
	g.NoteAll(r.Warnings)
	g.Note("%s: %s, %s, %s: all whole", bundleName(path), plain.Count(report.Items, "item"),
		plain.Count(report.Blobs, "blob"), plain.Size(report.Size))
	if by := r.Signature; by != nil {
		g.Note("signed %s (%s)", by.by(), by.Path)
	}
	if o.closure {
		g.Note("no needed item is missing: %s", plain.Count(r.Needed, "item"))
	}
	if r.Provenance != nil {
		g.Note("%s", r.Provenance)
	}
	return g.Result("%s", report.Digest)
}

// verify reads a file, parts or a pipe. It calls then with an intact bundle.
func verify(ctx context.Context, g *globals, path string, o bundle.VerifyOptions,
	then func(*bundle.Catalog) error,
) (bundle.Report, error) {
	pipe, err := g.openPipe(path)
	if err != nil {
		return bundle.Report{}, err
	}
	if pipe != nil {
		defer pipe.Close()
		return bundle.VerifyStream(ctx, pipe, o)
	}
	r, err := g.openInPlace(ctx, path) // a warning would be an error here
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

// verifyResult is the JSON output of verify about an intact bundle.
type verifyResult struct {
	Version   int           `json:"version"` // 1
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"` // bytes
	Items     int           `json:"items"`
	Blobs     int           `json:"blobs"`
	Signature *signed       `json:"signature,omitempty"` // of a trusted key
	// Needed is the number of needed items, with --closure.
	Needed     int          `json:"needed,omitempty"`
	Provenance *builtResult `json:"provenance,omitempty"`
	// Warnings name the distributions with packages that nothing vouches for.
	Warnings []string `json:"warnings,omitempty"`
}
