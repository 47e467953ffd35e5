// Package service installs a registry as a systemd service of this host, with its own user, authority, certificate and
// login. Installing again changes only differing files.
//
// The names differ from those of a cluster's registry, so one host can have both, and resetting the cluster keeps this
// one.
package service

import (
	"bytes"
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

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/pki"
)

const (
	name = "kkbundle-site-registry"
	// CAFile is the authority's certificate, for clients.
	CAFile = configDir + "/ca.crt"
	// Unit is the service's unit.
	Unit = name + ".service"
	// User is the service's system user.
	User = "kkbundle-registry"
	// Login is the user name for clients that pull.
	Login = "registry"
	// PushLogin is the user name for clients that push.
	PushLogin = "registry-push"
	// DefaultDir is the default directory of the content.
	DefaultDir = "/var/lib/" + name

	configDir  = "/etc/" + name
	programDir = "/opt/" + name + "/bin" // SELinux policies let systemd execute programs there
	// earlierProgramDir had the programs in releases whose units did not start where SELinux enforces.
	earlierProgramDir = "/usr/local/lib/" + name
	selinuxEnforce    = "/sys/fs/selinux/enforce" // exists where SELinux enforces or is permissive
	unitDir           = "/etc/systemd/system/"
	unitPath          = unitDir + Unit
	usersPath         = "/etc/sysusers.d/" + name + ".conf"
	statePath         = configDir + "/install.json"
	stampPath         = configDir + "/applied"

	caKeyPath    = configDir + "/ca.key"
	caPath       = CAFile
	keyPath      = configDir + "/tls.key"
	certPath     = configDir + "/tls.crt"
	htpasswdPath = configDir + "/htpasswd"
	passwordPath = configDir + "/password"
	// users who may only pull, and the password of the login that may push
	pullersPath      = configDir + "/pull-htpasswd"
	pushPasswordPath = configDir + "/push-password"
	configPath       = configDir + "/config.yaml"

	public, group, private, executable = 0o644, 0o640, 0o600, 0o755

	startWait = 30 * time.Second
)

// A Program is the unit's program. Open is called more than once.
type Program struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// A Runner runs commands on the host.
type Runner interface {
	Run(ctx context.Context, args ...string) error
}

// Settings are stored, so later runs keep settings that are not given again.
type Settings struct {
	Version int      `json:"version"` // 1
	Dir     string   `json:"dir"`
	Listen  string   `json:"listen"`
	Metrics string   `json:"metrics,omitempty"`
	Names   []string `json:"names"` // host names and addresses that clients use
	Delete  bool     `json:"delete"`
	Own     bool     `json:"own"` // runs the registry program with the operator's configuration
}

// Options are the options of Install.
type Options struct {
	Settings
	Root    string // "/" is this host
	Program Program
	Tool    Program // kkbundle, which renews the certificate, if Settings.Own: Program is not kkbundle then
	Config  []byte  // the registry program's, if Settings.Own
	Now     time.Time
	DryRun  bool
	Run     Runner // nil if Root is not a running host: nothing is started
	// Ready waits for the started registry's first answer.
	Ready func(ctx context.Context) error
}

// A Result lists the changes of Install, or in a dry run those that it would make.
type Result struct {
	Changes []hostfile.Change
	Program bool // a program was replaced
	Started bool // the service was started or restarted
	Ran     bool // the service ran before
	CA      string
	Pull    Credential // for the clients' runtimes
	Push    Credential // equals Pull if Settings.Own: the registry program has no roles
	Ends    time.Time
}

// A Credential is a user and the path of the file with the password.
type Credential struct{ User, File string }

// Changed reports whether anything differed.
func (r Result) Changed() bool {
	return r.Started || r.Program ||
		slices.ContainsFunc(r.Changes, func(c hostfile.Change) bool { return c.State != hostfile.StateSame })
}

// Load returns the stored settings. The error is fs.ErrNotExist without an installed registry.
func Load(root string) (Settings, error) {
	var s Settings
	data, err := os.ReadFile(filepath.Join(root, statePath))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil || s.Version != 1 {
		return s, fmt.Errorf("%s: unknown format, perhaps of another version of kkbundle: %w", statePath,
			errors.Join(err, errVersion))
	}
	return s, nil
}

// check refuses values with a special meaning in a unit or a certificate.
func (s Settings) check() error {
	var errs []error
	plain := regexp.MustCompile(`^/[A-Za-z0-9._/-]+$`)
	if !plain.MatchString(s.Dir) || path.Clean(s.Dir) != s.Dir {
		errs = append(errs, fmt.Errorf("directory %q: want an absolute path of letters, digits and ._-", s.Dir))
	}
	for _, hidden := range []string{
		"/home", "/root", "/tmp", "/var/tmp", "/run", "/var/run", "/usr", "/etc", "/proc",
		"/sys", "/dev",
	} {
		if s.Dir == hidden || strings.HasPrefix(s.Dir, hidden+"/") {
			errs = append(errs, fmt.Errorf(
				"directory %s: the service cannot keep content below %s: use %s or a directory of another disk", s.Dir,
				hidden, DefaultDir))
		}
	}
	address := regexp.MustCompile(`^([A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}$`)
	if !address.MatchString(s.Listen) {
		errs = append(errs, fmt.Errorf("listen address %q: want HOST:PORT, or :PORT for all addresses of this host",
			s.Listen))
	}
	if s.Metrics != "" && !address.MatchString(s.Metrics) {
		errs = append(errs, fmt.Errorf("metrics address %q: want HOST:PORT", s.Metrics))
	}
	host := regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	for _, n := range s.Names {
		if _, err := netip.ParseAddr(n); err != nil && !host.MatchString(n) {
			errs = append(errs, fmt.Errorf("name %q: want a host name or an address", n))
		}
	}
	if len(s.Names) == 0 {
		errs = append(errs, errors.New("no name for clients: the registry needs at least one"))
	}
	return errors.Join(errs...)
}

var errVersion = errors.New("want version 1")

// Install installs or updates the service.
func Install(ctx context.Context, o Options) (Result, error) {
	if err := o.Settings.check(); err != nil {
		return Result{}, err
	}
	w := &installation{Options: o}
	files, err := w.files()
	if err != nil {
		return Result{}, err
	}
	res := Result{CA: caPath, Ends: w.ends}
	res.Pull, res.Push = w.credentials(files)
	where := hostfile.Options{Root: o.Root}
	if res.Changes, err = hostfile.Check(where, files); err != nil {
		return res, err
	}
	programs, digests, err := w.changedPrograms()
	if err != nil {
		return res, err
	}
	res.Program = len(programs) > 0
	stamp := stampOf(files, digests)
	have, _ := os.ReadFile(filepath.Join(o.Root, stampPath)) // a missing stamp means an interrupted run
	res.Ran = o.Run != nil && w.active(ctx, Unit)
	res.Started = o.Run != nil && (res.Changed() || string(have) != stamp || !res.Ran || !w.active(ctx, timer))
	if o.DryRun || !res.Changed() && string(have) == stamp {
		return res, nil
	}
	if err := w.remove(stampPath); err != nil {
		return res, err
	}
	if err := hostfile.Apply(where, res.Changes); err != nil {
		return res, err
	}
	for _, p := range programs {
		if err := w.placeProgram(p); err != nil {
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

// An installation is a run of Install or Renew.
type installation struct {
	Options
	ends time.Time
}

// files returns all files of the service but the program. Keys come before certificates: an interrupted run leaves a
// mismatched pair, which the next run replaces.
func (w *installation) files() ([]hostfile.File, error) {
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
		hostfile.File{Path: caKeyPath, Mode: private, Data: caPair.Key, Mark: begin, Secrecy: hostfile.Secret},
		hostfile.File{Path: caPath, Mode: public, Data: caPair.Cert, Mark: begin},
		hostfile.File{Path: keyPath, Mode: group, Data: pair.Key, Mark: begin, Secrecy: hostfile.Secret},
		hostfile.File{Path: certPath, Mode: public, Data: pair.Cert, Mark: begin},
	)
	logins, err := w.logins()
	if err != nil {
		return nil, err
	}
	files = append(files, logins...)
	if w.Own {
		// Our copy of the operator's file may be overwritten with any first line.
		files = append(files, hostfile.File{
			Path: configPath, Mode: group, Data: w.Config,
			Mark: string(w.existing(configPath)), Secrecy: hostfile.Secret,
		})
	}
	files = append(files, hostfile.File{Path: unitPath, Mode: public, Data: w.spec().UnitText(), Mark: mark})
	return append(files, w.timerFiles()...), nil
}

// existing returns a file's content, or nil. Read errors are ignored: a later write reports them.
func (w *installation) existing(name string) []byte {
	data, err := os.ReadFile(filepath.Join(w.Root, name))
	if err != nil {
		return nil
	}
	return data
}

func (w *installation) authority() (*pki.Authority, pki.Pair, error) {
	pair := pki.Pair{Cert: w.existing(caPath), Key: w.existing(caKeyPath)}
	if len(pair.Cert) == 0 {
		a, pair, err := pki.NewAuthority("kkbundle site registry CA", w.Now)
		return a, pair, err
	}
	a, err := pki.ParseAuthority(pair)
	if err != nil {
		return nil, pair, fmt.Errorf("%s and %s: %w", caPath, caKeyPath, err)
	}
	if end := a.Certificate.NotAfter; w.Now.Add(renewBefore).After(end) {
		return nil, pair, fmt.Errorf(
			"the authority in %s ends on %s: run kkbundle registry certs renew --new-ca, and give all clients the new one",
			caPath, end.Format(time.DateOnly))
	}
	return a, pair, nil
}

func (w *installation) serverPair(ca *pki.Authority) (pki.Pair, error) {
	pair := pki.Pair{Cert: w.existing(certPath), Key: w.existing(keyPath)}
	names := pki.ParseNames(w.Names)
	var err error
	if !ca.Fits(pair, names, w.Now, renewBefore) {
		if pair, err = ca.Issue(names, w.Now, pki.LeafLife); err != nil {
			return pair, err
		}
	}
	cert, err := pki.ParseCertificate(pair.Cert)
	if err == nil {
		w.ends = cert.NotAfter
	}
	return pair, err
}

// digestOf returns the SHA-256 of an opened file, and closes it.
func digestOf(r io.ReadCloser, err error) (string, error) {
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, r.Close())
}

// programs returns the programs of the service and of its timer.
func (w *installation) programs() []Program {
	if w.Own {
		return []Program{w.Program, w.Tool}
	}
	return []Program{w.Program}
}

// changedPrograms returns the programs that differ from those on the host, and the digests of all.
func (w *installation) changedPrograms() (changed []Program, digests string, err error) {
	for _, p := range w.programs() {
		want, err := digestOf(p.Open())
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", p.Name, err)
		}
		have, _ := digestOf(os.Open(filepath.Join(w.Root, programDir, p.Name))) // an unreadable program is replaced
		if want != have {
			changed = append(changed, p)
		}
		digests += want
	}
	return changed, digests, nil
}

func (w *installation) placeProgram(p Program) error {
	r, err := p.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	return w.place(path.Join(programDir, p.Name), r, executable)
}

// remove removes a file, if it exists.
func (w *installation) remove(name string) error {
	if err := os.Remove(filepath.Join(w.Root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// active reports whether a unit is active.
func (w *installation) active(ctx context.Context, unit string) bool {
	return w.Run.Run(ctx, "systemctl", "is-active", "--quiet", unit) == nil
}

func (w *installation) write(name string, data []byte, mode fs.FileMode) error {
	return w.place(name, bytes.NewReader(data), mode)
}

func (w *installation) place(name string, r io.Reader, mode fs.FileMode) error {
	target := filepath.Join(w.Root, name)
	if err := os.MkdirAll(filepath.Dir(target), executable); err != nil {
		return err
	}
	return hostfile.Write(target, r, mode)
}

// stampOf returns a digest of the files and the programs that require a restart. It is removed first and written
// last, so the run after an interrupted one restarts the service.
func stampOf(files []hostfile.File, programs string) string {
	h := sha256.New()
	for _, f := range files {
		switch f.Path {
		case statePath, usersPath, unitPath, configPath, timerPath, renewPath:
			fmt.Fprintf(h, "%s %o %d\n", f.Path, f.Mode, len(f.Data))
			h.Write(f.Data)
		}
	}
	_, _ = io.WriteString(h, programs) // never fails
	return hex.EncodeToString(h.Sum(nil)) + "\n"
}

// start gives the service's user its files, and restarts the service and its timer.
func (w *installation) start(ctx context.Context) error {
	commands := w.spec().Prepare()
	if _, err := os.Stat(filepath.Join(w.Root, selinuxEnforce)); err == nil {
		commands = append(commands, []string{"restorecon", "-R", programDir})
	}
	for _, args := range append(commands,
		[]string{"systemctl", "daemon-reload"},
		[]string{"systemctl", "enable", Unit, timer},
		[]string{"systemctl", "restart", timer},
		[]string{"systemctl", "restart", Unit},
	) {
		if err := w.Run.Run(ctx, args...); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(w.Root, earlierProgramDir)); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if err := w.Ready(wait); err != nil {
		return fmt.Errorf("the registry does not answer: %w: see journalctl -u %s", err, Unit)
	}
	return nil
}
