package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// An AuthError means the host rejected all our credentials.
type AuthError struct {
	User string
	// Tried lists the offered credentials, such as "key ~/.ssh/id_ed25519" or "password".
	Tried []string
	// Err is the reason that a credential could not be offered, such as a wrong passphrase; it may be nil.
	Err error
}

// Error names the user and the tried credentials.
func (e *AuthError) Error() string {
	text := "log in as " + e.User + ": nothing to log in with"
	if len(e.Tried) > 0 {
		text = "log in as " + e.User + ": refused (tried " + strings.Join(e.Tried, ", ") + ")"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the reason that a credential could not be offered.
func (e *AuthError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *AuthError) Hint() string {
	return "set ssh.user and one of ssh.key, ssh.passwordEnv and ssh.passwordFile in the inventory, or load the key into an SSH agent"
}

// An authentication is one attempt to log in. It lives as long as a handshake.
type authentication struct {
	ctx     context.Context //nolint:containedctx // callbacks of x/crypto/ssh get none
	options SSHOptions
	limit   *deadline
	agent   net.Conn
	// answered means that the password has been sent.
	answered bool

	mu     sync.Mutex
	tried  []string
	failed []error
}

func (a *authentication) close() {
	if a.agent != nil {
		_ = a.agent.Close()
	}
}

// methods returns the authentication methods. x/crypto/ssh uses one of each kind, so all keys are one method.
func (a *authentication) methods() []ssh.AuthMethod {
	methods := []ssh.AuthMethod{ssh.PublicKeysCallback(a.signers)}
	if a.options.Password != nil {
		methods = append(methods, ssh.PasswordCallback(func() (string, error) { return a.password("password") }),
			ssh.KeyboardInteractive(a.interactive))
	}
	return methods
}

// password fetches the password; the time that a person takes to type it does not count.
func (a *authentication) password(method string) (string, error) {
	a.limit.stop()
	defer a.limit.restart()
	value, err := a.options.Password(a.ctx)
	a.record(method, err)
	return value, err
}

// interactive answers PAM's questions: once, with the password, to a question without echo. Other questions, such as
// for a second factor or a new password, cannot be answered.
func (a *authentication) interactive(_, instruction string, questions []string, echos []bool) ([]string, error) {
	answers := make([]string, len(questions))
	for i, question := range questions {
		if echos[i] || a.answered || wantsNewPassword(instruction+question) {
			err := fmt.Errorf("the host asks %q", plain.Strip(strings.TrimSpace(instruction+" "+question)))
			if wantsNewPassword(instruction + question) {
				err = errPasswordExpired
			}
			a.record("keyboard-interactive", err)
			return nil, err
		}
		value, err := a.password("keyboard-interactive")
		if err != nil {
			return nil, err
		}
		answers[i], a.answered = value, true
	}
	return answers, nil
}

var errPasswordExpired = errors.New("the password has expired: log in by hand and set a new one")

// wantsNewPassword reports whether PAM demands a change of an expired password.
func wantsNewPassword(said string) bool {
	said = strings.ToLower(said)
	signs := []string{
		"new password", "new unix password", "current password", "password has expired",
		"password expired",
	}
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(said, sign) })
}

func (a *authentication) record(tried string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.tried, tried) {
		a.tried = append(a.tried, tried)
	}
	if err != nil {
		a.failed = append(a.failed, err)
	}
}

// signers returns the keys of the options, followed by the agent's.
func (a *authentication) signers() ([]ssh.Signer, error) {
	held := a.agentSigners()
	var signers []ssh.Signer
	for _, key := range a.options.KeyData {
		s, err := a.given(key)
		a.record("the key given", err)
		if err == nil {
			signers = append(signers, s)
		}
	}
	for _, path := range a.options.Keys {
		s, err := a.signer(path, held)
		if err != nil {
			a.record("key "+path, err)
			continue
		}
		a.record("key "+path, nil)
		signers = append(signers, s)
	}
	for _, s := range held {
		if !holds(signers, s.PublicKey()) {
			a.record("agent", nil)
			signers = append(signers, s)
		}
	}
	return signers, nil
}

func holds(signers []ssh.Signer, key ssh.PublicKey) bool {
	return slices.ContainsFunc(signers, func(s ssh.Signer) bool {
		return bytes.Equal(s.PublicKey().Marshal(), key.Marshal())
	})
}

func (a *authentication) agentSigners() []ssh.Signer {
	if a.options.AgentSocket == "" {
		return nil
	}
	var d net.Dialer
	conn, err := d.DialContext(a.ctx, "unix", a.options.AgentSocket)
	if err != nil {
		a.record("agent", fmt.Errorf("SSH agent: %w", err))
		return nil
	}
	a.agent = conn
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		a.record("agent", fmt.Errorf("SSH agent: %w", err))
	}
	return signers
}

// given parses a private key that does not come from a file.
func (a *authentication) given(key Secret) (ssh.Signer, error) {
	pem, err := key(a.ctx)
	if err != nil {
		return nil, err
	}
	s, err := ssh.ParsePrivateKey([]byte(pem))
	if err != nil {
		return nil, fmt.Errorf("the key given is not a private key, or has a passphrase: %w", err)
	}
	return s, nil
}

// maxKeyFile is far above the largest private key.
const maxKeyFile = 64 << 10

// signer reads a private key. If it has a passphrase and the agent holds the key, the agent signs instead of asking a
// person.
func (a *authentication) signer(path string, held []ssh.Signer) (ssh.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is not a private key", path)
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return s, nil
	case !errors.As(err, &locked):
		return nil, fmt.Errorf("%s is not a private key: %w", path, err)
	}
	if locked.PublicKey != nil {
		for _, s := range held {
			if bytes.Equal(s.PublicKey().Marshal(), locked.PublicKey.Marshal()) {
				return s, nil
			}
		}
	}
	return a.unlock(path, pem)
}

func (a *authentication) unlock(path string, pem []byte) (ssh.Signer, error) {
	if a.options.Passphrase == nil {
		return nil, fmt.Errorf("%s has a passphrase: load the key into an SSH agent, or give the passphrase", path)
	}
	a.limit.stop()
	defer a.limit.restart()
	passphrase, err := a.options.Passphrase(a.ctx, path)
	if err != nil {
		return nil, fmt.Errorf("passphrase of %s: %w", path, err)
	}
	s, err := ssh.ParsePrivateKeyWithPassphrase(pem, []byte(passphrase))
	if err != nil {
		return nil, fmt.Errorf("%s: the passphrase is wrong", path)
	}
	return s, nil
}

// explain returns the reason of a handshake that failed at the login.
func (a *authentication) explain(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := a.failed
	// x/crypto/ssh has no types for these. The second is SSH_MSG_USERAUTH_FAILURE (RFC 4252, section 6) before the
	// first question of keyboard-interactive: sshd with UsePAM no refuses that method in this way, after it refused
	// the password.
	tooMany := strings.Contains(strings.ToLower(err.Error()), "too many authentication failures")
	asksNothing := strings.Contains(err.Error(), "unexpected message type 51 ")
	if tooMany {
		failed = append(failed, errors.New("the host allows no more attempts: name the right key in the inventory"))
	}
	if tooMany || asksNothing || strings.Contains(err.Error(), "unable to authenticate") || len(failed) > 0 {
		return &AuthError{User: a.options.User, Tried: a.tried, Err: errors.Join(failed...)}
	}
	return fmt.Errorf("SSH handshake: %w", err)
}
