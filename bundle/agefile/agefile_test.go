package agefile_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"github.com/opencontainers/go-digest"
	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/parts"
)

// keysOf returns keys that try these identities.
func keysOf(ids ...age.Identity) agefile.Keys {
	return func([]*age.Stanza) ([]age.Identity, error) { return ids, nil }
}

func newKey(t testing.TB) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sshKeys returns an identity and the recipient of an SSH key of each type that age has.
func sshKeys(t *testing.T) (ids []age.Identity, recipients []age.Recipient) {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []any{ed, rsaKey} {
		signer, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		r, err := agessh.ParseRecipient(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
		if err != nil {
			t.Fatal(err)
		}
		block, err := ssh.MarshalPrivateKey(key, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := agessh.ParseIdentity(pem.EncodeToMemory(block))
		if err != nil {
			t.Fatal(err)
		}
		ids, recipients = append(ids, id), append(recipients, r)
	}
	return ids, recipients
}

// passphrase returns both sides of a passphrase, with a low work factor.
func passphrase(t *testing.T, text string) (age.Identity, age.Recipient) {
	t.Helper()
	r, err := age.NewScryptRecipient(text)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(10)
	id, err := age.NewScryptIdentity(text)
	if err != nil {
		t.Fatal(err)
	}
	return id, r
}

// encryptedBuilder has items of all sizes that matter here, with names to search for.
func encryptedBuilder(t testing.TB) *bundletest.Builder {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Name = "secret-site"
	for i, n := range []int{0, 5, 60_000, 64 << 10, 70_000, 300_000} {
		b.File(fmt.Sprintf("https://files.example/secret/%d", n), "secret-name", nil, bundletest.Random(int64(i), n))
		b.File(fmt.Sprintf("https://files.example/secret/text/%d", n), "secret-text", nil, bundletest.Text(int64(i), n))
	}
	return b
}

// encrypted writes the bundle to a file and returns its path.
func encrypted(t testing.TB, b *bundletest.Builder, o bundle.WriteOptions) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.kkb.age")
	if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index, o); err != nil {
		t.Fatal(err)
	}
	return path
}

// encryptedTo writes the bundle to a file for these recipients and returns its path.
func encryptedTo(t testing.TB, b *bundletest.Builder, to ...age.Recipient) string {
	t.Helper()
	return encrypted(t, b, bundle.WriteOptions{Recipients: to})
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// verified checks that the keys open the bundle and that all its content is right. It returns the digest of the
// content.
func verified(t *testing.T, path string, keys agefile.Keys) digest.Digest {
	t.Helper()
	r, err := bundle.OpenWith(path, keys)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return r.Digest()
}

// TestEncryptedBundleIsAgeFile decrypts with the age library, and with the program age if it is installed.
func TestEncryptedBundleIsAgeFile(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	plain := b.Bundle()
	want := readFile(t, plain.Path)
	key := newKey(t)
	ids, recipients := sshKeys(t)
	ids, recipients = append(ids, key), append(recipients, key.Recipient())
	path := filepath.Join(t.TempDir(), "x.kkb.age")
	sum, err := bundle.Create(t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{Recipients: recipients})
	if err != nil {
		t.Fatal(err)
	}
	data := readFile(t, path)
	if sum.Size != int64(len(data)) || sum.Digest != plain.Reader.Digest() ||
		sum.Size > agefile.MaxSize(int64(len(want))) {
		t.Errorf("%+v; the file has %d bytes, the plain bundle %d and the digest %s", sum, len(data), len(want),
			plain.Reader.Digest())
	}
	for _, id := range ids {
		content, err := age.Decrypt(bytes.NewReader(data), id)
		if err != nil {
			t.Fatalf("%T: %v", id, err)
		}
		if got, err := io.ReadAll(content); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%T: %d bytes, %v; want the %d bytes of the plain bundle", id, len(got), err, len(want))
		}
		r, err := bundle.OpenWith(path, keysOf(newKey(t), id))
		if err != nil {
			t.Fatalf("%T: %v", id, err)
		}
		if r.Digest() != plain.Reader.Digest() || r.Size() != int64(len(want)) || !r.Encrypted() {
			t.Errorf("%T: digest %s, %d bytes, encrypted: %v", id, r.Digest(), r.Size(), r.Encrypted())
		}
		if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); err != nil {
			t.Errorf("%T: %v", id, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if plain.Reader.Encrypted() {
		t.Error("a plain bundle is called encrypted")
	}
	decryptWithProgram(t, path, key, want)
}

// decryptWithProgram checks the documented command: age -d -i KEY.
func decryptWithProgram(t *testing.T, path string, key *age.X25519Identity, want []byte) {
	t.Helper()
	program, err := exec.LookPath("age")
	if err != nil {
		t.Log("the program age is not installed: only the library was tested")
		return
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := exec.CommandContext(t.Context(), program, "-d", "-i", file, path).Output()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("age -d: %d bytes, %v", len(got), err)
	}
}

func TestEncryptedWithPassphrase(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	id, recipient := passphrase(t, "correct horse")
	path := encryptedTo(t, b, recipient)
	verified(t, path, func(stanzas []*age.Stanza) ([]age.Identity, error) {
		if len(stanzas) != 1 || stanzas[0].Type != "scrypt" {
			t.Errorf("stanzas %v", stanzas)
		}
		return []age.Identity{id}, nil
	})
	wrong, _ := passphrase(t, "incorrect horse")
	_, err := bundle.OpenWith(path, keysOf(wrong))
	wantEncrypted(t, err, "encrypted with a passphrase, and the passphrase is wrong", "--passphrase-file")
}

// wantEncrypted checks text and remedy of an EncryptedError, which is no damage.
func wantEncrypted(t *testing.T, err error, text, remedy string) {
	t.Helper()
	var e *agefile.EncryptedError
	if !errors.As(err, &e) || errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("got %v, want an EncryptedError", err)
		return
	}
	if !strings.Contains(err.Error(), text) || !strings.Contains(e.Hint(), remedy) {
		t.Errorf("got %q with the hint %q, want %q and %q", err, e.Hint(), text, remedy)
	}
}

func TestEncryptedWithoutKey(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	_, recipients := sshKeys(t)
	path := encryptedTo(t, b, append(recipients, newKey(t).Recipient())...)
	const kinds = "encrypted to 3 recipients (X25519, ssh-ed25519, ssh-rsa), and "
	_, err := bundle.Open(path)
	wantEncrypted(t, err, kinds+"no identity was given", "--identity")
	_, err = bundle.OpenWith(path, keysOf())
	wantEncrypted(t, err, kinds+"no identity was given", "$KKBUNDLE_IDENTITY")
	_, err = bundle.OpenWith(path, keysOf(newKey(t)))
	wantEncrypted(t, err, kinds+"the given identity is not one of them", "--identity")
	_, err = bundle.OpenWith(path, keysOf(newKey(t), newKey(t)))
	wantEncrypted(t, err, kinds+"none of the 2 given identities is one of them", "--identity")
	refused := errors.New("nobody is at the terminal")
	_, err = bundle.OpenWith(path, func([]*age.Stanza) ([]age.Identity, error) { return nil, refused })
	if !errors.Is(err, refused) || errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("got %v, want the error of the keys", err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = bundle.NewStream(t.Context(), f, 0)
	wantEncrypted(t, err, kinds+"no identity was given", "--identity")
}

// TestEncryptedBundleShowsNothing searches for names and digests, in all their spellings.
func TestEncryptedBundleShowsNothing(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	plain := b.Bundle()
	path := encryptedTo(t, b, newKey(t).Recipient())
	data := readFile(t, path)
	needles := []string{"secret", "files.example", "sha256", "kkbundle", "oci-layout", "index.json", "\x28\xb5\x2f\xfd"}
	for _, d := range append(plain.Reader.Blobs(), b.Index.Items[0].Descriptor) {
		raw, err := hex.DecodeString(d.Digest.Encoded())
		if err != nil {
			t.Fatal(err)
		}
		needles = append(needles, d.Digest.Encoded()[:16], string(raw[:8]))
	}
	needles = append(needles, plain.Reader.Digest().Encoded()[:16])
	for _, n := range needles {
		if n != "\x28\xb5\x2f\xfd" && bytes.Contains(data, []byte(n)) {
			t.Errorf("%q is in the file", n)
		}
	}
	if bytes.Count(data, []byte("\x28\xb5\x2f\xfd")) > 1 { // four bytes may occur by chance
		t.Error("there are zstd frames in the file")
	}
}

func TestEncryptedBundleFromPipe(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	want := b.Bundle().Reader.Digest()
	key := newKey(t)
	data := readFile(t, encryptedTo(t, b, key.Recipient()))
	report, err := bundle.VerifyStream(t.Context(), agefile.Decrypt(slowly{bytes.NewReader(data)}, keysOf(key)),
		bundle.VerifyOptions{})
	if err != nil || report.Digest != want {
		t.Errorf("%s, %v; want %s", report.Digest, err, want)
	}
	_, err = bundle.VerifyStream(t.Context(), agefile.Decrypt(bytes.NewReader(data), keysOf(newKey(t))),
		bundle.VerifyOptions{})
	wantEncrypted(t, err, "to 1 recipient (X25519), and the given identity is not one of them", "--identity")
}

// slowly returns few bytes at once, as pipes may.
type slowly struct{ r io.Reader }

func (s slowly) Read(b []byte) (int, error) { return s.r.Read(b[:min(len(b), 777)]) }

// TestDamagedEncryptedBundle flips and cuts at random places: that is an error every time, in a file and in a pipe, and
// no blob is ever returned with other content.
func TestDamagedEncryptedBundle(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	key := newKey(t)
	data := readFile(t, encryptedTo(t, b, key.Recipient()))
	r := mathrand.New(mathrand.NewSource(1))
	const chunk = 64<<10 + 16
	cuts := []int{0, 1, 21, 22, 23, 100, len(data) - 1, len(data) - 17, len(data) / chunk * chunk}
	for range 40 {
		cuts = append(cuts, r.Intn(len(data)))
	}
	for _, n := range cuts {
		damaged(t, fmt.Sprintf("cut after %d", n), data[:n], key)
	}
	for i := range 150 {
		at := r.Intn(len(data))
		if i < 50 {
			at = i * 5 // the header
		}
		bad := bytes.Clone(data)
		bad[at] ^= 1 << r.Intn(8)
		damaged(t, fmt.Sprintf("flipped at %d", at), bad, key)
	}
	damaged(t, "with a byte more", append(bytes.Clone(data), 0), key)
	damaged(t, "chunks exchanged", slices.Concat(data[:200], data[200+chunk:200+2*chunk], data[200:200+chunk],
		data[200+2*chunk:]), key)
}

// damaged checks that data gives an error, and no wrong content before it.
func damaged(t *testing.T, what string, data []byte, key age.Identity) {
	t.Helper()
	if _, err := bundle.VerifyStream(t.Context(), agefile.Decrypt(bytes.NewReader(data), keysOf(key)),
		bundle.VerifyOptions{}); !knownBad(err) {
		t.Errorf("%s: from a pipe: %v", what, err)
	}
	r, err := bundle.NewReaderWith(bytes.NewReader(data), int64(len(data)), keysOf(key))
	if err != nil {
		if !knownBad(err) {
			t.Errorf("%s: open: %v", what, err)
		}
		return
	}
	if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); !errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("%s: verify: %v", what, err)
	}
	for _, d := range r.Blobs() {
		if got, err := r.ReadBlob(t.Context(), d.Digest, 1<<20); err == nil &&
			d.Digest.Algorithm().FromBytes(got) != d.Digest {
			t.Errorf("%s: wrong content of %s", what, d.Digest)
		}
	}
}

// knownBad reports whether err names damage, another version, or a key that does not fit: a flipped stanza looks like
// one for somebody else.
func knownBad(err error) bool {
	var e *agefile.EncryptedError
	return errors.Is(err, bundle.ErrDamaged) || errors.Is(err, bundle.ErrUnsupported) || errors.As(err, &e)
}

func TestDamagedAgeFileIsNamed(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	key := newKey(t)
	data := readFile(t, encryptedTo(t, b, key.Recipient()))
	flipped := bytes.Clone(data)
	flipped[len(data)-100_000] ^= 1
	open := func(data []byte) error {
		r, err := bundle.NewReaderWith(bytes.NewReader(data), int64(len(data)), keysOf(key))
		if err == nil {
			_, err = r.Verify(t.Context(), bundle.VerifyOptions{})
		}
		return err
	}
	pipe := func(data []byte) error {
		_, err := bundle.VerifyStream(t.Context(), agefile.Decrypt(bytes.NewReader(data), keysOf(key)),
			bundle.VerifyOptions{})
		return err
	}
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"cut":                {open(data[:len(data)-9000]), "the age file is damaged or cut"},
		"cut, pipe":          {pipe(data[:len(data)-9000]), "the age file is damaged or cut"},
		"flipped":            {open(flipped), "the age file is damaged or cut"},
		"flipped, pipe":      {pipe(flipped), "the age file is damaged or cut"},
		"cut header":         {open(data[:60]), "the header of the age file is damaged, cut or not valid"},
		"cut header, pipe":   {pipe(data[:60]), "the header of the age file is damaged, cut or not valid"},
		"cut at first chunk": {open(data[:210]), "the age file is damaged or cut"},
	} {
		if !errors.Is(c.err, bundle.ErrDamaged) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", what, c.err, c.want)
		}
	}
	broken := errors.New("the disk is broken")
	_, err := bundle.NewReaderWith(failing{bytes.NewReader(data), broken}, int64(len(data)), keysOf(key))
	if !errors.Is(err, broken) || errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("an error of the disk: %v", err)
	}
}

// failing fails after the header.
type failing struct {
	r   io.ReaderAt
	err error
}

func (f failing) ReadAt(b []byte, off int64) (int, error) {
	if off > 4096 {
		return 0, f.err
	}
	return f.r.ReadAt(b, off)
}

// TestHostileAgeHeader opens headers that ask for much work.
func TestHostileAgeHeader(t *testing.T) {
	t.Parallel()
	id, recipient := passphrase(t, "p")
	key := newKey(t)
	file := func(r age.Recipient) string {
		var b bytes.Buffer
		w, err := age.Encrypt(&b, r)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	scrypt, plain := file(recipient), file(key.Recipient())
	var armored bytes.Buffer
	w := armor.NewWriter(&armored)
	if _, err := io.WriteString(w, plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	stanza := plain[strings.Index(plain, "->"):strings.Index(plain, "---")]
	for what, c := range map[string]struct{ data, want string }{
		"work factor": {strings.Replace(scrypt, " 10\n", " 30\n", 1), "work factor too large"},
		"many stanzas": {
			strings.Replace(plain, stanza, strings.Repeat(stanza, 1025), 1),
			"more than 1024 recipient stanzas",
		},
		"a large stanza": {strings.Replace(plain, stanza, "-> X "+strings.Repeat("a", 3<<20)+"\n", 1), "exceeds 2 MiB"},
		"no end":         {"age-encryption.org/v1\n-> " + strings.Repeat("a", 3<<20), "exceeds 2 MiB"},
		"no bundle":      {plain, "unexpected end"},
		"version 2":      {strings.Replace(plain, "v1", "v2", 1), "another version of the age format"},
		"armored":        {armored.String(), "ASCII armor"},
	} {
		_, err := bundle.NewReaderWith(strings.NewReader(c.data), int64(len(c.data)), keysOf(id, key))
		if err == nil || !strings.Contains(err.Error(), c.want) && what != "no bundle" {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
		_, err = bundle.NewStream(t.Context(), agefile.Decrypt(strings.NewReader(c.data), keysOf(id, key)), 0)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: from a pipe: got %v, want %q", what, err, c.want)
		}
	}
}

func TestEncryptedParts(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	want := b.Bundle().Reader.Digest()
	key := newKey(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "x.kkb.age")
	many := slices.Repeat([]age.Recipient{key.Recipient()}, 250) // a header of 25 KB: places in file and content differ
	sum, err := bundle.Create(t.Context(), path, b.Cache, b.Index,
		bundle.WriteOptions{PartSize: 150_000, Recipients: many})
	if err != nil {
		t.Fatal(err)
	}
	var joined []byte
	for i := range sum.Parts {
		data := readFile(t, parts.Name(path, i+1))
		joined = append(joined, data...)
	}
	content, err := age.Decrypt(bytes.NewReader(joined), key)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(content); err != nil || int64(len(joined)) != sum.Size || sum.Parts < 4 {
		t.Errorf("%d parts of %d bytes with %d bytes of content: %v; the summary says %d bytes", sum.Parts, len(joined),
			len(plain), err, sum.Size)
	}
	for _, name := range []string{path, parts.Name(path, 2), path + ".parts.json"} {
		if got := verified(t, name, keysOf(key)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	_, err = bundle.Open(path)
	wantEncrypted(t, err, "to 250 recipients (X25519), and no identity was given", "--identity")

	// A missing or damaged part is named.
	second := parts.Name(path, 2)
	data := readFile(t, second)
	data[30_000] ^= 1
	if err := os.WriteFile(second, data, 0o600); err != nil {
		t.Fatal(err)
	}
	verifyNames(t, path, key, filepath.Base(second))
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	verifyNames(t, path, key, filepath.Base(second))
}

// verifyNames checks that the bundle opens, and that its damage names the part.
func verifyNames(t *testing.T, path string, key age.Identity, part string) {
	t.Helper()
	r, err := bundle.OpenWith(path, keysOf(key))
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); !errors.Is(err, bundle.ErrDamaged) ||
		!strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want damage in %s", err, part)
	}
}

// TestEncryptedTailInLastPart opens a bundle whose last part is small, without the part before it.
func TestEncryptedTailInLastPart(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	key := newKey(t)
	o := bundle.WriteOptions{Recipients: []age.Recipient{key.Recipient()}}
	whole := readFile(t, encrypted(t, b, o))
	const header, chunk = 1000, 64<<10 + 16
	path := filepath.Join(t.TempDir(), "x.kkb.age")
	last := len(whole) - 2*chunk - 5
	for i, data := range [][]byte{whole[:header+2*chunk], whole[header+2*chunk : last], whole[last:]} {
		if i == 1 {
			continue
		}
		if err := os.WriteFile(parts.Name(path, i+1), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := parts.List{
		{Size: header + 2*chunk},
		{Size: int64(last - header - 2*chunk)},
		{Size: int64(len(whole) - last)},
	}
	if err := os.WriteFile(path+parts.ListSuffix, list.Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.OpenWith(path, keysOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestEncryptedConcurrently reads blobs from several goroutines.
func TestEncryptedConcurrently(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	key := newKey(t)
	r, err := bundle.OpenWith(encryptedTo(t, b, key.Recipient()), keysOf(key))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for _, d := range r.Blobs() {
				if _, err := r.ReadBlob(context.Background(), d.Digest, 1<<20); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	before, err := r.Stamp()
	if after, err2 := r.Stamp(); err != nil || err2 != nil || before != after || before == (bundle.Stamp{}) {
		t.Errorf("stamps %v and %v: %v, %v", before, after, err, err2)
	}
}

// TestRememberedKey reads a bundle that was encrypted to somebody else, and to a passphrase.
func TestRememberedKey(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	_, secret := passphrase(t, "p")
	for _, to := range [][]age.Recipient{{newKey(t).Recipient(), newKey(t).Recipient()}, {secret}} {
		recipients, keys := agefile.Remember(to)
		verified(t, encryptedTo(t, b, recipients...), keys)
	}
	if recipients, keys := agefile.Remember(nil); len(recipients) != 0 || keys != nil {
		t.Error("without recipients, nothing is encrypted")
	}
}

// TestPassphraseIsAlone: age refuses a passphrase beside another recipient, and so does a bundle.
func TestPassphraseIsAlone(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	_, secret := passphrase(t, "p")
	dir := t.TempDir()
	for what, to := range map[string][]age.Recipient{
		"mixed": {secret, newKey(t).Recipient()}, "many": slices.Repeat([]age.Recipient{newKey(t).Recipient()}, 257),
	} {
		recipients, _ := agefile.Remember(to)
		if _, err := bundle.Create(t.Context(), filepath.Join(dir, "x"), b.Cache, b.Index,
			bundle.WriteOptions{Recipients: recipients}); err == nil {
			t.Errorf("%s: was written", what)
		}
	}
	isEmpty(t, dir)
}

// TestEncryptedNotFinished ends a write in the middle: nothing is left, and what went to a stream has no valid end.
func TestEncryptedNotFinished(t *testing.T) {
	t.Parallel()
	b := encryptedBuilder(t)
	key := newKey(t)
	for _, size := range []int64{0, 150_000} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		o := bundle.WriteOptions{
			PartSize: size, Recipients: []age.Recipient{key.Recipient()},
			Progress: func(done, _ int64) {
				if done > 200_000 {
					cancel()
				}
			},
		}
		if _, err := bundle.Create(ctx, filepath.Join(dir, "x.kkb.age"), b.Cache, b.Index, o); !errors.Is(err,
			context.Canceled) {
			t.Errorf("got %v", err)
		}
		isEmpty(t, dir)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	o := bundle.WriteOptions{Recipients: []age.Recipient{key.Recipient()}, Progress: func(done, _ int64) {
		if done > 200_000 {
			cancel()
		}
	}}
	if _, err := bundle.Write(ctx, &out, b.Cache, b.Index, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	content, err := age.Decrypt(&out, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(content); err == nil {
		t.Error("the beginning of a bundle is a whole age file")
	}
	full := errors.New("the disk is full")
	if _, err := bundle.Write(t.Context(), &failAfter{300_000, full}, b.Cache, b.Index,
		bundle.WriteOptions{Recipients: o.Recipients}); !errors.Is(err, full) {
		t.Errorf("got %v, want the error of the writer", err)
	}
}

// failAfter fails after n bytes.
type failAfter struct {
	n   int
	err error
}

func (f *failAfter) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, f.err
	}
	return len(b), nil
}

func isEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
