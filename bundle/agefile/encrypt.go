package agefile

import (
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// maxRecipients limits the recipients of a bundle, so that age can read the header again: at most 2 MiB.
const maxRecipients = 256

// MaxSize returns the most bytes of an age file around that many bytes.
func MaxSize(content int64) int64 {
	const header = 1 << 20
	return header + content + (content/ageChunk+1)*ageTag
}

// Encrypt returns a writer that encrypts to the recipients, at least one, and writes to w.
func Encrypt(w io.Writer, recipients []age.Recipient) (*Writer, error) {
	if n := len(recipients); n > maxRecipients {
		return nil, fmt.Errorf("%d recipients were given; a bundle is encrypted to at most %d", n, maxRecipients)
	}
	file := newAheadWriter(openWriter{w})
	out, err := age.Encrypt(file, recipients...)
	if err != nil {
		file.stop()
		return nil, fmt.Errorf("encrypt the bundle: %w", err)
	}
	return &Writer{newAheadWriter(out), file}, nil
}

// A Writer encrypts in one goroutine and writes in another.
type Writer struct {
	content *aheadWriter
	file    *aheadWriter
}

// Write implements io.Writer.
func (o *Writer) Write(b []byte) (int, error) { return o.content.Write(b) }

// Finish ends the file, after the last byte.
func (o *Writer) Finish() error {
	if err := o.content.finish(); err != nil {
		return err
	}
	return o.file.finish()
}

// Stop ends the goroutines. Without Finish the file has no valid end.
func (o *Writer) Stop() {
	o.content.stop()
	o.file.stop()
}

// An openWriter is a writer that its user leaves open.
type openWriter struct{ io.Writer }

func (openWriter) Close() error { return nil }

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
