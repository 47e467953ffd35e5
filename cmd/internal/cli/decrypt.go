package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"filippo.io/age"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/proof/encryption"
)

const (
	// envIdentity names the variable with the file of private keys; "" means none.
	envIdentity = "KKBUNDLE_IDENTITY"
	// envPassphrase names the variable with the passphrase of bundles and of files of private keys.
	envPassphrase = "KKBUNDLE_PASSPHRASE" //nolint:gosec // a name
	// flagPassphrase is the flag with a file in place of that variable.
	flagPassphrase = "passphrase-file"
)

// keyOptions are the keys that encrypted bundles are read with.
type keyOptions struct {
	identities     []string // files
	passphraseFile string
	prompt         func(what string) (string, error) // on the terminal; set when the command starts

	mu    sync.Mutex
	typed map[string]string // passphrases by the prompt's text: a bundle that is opened again needs no second prompt
}

// addKeys adds the flags of commands that read a bundle.
func (g *globals) addKeys(f *pflag.FlagSet) {
	f.StringArrayVar(&g.keys.identities, "identity", nil,
		"`file` of private keys that decrypt the bundle: age identities, or an SSH key (repeated; default $"+
			envIdentity+")")
	g.addPassphraseFile(f)
}

// addPassphraseFile adds --passphrase-file, once.
func (g *globals) addPassphraseFile(f *pflag.FlagSet) {
	if f.Lookup(flagPassphrase) == nil {
		f.StringVar(&g.keys.passphraseFile, flagPassphrase, "",
			"`file` with the passphrase of a bundle or of a private key (default $"+envPassphrase+", or a prompt)")
	}
}

// askWith lets keys ask on the terminal until ctx ends.
func (g *globals) askWith(ctx context.Context) {
	g.keys.prompt = func(what string) (string, error) { return g.AskSecret(ctx, what) }
}

// keysFor returns the keys of the bundle at path. They are read only if the bundle is encrypted.
func (g *globals) keysFor(path string) agefile.Keys {
	return func(stanzas []*age.Stanza) ([]age.Identity, error) {
		if encryption.NeedsPassphrase(stanzas) {
			return g.bundlePassphrase(path)
		}
		var all []age.Identity
		for _, file := range g.keys.files() {
			data, err := builder.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("identity: %w", err)
			}
			ids, err := encryption.ParseIdentities(data, stanzas,
				func() (string, error) { return g.keys.passphrase("passphrase of " + file) })
			var wrong *usage.Error
			if errors.As(err, &wrong) {
				return nil, err
			}
			if err != nil {
				return nil, &builder.InputError{Err: fmt.Errorf("identity %s: %w", file, err)}
			}
			all = append(all, ids...)
		}
		return all, nil
	}
}

// bundlePassphrase returns the identity of a bundle's passphrase.
func (g *globals) bundlePassphrase(path string) ([]age.Identity, error) {
	text, err := g.keys.passphrase("passphrase of " + bundleName(path))
	if err != nil {
		return nil, err
	}
	id, err := encryption.Passphrase(text)
	if err != nil {
		return nil, usage.Errorf("%s: %w", bundleName(path), err)
	}
	return []age.Identity{id}, nil
}

// files returns the files of private keys.
func (o *keyOptions) files() []string {
	if len(o.identities) > 0 {
		return o.identities
	}
	if file := os.Getenv(envIdentity); file != "" {
		return []string{file}
	}
	return nil
}

// stored returns the passphrase from the file or the environment. ok is false if neither is given.
func (o *keyOptions) stored() (text string, ok bool, err error) {
	if o.passphraseFile != "" {
		data, err := builder.ReadFile(o.passphraseFile)
		if err != nil {
			return "", false, fmt.Errorf("--%s: %w", flagPassphrase, err)
		}
		return strings.TrimRight(string(data), "\r\n"), true, nil
	}
	text, ok = os.LookupEnv(envPassphrase)
	return text, ok, nil
}

// passphrase returns the passphrase from the file, the environment or the terminal.
func (o *keyOptions) passphrase(what string) (string, error) {
	if text, ok, err := o.stored(); ok || err != nil {
		return text, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if text, ok := o.typed[what]; ok {
		return text, nil
	}
	text, err := o.prompt(what)
	if errors.Is(err, terminal.ErrNoTerminal) {
		return "", usage.Errorf("the %s is needed: set $%s, or name a file with --%s", what, envPassphrase,
			flagPassphrase)
	}
	if err != nil {
		return "", err
	}
	if o.typed == nil {
		o.typed = map[string]string{}
	}
	o.typed[what] = text
	return text, nil
}
