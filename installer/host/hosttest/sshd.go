package hosttest

import (
	"bytes"
	"cmp"
	_ "embed" // scripts
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// The users of an SSHD, apart from root. All use Password.
const (
	UserSudoPassword = "kktest-pw"   // sudo asks for the password
	UserSudoFree     = "kktest-free" // sudo requires no password
	UserNoSudo       = "kktest-none" // not in sudoers
	Password         = `p'a"s\s $w0rd` + "`é"
)

// An SSHD is OpenSSH's server with its own users. They exist only in its mount namespace: this machine is not changed.
type SSHD struct {
	Addr, Host          string
	Port                int
	KeyFile, KnownHosts string
	// Dir is a directory that all users can enter.
	Dir string

	cmd *exec.Cmd
	log *sshdLog
}

// An sshdLog holds the server's output.
type sshdLog struct {
	mu        sync.Mutex
	b         bytes.Buffer
	listening chan struct{} // closed when the server reports that it listens
}

func (l *sshdLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.has("Server listening on ")
	_, _ = l.b.Write(p) // it never fails
	if !before && l.has("Server listening on ") {
		close(l.listening)
	}
	return len(p), nil
}

func (l *sshdLog) has(text string) bool { return bytes.Contains(l.b.Bytes(), []byte(text)) }

func (l *sshdLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

//go:embed scripts/sshd.sh
var sshdScript string

// SSHDOptions change an SSHD.
type SSHDOptions struct {
	// Config has further lines of sshd_config, which override the usual ones, Sudoers those of sudoers.
	Config, Sudoers string
	// Setup is a shell script that runs before the server, in its namespace.
	Setup string
	// Shell is everybody's login shell; "" is /bin/sh.
	Shell string
	// Private are directories that are private to the server's namespace, initially empty.
	Private []string
}

// StartSSHD starts an SSHD that ends with the test. The test is skipped without root, sshd or sudo.
func StartSSHD(tb testing.TB, o SSHDOptions) *SSHD {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root, to start sshd with users of its own")
	}
	for _, program := range []string{"/usr/sbin/sshd", "/usr/bin/sudo", "/usr/bin/unshare", "/usr/sbin/useradd"} {
		if _, err := os.Stat(program); err != nil {
			tb.Skipf("needs %s: apt-get install --no-install-recommends openssh-server sudo passwd util-linux", program)
		}
	}
	o.Shell = cmp.Or(o.Shell, "/bin/sh")
	dir, err := os.MkdirTemp("", "kktest") //nolint:usetesting // users other than root must get in
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	s := &SSHD{Host: "127.0.0.1", Dir: dir, KeyFile: dir + "/key", KnownHosts: dir + "/known_hosts"}
	client := NewKey(tb, s.KeyFile)
	hostKey := NewKey(tb, dir+"/hostkey")
	write(tb, dir+"/authorized_keys", string(ssh.MarshalAuthorizedKey(client.PublicKey())))
	for started := false; !started; { // another process may take the port first
		s.Port = freePort(tb)
		s.Addr = fmt.Sprintf("127.0.0.1:%d", s.Port)
		write(tb, dir+"/sshd_config", s.config(o.Config))
		started = s.start(tb, o)
	}
	writeKnownHosts(tb, s.KnownHosts, s.Addr, []ssh.Signer{hostKey})
	return s
}

func (s *SSHD) config(more string) string {
	return fmt.Sprintf(`%s
Port %d
ListenAddress 127.0.0.1
HostKey %s/hostkey
AuthorizedKeysFile %s/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication yes
AllowTcpForwarding no
MaxStartups 100
`, more, s.Port, s.Dir, s.Dir)
}

// start starts the server and waits until it listens. It returns false if its port is taken.
func (s *SSHD) start(tb testing.TB, o SSHDOptions) bool {
	tb.Helper()
	s.log = &sshdLog{listening: make(chan struct{})}
	s.cmd = exec.Command("/usr/bin/unshare", "--mount", "--propagation", "private", "sh", "-c", sshdScript)
	s.cmd.Env = append(os.Environ(), "DIR="+s.Dir, "PASSWORD="+Password, "SUDOERS="+o.Sudoers, "SETUP="+o.Setup,
		"LOGIN_SHELL="+o.Shell, "PRIVATE="+strings.Join(o.Private, " "))
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.cmd.WaitDelay = time.Second // a connection left open by a test must not delay the end
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(ended)
	}()
	server, log := s.cmd.Process, s.log
	tb.Cleanup(func() {
		_ = server.Kill()
		<-ended
		if tb.Failed() {
			tb.Logf("sshd said:\n%s", log)
		}
	})
	select { // the test's own time limit ends this
	case <-log.listening:
		return true
	case <-ended:
	}
	text := log.String()
	switch {
	case strings.Contains(text, "Address already in use"):
		return false
	case strings.Contains(text, "unshare failed"), strings.Contains(text, "mount:"):
		tb.Skipf("needs mount namespaces: %s", text)
	}
	tb.Fatalf("sshd ended: %s", text)
	return false
}

func write(tb testing.TB, file, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Clean(file), []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
