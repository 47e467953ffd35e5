// Package encryption reads the keys of age files: recipients, identities and passphrases. It has no cryptography of its
// own: filippo.io/age does everything. Errors never contain a key.
package encryption

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"
)

const (
	// stanzaPassphrase is the type of the only stanza of a file that is encrypted with a passphrase.
	stanzaPassphrase = "scrypt"
	// maxWorkFactor limits the work that a file can ask for: 1 GiB of memory, and some seconds. age writes 18.
	maxWorkFactor = 20
	// maxIdentities limits the bytes of a decrypted identity file.
	maxIdentities = 1 << 20
)

// NeedsPassphrase reports whether a file with these stanzas is encrypted with a passphrase.
func NeedsPassphrase(stanzas []*age.Stanza) bool {
	return len(stanzas) > 0 && stanzas[0].Type == stanzaPassphrase
}

// Passphrase returns the identity of a passphrase.
func Passphrase(text string) (age.Identity, error) {
	id, err := age.NewScryptIdentity(text)
	if err != nil {
		return nil, err
	}
	id.SetMaxWorkFactor(maxWorkFactor)
	return id, nil
}

// PassphraseRecipient returns the recipient of a passphrase. It is the only recipient of a file.
func PassphraseRecipient(text string) (age.Recipient, error) { return age.NewScryptRecipient(text) }

// ParseRecipient parses a public key: age's (age1...), or an SSH key of type ssh-ed25519 or ssh-rsa, as in
// authorized_keys.
func ParseRecipient(text string) (age.Recipient, error) {
	switch {
	case strings.HasPrefix(text, "age1pq1"):
		return recipient(age.ParseHybridRecipient(text))
	case strings.HasPrefix(text, "age1"):
		return recipient(age.ParseX25519Recipient(text))
	case strings.HasPrefix(text, "AGE-SECRET-KEY-"), strings.HasPrefix(text, "-----BEGIN"):
		return nil, errors.New("a private key is not a recipient: give its public key")
	case strings.HasPrefix(text, "ssh-"), strings.HasPrefix(text, "ecdsa-"), strings.HasPrefix(text, "sk-"):
		return sshRecipient(text)
	}
	return nil, errors.New("not a public key: want an age key (age1...) or an SSH key of type ssh-ed25519 or ssh-rsa")
}

// recipient drops the key from the error.
func recipient(r age.Recipient, err error) (age.Recipient, error) {
	if err != nil {
		return nil, errors.New("not a valid age public key; keys of age plugins are not supported")
	}
	return r, nil
}

func sshRecipient(text string) (age.Recipient, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil {
		return nil, errors.New("not a valid SSH public key")
	}
	var r age.Recipient
	switch key.Type() {
	case ssh.KeyAlgoED25519:
		r, err = agessh.NewEd25519Recipient(key)
	case ssh.KeyAlgoRSA:
		r, err = agessh.NewRSARecipient(key)
	default:
		return nil, fmt.Errorf("SSH key of type %s: age encrypts to ssh-ed25519 and ssh-rsa only", key.Type())
	}
	if err != nil {
		return nil, fmt.Errorf("SSH key: %w", err)
	}
	return r, nil
}

// ParseRecipients parses a recipients file: a public key in each line. Empty lines and lines that begin with # are
// skipped.
func ParseRecipients(data []byte) ([]age.Recipient, error) {
	var all []age.Recipient
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		r, err := ParseRecipient(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return nil, errors.New("no public key in the file")
	}
	return all, nil
}

// ParseIdentities returns the identities of a file: age identities, one in each line; the same encrypted with a
// passphrase by age; or an SSH private key. ask returns the passphrase of the file. For an SSH key it is called only if
// one of the stanzas is for that key.
func ParseIdentities(data []byte, stanzas []*age.Stanza, ask func() (string, error)) ([]age.Identity, error) {
	trimmed := bytes.TrimSpace(data)
	switch {
	case bytes.HasPrefix(data, []byte("age-encryption.org/")):
		return protected(bytes.NewReader(data), ask)
	case bytes.HasPrefix(trimmed, []byte(armor.Header)):
		return protected(armor.NewReader(bytes.NewReader(trimmed)), ask)
	case bytes.HasPrefix(trimmed, []byte("-----BEGIN")):
		return sshIdentity(data, stanzas, ask)
	}
	ids, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil {
		return nil, errors.New("neither an age identity file nor an SSH private key")
	}
	return ids, nil
}

// protected decrypts an identity file that is an age file itself.
func protected(src io.Reader, ask func() (string, error)) ([]age.Identity, error) {
	text, err := ask()
	if err != nil {
		return nil, err
	}
	id, err := Passphrase(text)
	if err != nil {
		return nil, err
	}
	content, err := age.Decrypt(src, id)
	if errors.Is(err, age.ErrIncorrectIdentity) {
		return nil, errors.New("the passphrase of the identity file is wrong, or the file is encrypted without a passphrase")
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(content, maxIdentities))
	}
	if err != nil {
		return nil, fmt.Errorf("decrypt the identity file: %w", err)
	}
	ids, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil {
		return nil, errors.New("the decrypted identity file has no age identities")
	}
	return ids, nil
}

func sshIdentity(data []byte, stanzas []*age.Stanza, ask func() (string, error)) ([]age.Identity, error) {
	id, err := agessh.ParseIdentity(data)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return []age.Identity{id}, nil
	case !errors.As(err, &locked):
		return nil, errors.New("not a valid SSH private key of type ed25519 or rsa")
	case locked.PublicKey == nil:
		return nil, errors.New("the SSH private key is encrypted in the old PEM format: convert the file with ssh-keygen -p -f FILE")
	}
	var refused error
	protected, err := agessh.NewEncryptedSSHIdentity(locked.PublicKey, data, func() ([]byte, error) {
		text, err := ask()
		if err == nil {
			if _, wrong := ssh.ParseRawPrivateKeyWithPassphrase(data, []byte(text)); wrong != nil {
				err = errors.New("the passphrase of the SSH private key is wrong, or the key is damaged")
			}
		}
		refused = err
		return []byte(text), err
	})
	if err != nil {
		return nil, fmt.Errorf("SSH private key: %w", err)
	}
	// The passphrase is asked for here. While age reads the bundle, the error would look like damage of the bundle.
	_, _ = protected.Unwrap(stanzas)
	return []age.Identity{protected}, refused
}

// Generate returns a new identity file in the form of age-keygen, and the public key.
func Generate(now time.Time) (file []byte, public string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, "", err
	}
	public = id.Recipient().String()
	text := fmt.Sprintf("# created: %s\n# public key: %s\n%s\n", now.Format(time.RFC3339), public, id)
	return []byte(text), public, nil
}
