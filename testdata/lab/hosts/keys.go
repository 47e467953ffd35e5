package hosts

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// keys makes the key that opens the hosts, and each host's own, and lays out what differs from host to host.
func (l *Lab) keys() error {
	private, public, err := newKey()
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(l.KeyFile(), private, 0o600),
		os.WriteFile(l.KeyFile()+".pub", public, 0o644),
	); err != nil {
		return fmt.Errorf("key of the lab: %w", err)
	}
	var known strings.Builder
	for _, h := range l.Hosts {
		hostPrivate, hostPublic, err := newKey()
		if err != nil {
			return err
		}
		fmt.Fprintf(&known, "%s %s", h.Address, hostPublic)
		if err := l.seed(h, map[string][]byte{
			"root/.ssh/authorized_keys":        public,
			"home/ops/.ssh/authorized_keys":    public,
			"etc/ssh/ssh_host_ed25519_key":     hostPrivate,
			"etc/ssh/ssh_host_ed25519_key.pub": hostPublic,
			"etc/hostname":                     []byte(h.Name + "\n"),
			// as Debian's installer leaves it
			"etc/hosts": []byte("127.0.0.1 localhost\n127.0.1.1 " + h.Name +
				"\n::1 localhost ip6-localhost ip6-loopback\n"),
		}); err != nil {
			return fmt.Errorf("files of %s: %w", h.Name, err)
		}
	}
	return os.WriteFile(l.KnownHostsFile(), []byte(known.String()), 0o644)
}

func (l *Lab) seed(h Host, files map[string][]byte) error {
	for name, data := range files {
		to := filepath.Join(l.hostDir(h), "seed", name)
		mode, dirMode := os.FileMode(0o644), os.FileMode(0o755)
		if strings.HasSuffix(name, "_key") {
			mode = 0o600
		}
		if strings.Contains(name, ".ssh/") {
			mode, dirMode = 0o600, 0o700
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Dir(to)), 0o755),
			os.MkdirAll(filepath.Dir(to), dirMode), os.WriteFile(to, data, mode)); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(l.hostDir(h), "seed", "root"), 0o700)
}

func newKey() (private, public []byte, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, "kkbundle lab")
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(sshPub), nil
}
