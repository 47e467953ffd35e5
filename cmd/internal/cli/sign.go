package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/proof/trust"
)

type signOptions struct {
	key, output, signer  string
	passwordStdin, force bool
	provenance           bool
}

func newSignCmd(g *globals) *cobra.Command {
	var o signOptions
	cmd := &cobra.Command{
		Use:   "sign --key KEY BUNDLE",
		Short: "Sign a bundle",
		Long: `Signs a bundle's digest, the sha256 of its index.json, which covers all content, and writes the signature beside the
bundle: NAME.kkb.sigstore.json. It stays valid if the bundle is compressed differently, split or renamed; rename the
signature too. No network is used, and the content is not read: check it with kkbundle verify.

The key is cosign's (cosign generate-key-pair, or kkbundle keygen), or PKCS #8 without encryption. Its password comes
from $COSIGN_PASSWORD or standard input (--password-stdin), or is asked for. cosign verifies the signature, and
kkbundle cosign's.

  --name         writes another signer's signature beside the first, NAME.kkb.SIGNER.sigstore.json; a check accepts
                 any of them
  --provenance   signs the statement NAME.kkb.provenance.json of build --provenance instead, which must be about this
                 bundle. Writes NAME.kkb.provenance.signed.json

Guide: docs/build/signatures.md.`,
		Example: "  kkbundle sign --key cosign.key site-1.4.0.kkb\n  kkbundle sign --key audit.key --name audit site-1.4.0.kkb",
		Args:    takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if o.provenance {
				return signProvenance(cmd.Context(), g, args[0], o)
			}
			return runSign(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	g.addKeys(f)
	f.StringVar(&o.key, "key", "", "file of the private key (required)")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the key's password from standard input")
	f.StringVar(&o.signer, "name", "", "write NAME.kkb.SIGNER.sigstore.json, beside another key's signature")
	f.StringVarP(&o.output, "output", "o", "", "file of the signature (default beside the bundle)")
	f.BoolVar(&o.provenance, "provenance", false, "sign the statement of build --provenance instead of the bundle")
	f.BoolVar(&o.force, "force", false, "replace a signature by another key")
	return cmd
}

func (o *signOptions) check() error {
	switch {
	case o.key == "":
		return usage.Errorf("name the private key with --key; kkbundle keygen makes one")
	case o.signer != "" && o.provenance:
		return usage.Errorf("--name and --provenance exclude each other")
	case o.signer != "" && o.output != "":
		return usage.Errorf("--name and --output exclude each other")
	case o.signer != "" && !signerName(o.signer):
		return usage.Errorf("--name %q: want lower-case letters, digits and -, a letter first, at most 63", o.signer)
	}
	return nil
}

// signResult is the JSON output of sign.
type signResult struct {
	Version int           `json:"version"` // 1
	Path    string        `json:"path"`    // of the signature
	Digest  digest.Digest `json:"digest"`  // the bundle's identity
	Key     digest.Digest `json:"key"`     // fingerprint of the public key
}

func runSign(ctx context.Context, g *globals, path string, o signOptions) error {
	out := signResult{Version: 1, Path: o.output}
	if out.Path == "" {
		out.Path = sidecarName(path, o.signer)
	}
	if err := disk.CheckOutput(out.Path); err != nil {
		return err
	}
	artifact, err := g.indexOf(path)
	if err != nil {
		return err
	}
	key, err := g.readPrivateKey(ctx, o.key, o.passwordStdin)
	if err != nil {
		return err
	}
	out.Digest, out.Key = digest.FromBytes(artifact), key.Public().Fingerprint()
	done, err := signedBefore(out.Path, key.Public(), artifact, o.force)
	if err != nil {
		return err
	}
	if !done {
		data, err := key.SignBlob(artifact)
		if err == nil {
			err = disk.WriteFile(out.Path, 0o644, bytes.NewReader(data))
		}
		if err != nil {
			return err
		}
	}
	if g.JSON {
		return g.PrintJSON(out)
	}
	g.Note("%s, which is %s, is signed with the key %s", path, out.Digest, out.Key)
	return g.Result("%s", out.Path)
}

// indexOf returns a bundle's index.json. Signing needs no other signature.
func (g *globals) indexOf(path string) ([]byte, error) {
	r, err := g.openUnchecked(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Index().Marshal()
}

// readPrivateKey reads a key. It warns if only the file's permissions protect the key.
func (g *globals) readPrivateKey(ctx context.Context, file string, stdin bool) (*trust.PrivateKey, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := trust.ParsePrivateKey(data, func() ([]byte, error) { return g.KeyPassword(ctx, stdin, false) })
	var wrong *usage.Error
	switch {
	case errors.As(err, &wrong), ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, &builder.InputError{Err: fmt.Errorf("private key %s: %w", file, err)}
	case key.Encrypted():
		return key, nil
	}
	text := file + " is not encrypted: every reader can sign; cosign import-key-pair encrypts it"
	const others = 0o077
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&others != 0 {
		text = fmt.Sprintf("%s is not encrypted, and others can read it (mode %04o): chmod 600 %s", file,
			info.Mode().Perm(), file)
	}
	g.Warn(text)
	return key, nil
}

// signedBefore reports whether the file has a valid signature by the key. A signature by another key is an error
// unless it may be replaced.
func signedBefore(file string, key *trust.PublicKey, artifact []byte, replace bool) (bool, error) {
	if !exists(file) {
		return false, nil
	}
	data, err := builder.ReadFile(file)
	if err == nil {
		if _, err := trust.VerifyBlob([]*trust.PublicKey{key}, data, artifact); err == nil {
			return true, nil
		}
	}
	by := trust.SignerOf(data)
	switch {
	case replace || by == key.Fingerprint():
		return false, nil
	case by == "":
		return false, fmt.Errorf(
			"%s exists and is not a signature by this key: move it away, or replace it with --force", file)
	}
	return false, fmt.Errorf(
		"%s exists and is signed by another key (%s, as it says): --name SIGNER writes a signature beside it, --force replaces it", file, by)
}

// staleSignatures returns warnings about signatures of another bundle beside a new one: a site cannot sign again.
func staleSignatures(path string, x bundle.Index) []string {
	var none trustOptions
	files, err := none.sidecars(path)
	if err != nil {
		return []string{err.Error()}
	}
	artifact, err := x.Marshal()
	if err != nil {
		return nil // without a bundle either
	}
	var lines []string
	for _, file := range files {
		data, err := builder.ReadFile(file)
		if err == nil {
			_, err = trust.VerifyBlob(nil, data, artifact)
		}
		if !errors.Is(err, trust.ErrWrongKey) { // not verifiable without a key
			lines = append(lines, fmt.Sprintf(
				"%s is not a signature of this bundle, perhaps of the replaced one: sign again", file))
		}
	}
	return lines
}

// noteSignatures prints notes about signatures after a copy: valid ones to copy, and invalid ones.
func (g *globals) noteSignatures(sources []bundle.From, r copyResult, x bundle.Index) {
	for _, from := range sources {
		if from.Digest() != r.Digest || !exists(sidecarName(from.Name, "")) {
			continue
		}
		if to := sidecarName(r.Path, ""); !exists(to) {
			g.Note("%s has the same digest, so the signature of %s is valid for it: copy it to %s", r.Path, from.Name,
				to)
		}
	}
	for _, line := range staleSignatures(r.Path, x) {
		g.Warn(line)
	}
}
