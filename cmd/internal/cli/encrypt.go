package cli

import (
	"errors"
	"fmt"

	"filippo.io/age"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/proof/encryption"
)

// encryptFlags are the flags of commands that write a bundle.
type encryptFlags struct {
	to         []string // public keys
	files      []string // of public keys
	passphrase bool
}

func (o *encryptFlags) add(g *globals, f *pflag.FlagSet) {
	f.StringArrayVar(&o.to, "encrypt-to", nil,
		"encrypt the bundle to this `recipient`: age1..., or an SSH public key (repeated)")
	f.StringArrayVarP(&o.files, "recipients-file", "R", nil,
		"encrypt the bundle to the recipients in this `file`, one in each line (repeated)")
	f.BoolVar(&o.passphrase, "passphrase", false, "encrypt the bundle with a passphrase, from --"+flagPassphrase+", $"+
		envPassphrase+" or a prompt")
	g.addPassphraseFile(f)
}

// set reports whether the bundle is to be encrypted.
func (o *encryptFlags) set() bool { return o.passphrase || len(o.to)+len(o.files) > 0 }

// suffix follows the name of the bundle in its default file name.
func (o *encryptFlags) suffix() string {
	if o.set() {
		return bundle.EncryptedSuffix
	}
	return ""
}

// recipients returns the recipients of the bundle; none if it is not encrypted. It may ask for a passphrase.
func (o *encryptFlags) recipients(g *globals) ([]age.Recipient, error) {
	if o.passphrase {
		if len(o.to)+len(o.files) > 0 {
			return nil, usage.Errorf(
				"--passphrase excludes --encrypt-to and --recipients-file: a passphrase is the only key of a file")
		}
		return g.newPassphrase()
	}
	var all []age.Recipient
	for _, text := range o.to {
		r, err := encryption.ParseRecipient(text)
		if err != nil {
			return nil, usage.Errorf("--encrypt-to: %w; a file of recipients is given with -R", err)
		}
		all = append(all, r)
	}
	for _, file := range o.files {
		data, err := builder.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("recipients: %w", err)
		}
		list, err := encryption.ParseRecipients(data)
		if err != nil {
			return nil, &builder.InputError{Err: fmt.Errorf("recipients: %s: %w", file, err)}
		}
		all = append(all, list...)
	}
	return all, nil
}

// newPassphrase returns the recipient of a passphrase, which is asked for twice.
func (g *globals) newPassphrase() ([]age.Recipient, error) {
	text, ok, err := g.keys.stored()
	if !ok && err == nil {
		text, err = g.keys.prompt("new passphrase of the bundle")
		if errors.Is(err, terminal.ErrNoTerminal) {
			return nil, usage.Errorf("--passphrase needs a passphrase: set $%s, or name a file with --%s",
				envPassphrase, flagPassphrase)
		}
		if err != nil {
			return nil, err
		}
		again, err := g.keys.prompt("the same again")
		if err == nil && again != text {
			err = errors.New("the two passphrases differ: nothing was written")
		}
		if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	r, err := encryption.PassphraseRecipient(text)
	if err != nil {
		return nil, usage.Errorf("--passphrase: %w", err)
	}
	return []age.Recipient{r}, nil
}
