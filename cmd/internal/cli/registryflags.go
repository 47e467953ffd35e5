package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/registry"
)

// loginFlags are for the connection and login to a registry.
type loginFlags struct {
	ca, cert, key, username  string
	plainHTTP, passwordStdin bool
}

func (f *loginFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "ca", "", "PEM file of the registry's certificate authority")
	fs.StringVar(&f.cert, "cert", "", "PEM file of a client certificate")
	fs.StringVar(&f.key, "key", "", "PEM file of the key of --cert")
	fs.BoolVar(&f.plainHTTP, "plain-http", false, "use HTTP without TLS")
	fs.StringVarP(&f.username, "username", "u", "", "log in as this user")
	fs.BoolVar(&f.passwordStdin, "password-stdin", false, "read the password from standard input")
}

// registryFlags are the flags of commands that send to a registry.
type registryFlags struct {
	loginFlags
	jobs int
}

func (f *registryFlags) add(fs *pflag.FlagSet) {
	f.loginFlags.add(fs)
	fs.IntVarP(&f.jobs, "jobs", "j", 0, "transfers at once (default 8)")
}

func (f *loginFlags) check() error {
	if (f.cert == "") != (f.key == "") {
		return usage.Errorf("--cert and --key go together")
	}
	return nil
}

func (f *registryFlags) check() error {
	if f.jobs < 0 {
		return usage.Errorf("--jobs %d: want at least 1", f.jobs)
	}
	return f.loginFlags.check()
}

// transport returns a transport with the flags.
func (f *registryFlags) transport() (*http.Transport, error) {
	t, err := registry.NewTransport(f.ca)
	if err == nil && f.cert != "" {
		err = registry.UseCertificate(t, f.cert, f.key)
	}
	return t, err
}

// keychain returns docker's configuration, or the login of the flags.
func (f *loginFlags) keychain(stdin io.Reader) (authn.Keychain, error) {
	if f.username == "" && !f.passwordStdin {
		return authn.DefaultKeychain, nil
	}
	if f.username == "" || !f.passwordStdin {
		return nil, usage.Errorf("--username and --password-stdin go together; passwords are never taken from the command line")
	}
	password, err := readPassword(stdin)
	if err != nil {
		return nil, err
	}
	return login{&authn.Basic{Username: f.username, Password: password}}, nil
}

// login is a keychain with one login, for the only registry of the command.
type login struct{ auth authn.Authenticator }

func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.auth, nil }

// readPassword reads one line of at most 4 KiB.
func readPassword(r io.Reader) (string, error) {
	const most = 4 << 10
	line, err := bufio.NewReader(io.LimitReader(r, most)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password from standard input: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", usage.Errorf("no password came on standard input")
	}
	return line, nil
}
