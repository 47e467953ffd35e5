// Package hosttest provides SSH servers for tests: one inside the process, with faults chosen by a test, and OpenSSH's
// sshd. Both run real commands on this machine and listen on loopback addresses only.
package hosttest

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Options configure a Server. The zero value accepts the key in Server.KeyFile.
type Options struct {
	// Password is accepted as a login; "" disables passwords.
	Password string
	// Interactive asks for the password by keyboard-interactive instead.
	Interactive bool
	// Shell runs commands, as in Shell -c LINE; nil is sh.
	Shell []string
	// Noise is printed to both streams before every command, as login scripts may.
	Noise string
	// HostKeys are the server's keys; nil is a new Ed25519 key.
	HostKeys []ssh.Signer
	// Sessions is how many sessions a connection may have at a time, 10 if 0, as in OpenSSH.
	Sessions int
	// Address is the address to listen on, 127.0.0.1 if "".
	Address string
	// Forward makes connections for clients (direct-tcpip); nil forbids them.
	Forward func(ctx context.Context, address string) (net.Conn, error)
	// Exec replaces the shell: it gets the line and returns the exit code. It must end when ctx is done, which means
	// that the client is gone.
	Exec func(ctx context.Context, line string, stdin io.Reader, stdout, stderr io.Writer) int
	// Configure changes the server's configuration.
	Configure func(*ssh.ServerConfig)
	// Drop is the number of connections closed silently before the first is served.
	Drop int
}

// A Server is an SSH server inside the test's process. Commands run with the process's own rights.
type Server struct {
	// Addr is its address, Host and Port the parts.
	Addr, Host string
	Port       int
	// KeyFile is an accepted private key, KnownHosts a file with the host keys.
	KeyFile, KnownHosts string
	// HostKeys are its keys.
	HostKeys []ssh.Signer

	config   *ssh.ServerConfig
	options  Options
	listener net.Listener
	accepted atomic.Int64
	silent   atomic.Bool
	mu       sync.Mutex
	conns    []net.Conn
	all      sync.WaitGroup
	stop     sync.Once
	stopped  chan struct{}
}

// Start starts a Server that ends with the test.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	dir := tb.TempDir()
	client := NewKey(tb, filepath.Join(dir, "key"))
	if len(o.HostKeys) == 0 {
		o.HostKeys = []ssh.Signer{NewKey(tb, filepath.Join(dir, "hostkey"))}
	}
	if o.Shell == nil {
		o.Shell = []string{"/bin/sh"}
	}
	o.Sessions = cmp.Or(o.Sessions, 10)
	s := &Server{
		options: o, HostKeys: o.HostKeys, KeyFile: filepath.Join(dir, "key"),
		KnownHosts: filepath.Join(dir, "known_hosts"), stopped: make(chan struct{}),
	}
	s.config = s.configure(client.PublicKey())
	o.Address = cmp.Or(o.Address, "127.0.0.1")
	l, err := net.Listen("tcp", o.Address+":0")
	if err != nil {
		tb.Fatal(err)
	}
	s.listener = l
	s.Addr = l.Addr().String()
	s.Host, s.Port = o.Address, l.Addr().(*net.TCPAddr).Port
	writeKnownHosts(tb, s.KnownHosts, s.Addr, o.HostKeys)
	s.all.Go(s.serve)
	tb.Cleanup(s.Stop)
	return s
}

// NewKey makes an Ed25519 key and writes the private part to a file.
func NewKey(tb testing.TB, file string) ssh.Signer {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "test")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		tb.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

func writeKnownHosts(tb testing.TB, file, address string, keys []ssh.Signer) {
	tb.Helper()
	var lines []byte
	for _, k := range keys {
		lines = fmt.Appendf(lines, "%s %s", knownhosts.Normalize(address), ssh.MarshalAuthorizedKey(k.PublicKey()))
	}
	if err := os.WriteFile(file, lines, 0o600); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) configure(client ssh.PublicKey) *ssh.ServerConfig {
	c := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(client.Marshal()) {
				return nil, errors.New("another key")
			}
			return nil, nil
		},
		BannerCallback: func(ssh.ConnMetadata) string { return "AUTHORIZED USE ONLY\n" },
	}
	if s.options.Password != "" && s.options.Interactive {
		c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata,
			ask ssh.KeyboardInteractiveChallenge,
		) (*ssh.Permissions, error) {
			answers, err := ask("", "", []string{"Password: "}, []bool{false})
			if err != nil || len(answers) != 1 || answers[0] != s.options.Password {
				return nil, errors.New("wrong password")
			}
			return nil, nil
		}
	} else if s.options.Password != "" {
		c.PasswordCallback = func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if string(password) != s.options.Password {
				return nil, errors.New("wrong password")
			}
			return nil, nil
		}
	}
	for _, k := range s.options.HostKeys {
		c.AddHostKey(k)
	}
	if s.options.Configure != nil {
		s.options.Configure(c)
	}
	return c
}

// Stop ends the server and all connections, silently except for TCP.
func (s *Server) Stop() {
	s.stop.Do(func() { close(s.stopped) })
	_ = s.listener.Close()
	s.Drop()
	s.all.Wait()
}

// Drop ends all connections.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// Silence stops all answers, on existing and new connections.
func (s *Server) Silence() { s.silent.Store(true) }

// Connections returns the number of connections so far.
func (s *Server) Connections() int { return int(s.accepted.Load()) }

func (s *Server) serve() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		if int(s.accepted.Add(1)) <= s.options.Drop {
			_ = c.Close()
			continue
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.all.Go(func() { s.connection(&mute{Conn: c, silent: &s.silent}) })
	}
}

// mute drops output once the server is silent.
type mute struct {
	net.Conn
	silent *atomic.Bool
}

func (m *mute) Write(p []byte) (int, error) {
	if m.silent.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

func (s *Server) connection(c net.Conn) {
	defer func() { _ = c.Close() }()
	conn, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	s.all.Go(func() { ssh.DiscardRequests(requests) }) // refuses keepalives, as intended
	places := make(chan struct{}, s.options.Sessions)
	for ch := range channels {
		if ch.ChannelType() == "direct-tcpip" && s.options.Forward != nil {
			s.all.Go(func() { s.forward(ch) })
			continue
		}
		if ch.ChannelType() != "session" {
			_ = ch.Reject(ssh.Prohibited, "sessions only")
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			_ = ch.Reject(ssh.ResourceShortage, "no more sessions")
			continue
		}
		session, reqs, err := ch.Accept()
		if err != nil {
			return
		}
		s.all.Go(func() {
			defer func() { <-places }()
			s.session(session, reqs)
		})
	}
}

// forward makes a connection for the client, until it closes.
func (s *Server) forward(ch ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(ch.ExtraData(), &to); err != nil {
		_ = ch.Reject(ssh.ConnectionFailed, "malformed")
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	conn, err := s.options.Forward(ctx, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		_ = ch.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	client, reqs, err := ch.Accept()
	if err != nil {
		_ = conn.Close()
		return
	}
	go ssh.DiscardRequests(reqs)
	go func() { // ends with the connection
		_, _ = io.Copy(client, conn)
		_ = client.Close()
	}()
	_, _ = io.Copy(conn, client)
	_ = conn.Close()
}

// session runs one command.
func (s *Server) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }()
	for req := range reqs {
		if req.Type != "exec" {
			_ = req.Reply(req.Type == "env", nil)
			continue
		}
		var line struct{ Line string }
		if err := ssh.Unmarshal(req.Payload, &line); err != nil {
			_ = req.Reply(false, nil)
			return
		}
		_ = req.Reply(true, nil)
		code := s.run(ch, line.Line, reqs)
		_, _ = ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
		return
	}
}

// run runs a command, and ends it with its session: sshd would leave it running, but a test ends.
func (s *Server) run(ch ssh.Channel, line string, reqs <-chan *ssh.Request) int {
	if s.options.Exec != nil {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			ssh.DiscardRequests(reqs)
			cancel()
		}()
		return s.options.Exec(ctx, line, ch, ch, ch.Stderr())
	}
	cmd := exec.Command(s.options.Shell[0], append(s.options.Shell[1:], "-c", line)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_, _ = io.WriteString(ch, s.options.Noise)
	_, _ = io.WriteString(ch.Stderr(), s.options.Noise)
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 255
	}
	if err := cmd.Start(); err != nil {
		_, _ = fmt.Fprintln(ch.Stderr(), err)
		return 127
	}
	go func() {
		ssh.DiscardRequests(reqs)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}()
	go func() { // ends with the channel
		_, _ = io.Copy(stdin, ch)
		_ = stdin.Close()
	}()
	_ = cmd.Wait() // the code is enough
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
