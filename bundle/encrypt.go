package bundle

import (
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// maxRecipients limits the recipients of a bundle, so that age can read the header again: at most 2 MiB.
const maxRecipients = 256

// EncryptedSize returns the most bytes of an age file around that many bytes.
func EncryptedSize(content int64) int64 {
	const header = 1 << 20
	return header + content + (content/ageChunk+1)*ageTag
}

// most returns the most bytes of a bundle written with these options.
func (o WriteOptions) most(content int64) int64 {
	if len(o.Recipients) == 0 {
		return content
	}
	return EncryptedSize(content)
}

// An output is the writer of a bundle's bytes.
type output interface {
	io.Writer
	finish() error // after the last byte
	stop()         // always, also after an error
}

// output returns the output that encrypts to the recipients, if there are any, and writes to w.
func (o WriteOptions) output(w io.Writer) (output, error) {
	switch n := len(o.Recipients); {
	case n == 0:
		return plainOutput{w}, nil
	case n > maxRecipients:
		return nil, fmt.Errorf("%d recipients were given; a bundle is encrypted to at most %d", n, maxRecipients)
	}
	file := newAheadWriter(openWriter{w})
	out, err := age.Encrypt(file, o.Recipients...)
	if err != nil {
		file.stop()
		return nil, fmt.Errorf("encrypt the bundle: %w", err)
	}
	return &encryptedOutput{newAheadWriter(out), file}, nil
}

// An encryptedOutput encrypts in one goroutine and writes in another.
type encryptedOutput struct {
	*aheadWriter
	file *aheadWriter
}

func (o *encryptedOutput) finish() error {
	if err := o.aheadWriter.finish(); err != nil {
		return err
	}
	return o.file.finish()
}

func (o *encryptedOutput) stop() {
	o.aheadWriter.stop()
	o.file.stop()
}

// An openWriter is a writer that its user leaves open.
type openWriter struct{ io.Writer }

func (openWriter) Close() error { return nil }

// A plainOutput encrypts nothing.
type plainOutput struct{ io.Writer }

func (plainOutput) finish() error { return nil }
func (plainOutput) stop()         {}

// A counter counts the bytes that pass through it.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Remember returns the recipients, and a function that returns the identity of the last file encrypted to them: the key
// of that file, which stays in memory. So a program can read again what it has encrypted to others.
func Remember(recipients []age.Recipient) ([]age.Recipient, Keys) {
	if len(recipients) == 0 {
		return recipients, nil
	}
	kept := &keyKeeper{Recipient: recipients[0]}
	return append([]age.Recipient{kept}, recipients[1:]...), func([]*age.Stanza) ([]age.Identity, error) {
		if kept.key == nil {
			return nil, errors.New("nothing was encrypted yet")
		}
		return []age.Identity{age.NewInjectedFileKeyIdentity(kept.key)}, nil
	}
}

// A keyKeeper is a recipient that keeps the key that was encrypted to it.
type keyKeeper struct {
	age.Recipient
	key []byte
}

// WrapWithLabels implements age.RecipientWithLabels.
func (k *keyKeeper) WrapWithLabels(fileKey []byte) (stanzas []*age.Stanza, labels []string, err error) {
	k.key = append([]byte(nil), fileKey...)
	if r, ok := k.Recipient.(age.RecipientWithLabels); ok {
		return r.WrapWithLabels(fileKey)
	}
	stanzas, err = k.Wrap(fileKey)
	return stanzas, nil, err
}
