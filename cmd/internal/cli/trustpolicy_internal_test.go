package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

// A trustWorld is a machine with trust files, and a signed bundle's index.
type trustWorld struct {
	t     *testing.T
	dir   string
	index bundle.Index
	log   strings.Builder
	g     *globals
}

// newTrustWorld has the keys ours, theirs, and the homes /home/me and /home/root below its directory.
func newTrustWorld(t *testing.T) *trustWorld {
	t.Helper()
	w := &trustWorld{t: t, dir: t.TempDir(), index: bundle.Index{
		Name: "app", Version: "1.0",
		Platforms: []string{"linux/amd64"},
	}}
	w.again()
	return w
}

// again begins another process.
func (w *trustWorld) again() {
	w.log.Reset()
	w.g = &globals{Console: terminal.NewConsole(terminal.Streams{
		In: strings.NewReader(""), Out: io.Discard,
		Err: &w.log,
	})}
	w.g.trust.places = &trustPlaces{
		machine: filepath.Join(w.dir, "etc", "trust.yaml"),
		home: func(user string) (string, error) {
			if user == "" {
				user = "root"
			}
			return filepath.Join(w.dir, "home", user), nil
		},
	}
}

// write puts a file below the directory.
func (w *trustWorld) write(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// signer makes a key, writes its public half, and returns its signature of the index.
func (w *trustWorld) signer(public string) []byte {
	w.t.Helper()
	s, err := trusttest.New("ed25519")
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(public, string(s.PEM))
	artifact, err := w.index.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	signature, err := s.MessageBundle(artifact)
	if err != nil {
		w.t.Fatal(err)
	}
	return signature
}

// check is checkSignatures for the bundle with these signatures beside it.
func (w *trustWorld) check(signatures ...[]byte) error {
	var files []string
	for i := range signatures {
		files = append(files, string(rune('0'+i)))
	}
	_, err := w.g.checkSignatures(signaturesOf{
		name: "app.kkb", none: "there is none",
		list: func() ([]string, error) { return files, nil },
		read: func(file string) ([]byte, error) { return signatures[file[0]-'0'], nil },
	}, w.index)
	return err
}

const policyHead = "apiVersion: kkbundle.io/v1\nkind: Trust\n"

// TestMachinePolicy checks that neither flags nor the user's files take back a demand of the machine's trust file.
func TestMachinePolicy(t *testing.T) {
	t.Setenv(envTrust, "")
	if err := os.Unsetenv(envTrust); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	w := newTrustWorld(t)
	t.Setenv("HOME", filepath.Join(w.dir, "home", "root"))
	ours, theirs := w.signer("etc/ours.pub"), w.signer("theirs.pub")
	flag := filepath.Join(w.dir, "theirs.pub")
	refused := func(what string, err error) {
		t.Helper()
		var e *signatureError
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
		w.again()
	}
	accepted := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		w.again()
	}
	accepted("no policy", w.check())

	w.write("etc/trust.yaml", policyHead+"require: true\nkeys: [ours.pub]\n")
	refused("unsigned", w.check())
	refused("by another key", w.check(theirs))
	accepted("by the machine's key", w.check(ours))
	accepted("by both keys", w.check(theirs, ours))

	w.g.trust.keys = []string{flag}
	refused("by the flag's key alone", w.check(theirs))
	w.g.trust.keys = []string{flag}
	refused("by the machine's key, not by the flag's", w.check(ours))
	w.g.trust.keys = []string{flag}
	accepted("by the machine's and the flag's", w.check(ours, theirs))

	w.write("home/root/.config/kkbundle/trust.yaml", policyHead+"keys: ["+flag+"]\n")
	refused("by the user's key alone", w.check(theirs))
	w.write("home/root/.config/kkbundle/trust.yaml", policyHead+"require: false\nkeys: ["+flag+"]\n")
	refused("the user's file requires nothing", w.check())
	t.Setenv(envTrust, flag)
	refused("by the variable's key", w.check(theirs))
	t.Setenv(envTrust, "")
	refused("an empty variable", w.check())

	w.write("etc/trust.yaml", policyHead+"keys: [ours.pub]\n")
	t.Setenv(envTrust, flag)
	accepted("keys of machine and user, nothing demanded", w.check(theirs))
	accepted("keys of machine and user, nothing demanded", w.check(ours))
	w.write("etc/trust.yaml", policyHead+"require: true\n")
	if err := w.check(ours); err == nil || !strings.Contains(err.Error(), "require: true without keys") {
		t.Errorf("a demand without keys: %v", err)
	}
	w.write("etc/trust.yaml", policyHead+"requires: true\n")
	if err := w.check(ours); err == nil || exitCode(err) != 10 {
		t.Errorf("a machine's file that is no policy: %v", err)
	}
	if err := os.Remove(filepath.Join(w.dir, "etc", "trust.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(w.dir, "etc", "trust.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.check(ours); err == nil {
		t.Error("a machine's file that cannot be read")
	}
}

// TestTrustWithoutHome: without $HOME the user's file is found by the user database, and if that fails too it is said.
func TestTrustWithoutHome(t *testing.T) {
	t.Setenv(envTrust, "")
	if err := os.Unsetenv(envTrust); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	w := newTrustWorld(t)
	other := w.signer("other.pub")
	w.signer("home/root/.config/kkbundle/trust.pem")
	var e *signatureError
	if err := w.check(other); !errors.As(err, &e) {
		t.Errorf("the user's file was not read: %v", err)
	}
	w.again()
	w.g.Quiet = true
	w.g.trust.places.home = func(string) (string, error) { return "", errors.New("no such user") }
	if err := w.check(other); err != nil || !strings.Contains(w.log.String(), "your trust file was not read") {
		t.Errorf("%v, %q", err, w.log.String())
	}
}

// TestTrustUnderSudo says which files count, and which file of the caller does not.
func TestTrustUnderSudo(t *testing.T) {
	t.Setenv(envTrust, "")
	if err := os.Unsetenv(envTrust); err != nil {
		t.Fatal(err)
	}
	w := newTrustWorld(t)
	t.Setenv("HOME", filepath.Join(w.dir, "home", "root"))
	t.Setenv("XDG_CONFIG_HOME", "")
	ours := w.signer("etc/ours.pub")
	w.write("etc/trust.yaml", policyHead+"keys: [ours.pub]\n")
	w.signer("home/me/.config/kkbundle/trust.pem")
	w.g.trust.places.sudoer = "me"
	for range 2 {
		if err := w.check(ours); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"run by sudo: signatures are checked as " +
		filepath.Join(w.dir, "etc", "trust.yaml") + " says\n", "/home/me/.config/kkbundle/trust.pem was not read"} {
		if strings.Count(w.log.String(), want) != 1 {
			t.Errorf("the log lacks %q, or repeats it: %q", want, w.log.String())
		}
	}
	w.again()
	w.g.trust.places.sudoer = "me"
	t.Setenv("HOME", filepath.Join(w.dir, "home", "me")) // sudo may keep it
	if err := w.check(ours); err != nil || strings.Contains(w.log.String(), "was not read") {
		t.Errorf("%v, %q", err, w.log.String())
	}
}
