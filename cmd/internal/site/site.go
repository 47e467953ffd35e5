package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/helper"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// siteFlags are the flags of commands that work on hosts.
type siteFlags struct {
	inventory, cluster, workDir     string
	knownHosts                      []string
	acceptNew, askPassword, askSudo bool
	parallel                        int
	stallLimit                      time.Duration
	// clusterOptional says that the command makes sense without a cluster file; no flag.
	clusterOptional bool
	settings        []string
	flags           *pflag.FlagSet
}

// check refuses values that make no sense, and files that are named and not there.
func (f *siteFlags) check() error {
	if f.flags != nil && f.flags.Changed("parallel") && f.parallel < 1 {
		return &usageError{fmt.Errorf("--parallel %d: want 1 or more", f.parallel)}
	}
	if f.flags != nil && f.stallLimit <= 0 {
		return &usageError{fmt.Errorf("--stall-limit %s: want a time such as 30m", f.stallLimit)}
	}
	for _, name := range f.knownHosts {
		if _, err := os.Stat(name); err != nil && !f.acceptNew {
			return &inputError{fmt.Errorf("--known-hosts %s: %w", name, plainly(err))}
		}
	}
	return nil
}

func (f *siteFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.inventory, "inventory", "i", "", "the inventory `file` (required)")
	fs.StringVarP(&f.cluster, "cluster", "c", "", "the cluster `file` (default the one in the bundle)")
	addSet(fs, &f.settings)
	fs.StringVar(&f.workDir, "work-dir", "", "`directory` for certificates, credentials, admin.conf and install.log (default INVENTORY.work beside the inventory)")
	fs.StringArrayVar(&f.knownHosts, "known-hosts", nil, "`file` of SSH host keys that are trusted; can be repeated, and --accept-new adds to the first (default ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts)")
	fs.BoolVar(&f.acceptNew, "accept-new", false, "trust hosts that are not known yet, and remember their keys; changed keys are refused all the same")
	fs.BoolVarP(&f.askPassword, "ask-pass", "k", false, "ask for the SSH password")
	fs.BoolVarP(&f.askSudo, "ask-sudo-pass", "K", false, "ask for the sudo password")
	f.flags = fs
	fs.IntVar(&f.parallel, "parallel", 0, "`number` of hosts worked on at the same time (default 20; 100 for precheck)")
	fs.DurationVar(&f.stallLimit, "stall-limit", engine.StallLimit, "end a command on a host that has printed nothing and not ended for so long")
}

// A site is the hosts, the cluster they shall be, and the bundle to make it from.
type site struct {
	siteFlags
	inv     *manifest.Inventory
	cluster *manifest.Cluster
	bundle  *bundle.Reader // nil without one
	// anyCluster says that there is no cluster file: cluster is what any would need.
	anyCluster bool
	values     func(path string) ([]byte, error)

	bastions *host.Bastions // shared by all hosts behind them

	ask   sync.Mutex // one prompt at a time
	asked map[string]string
	g     *globals
}

// openSite reads the inventory, the bundle if there is one, and the cluster file: the given one, or the bundle's. Close
// it afterwards.
func openSite(ctx context.Context, g *globals, f siteFlags, bundlePath string) (*site, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	inv, err := g.readInventory(f.inventory)
	if err != nil {
		return nil, err
	}
	s := &site{siteFlags: f, inv: inv, g: g, asked: map[string]string{}, bastions: host.NewBastions()}
	if s.workDir == "" {
		s.workDir = strings.TrimSuffix(f.inventory, filepath.Ext(f.inventory)) + ".work"
	}
	if bundlePath != "" {
		if s.bundle, err = g.openBundle(bundlePath); err != nil {
			return nil, err
		}
	}
	if err := s.readCluster(ctx, f.cluster); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the bundle and the connections to bastions.
func (s *site) Close() error {
	err := s.bastions.Close()
	if s.bundle == nil {
		return err
	}
	return errors.Join(err, s.bundle.Close())
}

func (s *site) readCluster(ctx context.Context, file string) error {
	read := build.ReadFile
	name := file
	dir := filepath.Dir(file)
	if file == "" {
		if s.bundle == nil && len(s.settings) > 0 {
			return &usageError{errors.New("--set changes what a cluster file says: name it with -c, or a bundle that carries one")}
		}
		if s.bundle == nil && s.clusterOptional {
			s.cluster, s.anyCluster = anyCluster(s.inv), true
			s.values = build.ReadFile
			return nil
		}
		if s.bundle == nil {
			return &usageError{errors.New("name the cluster file with -c, or a bundle that carries one")}
		}
		name, dir = bundle.DocumentCluster, ""
		if _, ok := s.bundle.Find(bundle.KindManifest, name, ""); !ok {
			return &inputError{errors.New("the bundle was built without a cluster file: name one with -c")}
		}
		read = func(ref string) ([]byte, error) {
			return s.bundle.Document(ctx, bundle.KindManifest, ref)
		}
	}
	data, err := read(name)
	if err != nil {
		return fmt.Errorf("cluster file: %w", err)
	}
	c, err := s.g.parseCluster(name, data, s.settings)
	if err != nil {
		return err
	}
	s.cluster = c.WithDefaults()
	if s.cluster.Catalogs, err = build.ReadCatalogs(c, read, dir); err != nil {
		return err
	}
	s.values = func(path string) ([]byte, error) { return read(filepath.Join(dir, path)) }
	return nil
}

// options are what every installer run needs.
func (s *site) options() engine.Options {
	return engine.Options{
		Cluster:    s.cluster,
		Inventory:  s.inv,
		Bundle:     s.bundle,
		WorkDir:    s.workDir,
		Dial:       s.dial,
		Helper:     helper.Binary,
		Inputs:     task.Inputs{Values: s.values, RegistryPassword: s.registryPassword()},
		Hosts:      s.parallel,
		StallLimit: s.stallLimit,
		Logger:     s.g.logger(),
	}
}

// registryPassword says where the password for the site's own registry comes from; nil if it wants none.
func (s *site) registryPassword() func() (string, error) {
	if s.cluster == nil || s.cluster.ImageRegistry.Auth == nil {
		return nil
	}
	auth := s.cluster.ImageRegistry.Auth
	return func() (string, error) {
		return given("password of the registry", auth.PasswordEnv, auth.PasswordFile, auth.Password)
	}
}

// dial connects to a host the way its inventory entry says.
func (s *site) dial(ctx context.Context, h manifest.Host) (host.Host, error) {
	sudo := s.secret(s.askSudo, "sudo password", h.Sudo.PasswordEnv, h.Sudo.PasswordFile, h.Sudo.Password)
	if h.Local {
		return host.Local(ctx, host.LocalOptions{Name: h.Name, SudoPassword: sudo})
	}
	o, err := s.sshOptions(h.Name, h.Address, h.SSH)
	if err != nil {
		return nil, err
	}
	o.Password = s.secret(s.askPassword, "SSH password", h.SSH.PasswordEnv, h.SSH.PasswordFile, h.SSH.Password)
	o.SudoPassword = sudo
	if o.Keys, err = keys(h.SSH, o.Password != nil); err != nil {
		return nil, err
	}
	var hops []host.SSHOptions
	for _, hop := range h.Hops {
		one, err := s.hop(hop)
		if err != nil {
			return nil, err
		}
		hops = append(hops, one)
	}
	o.Net = s.bastions.Through(hops...)
	return host.Dial(ctx, o)
}

// hop says how to log in to a bastion. Where a password is asked for, a bastion has its own.
func (s *site) hop(h manifest.Hop) (host.SSHOptions, error) {
	o, err := s.sshOptions(h.Name, h.Address, h.SSH)
	if err != nil {
		return o, err
	}
	o.Password = s.secret(false, "SSH password of "+h.Name, h.SSH.PasswordEnv, h.SSH.PasswordFile, h.SSH.Password)
	o.Keys, err = keys(h.SSH, o.Password != nil)
	if o.Password == nil && s.askPassword {
		o.Password = s.secret(true, "SSH password of "+h.Name, "", "", manifest.Secret{})
	}
	return o, err
}

// sshOptions are what holds for hosts and bastions alike.
func (s *site) sshOptions(name, address string, ssh manifest.SSH) (host.SSHOptions, error) {
	known, err := s.knownHostsFiles()
	o := host.SSHOptions{
		Name: name, Address: address, Port: ssh.Port, User: ssh.User,
		AgentSocket: os.Getenv("SSH_AUTH_SOCK"),
		KnownHosts:  known,
		AcceptNew:   s.acceptNew,
	}
	if ssh.PrivateKey.IsSet() {
		o.KeyData = []host.Secret{func(context.Context) (string, error) { return ssh.PrivateKey.Reveal(), nil }}
	}
	if _, isTerminal := s.g.terminal(); isTerminal {
		o.Passphrase = func(ctx context.Context, key string) (string, error) { return s.prompt(ctx, "passphrase of "+key) }
	}
	return o, err
}

func (s *site) knownHostsFiles() ([]string, error) {
	if len(s.knownHosts) > 0 {
		return s.knownHosts, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("no place for known_hosts, name one with --known-hosts: %w", err)
	}
	return []string{filepath.Join(home, ".ssh", "known_hosts"), "/etc/ssh/ssh_known_hosts"}, nil
}

// keys returns the named key, or the user's own as ssh would try them, unless there is a key already or a password.
func keys(ssh manifest.SSH, havePassword bool) ([]string, error) {
	if ssh.Key != "" {
		path, err := expandHome(ssh.Key)
		return []string{path}, err
	}
	home, err := os.UserHomeDir()
	if havePassword || ssh.PrivateKey.IsSet() || err != nil {
		return nil, nil //nolint:nilerr // without a home there are no keys of its own to try
	}
	var found []string
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		path := filepath.Join(home, ".ssh", name)
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	return found, nil
}

// expandHome replaces a leading ~/.
func expandHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, rest), err
}

// secret says where a password comes from: nil if there is none.
func (s *site) secret(ask bool, what, env, file string, held manifest.Secret) host.Secret {
	switch {
	case ask:
		return func(ctx context.Context) (string, error) { return s.prompt(ctx, what) }
	case env == "" && file == "" && !held.IsSet():
		return nil
	}
	return func(context.Context) (string, error) { return given(what, env, file, held) }
}

// given returns a password that a file of the user's has, or names.
func given(what, env, file string, held manifest.Secret) (string, error) {
	switch {
	case env != "":
		if v := os.Getenv(env); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("the %s is to be in $%s, which is not set", what, env)
	case file != "":
		path, err := expandHome(file)
		if err != nil {
			return "", err
		}
		data, err := build.ReadFile(path)
		return strings.TrimRight(string(data), "\r\n"), err
	}
	return held.Reveal(), nil
}

// prompt asks on the terminal, once for all hosts.
func (s *site) prompt(ctx context.Context, what string) (string, error) {
	s.ask.Lock()
	defer s.ask.Unlock()
	if v, ok := s.asked[what]; ok {
		return v, nil
	}
	v, err := s.g.askSecret(ctx, what)
	if errors.Is(err, errNoTerminal) {
		return "", fmt.Errorf("the %s can only be asked for on a terminal; use passwordEnv or passwordFile in the inventory", what)
	}
	if err != nil {
		return "", err
	}
	s.asked[what] = v
	return v, nil
}
