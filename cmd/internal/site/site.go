// Package site opens the inventory, cluster file and bundle of a command, and connects to hosts.
package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/cmd/internal/helper"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pace"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// Flags are the flags of commands that work on hosts.
type Flags struct {
	InventoryFile, ClusterFile, workDir string
	knownHosts                          []string
	acceptNew, askPassword, askSudo     bool
	parallel                            int
	stallLimit                          time.Duration
	// ClusterOptional is set by commands that work without a cluster file. It is no flag.
	ClusterOptional bool
	// Given, if set, takes the place of InventoryFile. It is no flag.
	Given *manifest.Inventory
	// Secrets asks for values of the bundle's table that are secret and were not given, for commands that install
	// what uses them. It is no flag.
	Secrets bool
	// Groups is the flag --group of commands that have it.
	Groups GroupFlag
	// Rate is the flag --rate of commands that have it.
	Rate       usage.Rate
	settings   []string
	valueFiles []string
	flags      *pflag.FlagSet
}

// check returns an error for invalid values and missing files.
func (f *Flags) check() error {
	if f.flags != nil && f.flags.Changed("parallel") && f.parallel < 1 {
		return usage.Errorf("--parallel %d: want 1 or more", f.parallel)
	}
	if f.flags != nil && f.stallLimit <= 0 {
		return usage.Errorf("--stall-limit %s: want a time such as 30m", f.stallLimit)
	}
	for _, name := range f.knownHosts {
		if _, err := os.Stat(name); err != nil && !f.acceptNew {
			return &builder.InputError{Err: fmt.Errorf("--known-hosts %s: %w", name, usage.FileError(err))}
		}
	}
	return nil
}

// Add adds the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.InventoryFile, "inventory", "i", "", "the inventory `file` (required)")
	fs.StringVarP(&f.ClusterFile, "cluster", "c", "",
		"the cluster `file` (default the one in the bundle, which must name no files or variables of this machine)")
	AddSet(fs, &f.settings)
	fs.Lookup("set").Usage += "; NAME=VALUE: a value of the bundle's table"
	fs.StringArrayVar(&f.valueFiles, "values", nil,
		"`file` of values of the bundle's table, NAME: VALUE each; can be repeated, and later files win")
	fs.StringVar(&f.workDir, "work-dir", "",
		"`directory` for certificates, credentials, admin.conf and install.log (default INVENTORY.work beside the inventory)")
	f.flags = fs
	usage.Group(fs, usage.GroupHosts, f.connection)
}

// AddHosts adds the flags of a command that needs hosts alone, without a cluster file.
func (f *Flags) AddHosts(fs *pflag.FlagSet) {
	fs.StringVarP(&f.InventoryFile, "inventory", "i", "", "the inventory `file`")
	f.flags = fs
	usage.Group(fs, usage.GroupHosts, f.connection)
}

// connection adds the flags for the connection to hosts.
func (f *Flags) connection(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.knownHosts, "known-hosts", nil,
		"`file` of SSH host keys that are trusted; can be repeated, and --accept-new adds to the first (default ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts)")
	fs.BoolVar(&f.acceptNew, "accept-new", false,
		"trust hosts that are not known yet, and remember their keys; changed keys are refused all the same")
	fs.BoolVarP(&f.askPassword, "ask-pass", "k", false, "ask for the SSH password")
	fs.BoolVarP(&f.askSudo, "ask-sudo-pass", "K", false, "ask for the sudo password")
	fs.IntVar(&f.parallel, "parallel", 0, "`number` of hosts worked on at the same time (default 20; 100 for precheck)")
	fs.DurationVar(&f.stallLimit, "stall-limit", engine.StallLimit,
		"end a command on a host that has printed nothing and not ended for so long")
}

// carriedFields is the problem of a bundle's cluster file that names files or variables of this machine: the bundle's
// author would choose which file or variable is read on this machine, and the address to which its content is sent.
const carriedFields = "names a file or a variable of this machine, which counts only in a file of yours: pass a cluster file with -c FILE " +
	"(kkbundle extract BUNDLE " + bundle.DocumentCluster + " writes the bundle's), or this value with --set"

// A Site is the hosts, the cluster, and the bundle to install it from.
type Site struct {
	Flags
	Inventory  *manifest.Inventory
	Cluster    *manifest.Cluster
	Bundle     *bundle.Reader // nil without a bundle
	AnyCluster bool           // without a cluster file: Cluster has the needs of any cluster

	set      *values.Set // of the bundle's table, nil without one
	groups   groups.Set  // of the bundle
	values   func(path string) ([]byte, error)
	bastions *host.Bastions // shared by all hosts behind them
	pace     *pace.Limit    // of all hosts together
	console  *terminal.Console

	ask   sync.Mutex // one prompt at a time
	asked map[string]string
}

// Open reads the inventory, the bundle and the cluster file: the given one, or the bundle's. open returns nil without
// a bundle. Close the Site afterwards.
func Open(ctx context.Context, console *terminal.Console, f Flags, open func() (*bundle.Reader, error)) (*Site, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	inv := f.Given
	if inv == nil {
		var err error
		if inv, err = ReadInventory(console, f.InventoryFile); err != nil {
			return nil, err
		}
	}
	s := &Site{
		Flags: f, Inventory: inv, console: console, asked: map[string]string{}, bastions: host.NewBastions(),
		pace: f.Rate.Limit(),
	}
	if s.workDir == "" {
		s.workDir = strings.TrimSuffix(f.InventoryFile, filepath.Ext(f.InventoryFile)) + ".work"
	}
	var err error
	if s.Bundle, err = open(); err != nil {
		return nil, err
	}
	if err = s.readGroups(); err == nil {
		err = s.readValues(ctx)
	}
	if err == nil {
		err = s.readCluster(ctx, f.ClusterFile)
	}
	if err == nil {
		err = s.selectAddons(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Inventory = inv.WithDefaults(s.Cluster)
	return s, nil
}

// Close closes the bundle and the connections to bastions.
func (s *Site) Close() error {
	err := s.bastions.Close()
	if s.Bundle == nil {
		return err
	}
	return errors.Join(err, s.Bundle.Close())
}

func (s *Site) readCluster(ctx context.Context, file string) error {
	read := builder.ReadFile
	name := file
	dir := filepath.Dir(file)
	if file == "" {
		if s.Bundle == nil && len(s.settings) > 0 {
			return usage.Errorf("--set overrides a cluster file: name the file with -c, or name a bundle with a cluster file")
		}
		if s.Bundle == nil && s.ClusterOptional {
			s.Cluster, s.AnyCluster = anyCluster(s.Inventory), true
			s.values = builder.ReadFile
			return nil
		}
		if s.Bundle == nil {
			return usage.Errorf("name the cluster file with -c, or name a bundle with a cluster file")
		}
		name, dir = bundle.DocumentCluster, ""
		if _, ok := s.Bundle.Find(bundle.KindManifest, name, ""); !ok {
			return &builder.InputError{Err: errors.New("the bundle was built without a cluster file: name one with -c")}
		}
		read = func(ref string) ([]byte, error) { return s.Bundle.Document(ctx, bundle.KindManifest, ref) }
	}
	data, err := read(name)
	if err != nil {
		return fmt.Errorf("cluster file: %w", err)
	}
	c, err := parseCluster(s.console, s.set, name, data, s.settings)
	if err != nil {
		return err
	}
	if file == "" {
		if err := c.MachineFields(carriedFields).Err(); err != nil {
			return err
		}
	}
	s.Cluster = c.WithDefaults()
	given := c.GivenFiles()
	expanded := func(path string) ([]byte, error) {
		read := read
		if slices.Contains(given, path) {
			read = builder.ReadFile
		}
		data, err := read(path)
		if err != nil {
			return nil, err
		}
		return s.set.YAML(path, data, nil)
	}
	if s.Cluster.Catalogs, err = builder.ReadCatalogs(c, expanded, dir); err != nil {
		return err
	}
	if s.Cluster.Base, err = s.carriedCatalog(ctx); err != nil {
		return err
	}
	if err := s.readLocked(ctx); err != nil {
		return err
	}
	s.values = func(path string) ([]byte, error) { return expanded(builder.Beside(dir, path)) }
	return nil
}

// readLocked adds a catalog of the kubeadm images that the bundle's lock names.
func (s *Site) readLocked(ctx context.Context) error {
	if s.Bundle == nil {
		return nil
	}
	listed, err := builder.LockedKubeadm(ctx, &s.Bundle.Catalog)
	if err == nil {
		s.Cluster.Catalogs = append(s.Cluster.Catalogs, listed)
	}
	return err
}

// carriedCatalog returns the bundle's catalog, from which the names and versions of its items come.
func (s *Site) carriedCatalog(ctx context.Context) (*catalogfile.Catalog, error) {
	if s.Bundle == nil {
		return nil, nil //nolint:nilnil // the program's own counts
	}
	k, err := builder.CarriedCatalog(ctx, &s.Bundle.Catalog)
	if _, whole := s.Bundle.Find(bundle.KindManifest, bundle.DocumentCluster, ""); err == nil && k == nil && whole {
		s.console.Note("the bundle carries no catalog (an earlier kkbundle built it): versions come from the catalog of this kkbundle")
	}
	return k, err
}

// Options returns the options of an installer run.
func (s *Site) Options() engine.Options {
	return engine.Options{
		Cluster:   s.Cluster,
		Inventory: s.Inventory,
		Bundle:    s.Bundle,
		WorkDir:   s.workDir,
		Dial:      s.dial,
		Helper:    helper.Binaries(),
		Inputs: task.Inputs{
			Values: s.values, Script: s.set.Script, Groups: s.groups,
			RegistryPassword: s.registryPassword(),
		},
		Parallel:   s.parallel,
		StallLimit: s.stallLimit,
		Logger:     s.console.Logger(),
	}
}

// registryPassword returns the source of the password of the site's registry, nil if the registry needs none.
func (s *Site) registryPassword() func() (string, error) {
	if s.Cluster == nil || s.Cluster.ImageRegistry.Auth == nil {
		return nil
	}
	auth := s.Cluster.ImageRegistry.Auth
	return func() (string, error) {
		return given("password of the registry", auth.PasswordEnv, auth.PasswordFile, auth.Password)
	}
}

// dial connects to a host as its inventory entry says.
func (s *Site) dial(ctx context.Context, h manifest.Host) (host.Host, error) {
	sudo := s.secret(s.askSudo, "sudo password", h.Sudo.PasswordEnv, h.Sudo.PasswordFile, h.Sudo.Password)
	if h.Local {
		return host.Local(ctx, host.LocalOptions{Name: h.Name, SudoPassword: sudo})
	}
	o, err := s.sshOptions(h.Name, h.Address, h.SSH)
	if err != nil {
		return nil, err
	}
	o.Password = s.secret(s.askPassword, "SSH password", h.SSH.PasswordEnv, h.SSH.PasswordFile, h.SSH.Password)
	o.SudoPassword, o.Pace = sudo, s.pace
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

// hop returns the options of a bastion. --ask-pass asks for the password of each bastion.
func (s *Site) hop(h manifest.Hop) (host.SSHOptions, error) {
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

// sshOptions returns the options that hosts and bastions share.
func (s *Site) sshOptions(name, address string, ssh manifest.SSH) (host.SSHOptions, error) {
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
	if _, isTerminal := s.console.File(); isTerminal {
		o.Passphrase = func(ctx context.Context,
			key string,
		) (string, error) {
			return s.prompt(ctx, "passphrase of "+key)
		}
	}
	return o, err
}

func (s *Site) knownHostsFiles() ([]string, error) {
	if len(s.knownHosts) > 0 {
		return s.knownHosts, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("no home directory for known_hosts; name a file with --known-hosts: %w", err)
	}
	return []string{filepath.Join(home, ".ssh", "known_hosts"), "/etc/ssh/ssh_known_hosts"}, nil
}

// keys returns the inventory's key, or the user's own keys like ssh if there is neither a key nor a password.
func keys(ssh manifest.SSH, havePassword bool) ([]string, error) {
	if ssh.Key != "" {
		path, err := expandHome(ssh.Key)
		return []string{path}, err
	}
	home, err := os.UserHomeDir()
	if havePassword || ssh.PrivateKey.IsSet() || err != nil {
		return nil, nil //nolint:nilerr // without a home directory there are no own keys
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

// secret returns the source of a password, nil if there is none.
func (s *Site) secret(ask bool, what, env, file string, held manifest.Secret) host.Secret {
	switch {
	case ask:
		return func(ctx context.Context) (string, error) { return s.prompt(ctx, what) }
	case env == "" && file == "" && !held.IsSet():
		return nil
	}
	return func(context.Context) (string, error) { return given(what, env, file, held) }
}

// given returns a password from a variable, a file, or the inventory itself.
func given(what, env, file string, held manifest.Secret) (string, error) {
	switch {
	case env != "":
		if v := os.Getenv(env); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("no %s: $%s is not set", what, env)
	case file != "":
		path, err := expandHome(file)
		if err != nil {
			return "", err
		}
		data, err := builder.ReadFile(path)
		return strings.TrimRight(string(data), "\r\n"), err
	}
	return held.Reveal(), nil
}

// prompt asks on the terminal once for all hosts.
func (s *Site) prompt(ctx context.Context, what string) (string, error) {
	s.ask.Lock()
	defer s.ask.Unlock()
	if v, ok := s.asked[what]; ok {
		return v, nil
	}
	v, err := s.console.AskSecret(ctx, what)
	if errors.Is(err, terminal.ErrNoTerminal) {
		return "", fmt.Errorf("the %s needs a terminal to ask on; use passwordEnv or passwordFile in the inventory",
			what)
	}
	if err != nil {
		return "", err
	}
	s.asked[what] = v
	return v, nil
}

// AddSet adds the flag --set, whose settings override the cluster file.
func AddSet(fs *pflag.FlagSet, settings *[]string) {
	fs.StringArrayVar(settings, "set", nil,
		"`PATH=VALUE`, as in kubernetes.maxPods=200: wins over the cluster file and the inventory; can be repeated")
}

// ReadInventory reads an inventory of kkbundle or KubeKey. It prints remarks about keys of KubeKey that were not
// carried over.
func ReadInventory(console *terminal.Console, file string) (*manifest.Inventory, error) {
	if file == "" {
		return nil, usage.Errorf("name the hosts with -i INVENTORY")
	}
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, err
	}
	inv, notes, err := kubekey.ReadInventory(file, data)
	console.NoteProblems(notes)
	return inv, err
}

func parseCluster(console *terminal.Console, set *values.Set, file string, data []byte,
	settings []string,
) (*manifest.Cluster, error) {
	c, notes, err := kubekey.ReadClusterWith(set, file, data, settings...)
	console.NoteProblems(notes)
	return c, err
}

// ReadCluster reads a cluster file of kkbundle or KubeKey, with remarks as in ReadInventory.
func ReadCluster(console *terminal.Console, file string, settings []string) (*manifest.Cluster, error) {
	return ReadClusterWith(console, nil, file, settings)
}

// ReadClusterWith is ReadCluster of a file with values of a manifest; nil expands nothing.
func ReadClusterWith(console *terminal.Console, set *values.Set, file string,
	settings []string,
) (*manifest.Cluster, error) {
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseCluster(console, set, file, data, settings)
}

// anyCluster returns a cluster with the needs of every cluster, for prechecks without a cluster file. It has no pod
// network, and a registry only if the inventory has a host for it.
func anyCluster(inv *manifest.Inventory) *manifest.Cluster {
	c := &manifest.Cluster{}
	c.CNI.Type = manifest.NetworkNone
	if len(inv.Groups.Registry) == 0 {
		c.ImageRegistry.Type = manifest.RegistryNone
	}
	return c.WithDefaults()
}

// Visits returns the number of hosts that a precheck connects to.
func (s *Site) Visits() int {
	return len(slices.DeleteFunc(s.Inventory.Hosts(), func(h manifest.Host) bool { return len(h.Roles) == 0 }))
}

// Describe adds cluster, bundle and skipped checks to a report.
func (s *Site) Describe(r *precheck.Report) {
	r.Cluster = s.Cluster.Metadata.Name
	if s.Bundle != nil {
		index := s.Bundle.Index()
		r.Bundle = index.Name + " " + index.Version
	} else {
		r.Notes = append(r.Notes, "no bundle was named: space, architectures and packages were not checked")
	}
	if s.AnyCluster {
		r.Notes = append(r.Notes,
			"no cluster file was named: only the needs of every cluster were checked; pod network, versions and settings of the inventory were not")
	}
	var idle []string
	for _, h := range s.Inventory.Hosts() {
		if len(h.Roles) == 0 {
			idle = append(idle, h.Name)
		}
	}
	if len(idle) > 0 {
		r.Notes = append(r.Notes, plain.Count(len(idle), "host")+" in no group, not checked: "+scalar.Ranges(idle))
	}
}
