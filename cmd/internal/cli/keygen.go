package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/proof/encryption"
	"github.com/kkbundle/kkbundle/proof/trust"
)

type keygenOptions struct {
	output        string
	passwordStdin bool
}

func newKeygenCmd(g *globals) *cobra.Command {
	var o keygenOptions
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Generate a key pair to sign bundles, or to decrypt them",
		Long: `Generates a private key, PREFIX.key, and its public key, PREFIX.pub, in the format of cosign generate-key-pair. The
private key is encrypted with a password from $COSIGN_PASSWORD, standard input (--password-stdin), or the terminal.
Keep it where bundles are built, and give the public key to sites. Existing files are never replaced.

keygen age generates a key to decrypt bundles instead.`,
		Example: "  kkbundle keygen -o release",
		Args:    takes(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runKeygen(cmd.Context(), g, o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "cosign", "prefix of the files, before .key and .pub")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the password from standard input")
	cmd.AddCommand(newKeygenAgeCmd(g))
	return cmd
}

func newKeygenAgeCmd(g *globals) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "age",
		Short: "Generate a key to decrypt bundles",
		Long: `Generates a private key for --identity, in a file like that of age-keygen, readable by its owner only, and prints the
public key for build --encrypt-to. Generate the key where bundles are decrypted, and send only the public key to where
they are built. The private key itself is not encrypted. An existing file is never replaced.`,
		Example: "  kkbundle keygen age -o site.key",
		Args:    takes(),
		RunE:    func(*cobra.Command, []string) error { return runKeygenAge(g, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file of the private key (required)")
	return cmd
}

// keygenAgeResult is the JSON output of keygen age.
type keygenAgeResult struct {
	Version   int    `json:"version"`   // 1
	Identity  string `json:"identity"`  // path of the private key
	Recipient string `json:"recipient"` // the public key
}

func runKeygenAge(g *globals, output string) error {
	if output == "" {
		return usage.Errorf("name the file of the private key with -o")
	}
	file, public, err := encryption.Generate(time.Now())
	if err != nil {
		return err
	}
	if err := createFile(output, 0o600, file); err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(keygenAgeResult{Version: 1, Identity: output, Recipient: public})
	}
	g.Note("%s is the private key; the public key is", output)
	return g.Result("%s", public)
}

// keygenResult is the JSON output of keygen.
type keygenResult struct {
	Version int           `json:"version"` // 1
	Private string        `json:"private"` // paths
	Public  string        `json:"public"`
	Key     digest.Digest `json:"key"` // fingerprint of the public key
}

func runKeygen(ctx context.Context, g *globals, o keygenOptions) error {
	out := keygenResult{Version: 1, Private: o.output + ".key", Public: o.output + ".pub"}
	for _, path := range []string{out.Private, out.Public} {
		if exists(path) {
			return fmt.Errorf("%s is there, and keys are never replaced: name others with -o", path)
		}
		if err := disk.CheckOutput(path); err != nil {
			return err
		}
	}
	password, err := g.KeyPassword(ctx, o.passwordStdin, true)
	if err != nil {
		return err
	}
	if len(password) == 0 {
		g.Warn("the password is empty: every reader of " + out.Private + " can sign")
	}
	pair, err := trust.GenerateKeyPair(password)
	if err != nil {
		return err
	}
	public, err := trust.ParsePublicKey(pair.Public)
	if err != nil {
		return err
	}
	if err := errors.Join(createFile(out.Private, 0o600, pair.Private),
		createFile(out.Public, 0o644, pair.Public)); err != nil {
		return err
	}
	out.Key = public.Fingerprint()
	if g.JSON {
		return g.PrintJSON(out)
	}
	g.Note("%s is the private key, %s the public one", out.Private, out.Public)
	return g.Result("%s", out.Key)
}

// createFile writes a new file, whole or not at all. It never replaces a file, not even one created meanwhile.
func createFile(path string, mode os.FileMode, content []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there, and keys are never replaced: name others with -o", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), errors.Join(err, os.Remove(path)))
	}
	return nil
}
