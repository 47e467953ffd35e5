package host_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the server inside the process has its rights")
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, interactive := range []bool{false, true} {
		s := hosttest.Start(t, hosttest.Options{Password: "right", Interactive: interactive})
		o := host.SSHOptions{Name: "cp1", Address: s.Host, Port: s.Port, KnownHosts: []string{s.KnownHosts}}
		var asked atomic.Int64
		o.Password = func(context.Context) (string, error) {
			asked.Add(1)
			return "right", nil
		}
		h := dial(t, o)
		testMany(t, h) // further connections do not ask again
		if asked.Load() != 1 {
			t.Errorf("the password was asked for %d times", asked.Load())
		}
		o.Password = secret("wr0ng-passw0rd")
		_, err := host.Dial(t.Context(), o)
		var auth *host.AuthError
		if !errors.As(err, &auth) || strings.Contains(err.Error(), "wr0ng") || auth.Hint() == "" {
			t.Errorf("wrong password: %v", err)
		}
		var unreachable *host.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.Host != "cp1" || unreachable.Hint() != auth.Hint() {
			t.Errorf("wrong password: %v, want it in an UnreachableError", err)
		}
		o.Password = nil
		if _, err := host.Dial(t.Context(), o); !errors.As(err, &auth) ||
			!strings.Contains(err.Error(), "nothing to log in with") {
			t.Errorf("nothing to log in with: %v", err)
		}
		o.Password = func(context.Context) (string, error) { return "", errors.New("SSH_PASSWORD is not set") }
		if _, err := host.Dial(t.Context(), o); !errors.As(err, &auth) ||
			!strings.Contains(err.Error(), "SSH_PASSWORD is not set") {
			t.Errorf("no password to be had: %v", err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := hosttest.Start(t, hosttest.Options{})
	base := host.SSHOptions{Address: s.Host, Port: s.Port, KnownHosts: []string{s.KnownHosts}, Patience: patience}
	private := readKey(t, s.KeyFile)
	locked := filepath.Join(t.TempDir(), "locked")
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(locked, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	hosttest.NewKey(t, other)
	sesame := func(_ context.Context, key string) (string, error) {
		if key != locked {
			return "", errors.New("asked for the passphrase of " + key)
		}
		return "open sesame", nil
	}
	refused := func(word string) func(*testing.T, error) {
		return func(t *testing.T, err error) {
			t.Helper()
			var auth *host.AuthError
			if !errors.As(err, &auth) || !strings.Contains(err.Error(), word) ||
				strings.Contains(err.Error(), "sesame") {
				t.Errorf("got %v, want an AuthError about %q", err, word)
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*host.SSHOptions)
		check  func(*testing.T, error)
	}{
		{"key", func(o *host.SSHOptions) { o.Keys = []string{s.KeyFile} }, nil},
		{"second key", func(o *host.SSHOptions) { o.Keys = []string{other, s.KeyFile} }, nil},
		{"key as such", func(o *host.SSHOptions) {
			pem, err := os.ReadFile(s.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			o.KeyData = []host.Secret{secret(string(pem))}
		}, nil},
		{
			"no key as such", func(o *host.SSHOptions) { o.KeyData = []host.Secret{secret("open sesame")} },
			refused("the key given is not"),
		},
		{"passphrase", func(o *host.SSHOptions) { o.Keys, o.Passphrase = []string{locked}, sesame }, nil},
		{"agent", func(o *host.SSHOptions) { o.AgentSocket = startAgent(t, private) }, nil},
		{"key of the agent", func(o *host.SSHOptions) {
			o.Keys, o.AgentSocket = []string{locked},
				startAgent(t, private)
		}, nil},
		{"wrong key", func(o *host.SSHOptions) { o.Keys = []string{other} }, refused("key " + other)},
		{"no file", func(o *host.SSHOptions) { o.Keys = []string{other + "x"} }, refused("no such file")},
		{"not a key", func(o *host.SSHOptions) { o.Keys = []string{s.KnownHosts} }, refused("is not a private key")},
		{"no passphrase", func(o *host.SSHOptions) { o.Keys = []string{locked} }, refused("has a passphrase")},
		{"wrong passphrase", func(o *host.SSHOptions) {
			o.Keys = []string{locked}
			o.Passphrase = func(context.Context, string) (string, error) { return "guess", nil }
		}, refused("the passphrase is wrong")},
		{"no agent", func(o *host.SSHOptions) { o.AgentSocket = other + ".sock" }, refused("SSH agent")},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := base
			c.change(&o)
			h, err := host.Dial(t.Context(), o)
			if c.check != nil {
				c.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func readKey(t *testing.T, file string) any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParseRawPrivateKey(data)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// startAgent serves a key ring with one key on a socket.
func startAgent(t *testing.T, key any) string {
	t.Helper()
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(ring, c) }()
		}
	}()
	return dir + "/s"
}

func TestHostKeys(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	ed, ec := hosttest.NewKey(t, dir+"/ed"), ecdsaKey(t)
	s := hosttest.Start(t, hosttest.Options{HostKeys: []ssh.Signer{ed, ec}})
	o := host.SSHOptions{Name: "w1", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile}, Patience: patience}
	var refused *host.KeyError

	t.Run("unknown", func(t *testing.T) {
		o := o
		o.KnownHosts = []string{dir + "/none"}
		_, err := host.Dial(t.Context(), o)
		if !errors.As(err, &refused) || len(refused.Known) != 0 ||
			!strings.Contains(err.Error(), ssh.FingerprintSHA256(ed.PublicKey())) {
			t.Fatalf("got %v, want the fingerprint of an unknown key", err)
		}
		if !strings.Contains(refused.Hint(), "--accept-new") {
			t.Errorf("hint: %s", refused.Hint())
		}
		if _, err := os.Stat(dir + "/none"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a refused key left a file: %v", err)
		}
	})
	t.Run("accepted", func(t *testing.T) {
		o := o
		o.KnownHosts, o.AcceptNew = []string{dir + "/new/known_hosts"}, true
		var all sync.WaitGroup // as with many hosts at once
		for range 8 {
			all.Go(func() {
				h, err := host.Dial(t.Context(), o)
				if err != nil {
					t.Error(err)
					return
				}
				_ = h.Close()
			})
		}
		all.Wait()
		data, err := os.ReadFile(o.KnownHosts[0])
		if err != nil || strings.Count(string(data), "\n") != 1 {
			t.Errorf("known_hosts: %q, %v, want one line", data, err)
		}
		if info, err := os.Stat(o.KnownHosts[0]); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("known_hosts: %v, %v", info.Mode(), err)
		}
		o.AcceptNew = false
		dial(t, o)
	})
	t.Run("other kind known", func(t *testing.T) {
		o := o
		o.KnownHosts = []string{knownHosts(t, s.Port, ec.PublicKey())}
		dial(t, o)
	})
	t.Run("changed", func(t *testing.T) {
		o := o
		before := hosttest.NewKey(t, dir+"/before")
		file := knownHosts(t, s.Port, before.PublicKey())
		o.KnownHosts, o.AcceptNew = []string{dir + "/first", file}, true
		_, err := host.Dial(t.Context(), o)
		if !errors.As(err, &refused) {
			t.Fatalf("got %v, want a KeyError", err)
		}
		for _, want := range []string{
			ssh.FingerprintSHA256(ed.PublicKey()), ssh.FingerprintSHA256(before.PublicKey()),
			file + ":1",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not contain %s", err, want)
			}
		}
		if !strings.Contains(refused.Hint(), "ssh-keygen -f "+file) {
			t.Errorf("hint: %s", refused.Hint())
		}
	})
	t.Run("hashed", func(t *testing.T) {
		o := o
		name := knownhosts.HashHostname(knownhosts.Normalize(s.Addr))
		o.KnownHosts = []string{dir + "/none", writeTemp(t, "# comment\n\n"+name+" "+
			string(ssh.MarshalAuthorizedKey(ed.PublicKey())))}
		dial(t, o)
		before := hosttest.NewKey(t, dir+"/hashed")
		o.KnownHosts = []string{writeTemp(t, name+" "+string(ssh.MarshalAuthorizedKey(before.PublicKey())))}
		if _, err := host.Dial(t.Context(), o); !errors.As(err, &refused) || len(refused.Known) != 1 ||
			refused.Known[0].Line != 1 {
			t.Errorf("got %v, want the line", err)
		}
	})
	t.Run("authority", func(t *testing.T) { testAuthority(t, dir) })
	t.Run("revoked", func(t *testing.T) {
		o := o
		file := writeTemp(t, "@revoked * "+string(ssh.MarshalAuthorizedKey(ed.PublicKey())))
		o.KnownHosts, o.AcceptNew = []string{file}, true
		if _, err := host.Dial(t.Context(), o); !errors.As(err, &refused) || !refused.Revoked {
			t.Errorf("got %v, want a revoked key", err)
		}
	})
	t.Run("malformed file", func(t *testing.T) {
		o := o
		o.KnownHosts = []string{writeTemp(t, "w1 ssh-ed25519 !!!\n")}
		if _, err := host.Dial(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.KnownHosts[0]+":1") {
			t.Errorf("got %v, want the line", err)
		}
	})
	t.Run("file without a last line end", func(t *testing.T) {
		o := o
		other := hosttest.NewKey(t, dir+"/elsewhere")
		file := writeTemp(t, "elsewhere.example "+
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(other.PublicKey()))))
		o.KnownHosts, o.AcceptNew = []string{file}, true
		dial(t, o)
		o.AcceptNew = false
		dial(t, o)
	})
}

// testAuthority has hosts with certificates, of which some hold.
func testAuthority(t *testing.T, dir string) {
	authority, other, hostKey := hosttest.NewKey(t, dir+"/authority"), hosttest.NewKey(t, dir+"/other"),
		hosttest.NewKey(t, dir+"/certified")
	certificate := func(change func(*ssh.Certificate)) ssh.Signer {
		c := &ssh.Certificate{
			Key: hostKey.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"},
			ValidAfter:  uint64(time.Now().Add(-time.Hour).Unix()),
			ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
		}
		change(c)
		if err := c.SignCert(rand.Reader, authority); err != nil {
			t.Fatal(err)
		}
		s, err := ssh.NewCertSigner(c, hostKey)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	fine := func(*ssh.Certificate) {}
	trust := "@cert-authority * " + string(ssh.MarshalAuthorizedKey(authority.PublicKey()))
	var invalid *host.CertificateError
	var unknown *host.KeyError
	for _, c := range []struct {
		name  string
		key   ssh.Signer
		lines string
		want  any // the type of the error, nil for none
	}{
		{"signed", certificate(fine), trust, nil},
		{"signed, key known too", certificate(fine), "127.0.0.1 " +
			string(ssh.MarshalAuthorizedKey(other.PublicKey())) + trust, nil},
		{"expired", certificate(func(c *ssh.Certificate) { c.ValidBefore = c.ValidAfter + 1 }), trust, &invalid},
		{
			"for another host", certificate(func(c *ssh.Certificate) { c.ValidPrincipals = []string{"elsewhere"} }), trust,
			&invalid,
		},
		{"authority revoked", certificate(fine), trust + "@revoked * " +
			string(ssh.MarshalAuthorizedKey(authority.PublicKey())), &invalid},
		{"key revoked", certificate(fine), trust + "@revoked * " +
			string(ssh.MarshalAuthorizedKey(hostKey.PublicKey())), &unknown},
		{"no certificate", hostKey, trust, &unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := hosttest.Start(t, hosttest.Options{HostKeys: []ssh.Signer{c.key}})
			o := host.SSHOptions{
				Name: "w1", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
				Patience: patience,
			}
			o.KnownHosts = []string{writeTemp(t, strings.ReplaceAll(c.lines, " * ", " "+knownhosts.Normalize(s.Addr)+
				" "))}
			h, err := host.Dial(t.Context(), o)
			if err == nil {
				_ = h.Close()
			}
			if c.want == nil && err != nil || c.want != nil && !errors.As(err, c.want) {
				t.Errorf("got %v", err)
			}
			if unknown != nil && c.name == "no certificate" && len(unknown.Known) != 0 {
				t.Errorf("%v: an authority's key is not a host's", err)
			}
		})
	}
}

func knownHosts(t *testing.T, port int, key ssh.PublicKey) string {
	t.Helper()
	return writeTemp(t, "[127.0.0.1]:"+strconv.Itoa(port)+" "+string(ssh.MarshalAuthorizedKey(key)))
}

func ecdsaKey(t *testing.T) ssh.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSudoFailures(t *testing.T) {
	t.Parallel()
	s := hosttest.StartSSHD(t, hosttest.SSHDOptions{})
	base := host.SSHOptions{
		Name: "cp1", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts}, Patience: patience,
	}
	for _, c := range []struct {
		name, user string
		password   host.Secret
		want       string
	}{
		{"wrong password", hosttest.UserSudoPassword, secret("wr0ng-passw0rd"), "the password is wrong"},
		{"no password", hosttest.UserSudoPassword, nil, "a password is needed and none is given"},
		{"not allowed", hosttest.UserNoSudo, secret(hosttest.Password), "kktest-none is not in the sudoers file"},
		{"password with a line break", hosttest.UserSudoPassword, secret("a\nb"), "line break"},
		{"password not to be had", hosttest.UserSudoPassword, func(context.Context) (string, error) {
			return "", errors.New("SUDO_PASSWORD is not set")
		}, "SUDO_PASSWORD is not set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := base
			o.User, o.SudoPassword = c.user, c.password
			_, err := host.Dial(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "wr0ng") {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			var sudo *host.SudoError
			if c.name == "wrong password" && (!errors.As(err, &sudo) || sudo.Hint() == "" || sudo.Host != "cp1") {
				t.Errorf("got %v, want a SudoError", err)
			}
		})
	}
}

// TestSSHDPassword logs in with the password, which has all that shells care about in it.
func TestSSHDPassword(t *testing.T) {
	t.Parallel()
	s := hosttest.StartSSHD(t, hosttest.SSHDOptions{})
	h := dial(t, host.SSHOptions{
		Address: s.Host, Port: s.Port, User: hosttest.UserSudoPassword, KnownHosts: []string{s.KnownHosts},
		Password: secret(hosttest.Password), SudoPassword: secret(hosttest.Password),
	})
	if out, err := host.Output(t.Context(), h, "id", "-un"); err != nil || string(out) != "root\n" {
		t.Errorf("%q, %v", out, err)
	}
	// Nobody can see the password, neither in the processes of the host nor in what the command inherits.
	script := `cat /proc/*/cmdline | tr '\0' ' '; tr '\0' ' ' </proc/$$/environ; cat`
	out, err := host.Output(t.Context(), h, "sh", "-c", script)
	if err != nil || strings.Contains(string(out), hosttest.Password) {
		t.Errorf("the password can be seen: %v", err)
	}
}

// TestSSHDWrongPasswordWithoutPAM wants a refused login named as one by a server that answers keyboard-interactive
// without a question.
func TestSSHDWrongPasswordWithoutPAM(t *testing.T) {
	t.Parallel()
	s := hosttest.StartSSHD(t,
		hosttest.SSHDOptions{Config: "UsePAM no\nKbdInteractiveAuthentication yes\nPasswordAuthentication yes\n"})
	_, err := host.Dial(t.Context(), host.SSHOptions{
		Address: s.Host, Port: s.Port, User: hosttest.UserSudoPassword, KnownHosts: []string{s.KnownHosts},
		Password: secret("wr0ng-passw0rd"),
	})
	var refused *host.AuthError
	if !errors.As(err, &refused) || !strings.Contains(refused.Error(), "refused (tried password") {
		t.Errorf("got %v, want an AuthError", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	needRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	var unreachable *host.UnreachableError

	t.Run("silent", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		given := errors.New("given up")
		go func() {
			silent, err := l.Accept()
			if err == nil {
				_, _ = silent.Read(make([]byte, 1)) // the handshake has begun
				defer func() { _ = silent.Close() }()
				defer func() { _, _ = io.Copy(io.Discard, silent) }() // until the other side has gone
			}
			cancel(given)
		}()
		begin := time.Now()
		_, err := host.Dial(ctx, host.SSHOptions{Address: "127.0.0.1", Port: port})
		const handshake = 20 * time.Second // after which it would end by itself
		if !errors.Is(err, given) || time.Since(begin) >= handshake {
			t.Errorf("got %v after %s, want the cause", err, time.Since(begin))
		}
	})
	t.Run("refused", func(t *testing.T) {
		// nobody's: servers here get other ports
		_, err := host.Dial(t.Context(), host.SSHOptions{Name: "w9", Address: "127.0.0.1", Port: 1})
		if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "connection refused") ||
			unreachable.Hint() == "" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not SSH", func(t *testing.T) {
		web, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = web.Close() }()
		go func() {
			for c, err := web.Accept(); err == nil; c, err = web.Accept() {
				_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
				_ = c.Close()
			}
		}()
		_, err = host.Dial(t.Context(), host.SSHOptions{Address: "127.0.0.1", Port: web.Addr().(*net.TCPAddr).Port})
		if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "SSH handshake") {
			t.Errorf("got %v", err)
		}
	})
}

func TestLostHost(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, c := range []struct {
		name string
		lose func(*hosttest.Server)
		want string
		// keepalive is long enough for a machine that is busy before the host is lost.
		keepalive time.Duration
	}{
		{"dropped", (*hosttest.Server).Drop, "the connection was lost", time.Hour},
		{"silent", (*hosttest.Server).Silence, "no sign of life", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.Start(t, hosttest.Options{})
			h, err := host.Dial(t.Context(), host.SSHOptions{
				Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts},
				Keepalive: c.keepalive, Patience: patience,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Close() }()
			r, w := io.Pipe()
			go func() {
				_, _ = r.Read(make([]byte, 1))
				c.lose(s)
				_, _ = io.Copy(io.Discard, r)
			}()
			var unreachable *host.UnreachableError
			err = h.Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", "echo x; exec sleep 3600"}, Stdout: w})
			if !errors.As(err, &unreachable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("a command under way: %v, want %q", err, c.want)
			}
			err = h.Run(t.Context(), host.Cmd{Args: []string{"true"}})
			if !errors.As(err, &unreachable) {
				t.Errorf("the next command: %v", err)
			}
		})
	}
}

func TestKeepaliveOfAnIdleHost(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := hosttest.Start(t, hosttest.Options{})
	h := dial(t, host.SSHOptions{
		Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts},
		Keepalive: time.Second,
	})
	// Long enough for several keepalives, which the server answers with a refusal; between them is time for a machine
	// that has other work.
	if err := h.Run(t.Context(), host.Cmd{Args: []string{"sleep", "6"}}); err != nil {
		t.Error(err)
	}
}
