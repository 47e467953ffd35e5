package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// maxSessions is the number of commands on a connection. sshd allows 10 by default (MaxSessions); two are reserved
	// for killing others.
	maxSessions = 8
	// maxConnections bounds the connections to one host.
	maxConnections = 4
)

// A pool starts programs over one connection to a host, and over more when all places are taken: a tunnel occupies a
// place for its whole life.
type pool struct {
	options SSHOptions

	mu          sync.Mutex
	connections []*connection
	closed      bool
	dialing     sync.Mutex // serializes dialling
}

// A connection is one SSH connection. A lost connection stays lost.
type connection struct {
	client *ssh.Client
	places chan struct{} // taken places
	open   atomic.Int64  // number of existing sessions
	lost   chan struct{} // closed when the connection has ended

	mu     sync.Mutex
	reason error // the reason of the loss, if known
}

func newConnection(client *ssh.Client, keepalive time.Duration) *connection {
	c := &connection{
		client: client,
		places: make(chan struct{}, maxSessions),
		lost:   make(chan struct{}),
	}
	go func() {
		err := client.Wait()
		c.setReason(err)
		close(c.lost)
	}()
	go c.keepAlive(keepalive)
	return c
}

// keepAlive regularly requests a sign of life. Any answer is one, also a refusal.
func (c *connection) keepAlive(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	answered := make(chan struct{}, 1)
	waiting, missed := false, 0
	for {
		select {
		case <-c.lost:
			return
		case <-answered:
			waiting, missed = false, 0
		case <-tick.C:
			if waiting {
				if missed++; missed >= missedKeepalives {
					c.setReason(fmt.Errorf("no sign of life for %s", interval*missedKeepalives))
					_ = c.client.Close()
					return
				}
				continue
			}
			waiting = true
			go func() {
				if _, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil); err == nil {
					answered <- struct{}{}
				}
			}()
		}
	}
}

func (c *connection) setReason(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = cmp.Or(c.reason, err)
}

// why returns why the connection was lost.
func (c *connection) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil || errors.Is(c.reason, io.EOF) || errors.Is(c.reason, net.ErrClosed) {
		return errors.New("the connection was lost")
	}
	return fmt.Errorf("the connection was lost: %w", plainNetError(c.reason))
}

func (c *connection) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// gone reports whether the connection is closed. A session can fail slightly earlier, so it probes first: any answer is
// a sign of life, and keepAlive ends the connection if none comes.
func (c *connection) gone() bool {
	if _, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		<-c.lost
	}
	return c.isLost()
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for _, c := range p.connections {
		lost := c.isLost()
		if err := c.client.Close(); err != nil && !lost && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
			errs = append(errs, fmt.Errorf("%s: close: %w", p.options.Name, err))
		}
	}
	return errors.Join(errs...)
}

// unreachable returns the error of a lost host.
func (p *pool) unreachable(err error) error {
	return &UnreachableError{Host: p.options.Name, Address: p.options.address(), Err: err}
}

// place returns a connection with a place, now taken.
func (p *pool) place(ctx context.Context) (*connection, error) {
	if c, err := p.free(); c != nil || err != nil {
		return c, err
	}
	p.dialing.Lock()
	defer p.dialing.Unlock()
	if c, err := p.free(); c != nil || err != nil { // another goroutine made it meanwhile
		return c, err
	}
	if p.count() < maxConnections {
		return p.grow(ctx)
	}
	return p.wait(ctx)
}

func (p *pool) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.connections)
}

// free takes a free place. A host with one lost connection counts as lost: the caller, who knows the interrupted work,
// decides about connecting again.
func (p *pool) free() (*connection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.unreachable(net.ErrClosed)
	}
	for _, c := range p.connections {
		if c.isLost() {
			return nil, p.unreachable(c.why())
		}
	}
	for _, c := range p.connections {
		select {
		case c.places <- struct{}{}:
			return c, nil
		default:
		}
	}
	return nil, nil
}

// grow makes a connection and takes a place on it.
func (p *pool) grow(ctx context.Context) (*connection, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.places <- struct{}{}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.client.Close()
		return nil, p.unreachable(net.ErrClosed)
	}
	p.connections = append(p.connections, c)
	return c, nil
}

// wait waits for a place on any connection.
func (p *pool) wait(ctx context.Context) (*connection, error) {
	p.mu.Lock()
	c := p.connections[:maxConnections]
	p.mu.Unlock()
	select {
	case c[0].places <- struct{}{}:
		return c[0], nil
	case c[1].places <- struct{}{}:
		return c[1], nil
	case c[2].places <- struct{}{}:
		return c[2], nil
	case c[3].places <- struct{}{}:
		return c[3], nil
	case <-c[0].lost:
		return nil, p.unreachable(c[0].why())
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", p.options.Name, context.Cause(ctx))
	}
}

// start starts a program in its own session.
func (p *pool) start(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	if hasPriority(ctx) {
		return p.startFirst(ctx, args, stdout, stderr)
	}
	for refused := 0; ; {
		c, err := p.place(ctx)
		if err != nil {
			return nil, err
		}
		s, err := c.start(args, stdout, stderr)
		switch {
		case err == nil:
			s.release, s.pool = func() { <-c.places }, p
			return s, nil
		case isNoSession(err) && c.open.Load() > 0:
			continue // the host allows fewer sessions than assumed (MaxSessions): this place stays taken
		case isNoSession(err) && refused < maxRefusals && ctx.Err() == nil:
			refused++
			<-c.places
			time.Sleep(refusalPause)
			continue
		}
		<-c.places
		return nil, p.unreachable(err)
	}
}

// sshd still counts a session for a moment after its end is visible here.
const (
	maxRefusals  = 20
	refusalPause = 50 * time.Millisecond
)

// startFirst starts a program that kills another one, in one of the places reserved below sshd's limit. If the host
// allows no further session, it gets its own connection.
func (p *pool) startFirst(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	p.mu.Lock()
	c := p.connections[0]
	p.mu.Unlock()
	s, err := c.start(args, stdout, stderr)
	release := func() {}
	if isNoSession(err) {
		if c, err = p.connect(ctx); err != nil {
			return nil, err
		}
		release = func() { _ = c.client.Close() }
		s, err = c.start(args, stdout, stderr)
	}
	if err != nil {
		release()
		return nil, p.unreachable(err)
	}
	s.release, s.pool = release, p
	return s, nil
}

// A sessionError means a host allows no further session on a connection.
type sessionError struct{}

func (*sessionError) Error() string { return "the host's SSH server allows no session (MaxSessions 0)" }

func (*sessionError) Hint() string {
	return "set MaxSessions in the host's sshd_config to 10, its default"
}

func isNoSession(err error) bool { return errors.As(err, new(*sessionError)) }

// start starts a program on this connection.
func (c *connection) start(args []string, stdout, stderr io.Writer) (*sshProcess, error) {
	s, err := c.client.NewSession()
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused):
		return nil, &sessionError{}
	case err != nil && c.gone():
		return nil, c.why()
	case err != nil:
		return nil, fmt.Errorf("open a session: %w", err)
	}
	s.Stdout, s.Stderr = stdout, stderr
	stdin, err := s.StdinPipe()
	if err == nil {
		err = s.Start(shellLine(args))
	}
	if err != nil {
		_ = s.Close()
		if c.gone() {
			return nil, c.why()
		}
		return nil, fmt.Errorf("start a command: %w", err)
	}
	c.open.Add(1)
	return &sshProcess{session: s, stdin: stdin, connection: c, ended: make(chan struct{})}, nil
}

type sshProcess struct {
	session    *ssh.Session
	stdin      io.WriteCloser
	connection *connection
	pool       *pool
	release    func()
	killed     atomic.Bool
	ended      chan struct{} // closed when Wait has seen the end
}

func (p *sshProcess) Stdin() io.WriteCloser { return p.stdin }

// Kill closes the session. OpenSSH's server reports a session's end only after its program's, and a program that waits
// for a disk cannot be killed: then the connection is closed.
func (p *sshProcess) Kill() {
	if p.killed.Swap(true) {
		return
	}
	_ = p.session.Close()
	go func() {
		patience := time.NewTimer(p.pool.options.Patience)
		defer patience.Stop()
		select {
		case <-p.ended:
		case <-patience.C:
			p.connection.setReason(errors.New("a killed command there does not end"))
			_ = p.connection.client.Close()
		}
	}()
}

func (p *sshProcess) Wait() (int, error) {
	err := p.session.Wait()
	close(p.ended)
	_ = p.session.Close()
	p.connection.open.Add(-1)
	p.release()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Signal() != "":
		return signalCode + signalNumber(exit.Signal()), nil
	case errors.As(err, &exit):
		return exit.ExitStatus(), nil
	}
	if p.killed.Load() {
		return 0, fmt.Errorf("given up: %w", err)
	}
	if p.connection.gone() {
		return 0, p.pool.unreachable(p.connection.why())
	}
	return 0, p.pool.unreachable(fmt.Errorf("the command's end is not known: %w", err))
}

// signalNumber returns the number of a signal named as in SSH (RFC 4254, 6.10), 0 if unknown.
func signalNumber(name string) int {
	switch ssh.Signal(name) {
	case ssh.SIGHUP:
		return 1
	case ssh.SIGINT:
		return 2
	case ssh.SIGQUIT:
		return 3
	case ssh.SIGABRT:
		return 6
	case ssh.SIGKILL:
		return 9
	case ssh.SIGSEGV:
		return 11
	case ssh.SIGPIPE:
		return 13
	case ssh.SIGTERM:
		return 15
	default:
		return 0
	}
}
