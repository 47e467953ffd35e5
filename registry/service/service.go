// Package service makes a registry a service of this host: a systemd unit with a user of its own, an authority and a certificate,
// and a login. It looks first and changes what differs, so that running it again changes nothing.
//
// The names differ from those of the registry that installing a cluster makes, so that one host can have both and resetting the cluster
// does not take this one along.
package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/pki"
)

const (
	name = "kkbundle-site-registry"
	// CAFile is the certificate that clients have to trust.
	CAFile = configDir + "/ca.crt"
	// Unit is the name of the service.
	Unit = name + ".service"
	// User is the system's user that the service runs as.
	User = "kkbundle-registry"
	// Login is the user that clients log in as.
	Login = "registry"
	// DefaultDir is where content is kept.
	DefaultDir = "/var/lib/" + name

	configDir  = "/etc/" + name
	programDir = "/usr/local/lib/" + name
	unitPath   = "/etc/systemd/system/" + Unit
	usersPath  = "/etc/sysusers.d/" + name + ".conf"
	statePath  = configDir + "/install.json"
	stampPath  = configDir + "/applied"

	caKeyPath    = configDir + "/ca.key"
	caPath       = CAFile
	keyPath      = configDir + "/tls.key"
	certPath     = configDir + "/tls.crt"
	htpasswdPath = configDir + "/htpasswd"
	passwordPath = configDir + "/password"
	configPath   = configDir + "/config.yaml"

	public, group, private = 0o644, 0o640, 0o600

	// RenewBefore is how long before its end a certificate is made anew.
	RenewBefore = 30 * 24 * time.Hour
	startWait   = 30 * time.Second
)

// A Program is what the unit runs. It is opened more than once.
type Program struct {
	Name string // of the file
	Open func() (io.ReadCloser, error)
}

// A Runner runs commands of the host.
type Runner interface {
	Run(ctx context.Context, args ...string) error
}

// Settings are what a registry is installed with. They are kept, so that what is not said again stays.
type Settings struct {
	Version int      `json:"version"` // 1
	Dir     string   `json:"dir"`
	Listen  string   `json:"listen"`
	Metrics string   `json:"metrics,omitempty"`
	Names   []string `json:"names"` // host names and addresses that clients use
	Delete  bool     `json:"delete"`
	Own     bool     `json:"own"` // the registry program runs with a configuration of the operator's
}

// Options say how to install.
type Options struct {
	Settings
	Root    string // "/" is this host
	Program Program
	Config  []byte // of the registry program, if Settings.Own
	Now     time.Time
	DryRun  bool
	Run     Runner // nil where the files are not for a host that runs: nothing is started then
	// Ready waits until the registry answers; asked after it was started.
	Ready func(ctx context.Context) error
}

// A Result is what was found and done.
type Result struct {
	Changes  []hostfile.Change
	Program  bool // the program was or would be replaced
	Started  bool // the service was or would be started or restarted
	CA       string
	Password string // path of the file that has the password of Login
	Ends     time.Time
}

// Changed reports whether there was anything to do.
func (r Result) Changed() bool {
	return r.Started || r.Program || slices.ContainsFunc(r.Changes, func(c hostfile.Change) bool { return c.State != hostfile.StateSame })
}

// Load returns the settings that a registry was installed with; the error is fs.ErrNotExist if there is none.
func Load(root string) (Settings, error) {
	var s Settings
	data, err := os.ReadFile(filepath.Join(root, statePath))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil || s.Version != 1 {
		return s, fmt.Errorf("%s is not one that this version of kkbundle wrote: %w", statePath, errors.Join(err, errVersion))
	}
	return s, nil
}

// check refuses what could mean something else in a unit or in a certificate.
func (s Settings) check() error {
	var errs []error
	plain := regexp.MustCompile(`^/[A-Za-z0-9._/-]+$`)
	if !plain.MatchString(s.Dir) || path.Clean(s.Dir) != s.Dir {
		errs = append(errs, fmt.Errorf("directory %q: want an absolute path of letters, digits and ._-", s.Dir))
	}
	for _, hidden := range []string{"/home", "/root", "/tmp", "/var/tmp", "/run", "/usr", "/etc", "/proc", "/sys", "/dev"} {
		if s.Dir == hidden || strings.HasPrefix(s.Dir, hidden+"/") {
			errs = append(errs, fmt.Errorf("directory %s: the service cannot keep content below %s: use %s or one on a disk of its own", s.Dir, hidden, DefaultDir))
		}
	}
	address := regexp.MustCompile(`^([A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}$`)
	if !address.MatchString(s.Listen) {
		errs = append(errs, fmt.Errorf("listen address %q: want HOST:PORT, or :PORT for all addresses of this host", s.Listen))
	}
	if s.Metrics != "" && !address.MatchString(s.Metrics) {
		errs = append(errs, fmt.Errorf("metrics address %q: want HOST:PORT", s.Metrics))
	}
	host := regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	for _, n := range s.Names {
		if _, err := netip.ParseAddr(n); err != nil && !host.MatchString(n) {
			errs = append(errs, fmt.Errorf("name %q is no host name and no address", n))
		}
	}
	if len(s.Names) == 0 {
		errs = append(errs, errors.New("the registry needs a name that clients know it by"))
	}
	return errors.Join(errs...)
}

var errVersion = errors.New("want version 1")

// Install brings the service into the state that the options say.
func Install(ctx context.Context, o Options) (Result, error) {
	if err := o.Settings.check(); err != nil {
		return Result{}, err
	}
	w := &work{Options: o}
	files, err := w.files()
	if err != nil {
		return Result{}, err
	}
	res := Result{CA: caPath, Password: passwordPath, Ends: w.ends}
	where := hostfile.Options{Root: o.Root}
	if res.Changes, err = hostfile.Check(where, files); err != nil {
		return res, err
	}
	program := path.Join(programDir, o.Program.Name)
	want, err := w.programDigest()
	if err != nil {
		return res, fmt.Errorf("%s: %w", o.Program.Name, err)
	}
	res.Program = want != fileDigest(filepath.Join(o.Root, program))
	stamp := stampOf(files, want)
	have, _ := os.ReadFile(filepath.Join(o.Root, stampPath)) // without it nothing was finished
	res.Started = o.Run != nil && (res.Changed() || string(have) != stamp || w.Run.Run(ctx, "systemctl", "is-active", "--quiet", Unit) != nil)
	if o.DryRun || !res.Changed() && string(have) == stamp {
		return res, nil
	}
	if err := hostfile.Apply(where, res.Changes); err != nil {
		return res, err
	}
	if res.Program {
		if err := w.placeProgram(program); err != nil {
			return res, err
		}
	}
	if o.Run != nil {
		if err := w.start(ctx); err != nil {
			return res, err
		}
	}
	return res, w.write(stampPath, []byte(stamp), private)
}

// work is an installation at work.
type work struct {
	Options
	ends time.Time
}

// files are what the service consists of, but for the program. Secrets come before what makes them count: a run that is
// killed between two files leaves a pair that does not fit, which the next makes anew.
func (w *work) files() ([]hostfile.File, error) {
	state, err := json.MarshalIndent(w.Settings, "", "  ")
	if err != nil {
		return nil, err
	}
	const begin = "-----BEGIN "
	files := []hostfile.File{
		{Path: statePath, Mode: public, Data: append(state, '\n'), Mark: "{\n  \"version\": 1,"},
		{Path: usersPath, Mode: public, Data: w.spec().UserText(), Mark: mark},
	}
	ca, caPair, err := w.authority()
	if err != nil {
		return nil, err
	}
	pair, err := w.serverPair(ca)
	if err != nil {
		return nil, err
	}
	files = append(files,
		hostfile.File{Path: caKeyPath, Mode: private, Data: caPair.Key, Mark: begin, Secret: true},
		hostfile.File{Path: caPath, Mode: public, Data: caPair.Cert, Mark: begin},
		hostfile.File{Path: keyPath, Mode: group, Data: pair.Key, Mark: begin, Secret: true},
		hostfile.File{Path: certPath, Mode: public, Data: pair.Cert, Mark: begin},
	)
	logins, err := w.logins()
	if err != nil {
		return nil, err
	}
	files = append(files, logins...)
	if w.Own {
		// The operator's file is the one that was given; the copy here is ours whatever it says.
		files = append(files, hostfile.File{Path: configPath, Mode: group, Data: w.Config, Mark: string(w.kept(configPath)), Secret: true})
	}
	return append(files, hostfile.File{Path: unitPath, Mode: public, Data: w.spec().UnitText(), Mark: mark}), nil
}

// kept returns what is in a file, nothing if it cannot be read: then writing it will say why.
func (w *work) kept(name string) []byte {
	data, err := os.ReadFile(filepath.Join(w.Root, name))
	if err != nil {
		return nil
	}
	return data
}

func (w *work) authority() (*pki.Authority, pki.Pair, error) {
	pair := pki.Pair{Cert: w.kept(caPath), Key: w.kept(caKeyPath)}
	if len(pair.Cert) == 0 {
		a, pair, err := pki.NewAuthority("kkbundle site registry CA", w.Now)
		return a, pair, err
	}
	a, err := pki.ParseAuthority(pair)
	if err != nil {
		return nil, pair, fmt.Errorf("%s and %s: %w", caPath, caKeyPath, err)
	}
	if end := a.Certificate.NotAfter; w.Now.Add(RenewBefore).After(end) {
		return nil, pair, fmt.Errorf("the authority in %s ends on %s: run kkbundle registry certs renew --new-ca, and give all clients the new one",
			caPath, end.Format(time.DateOnly))
	}
	return a, pair, nil
}

func (w *work) serverPair(ca *pki.Authority) (pki.Pair, error) {
	pair := pki.Pair{Cert: w.kept(certPath), Key: w.kept(keyPath)}
	names := pki.ParseNames(w.Names)
	var err error
	if !ca.Fits(pair, names, w.Now, RenewBefore) {
		if pair, err = ca.Issue(names, w.Now, pki.Life); err != nil {
			return pair, err
		}
	}
	cert, err := pki.ParseCertificate(pair.Cert)
	if err == nil {
		w.ends = cert.NotAfter
	}
	return pair, err
}

func (w *work) programDigest() (string, error) {
	r, err := w.Program.Open()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, r.Close())
}

func fileDigest(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (w *work) placeProgram(program string) error {
	r, err := w.Program.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	target := filepath.Join(w.Root, program)
	const executable = 0o755
	if err := os.MkdirAll(filepath.Dir(target), executable); err != nil {
		return err
	}
	return hostfile.Write(target, r, executable)
}

func (w *work) write(name string, data []byte, mode fs.FileMode) error {
	return put(w.Root, name, data, mode)
}

// stampOf changes with what the service has to be restarted for, but for certificates. It is written last: where it is not there,
// a run was killed, and the next starts the service again.
func stampOf(files []hostfile.File, program string) string {
	h := sha256.New()
	for _, f := range files {
		switch f.Path {
		case statePath, usersPath, unitPath, configPath:
			fmt.Fprintf(h, "%s %o %d\n", f.Path, f.Mode, len(f.Data))
			h.Write(f.Data)
		}
	}
	_, _ = io.WriteString(h, program) // never fails
	return hex.EncodeToString(h.Sum(nil)) + "\n"
}

// start gives the service's user its files, and the service its new state.
func (w *work) start(ctx context.Context) error {
	for _, args := range append(w.spec().Prepare(),
		[]string{"systemctl", "daemon-reload"},
		[]string{"systemctl", "enable", Unit},
		[]string{"systemctl", "restart", Unit},
	) {
		if err := w.Run.Run(ctx, args...); err != nil {
			return err
		}
	}
	wait, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if err := w.Ready(wait); err != nil {
		return fmt.Errorf("the registry does not answer: %w: see journalctl -u %s", err, Unit)
	}
	return nil
}
