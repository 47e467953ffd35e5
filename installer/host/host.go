// Package host runs commands as root on one machine, over SSH or locally.
//
// A Host is one method; writing a file, reading one or holding a connection open are functions over it. Commands are
// argument lists: quoting is done here, once, for every shell of a host. A command's input and output are transferred
// unchanged: output of login scripts is removed, and only sudo receives the password for sudo.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Host runs commands as root on one machine. It is safe for concurrent use. Everything else is a function over it.
type Host interface {
	// String returns the host's name in the operator's spelling.
	fmt.Stringer
	// Run runs a command and waits for its end. The error is nil for exit code 0, an *ExitError for another code, an
	// *UnreachableError if the host was lost and a *SudoError if the command could not become root. When ctx is done
	// the command and its children are killed, and the error wraps ctx's. Run does not wait for a Read of cmd.Stdin
	// that is still blocked when the command has ended.
	Run(ctx context.Context, cmd Cmd) error
	// Close ends the connections to the host, and with them the commands still running.
	Close() error
}

// A Cmd is an argument list with its streams; it is never a shell line. Arguments and environment are visible to every
// user of the host and are logged: pass secrets by Stdin only.
type Cmd struct {
	// Args is the program, a path or a name to look up in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin, /sbin
	// and /bin, and its arguments. They can hold any byte but 0.
	Args []string
	// Env has NAME=value entries in addition to LC_ALL=C, HOME and PATH, and to nothing of the login's; a later entry
	// wins.
	Env []string
	// Stdin is the command's input; nil is empty. A ClosableReader is closed when the command no longer reads.
	Stdin io.Reader
	// Stdout and Stderr receive the command's output; nil discards it. They are used by different goroutines, and no
	// longer once Run has returned.
	Stdout, Stderr io.Writer
}

// A ClosableReader informs the writer at its other end that nobody reads any more, like an *io.PipeReader.
type ClosableReader interface {
	io.Reader
	CloseWithError(err error) error
}

// maxStderr bounds the end of a command's standard error in an ExitError.
const maxStderr = 4 << 10

// An ExitError means a command ended with a code other than 0.
type ExitError struct {
	Host string
	Args []string
	// Code is the exit code; 128 and more means a signal, as in a shell.
	Code int
	// Stderr is the end of the command's standard error, at most 4 KiB.
	Stderr string
}

// Error names host, command and code, and repeats the command's message.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %s: exit code %d", e.Host, commandLine(e.Args), e.Code)
	if said := strings.TrimSpace(e.Stderr); said != "" {
		text += ": " + said
	}
	return text
}

// maxCommandLine bounds a command in an error.
const maxCommandLine = 200

// commandLine shows arguments as a person would type them, on one line.
func commandLine(args []string) string {
	var words []string
	for _, a := range WithoutText(args) {
		words = append(words, readable(a))
	}
	return clip(strings.Join(words, " "))
}

// clip bounds a displayed command or message.
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

// An UnreachableError means a host could not be connected to, was lost, or refused the login: Err may be an *AuthError,
// a *KeyError, an *AlgorithmError, a *BastionError or a *LoginError.
type UnreachableError struct {
	Host string
	// Address is the host's expected address, with its port.
	Address string
	Err     error
}

// Error names the host, its address and the reason.
func (e *UnreachableError) Error() string {
	return plain.Strip(fmt.Sprintf("%s (%s): %v", e.Host, e.Address, e.Err))
}

// Unwrap returns the reason.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *UnreachableError) Hint() string {
	var hinted interface{ Hint() string }
	if errors.As(e.Err, &hinted) {
		return hinted.Hint()
	}
	return "check that the host is up, that its address and port in the inventory are right, and that no firewall is between"
}

// A LoginError means a login shell did not run the given command.
type LoginError struct {
	User string
	// Code is the shell's exit code, Said the end of its output.
	Code int
	Said string
}

// Error repeats the shell's output.
func (e *LoginError) Error() string {
	text := fmt.Sprintf("the login shell of %s did not run a command (exit code %d)", e.User, e.Code)
	if e.Said != "" {
		text += ": " + e.Said
	}
	return text
}

// Hint returns the remedy.
func (e *LoginError) Hint() string {
	if strings.Contains(strings.ToLower(e.Said), "password has expired") {
		return "log in by hand as " + e.User + " and set a new password"
	}
	return "give the user a login shell that runs commands, and see that no login script or ForceCommand keeps it from that; `ssh " + e.User + "@HOST id` must print the user's id"
}

// A SudoError means a command could not become root.
type SudoError struct {
	Host, User string
	// Reason is the problem, Said sudo's output.
	Reason, Said string

	remedy string // overrides the usual one
}

// Error names the host, the user and the reason.
func (e *SudoError) Error() string {
	text := fmt.Sprintf("%s: sudo as %s: %s", e.Host, e.User, e.Reason)
	if e.Said != "" {
		text += ": " + e.Said
	}
	return text
}

// Hint returns the remedy.
func (e *SudoError) Hint() string {
	if e.remedy != "" {
		return e.remedy
	}
	return "log in as root, let the user run every command with sudo, or give its password (sudo.passwordEnv or sudo.passwordFile in the inventory)"
}

// A Secret fetches a password or passphrase when it is needed. It is called at most once for each connection that needs
// it, and its result is never logged or put into an error.
type Secret func(ctx context.Context) (string, error)

// environment is the environment of every command: messages that programs can parse, and the directories of installed
// programs, which sudo and sshd may leave out.
func environment() []string {
	return []string{"LC_ALL=C", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
}

// check refuses values that no transport can carry, or that env would misinterpret.
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
	// sudoTimeout bounds the time until sudo asks for a password or starts the command. sudo waits 2 seconds after a
	// wrong password, and directory services may be slow. The timeout exceeds the time in which keepalives detect a
	// lost host, so that such a loss is reported as one.
	sudoTimeout = 75 * time.Second
	// killTimeout is the least wait for a cancelled command to end, and killShare the fraction of a longer patience
	// with the host.
	killTimeout = 5 * time.Second
	killShare   = 4
)
