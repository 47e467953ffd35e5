package host_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
)

// checkRefusal checks what the errors of a host are: they name it, say what is wrong and what to do.
func checkRefusal(t *testing.T, err error, want, hint string) {
	t.Helper()
	var hinted interface{ Hint() string }
	if err == nil || !strings.HasPrefix(err.Error(), "cp1") || !strings.Contains(err.Error(), want) ||
		strings.ContainsRune(err.Error(), 0x1b) {
		t.Fatalf("got %v, want cp1's error with %q", err, want)
	}
	if !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), hint) {
		t.Errorf("%v: want a hint with %q", err, hint)
	}
	if strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), hosttest.Password) {
		t.Errorf("a password is in %v", err)
	}
}

// TestSSHDRefusals are hosts of OpenSSH that let us in and then do not do what they should.
func TestSSHDRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		server     hosttest.SSHDOptions
		user       string
		login      host.Secret // instead of the key
		sudo       host.Secret
		want, hint string
	}{
		{
			"requiretty",
			hosttest.SSHDOptions{Sudoers: "Defaults requiretty"},
			hosttest.UserSudoFree, nil, nil,
			"requiretty", "!requiretty",
		},
		{
			"requiretty with a password",
			hosttest.SSHDOptions{Sudoers: "Defaults requiretty"},
			hosttest.UserSudoPassword,
			nil, secret(hosttest.Password), "requiretty", "!requiretty",
		},
		{
			"some commands only",
			hosttest.SSHDOptions{Sudoers: hosttest.UserNoSudo + " ALL=(root) NOPASSWD: /bin/ls"},
			hosttest.UserNoSudo, nil, secret(hosttest.Password), "may not run every command", "log in as root",
		},
		{"no sudo", hosttest.SSHDOptions{Setup: `mkdir $DIR/all $DIR/bin; mount --bind /usr/bin $DIR/all
ln -s $DIR/all/* $DIR/bin; rm $DIR/bin/sudo; mount --bind $DIR/bin /usr/bin`}, hosttest.UserSudoFree, nil, nil, "there is none on the host", "install sudo"},
		{
			"no shell",
			hosttest.SSHDOptions{Shell: "/usr/sbin/nologin"},
			"root", nil, nil,
			"This account is currently not available", "login shell",
		},
		{
			"forced command",
			hosttest.SSHDOptions{Config: "ForceCommand /bin/false"},
			"root", nil, nil,
			"the login shell of root did not run a command (exit code 1)", "ForceCommand",
		},
		{
			"expired password",
			hosttest.SSHDOptions{Setup: "chage -d 0 " + hosttest.UserSudoFree},
			hosttest.UserSudoFree,
			secret(hosttest.Password), nil, "expired", "set a new",
		},
		{
			"expired password and sudo",
			hosttest.SSHDOptions{Setup: "chage -d 0 " + hosttest.UserSudoPassword},
			hosttest.UserSudoPassword, nil, secret(hosttest.Password), "expired", "set a new password",
		},
		{
			"locked account",
			hosttest.SSHDOptions{Setup: "usermod -e 1 " + hosttest.UserSudoFree},
			hosttest.UserSudoFree,
			nil, nil, "refused", "ssh.user",
		},
		{
			"no sessions",
			hosttest.SSHDOptions{Config: "MaxSessions 0"},
			"root", nil, nil, "MaxSessions 0",
			"sshd_config",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.StartSSHD(t, c.server)
			o := host.SSHOptions{
				Name: "cp1", Address: s.Host, Port: s.Port, User: c.user,
				KnownHosts: []string{s.KnownHosts}, Password: c.login, SudoPassword: c.sudo, Patience: patience,
			}
			if c.name == "expired password and sudo" {
				o.Patience = 20 * time.Second // it asks for a new one, and waits
			}
			if c.login == nil {
				o.Keys = []string{s.KeyFile}
			}
			h, err := host.Dial(t.Context(), o)
			if err == nil {
				_ = h.Close()
			}
			checkRefusal(t, err, c.want, c.hint)
		})
	}
}

// TestSSHDOddities are hosts of OpenSSH that are unusual, and work.
func TestSSHDOddities(t *testing.T) {
	t.Parallel()
	const chatty = `cat >$DIR/.bashrc <<'END'
echo "Welcome to $(hostname)"; printf '\033[31mred\033]0;title\a'; echo "quota: 97%" >&2; trap 'echo bye' EXIT; alias env=false
END
cp $DIR/.bashrc $DIR/.profile`
	for _, c := range []struct {
		name   string
		server hosttest.SSHDOptions
		test   func(t *testing.T, h host.Host)
	}{
		{
			"chatty login scripts",
			hosttest.SSHDOptions{Shell: "/bin/bash", Setup: chatty},
			func(t *testing.T, h host.Host) {
				testStreams(t, h)
				testCodes(t, h)
			},
		},
		{
			"other locale",
			hosttest.SSHDOptions{Config: "SetEnv LANG=de_DE.UTF-8 LC_ALL=de_DE.UTF-8 LANGUAGE=de"},
			func(t *testing.T, h host.Host) {
				testEnvironment(t, h)
				var exit *host.ExitError
				if err := h.Run(t.Context(), host.Cmd{Args: []string{"ls", "/none"}}); !errors.As(err, &exit) ||
					!strings.Contains(exit.Stderr, "No such file") {
					t.Errorf("got %v, want English", err)
				}
			},
		},
		{"one session", hosttest.SSHDOptions{Config: "MaxSessions 1"}, func(t *testing.T, h host.Host) {
			testCancel(t, h)
			var all sync.WaitGroup
			for range 12 {
				all.Go(func() {
					if out, err := host.Output(t.Context(), h, "echo", "x"); err != nil || string(out) != "x\n" {
						t.Errorf("%q, %v", out, err)
					}
				})
			}
			all.Wait()
		}},
		{"noexec /tmp", hosttest.SSHDOptions{
			Private: []string{"/var/lib"},
			Setup:   "mount --bind /tmp /tmp; mount -o remount,bind,noexec /tmp",
		}, func(t *testing.T, h host.Host) {
			if changed, err := host.PutHelper(t.Context(), h, []byte("#!/bin/sh\n")); err != nil || !changed {
				t.Errorf("%v, %v", changed, err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.StartSSHD(t, c.server)
			h := dial(t, host.SSHOptions{
				Name: "cp1", Address: s.Host, Port: s.Port, User: hosttest.UserSudoFree,
				Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts},
			})
			c.test(t, h)
			if a, ok := host.AlgorithmsOf(h); !ok || a.KeyExchange == "" || a.HostKey != ssh.KeyAlgoED25519 ||
				a.Cipher == "" || !strings.HasPrefix(a.Server, "SSH-2.0-OpenSSH") {
				t.Errorf("algorithms: %+v", a)
			}
		})
	}
}

// TestHelperThatCannotBePut has no place for the helper, which leaves nothing behind then.
func TestHelperThatCannotBePut(t *testing.T) {
	t.Parallel()
	binary := append([]byte("#!/bin/sh\n#"), bytes.Repeat([]byte("x"), 3<<20)...)
	for _, c := range []struct{ name, setup, want, hint string }{
		{"full", "mount -t tmpfs -o size=1m none /var/lib", "No space left on device", "free at least 4 MiB"},
		{"read-only", "mount -t tmpfs -o ro none /var/lib", "Read-only file system", "read-only"},
		{"noexec", "mount -t tmpfs -o noexec none /var/lib", "the helper does not run", "noexec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Setup: c.setup})
			h := dial(t, host.SSHOptions{
				Name: "cp1", Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
				KnownHosts: []string{s.KnownHosts},
			})
			_, err := host.PutHelper(t.Context(), h, binary)
			checkRefusal(t, err, c.want, c.hint)
			out, err := host.Output(t.Context(), h, "find", "/var/lib", "-name", "*kkbundle-node*", "-not", "-path",
				host.HelperPath)
			if err != nil || len(out) > 0 {
				t.Errorf("left behind: %q, %v", out, err)
			}
		})
	}
}

// TestHandshakes are servers that are no use, and one that is busy.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	newPassword := func(c *ssh.ServerConfig) {
		c.PublicKeyCallback = nil
		c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata,
			ask ssh.KeyboardInteractiveChallenge,
		) (*ssh.Permissions, error) {
			if _, err := ask("", "", []string{"Password: "}, []bool{false}); err != nil {
				return nil, err
			}
			answers, err := ask("", "You are required to change your password immediately.", []string{"New password: "},
				[]bool{false})
			if err == nil {
				t.Errorf("a new password was given: %q", answers)
			}
			return nil, errors.New("no new password")
		}
	}
	otp := func(c *ssh.ServerConfig) {
		c.PublicKeyCallback = nil
		c.KeyboardInteractiveCallback = func(_ ssh.ConnMetadata,
			ask ssh.KeyboardInteractiveChallenge,
		) (*ssh.Permissions, error) {
			_, err := ask("", "", []string{"Code\x1b[2J: "}, []bool{true})
			return nil, err
		}
	}
	for _, c := range []struct {
		name       string
		server     hosttest.Options
		want, hint string // "" works
	}{
		{
			"outdated key exchange",
			hosttest.Options{Configure: func(c *ssh.ServerConfig) { c.KeyExchanges = []string{ssh.InsecureKeyExchangeDH1SHA1} }},
			"it offers only diffie-hellman-group1-sha1", "sshd_config",
		},
		{"outdated cipher", hosttest.Options{Configure: func(c *ssh.ServerConfig) { c.Ciphers = []string{ssh.InsecureCipherRC4} }}, "it offers only arcfour", "update OpenSSH"},
		{"busy", hosttest.Options{Drop: 2}, "", ""},
		{"busy for long", hosttest.Options{Drop: 100}, "closed before the host said anything", "MaxStartups"},
		{"few attempts", hosttest.Options{Configure: func(c *ssh.ServerConfig) { c.MaxAuthTries = 1; c.PublicKeyCallback = refuseAll }}, "no more attempts", "ssh.key"},
		{"new password", hosttest.Options{Configure: newPassword}, "the password has expired", ""},
		{"second factor", hosttest.Options{Configure: otp}, `the host asks "Code:"`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.Start(t, c.server)
			o := optionsOf("cp1", s)
			o.Password = secret("wr0ng-passw0rd")
			if c.want == "" {
				dial(t, o)
				return
			}
			_, err := host.Dial(t.Context(), o)
			checkRefusal(t, err, c.want, c.hint)
		})
	}
}

func refuseAll(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
	return nil, errors.New("not this one")
}

// TestNotSSH are ports behind which there is something else.
func TestNotSSH(t *testing.T) {
	t.Parallel()
	for said, hint := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\x1b[2J\r\n": "check the port",
		"Not allowed at this time\r\n":            "PerSourcePenalties",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, _ = io.WriteString(c, said)
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		_, err = host.Dial(t.Context(), host.SSHOptions{
			Name: "cp1", Address: "127.0.0.1",
			Port: l.Addr().(*net.TCPAddr).Port,
		})
		checkRefusal(t, err, said[:11], hint)
	}
}

// TestHangingHost lets us in, and then nothing comes.
func TestHangingHost(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ string, _ io.Reader, stdout, _ io.Writer) int {
		_, _ = io.WriteString(stdout, "Press any key\n")
		<-ctx.Done()
		return 1
	}
	s := hosttest.Start(t, hosttest.Options{Exec: hang})
	o := optionsOf("cp1", s)
	o.Patience = 50 * time.Millisecond
	_, err := host.Dial(t.Context(), o)
	checkRefusal(t, err, "login succeeded, but the server refused to run commands", "login scripts")
}

// TestTerminalCodes has a host try to write over the operator's terminal.
func TestTerminalCodes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := hosttest.Start(t, hosttest.Options{})
	h := dial(t, optionsOf("cp1", s))
	err := h.Run(t.Context(),
		host.Cmd{Args: []string{
			"sh", "-c",
			`printf '\033[2J\033]0;all is well\a\033[31mfailed\033[0m\302\233\r\342\200\256' >&2; exit 3`,
		}})
	var exit *host.ExitError
	if !errors.As(err, &exit) || exit.Stderr != "failed" {
		t.Errorf("got %q, want failed", exit.Stderr)
	}
}
