package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// An elevation is the way for commands to become root.
type elevation struct {
	user string
	sudo bool
	// password is sudo's password; nil if sudo requires none.
	password Secret
}

// prefix returns the words before a command. sudo -k asks for the password each time, regardless of the host's cache:
// the prompt must not depend on earlier commands.
func (e elevation) prefix(prompt string) []string {
	switch {
	case !e.sudo:
		return nil
	case e.password == nil:
		return []string{"env", "LC_ALL=C", "sudo", "-n", "--"}
	default:
		return []string{"env", "LC_ALL=C", "sudo", "-S", "-k", "-p", prompt, "--"}
	}
}

// answer gives sudo the password. It is called only after sudo's prompt, and nothing else is written before the command
// has started: so the command cannot read the password, and sudo cannot read the command's input.
func (e elevation) answer(ctx context.Context, stdin io.Writer) error {
	password, err := e.password(ctx)
	if err != nil {
		return err
	}
	if strings.ContainsAny(password, "\n\x00") {
		return errors.New("a password cannot contain a line break or a zero byte")
	}
	_, err = io.WriteString(stdin, password+"\n")
	return err
}

// firstTimeout is the time limit for each of the first commands on a host. They are instant on a working one.
const firstTimeout = 20 * time.Second

// A SlowError means a host hangs: a command that is instant on a working host did not end.
type SlowError struct{ Limit time.Duration }

// Error names the time limit.
func (e *SlowError) Error() string { return fmt.Sprintf("no result within %s", e.Limit) }

// Hint returns the remedy.
func (e *SlowError) Hint() string {
	return "the host hangs: check its load, memory and disks, and its login scripts"
}

// within bounds a command on a host.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &SlowError{limit})
}

// notFoundCode is env's exit code for a missing program.
const notFoundCode = 127

// elevate finds out how commands become root on a machine: directly, with sudo without a password, or with one. A wrong
// password is tried once.
func (m *machine) elevate(ctx context.Context, password Secret) error {
	uid, err := m.uid(ctx)
	if slow := new(SlowError); errors.As(err, &slow) {
		return fmt.Errorf("login succeeded, but the server refused to run commands: %w", slow)
	}
	if err != nil || uid == "0" {
		return err
	}
	m.root.sudo = true
	if err := m.trySudo(ctx); err != nil {
		var sudo *SudoError
		if !errors.As(err, &sudo) || sudo.Reason != noPassword || password == nil {
			return err
		}
		m.root.password = password
		if _, err := password(ctx); err != nil { // outside of the time limit, because a person may take long to type it
			return fmt.Errorf("%s: password for sudo: %w", m.name, err)
		}
	}
	uid, err = m.uid(ctx)
	if err == nil && uid != "0" {
		return &SudoError{Host: m.name, User: m.root.user, Reason: "commands run with user id " + uid +
			" and not as root"}
	}
	return err
}

// noPassword is the reason whose remedy is a password.
const noPassword = "a password is needed and none is given"

// trySudo checks whether sudo works without a password. Without -k it could succeed now because of an earlier login,
// and fail in an hour.
func (m *machine) trySudo(ctx context.Context) error {
	ctx, cancel := within(ctx, m.patience)
	defer cancel()
	_, err := Output(ctx, m.as(elevation{user: m.root.user}), "sudo", "-n", "-k", "--", "true")
	var exit *ExitError
	var slow *SlowError
	switch {
	case errors.As(err, &slow):
		return &SudoError{Host: m.name, User: m.root.user, Reason: slow.Error()}
	case errors.As(err, &exit) && exit.Code == notFoundCode:
		return &SudoError{
			Host: m.name, User: m.root.user, Reason: "there is none on the host",
			remedy: "install sudo on the host, or log in as root",
		}
	case errors.As(err, &exit):
		return m.sudoError(noPassword, exit.Stderr)
	}
	return err
}

// A sudoProblem maps a message of sudo to its meaning.
type sudoProblem struct{ said, reason, remedy string }

// sudoProblems are sudo's messages under LC_ALL=C.
func sudoProblems() []sudoProblem {
	return []sudoProblem{
		{
			"must have a tty", "it wants a terminal (requiretty)",
			"add `Defaults !requiretty` to the host's sudoers file (visudo), or log in as root",
		},
		{"not in the sudoers file", "the user may not use it", ""},
		{"is not allowed to execute", "the user may not run every command with it", ""},
		{"password is expired", "the user's password has expired", "log in by hand and set a new password"},
		{"your account locked", "the user's account is locked", "unlock the account, or log in as another user"},
		{"no new privileges", "sudo cannot work in this session", "log in as root"},
		{
			"installed setuid root", "sudo is not configured for this user",
			"install sudo on the host again, see that its filesystem is not mounted nosuid, or log in as root",
		},
	}
}

// sudoError returns the error for a sudo that did not run a command. Its message tells more than its exit code.
func (m *machine) sudoError(reason, said string) *SudoError {
	e := &SudoError{Host: m.name, User: m.root.user, Reason: reason, Said: clip(oneLine(plain.Strip(said)))}
	all := sudoProblems()
	if i := slices.IndexFunc(all, func(p sudoProblem) bool { return strings.Contains(said, p.said) }); i >= 0 {
		e.Reason, e.remedy = all[i].reason, all[i].remedy
	}
	return e
}

// as returns the machine with another elevation.
func (m *machine) as(e elevation) *machine {
	return &machine{name: m.name, start: m.start, root: e, patience: m.patience}
}

func (m *machine) uid(ctx context.Context) (string, error) {
	ctx, cancel := within(ctx, m.patience)
	defer cancel()
	out, err := Output(ctx, m, "id", "-u")
	if err != nil {
		return "", err
	}
	uid := strings.TrimSpace(string(out))
	if uid == "" || strings.Trim(uid, "0123456789") != "" {
		return "", fmt.Errorf("%s: id -u printed %q", m.name, oneLine(uid))
	}
	return uid, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// remember returns a Secret that is fetched once for any number of connections. A failure is not cached.
func remember(s Secret) Secret {
	if s == nil {
		return nil
	}
	var (
		mu    sync.Mutex
		known bool
		value string
	)
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if known {
			return value, nil
		}
		v, err := s(ctx)
		if err != nil {
			return "", err
		}
		known, value = true, v
		return v, nil
	}
}
