// Package agefile reads and writes a bundle that is encrypted: an age file around it, which is decrypted where it is
// read.
package agefile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/parts"
)

// The beginnings of age files. A bundle begins with the magic number of a zstd frame.
const (
	ageMagic    = "age-encryption.org/"
	ageIntro    = ageMagic + "v1\n"
	ageArmor    = "-----BEGIN AGE ENCRYPTED FILE-----"
	agePassword = "scrypt" // the stanza type of a passphrase
	// Every full chunk of an age file has ageChunk bytes of content and ageTag bytes of overhead.
	ageChunk = 64 << 10
	ageTag   = 16
)

// Keys returns the identities to try on an age file with these recipient stanzas. It may ask for a passphrase where a
// stanza needs one. No identities mean that there is no key.
type Keys func(stanzas []*age.Stanza) ([]age.Identity, error)

// An EncryptedError means that a bundle is encrypted and no identity opens it.
type EncryptedError struct {
	Kinds []string // types of the recipient stanzas, in the order of the header
	Tried int      // identities that do not match
}

// Error names the kinds of recipients, and whether there were identities.
func (e *EncryptedError) Error() string {
	text := "the bundle is encrypted " + e.recipients()
	switch {
	case e.Tried == 0:
		return text + ", and no identity was given"
	case e.passphrase():
		return text + ", and the passphrase is wrong"
	case e.Tried == 1:
		return text + ", and the given identity is not one of them"
	}
	return text + fmt.Sprintf(", and none of the %d given identities is one of them", e.Tried)
}

// Hint returns the remedy.
func (e *EncryptedError) Hint() string {
	if e.passphrase() {
		return "type the passphrase on a terminal, or give it with --passphrase-file or $KKBUNDLE_PASSPHRASE"
	}
	return "give the private key of a recipient with --identity FILE or $KKBUNDLE_IDENTITY"
}

func (e *EncryptedError) passphrase() bool { return slices.Contains(e.Kinds, agePassword) }

// recipients describes the recipients: "to 2 recipients (X25519, ssh-rsa)".
func (e *EncryptedError) recipients() string {
	if e.passphrase() {
		return "with a passphrase"
	}
	kinds := slices.Clone(e.Kinds)
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	const most = 5
	if n := len(kinds) - most; n > 0 {
		kinds = append(kinds[:most], fmt.Sprintf("%d more kinds", n))
	}
	noun := "recipients"
	if len(e.Kinds) == 1 {
		noun = "recipient"
	}
	return fmt.Sprintf("to %d %s (%s)", len(e.Kinds), noun, strings.Join(kinds, ", "))
}

// isAge reports whether a file that begins with these bytes is an age file. An age file of an unknown version and one
// in ASCII armor are errors.
func isAge(head []byte) (bool, error) {
	switch {
	case bytes.HasPrefix(head, []byte(ageIntro)):
		return true, nil
	case bytes.HasPrefix(head, []byte(ageMagic)) && len(head) >= len(ageIntro):
		return false, &format.UnsupportedError{Feature: "another version of the age format than v1"}
	case bytes.HasPrefix(head, []byte(ageArmor)[:len(ageIntro)]):
		return false, errors.New(
			"the age file is in ASCII armor, which cannot be read in place: decrypt the file with age, and encrypt it without --armor")
	}
	return false, nil
}

// A sourceError is an error of the file that an age file is read from, unlike one of the encryption.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// A sourceAt marks the errors of src.
type sourceAt struct{ src io.ReaderAt }

// ReadAt implements io.ReaderAt.
func (s sourceAt) ReadAt(b []byte, off int64) (int, error) {
	n, err := s.src.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &sourceError{err}
	}
	return n, err
}

// A source marks the errors of src.
type source struct{ src io.Reader }

// Read implements io.Reader.
func (s source) Read(b []byte) (int, error) {
	n, err := s.src.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &sourceError{err}
	}
	return n, err
}

// ageDamage returns err, which age returned, as damage, unless the file below caused it. The chain ends there: readers
// take an io.ErrUnexpectedEOF for an end of the bundle.
func ageDamage(off int64, reason string, err error) error {
	var below *sourceError
	if errors.As(err, &below) {
		return below.error
	}
	return &format.DamageError{Offset: off, Reason: reason, Err: errors.New(err.Error())}
}

const (
	badHeader  = "the header of the age file is damaged, cut or not valid"
	badPayload = "the age file is damaged or cut"
)

// unlock reads the header of an age file and returns the identity of that file's own key. age limits the header to 2
// MiB and 1024 stanzas.
func unlock(src io.Reader, keys Keys) (age.Identity, error) {
	header, err := age.ExtractHeader(src)
	if err != nil {
		return nil, ageDamage(0, badHeader, err)
	}
	var look stanzaReader
	if _, err := age.DecryptHeader(header, &look); !errors.Is(err, age.ErrIncorrectIdentity) {
		return nil, ageDamage(0, badHeader, err)
	}
	e := &EncryptedError{}
	for _, s := range look.stanzas {
		e.Kinds = append(e.Kinds, kindName(s.Type))
	}
	if keys == nil {
		return nil, e
	}
	identities, err := keys(look.stanzas)
	if err != nil {
		return nil, err
	}
	if e.Tried = len(identities); e.Tried == 0 {
		return nil, e
	}
	key, err := age.DecryptHeader(header, identities...)
	if errors.Is(err, age.ErrIncorrectIdentity) {
		return nil, e
	}
	if err != nil {
		return nil, ageDamage(0, badHeader, err)
	}
	return age.NewInjectedFileKeyIdentity(key), nil
}

// kindName returns a stanza type for messages: any text may stand in the file.
func kindName(kind string) string {
	const most = 40
	if len(kind) > most {
		return kind[:most] + "..."
	}
	return kind
}

// A stanzaReader is an identity that keeps the stanzas and matches none.
type stanzaReader struct{ stanzas []*age.Stanza }

// Unwrap implements age.Identity.
func (r *stanzaReader) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	r.stanzas = stanzas
	return nil, age.ErrIncorrectIdentity
}

// A File is the content of an age file that is read in place.
type File struct {
	Source  io.ReaderAt // the age file
	content io.ReaderAt
	begin   int64 // offset of the first chunk in src
	last    int64 // see LastPart
}

// Open returns the content of src and its size. It returns nil if src is not an age file.
func Open(src io.ReaderAt, size int64, keys Keys) (*File, int64, error) {
	head := make([]byte, min(size, int64(len(ageIntro))))
	if n, err := src.ReadAt(head, 0); n < len(head) {
		return nil, 0, fmt.Errorf("read the beginning of the file: %w", err)
	}
	encrypted, err := isAge(head)
	if err != nil || !encrypted {
		return nil, 0, err
	}
	marked := sourceAt{src}
	key, err := unlock(io.NewSectionReader(marked, 0, size), keys)
	if err != nil {
		return nil, 0, err
	}
	content, length, err := age.DecryptReaderAt(marked, size, key)
	if err != nil {
		return nil, 0, ageDamage(-1, badPayload, err)
	}
	chunks := max(1, (length+ageChunk-1)/ageChunk)
	f := &File{content: content, Source: src, begin: size - length - chunks*ageTag}
	if set, ok := src.(*parts.Set); ok {
		before := max(0, set.Size-set.LastSize()-f.begin)
		f.last = min(length, (before+ageChunk+ageTag-1)/(ageChunk+ageTag)*ageChunk)
	}
	return f, length, nil
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.content.ReadAt(b, off)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, ageDamage(off+int64(n), badPayload, err)
}

// Place returns the offset in the age file of a byte of the content.
func (f *File) Place(off int64) int64 {
	return f.begin + off + off/ageChunk*ageTag
}

// LastPart returns the offset in the content from which every chunk lies in the last part of the file; 0 for one file.
func (f *File) LastPart() int64 { return f.last }

// Decrypt returns a reader of the content of an age file, or of src itself if src is not an age file. It reads nothing
// yet: the first Read returns an *EncryptedError if no identity opens the file. Bytes are returned only after age has
// authenticated them. A damaged or cut age file gives an error that matches ErrDamaged.
func Decrypt(src io.Reader, keys Keys) *Reader { return &Reader{src: src, keys: keys} }

// A Reader is the reader of Decrypt.
type Reader struct {
	src     io.Reader
	keys    Keys
	content io.Reader // nil before the first Read
	plain   bool      // src is not an age file
	off     int64     // of the content
	err     error
}

// Read implements io.Reader.
func (d *Reader) Read(b []byte) (int, error) {
	if d.content == nil && d.err == nil {
		d.err = d.open()
	}
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.content.Read(b)
	d.off += int64(n)
	if err != nil && !d.plain && !errors.Is(err, io.EOF) {
		err = ageDamage(d.off, badPayload, err)
	}
	d.err = err
	return n, err
}

func (d *Reader) open() error {
	in := bufio.NewReaderSize(d.src, ageChunk)
	head, err := in.Peek(len(ageIntro))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	encrypted, err := isAge(head)
	if err != nil {
		return err
	}
	if !encrypted {
		d.content, d.plain = in, true
		return nil
	}
	var header bytes.Buffer // with the bytes that the header's reader buffered behind it
	marked := source{in}
	key, err := unlock(io.TeeReader(marked, &header), d.keys)
	if err != nil {
		return err
	}
	content, err := age.Decrypt(io.MultiReader(&header, marked), key)
	if err != nil {
		return ageDamage(-1, badPayload, err)
	}
	d.content = content
	return nil
}
