package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
)

// An inClear writes a copy without encryption.
type inClear struct{ io.Writer }

// Close implements io.Closer.
func (inClear) Close() error { return nil }

// noteClear warns of a copy that anybody can read who gets the file.
func noteClear(g *globals, c *manifest.Cluster, file string) {
	if len(c.Backup.Recipients) == 0 {
		g.Note("warning: %s is not encrypted: the cluster file has no backup.recipients", file)
	}
}

const identityFlag = "identity"

// addIdentity adds the flag for private keys, unless the command has it for its bundle.
func addIdentity(f *pflag.FlagSet) {
	if f.Lookup(identityFlag) == nil {
		f.StringArray(identityFlag, nil,
			"`file` of private keys that decrypt the copy: age identities, or an SSH key without a passphrase (repeated)")
	}
}

// readIdentities reads the files of the flag.
func readIdentities(f *pflag.FlagSet) ([]age.Identity, error) {
	files, err := f.GetStringArray(identityFlag)
	if err != nil {
		return nil, err
	}
	var list []age.Identity
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--identity %s: %w", name, usage.FileError(err))
		}
		if bytes.Contains(data, []byte("-----BEGIN")) {
			one, err := agessh.ParseIdentity(data)
			if err != nil {
				return nil, fmt.Errorf("--identity %s: %w", name, err)
			}
			list = append(list, one)
			continue
		}
		some, err := age.ParseIdentities(bytes.NewReader(data))
		if err != nil {
			// a parser's error could quote a key
			return nil, fmt.Errorf("--identity %s: no age identity and no SSH key", name)
		}
		list = append(list, some...)
	}
	return list, nil
}
