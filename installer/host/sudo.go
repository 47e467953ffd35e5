package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
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

// elevate finds out how commands become root on a machine: directly, with sudo without a password, or with one. A wrong
// password is tried once.
func (m *machine) elevate(ctx context.Context, password Secret) error {
	uid, err := m.uid(ctx)
	if err != nil || uid == "0" {
		return err
	}
	m.root.sudo = true
	// Without -k sudo could succeed now because of an earlier login, and fail in an hour.
	_, err = Output(ctx, m.as(elevation{user: m.root.user}), "sudo", "-n", "-k", "--", "true")
	var exit *ExitError
	switch {
	case err == nil:
	case !errors.As(err, &exit):
		return err
	case password == nil:
		return &SudoError{Host: m.name, User: m.root.user, Reason: "a password is needed and none is given", Said: oneLine(exit.Stderr)}
	default:
		m.root.password = password
	}
	uid, err = m.uid(ctx)
	if err == nil && uid != "0" {
		return &SudoError{Host: m.name, User: m.root.user, Reason: "commands run with user id " + uid + " and not as root"}
	}
	return err
}

// as returns the machine with another elevation.
func (m *machine) as(e elevation) *machine { return &machine{name: m.name, start: m.start, root: e} }

func (m *machine) uid(ctx context.Context) (string, error) {
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
