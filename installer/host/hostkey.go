package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"
)

// A KeyError means a host key is unknown, or differs from the known one.
type KeyError struct {
	Address string
	// Type and Fingerprint are those of the host's present key.
	Type, Fingerprint string
	// Known are the keys for the address in the known_hosts files; none if the host is unknown.
	Known []KnownKey
	// Revoked means that the key in Known was revoked.
	Revoked bool
}

// A KnownKey is a line of a known_hosts file.
type KnownKey struct {
	Type, Fingerprint string
	File              string
	Line              int
}

// Error lists the fingerprints and their origins.
func (e *KeyError) Error() string {
	key := fmt.Sprintf("%s %s", e.Type, e.Fingerprint)
	if len(e.Known) == 0 {
		return "the host key is not known: " + key
	}
	known := make([]string, len(e.Known))
	for i, k := range e.Known {
		known[i] = fmt.Sprintf("%s %s (%s:%d)", k.Type, k.Fingerprint, k.File, k.Line)
	}
	if e.Revoked {
		return fmt.Sprintf("the host key %s is revoked: %s", key, strings.Join(known, ", "))
	}
	return fmt.Sprintf("THE HOST KEY HAS CHANGED: the host has %s, known is %s", key, strings.Join(known, ", "))
}

// Hint returns the remedy.
func (e *KeyError) Hint() string {
	switch {
	case len(e.Known) == 0:
		return "compare the fingerprint with what `ssh-keygen -lf /etc/ssh/ssh_host_" + keyFileName(e.Type) +
			"_key.pub` prints on the host, then add the key to known_hosts, or use --accept-new"
	case e.Revoked:
		return "find out why the key was revoked before you connect"
	default:
		return "the connection may be intercepted. If the host was reinstalled and the new fingerprint is right, remove the old line: ssh-keygen -f " +
			e.Known[0].File + " -R " + quote(knownhosts.Normalize(e.Address))
	}
}

func keyFileName(keyType string) string {
	switch keyType {
	case ssh.KeyAlgoED25519:
		return "ed25519"
	case ssh.KeyAlgoRSA:
		return "rsa"
	default:
		return "ecdsa"
	}
}

// A CertificateError means a host certificate is invalid: it has expired, is for other names or was revoked.
type CertificateError struct {
	// Authority is the fingerprint of the signing key.
	Authority string
	Err       error
}

// Error names the certificate's problem.
func (e *CertificateError) Error() string {
	return fmt.Sprintf("the host's certificate (signed by %s) is not valid: %v", e.Authority, e.Err)
}

// Unwrap returns the reason.
func (e *CertificateError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *CertificateError) Hint() string {
	return "have the authority sign the host's key again, for the address that the inventory has, or add the host's key itself to known_hosts; see it with `ssh-keygen -Lf /etc/ssh/ssh_host_ed25519_key-cert.pub` on the host"
}

// knownKeys are the keys of known_hosts files.
type knownKeys struct {
	check ssh.HostKeyCallback
	// authorities are the lines with keys that sign host keys.
	authorities map[fileLine]bool
}

type fileLine struct {
	file string
	line int
}

func readKnownHosts(files []string) (knownKeys, error) {
	k := knownKeys{authorities: map[fileLine]bool{}}
	var there []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return knownKeys{}, err
		}
		there = append(there, f)
		n := 0
		for line := range bytes.Lines(data) {
			n++
			if bytes.HasPrefix(bytes.TrimSpace(line), []byte("@cert-authority")) {
				k.authorities[fileLine{f, n}] = true
			}
		}
	}
	check, err := knownhosts.New(there...)
	if err != nil {
		return knownKeys{}, fmt.Errorf("read known hosts: %w", err)
	}
	k.check = check
	return k, nil
}

// algorithms lists certificates first if an authority is known for the address, then the types of known keys: otherwise
// a host with several keys might present an unknown one. SHA-1 is not accepted.
func (k knownKeys) algorithms(address string) []string {
	all := [][]string{
		{ssh.KeyAlgoED25519},
		{ssh.KeyAlgoECDSA256},
		{ssh.KeyAlgoECDSA384},
		{ssh.KeyAlgoECDSA521},
		{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256},
	}
	types := []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}
	var first, last []string
	known, authorities := k.of(address)
	if len(authorities) > 0 {
		first = []string{
			ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
			ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
		}
	}
	for i, t := range types {
		if slices.ContainsFunc(known, func(k knownhosts.KnownKey) bool { return k.Key.Type() == t }) {
			first = append(first, all[i]...)
		} else {
			last = append(last, all[i]...)
		}
	}
	return append(first, last...)
}

// of returns the keys known for an address, and those that may sign its key.
func (k knownKeys) of(address string) (known, authorities []knownhosts.KnownKey) {
	if wrong, ok := errors.AsType[*knownhosts.KeyError](k.check(address, noAddr{}, noKey{})); ok {
		return k.sort(wrong.Want)
	}
	return nil, nil
}

// sort separates keys of hosts from keys of authorities.
func (k knownKeys) sort(want []knownhosts.KnownKey) (known, authorities []knownhosts.KnownKey) {
	for _, key := range want {
		if k.authorities[fileLine{key.Filename, key.Line}] {
			authorities = append(authorities, key)
		} else {
			known = append(known, key)
		}
	}
	return known, authorities
}

// noKey never matches; looking it up makes knownhosts list the known keys.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

type noAddr struct{}

func (noAddr) Network() string { return "tcp" }
func (noAddr) String() string  { return "0.0.0.0:0" }

// A verifier checks the key of one connection.
type verifier struct {
	options SSHOptions
	keys    knownKeys
	// refused is check's error: x/crypto/ssh keeps only its text.
	refused error
}

func (v *verifier) check(address string, remote net.Addr, key ssh.PublicKey) error {
	v.refused = v.keys.verify(address, remote, key)
	var refused *KeyError
	if errors.As(v.refused, &refused) && len(refused.Known) == 0 && v.options.AcceptNew &&
		len(v.options.KnownHosts) > 0 {
		v.refused = addKnownHost(v.options.KnownHosts, address, remote, key)
	}
	return v.refused
}

// verify checks a key or a certificate. An invalid certificate counts as its bare key, as with ssh.
func (k knownKeys) verify(address string, remote net.Addr, key ssh.PublicKey) error {
	err := k.check(address, remote, key)
	if err == nil {
		return nil
	}
	cert, ok := key.(*ssh.Certificate)
	if !ok {
		return k.describe(address, key, err)
	}
	plain := k.describe(address, cert.Key, k.check(address, remote, cert.Key))
	var refused *KeyError
	if plain == nil || errors.As(plain, &refused) && (len(refused.Known) > 0 || refused.Revoked) {
		return plain
	}
	return &CertificateError{Authority: ssh.FingerprintSHA256(cert.SignatureKey), Err: err}
}

// describe turns x/crypto/ssh's errors into a *KeyError.
func (k knownKeys) describe(address string, key ssh.PublicKey, err error) error {
	e := &KeyError{Address: address, Type: key.Type(), Fingerprint: ssh.FingerprintSHA256(key)}
	var wrong *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		known, _ := k.sort(wrong.Want)
		for _, one := range known {
			e.Known = append(e.Known, knownLine(one))
		}
	case errors.As(err, &revoked):
		e.Known, e.Revoked = []KnownKey{knownLine(revoked.Revoked)}, true
	default:
		return fmt.Errorf("check the host key: %w", err)
	}
	return e
}

func knownLine(k knownhosts.KnownKey) KnownKey {
	return KnownKey{Type: k.Key.Type(), Fingerprint: ssh.FingerprintSHA256(k.Key), File: k.Filename, Line: k.Line}
}

// addKnownHost adds a line to the first file. It reads the files again under the file's lock: another connection may
// have been first, perhaps with another key.
func addKnownHost(files []string, address string, remote net.Addr, key ssh.PublicKey) (err error) {
	name := files[0]
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("add the host key to %s: %w", name, err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("add the host key: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	now, err := readKnownHosts(files)
	if err != nil {
		return err
	}
	var refused *KeyError
	if err := now.verify(address, remote, key); !errors.As(err, &refused) || len(refused.Known) > 0 {
		return err // nil if another one has added it
	}
	line := []byte(knownhosts.Line([]string{knownhosts.Normalize(address)}, key) + "\n")
	if cut, err := lastLineIsCut(f); err != nil {
		return fmt.Errorf("add the host key to %s: %w", name, err)
	} else if cut {
		line = append([]byte("\n"), line...)
	}
	// A single short write to a file opened for appending is atomic.
	if _, err := f.Write(line); err != nil {
		return fmt.Errorf("add the host key to %s: %w", name, err)
	}
	return f.Sync()
}

// lastLineIsCut reports whether the file's last line has no newline.
func lastLineIsCut(f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return !bytes.Equal(last, []byte("\n")), nil
}
