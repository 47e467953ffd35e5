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

	"github.com/kkbundle/kkbundle/plain"
)

// An elevation is how commands become root.
type elevation struct {
	user string
	sudo bool
	// password is what sudo asks for; nil if it asks for none.
	password Secret
}

// prefix returns what stands before a command. sudo -k asks for the password each time, whatever the host remembers:
// whether one is asked for must not depend on what ran before.
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

// answer gives sudo the password. It is called only after sudo has asked, and nothing else is written before the
// command has started: so the command cannot read the password, and sudo cannot read the command's input.
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

// firstTimeout is how long each of the first commands on a host may take. They take no time on one that works.
const firstTimeout = 20 * time.Second

// A SlowError is a host that hangs: something that takes no time on one that works did not come to an end.
type SlowError struct{ Limit time.Duration }

// Error says how long was waited.
func (e *SlowError) Error() string { return fmt.Sprintf("nothing came of it within %s", e.Limit) }

// Hint says what to do about it.
func (e *SlowError) Hint() string {
	return "the host hangs: look at its load, memory and disks, and at what its login scripts wait for"
}

// within gives what a host is asked an end.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &SlowError{limit})
}

// notFoundCode is what env ends with when there is no such program.
const notFoundCode = 127

// elevate finds out how commands become root on a machine: directly, with sudo without a password, or with one. A wrong
// password is tried once.
func (m *machine) elevate(ctx context.Context, password Secret) error {
	uid, err := m.uid(ctx)
	if slow := new(SlowError); errors.As(err, &slow) {
		return fmt.Errorf("it let us in but ran no command: %w", slow)
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
		if _, err := password(ctx); err != nil { // now, because a person may take long to type it
			return fmt.Errorf("%s: password for sudo: %w", m.name, err)
		}
	}
	uid, err = m.uid(ctx)
	if err == nil && uid != "0" {
		return &SudoError{Host: m.name, User: m.root.user, Reason: "commands run with user id " + uid + " and not as root"}
	}
	return err
}

// noPassword is the reason that a password is the remedy for.
const noPassword = "a password is needed and none is given"

// trySudo tells whether sudo works without a password. Without -k it could now, because of an earlier login, and fail in
// an hour.
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
		return &SudoError{Host: m.name, User: m.root.user, Reason: "there is none on the host", remedy: "install sudo on the host, or log in as root"}
	case errors.As(err, &exit):
		return m.sudoError(noPassword, exit.Stderr)
	}
	return err
}

// A sudoProblem is something that sudo says, and what it means.
type sudoProblem struct{ said, reason, remedy string }

// sudoProblems are what sudo says under LC_ALL=C.
func sudoProblems() []sudoProblem {
	return []sudoProblem{
		{"must have a tty", "it wants a terminal (requiretty)", "add `Defaults !requiretty` to the host's sudoers file (visudo), or log in as root"},
		{"not in the sudoers file", "the user may not use it", ""},
		{"is not allowed to execute", "the user may not run every command with it", ""},
		{"password is expired", "the user's password has expired", "log in by hand and set a new password"},
		{"your account locked", "the user's account is locked", "unlock the account, or log in as another user"},
		{"no new privileges", "it cannot become root in this session", "log in as root"},
		{"installed setuid root", "it is not set up to become root", "install sudo on the host again, see that its filesystem is not mounted nosuid, or log in as root"},
	}
}

// sudoError makes the error of a sudo that did not run a command. What it said tells more than how it ended.
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

// remember makes a Secret that is fetched once, whatever number of connections asks for it. A failure is not kept.
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
