package node

import (
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
)

// Encrypt copies in to out as an age file for recipients: age's (age1...) or SSH keys (ssh-ed25519, ssh-rsa).
func Encrypt(recipients []string, in io.Reader, out io.Writer) error {
	w, err := NewEncrypter(recipients, out)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, in); err != nil {
		return err
	}
	return w.Close()
}

// NewEncrypter returns a writer that encrypts to recipients. Close writes the end.
func NewEncrypter(recipients []string, out io.Writer) (io.WriteCloser, error) {
	var list []age.Recipient
	for _, text := range recipients {
		if strings.HasPrefix(text, "ssh-") {
			r, err := agessh.ParseRecipient(text)
			if err != nil {
				return nil, fmt.Errorf("recipient %s: %w", text, err)
			}
			list = append(list, r)
			continue
		}
		parsed, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("recipient %s: %w", text, err)
		}
		list = append(list, parsed...)
	}
	return age.Encrypt(out, list...)
}
