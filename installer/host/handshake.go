package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	dialTimeout = 5 * time.Second
	// handshakeTimeout includes sshd's lookup of the client's name, which times out after about 10 seconds.
	handshakeTimeout = 20 * time.Second
	// maxAttempts bounds retries of a connection that the host closes before it has sent anything: sshd does that when
	// too many log in at a time (MaxStartups).
	maxAttempts = 3
	retryAfter  = 300 * time.Millisecond
)

// dial makes an SSH connection and logs in. Its error does not name the host.
func (o SSHOptions) dial(ctx context.Context) (*ssh.Client, error) {
	for attempt := 1; ; attempt++ {
		client, err := o.dialOnce(ctx)
		var dropped *droppedError
		if err == nil || attempt == maxAttempts || !errors.As(err, &dropped) || !dropped.maybeBusy() {
			return client, err
		}
		wait := time.Duration(attempt) * retryAfter
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait + rand.N(wait)): // spread the retries
		}
	}
}

func (o SSHOptions) dialOnce(ctx context.Context) (*ssh.Client, error) {
	keys, err := readKnownHosts(o.KnownHosts)
	if err != nil {
		return nil, err
	}
	conn, err := o.Net(ctx, "tcp", o.address())
	if err != nil {
		return nil, plainNetError(err)
	}
	heard := &listener{Conn: conn}
	limit := newDeadline(conn)
	defer limit.stop()
	// Close ends a handshake early; afterwards the client owns the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	a := &authentication{ctx: ctx, options: o, limit: limit}
	defer a.close()
	verify := &verifier{options: o, keys: keys}
	c, channels, requests, err := ssh.NewClientConn(heard, o.address(), &ssh.ClientConfig{
		User:              o.User,
		Auth:              a.methods(),
		HostKeyCallback:   verify.check,
		HostKeyAlgorithms: keys.algorithms(o.address()),
	})
	if err == nil && !stop() {
		_ = c.Close()
		return nil, context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, o.explain(err, a, verify, heard)
	}
	return ssh.NewClient(c, channels, requests), nil
}

// explain returns the reason of a failed handshake.
func (o SSHOptions) explain(err error, a *authentication, verify *verifier, heard *listener) error {
	var outdated *ssh.AlgorithmNegotiationError
	var lost *BastionError
	switch {
	case verify.refused != nil:
		return verify.refused
	case errors.As(err, &lost):
		return lost
	case a.limit.passed.Load():
		return fmt.Errorf("the host accepted the connection but did not finish the SSH handshake within %s",
			handshakeTimeout)
	case errors.As(err, &outdated):
		return &AlgorithmError{
			What: outdated.What, Offers: outdated.RequestedAlgorithms,
			Wanted: outdated.SupportedAlgorithms,
		}
	case !heard.greeted():
		return &droppedError{said: heard.text(), err: err}
	}
	return a.explain(err)
}

// plainNetError removes the repeated address in the message: "dial tcp 10.0.0.1:22: connect: refused".
func plainNetError(err error) error {
	var timeout net.Error
	var op *net.OpError
	switch {
	case errors.As(err, new(*BastionError)):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer within %s", dialTimeout)
	case errors.As(err, &op):
		return op.Err
	}
	return err
}

// A droppedError means the connection ended before the host had sent its SSH version.
type droppedError struct {
	said string // the text sent instead
	err  error
}

func (e *droppedError) Error() string {
	if e.said == "" {
		return "SSH handshake: the connection was closed before the host said anything"
	}
	return fmt.Sprintf("SSH handshake: the host sends %q instead of SSH", e.said)
}

func (e *droppedError) Unwrap() error { return e.err }

// maybeBusy reports whether the host may accept a login a moment later.
func (e *droppedError) maybeBusy() bool {
	return e.said == "" || strings.Contains(e.said, "MaxStartups")
}

// Hint returns the remedy.
func (e *droppedError) Hint() string {
	if e.said != "" && !e.maybeBusy() && !strings.Contains(e.said, "Not allowed") {
		return "check the port in the inventory: something else than an SSH server answers there"
	}
	return "check sshd's log on the host: it drops connections when too many log in at a time (MaxStartups), after logins that failed (PerSourcePenalties, fail2ban) or by /etc/hosts.deny"
}

// An AlgorithmError means the host's SSH server supports only unsafe algorithms, or none of ours.
type AlgorithmError struct {
	// What is the kind of algorithm, such as "key exchange".
	What string
	// Offers are the host's algorithms, Wanted the acceptable ones.
	Offers, Wanted []string
}

// Error names the host's algorithms.
func (e *AlgorithmError) Error() string {
	return fmt.Sprintf("the host's SSH server is outdated: for %s it offers only %s", e.What,
		plain.Strip(strings.Join(e.Offers, ", ")))
}

// Hint returns the remedy.
func (e *AlgorithmError) Hint() string {
	const enough = 4
	return fmt.Sprintf("update OpenSSH on the host, or allow one of these in its sshd_config: %s",
		strings.Join(e.Wanted[:min(enough, len(e.Wanted))], ", "))
}

// Algorithms protect an SSH connection, in SSH's own names.
type Algorithms struct {
	KeyExchange string `json:"keyExchange"`
	HostKey     string `json:"hostKey"`
	// Cipher and MAC are those from the host to us; a Cipher without separate MAC has none.
	Cipher string `json:"cipher"`
	MAC    string `json:"mac,omitempty"`
	// Server is the version string of the host's SSH server, such as "SSH-2.0-OpenSSH_9.2p1".
	Server string `json:"server"`
}

// AlgorithmsOf returns the algorithms of the first connection to a host; false without SSH.
func AlgorithmsOf(h Host) (Algorithms, bool) {
	m, ok := h.(*machine)
	if !ok {
		return Algorithms{}, false
	}
	p, ok := m.start.(*pool)
	if !ok {
		return Algorithms{}, false
	}
	conn := p.connections[0].client.Conn
	a := Algorithms{Server: plain.Strip(string(conn.ServerVersion()))}
	if known, ok := conn.(ssh.AlgorithmsConnMetadata); ok {
		n := known.Algorithms()
		a.KeyExchange, a.HostKey, a.Cipher, a.MAC = n.KeyExchange, n.HostKey, n.Read.Cipher, n.Read.MAC
	}
	return a, true
}

// A deadline closes a connection when a handshake takes too long. Connections through a bastion have no deadlines of
// their own.
type deadline struct {
	timer  *time.Timer
	passed atomic.Bool
}

func newDeadline(conn net.Conn) *deadline {
	d := &deadline{}
	d.timer = time.AfterFunc(handshakeTimeout, func() {
		d.passed.Store(true)
		_ = conn.Close()
	})
	return d
}

// stop suspends the limit, for example while a person types; restart starts the host's time anew.
func (d *deadline) stop()    { d.timer.Stop() }
func (d *deadline) restart() { d.timer.Reset(handshakeTimeout) }

// maxHeard bounds the kept bytes of a host's first message; RFC 4253 allows 255 bytes for its version.
const maxHeard = 255

// A listener keeps a host's first bytes.
type listener struct {
	net.Conn
	mu    sync.Mutex
	first []byte
}

// Read reads from the connection.
func (l *listener) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := maxHeard - len(l.first); room > 0 {
		l.first = append(l.first, p[:min(n, room)]...)
	}
	return n, err
}

func (l *listener) greeted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.HasPrefix(l.first, []byte("SSH-")) || bytes.Contains(l.first, []byte("\nSSH-"))
}

func (l *listener) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(l.first)), "\n")
	return plain.Strip(line)
}
