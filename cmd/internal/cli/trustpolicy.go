package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/keyless"
)

// machineTrust is the machine's trust file. It is beside the configuration of other programs for all users, and not in
// /etc/kkbundle, which reset removes from hosts.
const machineTrust = "/etc/xdg/kkbundle/trust.yaml"

// trustPlaces are the places of trust files and the identity of the user. Tests replace them.
type trustPlaces struct {
	machine string // the machine's trust file
	sudoer  string // name of the user who called sudo; "" without sudo
	// home returns the home directory of a user; "" is the user of this process.
	home func(user string) (string, error)
}

func newTrustPlaces() trustPlaces {
	p := trustPlaces{machine: machineTrust, home: homeOf}
	if os.Geteuid() == 0 {
		p.sudoer = os.Getenv("SUDO_USER")
	}
	return p
}

// homeOf reads the user database if the environment has no home directory: services and cron jobs often have none.
func homeOf(name string) (string, error) {
	if name == "" {
		if home, err := os.UserHomeDir(); err == nil {
			return home, nil
		}
		u, err := user.Current()
		if err != nil {
			return "", err
		}
		return u.HomeDir, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.HomeDir, nil
}

// trusted is the content of one or more trust files.
type trusted struct {
	keys    []*trust.PublicKey
	signers []namedSigner // without a key
	require bool
	files   []string // that were read
}

func (t *trusted) add(o trusted) {
	t.keys, t.files, t.require = append(t.keys, o.keys...), append(t.files, o.files...), t.require || o.require
	t.signers = append(t.signers, o.signers...)
}

// empty reports whether nobody is trusted.
func (t *trusted) empty() bool { return len(t.keys)+len(t.signers) == 0 }

// A namedSigner is a signer without a key, and the trusted root of the file that names it.
type namedSigner struct {
	id   keyless.Identity
	root *keyless.Root
}

func (n namedSigner) String() string { return n.id.Subject + " (" + n.id.Issuer + ")" }

// demands returns the sets of keys by each of which a bundle must be signed.
//
// The keys are those of --trust, else the machine's and the user's together. Each file and --require-signature can
// demand a signature, and none can take the demand of another back. Where the machine's file demands one, it must be
// by a key of the machine, whatever the flags and the user's file name in addition.
func (g *globals) demands() ([]trusted, error) {
	o := &g.trust
	machine, err := readPolicy(o.at().machine)
	if err != nil {
		return nil, err
	}
	if machine.require && machine.empty() {
		return nil, &builder.InputError{Err: fmt.Errorf(
			"%s: require: true without keys: no bundle can be accepted; name the signers' public keys",
			machine.files[0])}
	}
	own, err := o.ownTrust(g)
	if err != nil {
		return nil, err
	}
	all := trusted{require: machine.require || own.require || o.require}
	var flags trusted
	for _, file := range o.keys {
		one, err := readTrustFile(file)
		if err != nil {
			return nil, err
		}
		flags.add(one)
	}
	switch {
	case len(o.keys) > 0 && machine.require:
		all.add(flags)
		return []trusted{machine, all}, nil
	case len(o.keys) > 0:
		all.add(flags)
	case machine.require:
		all.add(machine)
	default:
		all.add(machine)
		all.add(own)
	}
	if len(o.keys) == 0 {
		g.saySudo(all.files)
	}
	switch {
	case !all.empty() || !all.require:
	case o.require:
		return nil, usage.Errorf("--require-signature needs a trusted key: name a public key with --trust")
	default:
		return nil, &builder.InputError{Err: fmt.Errorf("%s: require: true without keys: name the signers' public keys",
			strings.Join(all.files, " and "))}
	}
	return []trusted{all}, nil
}

// ownTrust reads the user's trust files: of $KKBUNDLE_TRUST, else trust.yaml and trust.pem in the user's configuration.
func (o *trustOptions) ownTrust(g *globals) (trusted, error) {
	if file, ok := os.LookupEnv(envTrust); ok {
		if file == "" {
			return trusted{}, nil
		}
		return readTrustFile(file)
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		home, err := o.at().home("")
		if err != nil {
			g.Alert(fmt.Sprintf("your trust file was not read, because your home directory is not known (%v): name it with $%s", err, envTrust))
			return trusted{}, nil
		}
		dir = configBelow(home)
	}
	var own trusted
	for _, file := range trustFiles(dir) {
		one, err := readPolicy(file)
		if err != nil {
			return trusted{}, fmt.Errorf("%w; name another file with $%s, or none with an empty one", err, envTrust)
		}
		own.add(one)
	}
	return own, nil
}

// configBelow returns the directory of configurations in a home directory, as os.UserConfigDir does.
func configBelow(home string) string {
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support")
	}
	return filepath.Join(home, ".config")
}

// trustFiles are the trust files in a directory of configurations.
func trustFiles(dir string) []string {
	return []string{filepath.Join(dir, "kkbundle", "trust.yaml"), filepath.Join(dir, "kkbundle", "trust.pem")}
}

// saySudo prints the trust files that were read under sudo, where the environment decides whose home is used. It warns
// of those of the user who called sudo that were not read.
func (g *globals) saySudo(read []string) {
	at := g.trust.at()
	if at.sudoer == "" || g.trust.said {
		return
	}
	g.trust.said = true
	if len(read) > 0 {
		g.Note("run by sudo: signatures are checked as %s says", strings.Join(read, " and "))
	}
	home, err := at.home(at.sudoer)
	if err != nil {
		return
	}
	for _, file := range trustFiles(configBelow(home)) {
		if exists(file) && !slices.Contains(read, file) {
			g.Alert(fmt.Sprintf("run by sudo: %s was not read; name it with --trust, or make it the machine's, %s",
				file, at.machine))
		}
	}
}

// readPolicy is readTrustFile for a file that may be missing. Any other error counts: the file may demand something.
func readPolicy(file string) (trusted, error) {
	_, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return trusted{}, nil
	case err != nil:
		return trusted{}, &builder.InputError{Err: fmt.Errorf("trusted keys: %w", err)}
	}
	return readTrustFile(file)
}

// readTrustFile reads a trust file (kind Trust), or a PEM file of public keys.
func readTrustFile(file string) (trusted, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return trusted{}, fmt.Errorf("trusted keys: %w", err)
	}
	if !usage.IsYAML(file) {
		keys, err := parseKeys(file, data)
		return trusted{keys: keys, files: []string{file}}, err
	}
	policy, err := manifest.ParseTrust(file, data)
	if err != nil {
		return trusted{}, err
	}
	t := trusted{require: policy.Require, files: []string{file}}
	beside := func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(file), name)
	}
	if policy.Root != "" {
		if t.signers, err = signersOf(beside(policy.Root), policy.Identities); err != nil {
			return trusted{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, name := range policy.Keys {
		name = beside(name)
		data, err := builder.ReadFile(name)
		if err != nil {
			return trusted{}, fmt.Errorf("%s: trusted keys: %w", file, err)
		}
		keys, err := parseKeys(name, data)
		if err != nil {
			return trusted{}, err
		}
		t.keys = append(t.keys, keys...)
	}
	return t, nil
}

// signersOf reads the trusted root that vouches for identities. Only a root that the operator has counts, never one
// that comes with a bundle, which would vouch for itself.
func signersOf(file string, identities []manifest.TrustIdentity) ([]namedSigner, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, err
	}
	root, err := keyless.ParseRoot(data)
	if err != nil {
		return nil, &builder.InputError{Err: fmt.Errorf("%s: %w", file, err)}
	}
	var list []namedSigner
	for _, one := range identities {
		list = append(list, namedSigner{keyless.Identity{Subject: one.Identity, Issuer: one.Issuer}, root})
	}
	return list, nil
}

func parseKeys(file string, data []byte) ([]*trust.PublicKey, error) {
	keys, err := trust.ParsePublicKeys(data)
	if err != nil {
		return nil, &builder.InputError{Err: fmt.Errorf("trusted keys: %s: %w", file, err)}
	}
	return keys, nil
}

// stateDir returns the directory of records about this user's runs.
func (o *trustOptions) stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "kkbundle"), nil
	}
	home, err := o.at().home("")
	return filepath.Join(cmp.Or(home, "/"), ".local", "state", "kkbundle"), err
}
