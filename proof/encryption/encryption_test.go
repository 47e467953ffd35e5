package encryption_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/proof/encryption"
)

func TestGenerate(t *testing.T) {
	t.Parallel()
	file, public, err := encryption.Generate(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if want := "# created: 2026-11-22T10:00:00Z\n# public key: " + public +
		"\nAGE-SECRET-KEY-1"; !strings.HasPrefix(string(file), want) || !bytes.HasSuffix(file, []byte("\n")) {
		t.Error("not the form of age-keygen")
	}
	ids, err := encryption.ParseIdentities(file, nil, nobody(t))
	if err != nil || len(ids) != 1 {
		t.Fatalf("%d identities, %v", len(ids), err)
	}
	if got := ids[0].(*age.X25519Identity).Recipient().String(); got != public {
		t.Errorf("public key %s, want %s", got, public)
	}
}

// nobody fails the test when it is asked.
func nobody(t *testing.T) func() (string, error) {
	return func() (string, error) {
		t.Error("asked for a passphrase")
		return "", errors.New("nobody is here")
	}
}

func answer(text string) func() (string, error) {
	return func() (string, error) { return text, nil }
}

func TestParseRecipients(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	public := key.Recipient().String()
	const ed = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN me@here"
	for text, want := range map[string]int{
		public + "\n": 1, "# one\n\n" + public + "\r\n  " + ed: 2, hybrid.Recipient().String(): 1,
	} {
		if got, err := encryption.ParseRecipients([]byte(text)); err != nil || len(got) != want {
			t.Errorf("%q: %d recipients, %v; want %d", text, len(got), err, want)
		}
	}
	for text, want := range map[string]string{
		"":                         "no public key in the file",
		"# nothing\n":              "no public key in the file",
		"# a\n" + key.String():     "line 2: a private key is not a recipient: give its public key",
		public[:len(public)-1]:     "line 1: not a valid age public key",
		"age1yubikey1qqqqqq":       "line 1: not a valid age public key; keys of age plugins are not supported",
		"ssh-ed25519 AAAA":         "line 1: not a valid SSH public key",
		"/home/me/key.pub":         "line 1: not a public key",
		"ssh-rsa " + smallRSA(t):   "line 1: SSH key: RSA key size is too small",
		"-----BEGIN OPENSSH PRIVA": "a private key is not a recipient",
	} {
		_, err := encryption.ParseRecipients([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if err != nil && (strings.Contains(err.Error(), key.String()) ||
			strings.Contains(strings.ToUpper(err.Error()), "SECRET-KEY")) {
			t.Error("the error has the private key")
		}
	}
}

// smallRSA is an RSA key of 1024 bits, which age refuses.
func smallRSA(t *testing.T) string {
	t.Helper()
	wire := ssh.Marshal(struct {
		Type string
		E    []byte
		N    []byte
	}{"ssh-rsa", []byte{1, 0, 1}, append([]byte{0}, bytes.Repeat([]byte{0xc3}, 128)...)})
	key, err := ssh.ParsePublicKey(wire)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(ssh.MarshalAuthorizedKey(key)))[1]
}

// TestProtectedIdentityFile reads an identity file that age encrypted with a passphrase, binary and in ASCII armor.
func TestProtectedIdentityFile(t *testing.T) {
	t.Parallel()
	file, _, err := encryption.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := age.NewScryptRecipient("p")
	if err != nil {
		t.Fatal(err)
	}
	secret.SetWorkFactor(10)
	var plain, armored bytes.Buffer
	text := armor.NewWriter(&armored)
	for _, out := range []io.Writer{&plain, text} {
		w, err := age.Encrypt(out, secret)
		if err == nil {
			_, err = w.Write(file)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := text.Close(); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{plain.Bytes(), armored.Bytes()} {
		if ids, err := encryption.ParseIdentities(data, nil, answer("p")); err != nil || len(ids) != 1 {
			t.Errorf("%d identities, %v", len(ids), err)
		}
		if _, err := encryption.ParseIdentities(data, nil, answer("q")); err == nil ||
			!strings.Contains(err.Error(), "passphrase of the identity file is wrong") {
			t.Errorf("got %v", err)
		}
	}
	hostile := bytes.Replace(plain.Bytes(), []byte(" 10\n"), []byte(" 21\n"), 1)
	if _, err := encryption.ParseIdentities(hostile, nil, answer("p")); err == nil ||
		!strings.Contains(err.Error(), "work factor too large") {
		t.Errorf("got %v", err)
	}
}

// TestSSHIdentity asks for the passphrase of an SSH key only if the file is for that key.
func TestSSHIdentity(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("p"))
	if err != nil {
		t.Fatal(err)
	}
	data := pem.EncodeToMemory(block)
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := encryption.ParseRecipient(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	if err != nil {
		t.Fatal(err)
	}
	stanzas, err := recipient.Wrap(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := encryption.ParseIdentities(data, stanzas, answer("p"))
	if err != nil || len(ids) != 1 {
		t.Fatalf("%d identities, %v", len(ids), err)
	}
	if got, err := ids[0].Unwrap(stanzas); err != nil || len(got) != 16 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := encryption.ParseIdentities(data, stanzas, answer("q")); err == nil ||
		!strings.Contains(err.Error(), "passphrase of the SSH private key is wrong") {
		t.Errorf("got %v", err)
	}
	refused := errors.New("nobody is here")
	if _, err := encryption.ParseIdentities(data, stanzas,
		func() (string, error) { return "", refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want the error of the prompt", err)
	}
	if ids, err := encryption.ParseIdentities(data, []*age.Stanza{{Type: "X25519"}}, nobody(t)); err != nil ||
		len(ids) != 1 {
		t.Errorf("%d identities, %v", len(ids), err)
	}
	const old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n" +
		"DEK-Info: AES-128-CBC,00000000000000000000000000000000\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
	const broken = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
	for text, want := range map[string]string{
		broken:     "not a valid SSH private key",
		old:        "ssh-keygen -p -f FILE",
		"anything": "neither an age identity file nor an SSH private key",
	} {
		if _, err := encryption.ParseIdentities([]byte(text), stanzas, nobody(t)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestPassphraseLimitsWork(t *testing.T) {
	t.Parallel()
	id, err := encryption.Passphrase("p")
	if err != nil {
		t.Fatal(err)
	}
	for factor, want := range map[int]string{10: "", 21: "work factor too large", 30: "work factor too large"} {
		stanza := &age.Stanza{
			Type: "scrypt", Args: []string{"AAAAAAAAAAAAAAAAAAAAAA", fmt.Sprint(factor)},
			Body: make([]byte, 32),
		}
		if !encryption.NeedsPassphrase([]*age.Stanza{stanza}) {
			t.Error("no passphrase is needed")
		}
		if _, err := id.Unwrap([]*age.Stanza{stanza}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: got %v, want %q", factor, err, want)
		}
	}
	for _, text := range []string{""} {
		if _, err := encryption.Passphrase(text); err == nil {
			t.Error("an empty passphrase was taken")
		}
		if _, err := encryption.PassphraseRecipient(text); err == nil {
			t.Error("an empty passphrase was taken")
		}
	}
}
