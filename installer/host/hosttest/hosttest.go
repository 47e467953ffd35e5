// Package hosttest has SSH servers for tests: one inside the process, whose faults a test chooses, and OpenSSH's sshd.
// Both run real commands on this machine and listen on 127.0.0.1 only.
package hosttest

import (
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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Options say how a Server behaves. The zero value lets in everybody who has the key in Server.KeyFile.
type Options struct {
	// Password lets in whoever knows it; "" nobody.
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
}

// A Server is an SSH server inside the test's process. Commands run with the process's own rights.
type Server struct {
	// Addr is where it listens, Host and Port its parts.
	Addr, Host string
	Port       int
	// KeyFile is a private key that it accepts, KnownHosts a file that has its host keys.
	KeyFile, KnownHosts string
	// HostKeys are its keys.
	HostKeys []ssh.Signer

	config   *ssh.ServerConfig
	options  Options
	listener net.Listener
	accepted atomic.Int64
	logins   atomic.Int64
	silent   atomic.Bool
	mu       sync.Mutex
	conns    []net.Conn
	all      sync.WaitGroup
}

// Start starts a Server, which ends with the test.
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
	if o.Sessions == 0 {
		o.Sessions = 10
	}
	s := &Server{options: o, HostKeys: o.HostKeys, KeyFile: filepath.Join(dir, "key"), KnownHosts: filepath.Join(dir, "known_hosts")}
	s.config = s.configure(client.PublicKey())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.listener = l
	s.Addr = l.Addr().String()
	s.Host, s.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	writeKnownHosts(tb, s.KnownHosts, s.Port, o.HostKeys)
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

func writeKnownHosts(tb testing.TB, file string, port int, keys []ssh.Signer) {
	tb.Helper()
	var lines []byte
	for _, k := range keys {
		lines = fmt.Appendf(lines, "[127.0.0.1]:%d %s", port, ssh.MarshalAuthorizedKey(k.PublicKey()))
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
		c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata, ask ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
			answers, err := ask("", "", []string{"Password: "}, []bool{false})
			if err != nil || len(answers) != 1 || answers[0] != s.options.Password {
				return nil, errors.New("wrong password")
			}
			return nil, nil
		}
	} else if s.options.Password != "" {
		c.PasswordCallback = func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			s.logins.Add(1)
			if string(password) != s.options.Password {
				return nil, errors.New("wrong password")
			}
			return nil, nil
		}
	}
	for _, k := range s.options.HostKeys {
		c.AddHostKey(k)
	}
	return c
}

// Stop ends the server and all connections, without a word to the other side but TCP's.
func (s *Server) Stop() {
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

// Silence makes the server not answer any more, on connections that there are and on new ones.
func (s *Server) Silence() { s.silent.Store(true) }

// Connections is how many connections were made so far, Passwords how many were tried.
func (s *Server) Connections() int { return int(s.accepted.Load()) }

// Passwords is how many passwords were tried.
func (s *Server) Passwords() int { return int(s.logins.Load()) }

func (s *Server) serve() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.all.Go(func() { s.connection(&mute{Conn: c, silent: &s.silent}) })
	}
}

// mute swallows what is written once the server is silent.
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
	s.all.Go(func() { ssh.DiscardRequests(requests) }) // which says no to keepalives, as is right
	places := make(chan struct{}, s.options.Sessions)
	for ch := range channels {
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

// run runs a command, and ends it when its session does: sshd would leave it alone, but a test ends.
func (s *Server) run(ch ssh.Channel, line string, reqs <-chan *ssh.Request) int {
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
	_ = cmd.Wait() // the code tells
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}
