// Package host runs commands as root on one machine, over SSH or locally.
//
// A Host is one method; writing a file, reading one or holding a connection open are functions over it. Commands are
// argument lists: quoting is done here, once, for every shell that a host may have. What a command reads and writes is
// exactly what it gets and what it wrote: text that login scripts print is taken away, and a password for sudo is
// given to sudo alone.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/plain"
)

// A Host runs commands as root on one machine. It is safe for concurrent use. Everything else is a function over it.
type Host interface {
	// String returns the host's name as the operator wrote it.
	fmt.Stringer
	// Run runs a command and waits for its end. The error is nil if it ended with code 0, an *ExitError if it ended
	// otherwise, an *UnreachableError if the host was lost and a *SudoError if the command could not become root. When
	// ctx is done the command and what it started are killed, and the error wraps ctx's. Run does not wait for a Read of
	// cmd.Stdin that is still blocked when the command has ended.
	Run(ctx context.Context, cmd Cmd) error
	// Close ends the connections to the host, and with them the commands that still run over them.
	Close() error
}

// A Cmd is an argument list with its streams; it is never a shell line. Arguments and environment can be seen by every
// user of the host and are logged: secrets go in by Stdin only.
type Cmd struct {
	// Args is the program, a path or a name that is looked up in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin,
	// /sbin and /bin, and its arguments. They can hold any byte but 0.
	Args []string
	// Env has NAME=value entries in addition to LC_ALL=C and PATH; a later entry wins.
	Env []string
	// Stdin is what the command reads; nil is nothing. A ClosableReader is closed when the command does not read any more.
	Stdin io.Reader
	// Stdout and Stderr get what the command writes; nil discards it. They are written to by different goroutines, and
	// not any more once Run has returned.
	Stdout, Stderr io.Writer
}

// A ClosableReader lets who writes to its other end learn that nobody reads any more, as an *io.PipeReader does.
type ClosableReader interface {
	io.Reader
	CloseWithError(err error) error
}

// maxStderr is how much of the end of a command's standard error an ExitError keeps.
const maxStderr = 4 << 10

// An ExitError is a command that ran and did not end with code 0.
type ExitError struct {
	Host string
	Args []string
	// Code is the exit code; 128 and more is a signal, as in a shell.
	Code int
	// Stderr is the end of what the command wrote to its standard error, at most 4 KiB.
	Stderr string
}

// Error names host, command and code, and repeats what the command had to say.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %s: exit code %d", e.Host, commandLine(e.Args), e.Code)
	if said := strings.TrimSpace(e.Stderr); said != "" {
		text += ": " + said
	}
	return text
}

// maxCommandLine bounds a command in an error: scripts are long.
const maxCommandLine = 200

// commandLine shows arguments as a person would type them, on one line.
func commandLine(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = readable(a)
	}
	return clip(strings.Join(words, " "))
}

// clip bounds what is shown of a command, or of what was said about one.
func clip(line string) string {
	if len(line) > maxCommandLine {
		line = strings.ToValidUTF8(line[:maxCommandLine], "") + "…"
	}
	return line
}

func readable(arg string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	if arg != "" && strings.Trim(arg, plain) == "" {
		return arg
	}
	for _, r := range arg {
		if r < ' ' || r == 0x7f {
			return fmt.Sprintf("%q", arg)
		}
	}
	return quote(arg)
}

// An UnreachableError is a host that could not be connected to, or was lost, or refused to let us in: Err may be an
// *AuthError, a *KeyError, an *AlgorithmError, a *BastionError or a *LoginError.
type UnreachableError struct {
	Host string
	// Address is where the host was expected, with its port.
	Address string
	Err     error
}

// Error names the host, its address and the reason.
func (e *UnreachableError) Error() string {
	return plain.Strip(fmt.Sprintf("%s (%s): %v", e.Host, e.Address, e.Err))
}

// Unwrap returns the reason.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *UnreachableError) Hint() string {
	var hinted interface{ Hint() string }
	if errors.As(e.Err, &hinted) {
		return hinted.Hint()
	}
	return "check that the host is up, that its address and port in the inventory are right, and that no firewall is between"
}

// A LoginError is a login shell that did not run the command that it was given.
type LoginError struct {
	User string
	// Code is the shell's exit code, Said the end of what it printed.
	Code int
	Said string
}

// Error says what the shell said.
func (e *LoginError) Error() string {
	text := fmt.Sprintf("the login shell of %s did not run a command (exit code %d)", e.User, e.Code)
	if e.Said != "" {
		text += ": " + e.Said
	}
	return text
}

// Hint says what to do about it.
func (e *LoginError) Hint() string {
	if strings.Contains(strings.ToLower(e.Said), "password has expired") {
		return "log in by hand as " + e.User + " and set a new password"
	}
	return "give the user a login shell that runs commands, and see that no login script or ForceCommand keeps it from that; `ssh " + e.User + "@HOST id` must print the user's id"
}

// A SudoError is a command that could not become root.
type SudoError struct {
	Host, User string
	// Reason is what is wrong, Said what sudo printed.
	Reason, Said string

	remedy string // if it is not the usual one
}

// Error names the host, the user and the reason.
func (e *SudoError) Error() string {
	text := fmt.Sprintf("%s: sudo as %s: %s", e.Host, e.User, e.Reason)
	if e.Said != "" {
		text += ": " + e.Said
	}
	return text
}

// Hint says what to do about it.
func (e *SudoError) Hint() string {
	if e.remedy != "" {
		return e.remedy
	}
	return "log in as root, let the user run every command with sudo, or give its password (sudo.passwordEnv or sudo.passwordFile in the inventory)"
}

// A Secret fetches a password or passphrase at the moment it is needed. It is called at most once for each connection
// that needs it, and its result is never logged or put into an error.
type Secret func(ctx context.Context) (string, error)

// environment is what every command gets: messages that can be read by programs, and the directories where an
// installation puts things, which sudo and sshd may leave out.
func environment() []string {
	return []string{"LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
}

// check refuses what no transport can carry, or what env would take for something else.
func (c Cmd) check() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return errors.New("a command needs a program")
	}
	if strings.HasPrefix(c.Args[0], "-") || strings.Contains(c.Args[0], "=") {
		return fmt.Errorf("%q cannot be run: a program's name may not begin with - or contain =", c.Args[0])
	}
	for _, a := range c.Args {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("an argument of %s contains a zero byte", c.Args[0])
		}
	}
	for _, e := range c.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.HasPrefix(name, "-") || strings.ContainsRune(e, 0) {
			return fmt.Errorf("environment of %s: %q is not NAME=value", c.Args[0], name)
		}
	}
	return nil
}

// Limits on how long things take.
const (
	// sudoTimeout is how long sudo may take to ask for a password or to start the command. It waits 2 seconds after a
	// wrong one, and directory services may be slow. It is longer than keepalives need to notice that the host is lost,
	// so that this is then the error.
	sudoTimeout = 75 * time.Second
	// killTimeout is how long is waited at least for a cancelled command to be gone, and killShare which part of the patience
	// with a host that is if somebody wants more of it.
	killTimeout = 5 * time.Second
	killShare   = 4
)
