package service_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/registry/service"
)

var update = flag.Bool("update", false, "write the golden files")

// A host records the commands that run on it.
type host struct {
	ran    []string
	active map[string]bool // units
	fail   string          // a command that fails
}

func (h *host) Run(_ context.Context, args ...string) error {
	line := strings.Join(args, " ")
	h.ran = append(h.ran, line)
	unit := args[len(args)-1]
	switch {
	case h.fail != "" && strings.Contains(line, h.fail):
		return errors.New("failed: " + line)
	case strings.Contains(line, "is-active") && !h.active[unit]:
		return errors.New("inactive")
	case strings.Contains(line, "systemctl restart"):
		if h.active == nil {
			h.active = map[string]bool{}
		}
		h.active[unit] = true
	case strings.Contains(line, "disable"):
		delete(h.active, unit)
	}
	return nil
}

func program(text string) service.Program {
	return service.Program{
		Name: "kkbundle",
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
	}
}

func options(root string, h *host) service.Options {
	o := service.Options{
		Settings: service.Settings{
			Version: 1, Dir: "/srv/registry", Listen: ":5000",
			Names: []string{"registry.site", "10.0.0.3"},
		},
		Root: root, Program: program("program 1"), Now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		Ready: func(context.Context) error { return nil },
	}
	if h != nil {
		o.Run = h
	}
	return o
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// step installs and returns the changes.
func step(t *testing.T, o service.Options, h *host) (changed []string, restarted bool) {
	t.Helper()
	h.ran = nil
	res, err := service.Install(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Changes {
		if c.State != hostfile.StateSame {
			changed = append(changed, filepath.Base(c.Path))
		}
	}
	return changed, slices.Contains(h.ran, "systemctl restart "+service.Unit)
}

const etc = "/etc/kkbundle-site-registry/"

func TestInstallAgain(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	o.DryRun = true
	if changed, restarted := step(t, o, h); len(changed) != 13 || restarted {
		t.Errorf("a dry run: %v, restarted %v", changed, restarted)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("a dry run wrote %v, %v", entries, err)
	}
	dry, err := service.Install(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range dry.Changes {
		if secret := regexp.MustCompile(`PRIVATE KEY|[A-Z2-7]{26}|\$2a\$`).FindString(c.Diff); secret != "" {
			t.Errorf("the dry run shows %s of %s", secret, c.Path)
		}
	}
	o.DryRun = false
	if changed, restarted := step(t, o, h); len(changed) != 13 || !restarted {
		t.Errorf("the first time: %v, restarted %v", changed, restarted)
	}
	for name, mode := range map[string]fs.FileMode{
		"ca.key": 0o600, "password": 0o600, "tls.key": 0o640, "htpasswd": 0o640, "push-password": 0o600,
		"pull-htpasswd": 0o640, "ca.crt": 0o644, "tls.crt": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(root, etc, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %o", name, info.Mode(), err, mode)
		}
	}
	for users, login := range map[string][2]string{
		"pull-htpasswd": {service.Login, "password"},
		"htpasswd":      {service.PushLogin, "push-password"},
	} {
		user, hash, _ := strings.Cut(strings.TrimSpace(read(t, root, etc+users)), ":")
		if err := bcrypt.CompareHashAndPassword([]byte(hash),
			[]byte(strings.TrimSpace(read(t, root, etc+login[1])))); err != nil || user != login[0] {
			t.Errorf("%s has %s, %v", users, user, err)
		}
	}
	nothing := func(what string) {
		t.Helper()
		if changed, restarted := step(t, o, h); len(changed) != 0 || restarted {
			t.Errorf("%s: %v, restarted %v: %v", what, changed, restarted, h.ran)
		}
	}
	nothing("the second time")
	for _, unit := range []string{service.Unit, timer} {
		delete(h.active, unit)
		if changed, restarted := step(t, o, h); len(changed) != 0 || !restarted || !h.active[unit] {
			t.Errorf("after a stop of %s: %v, restarted %v", unit, changed, restarted)
		}
	}
	o.Program = program("program 2")
	if changed, restarted := step(t, o, h); len(changed) != 0 || !restarted {
		t.Errorf("another program: %v, restarted %v", changed, restarted)
	}
	o.Now = o.Now.AddDate(0, 9, 0)
	nothing("months later")
	o.Names = append(o.Names, "mirror.site")
	if changed, restarted := step(t, o, h); !slices.Equal(changed, []string{"install.json", "tls.key", "tls.crt"}) ||
		!restarted {
		t.Errorf("another name: %v, restarted %v", changed, restarted)
	}
	if err := os.WriteFile(filepath.Join(root, etc, "htpasswd"), []byte("mine:hash\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	nothing("users of the operator's")
	if got := read(t, root, etc+"htpasswd"); got != "mine:hash\n" {
		t.Errorf("users of the operator's became %q", got)
	}
}

// TestKilled has runs that stop at every command, and then one that does not.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"systemd-sysusers", "chown", "install -d", "daemon-reload", "enable", "restart"} {
		root, h := t.TempDir(), &host{fail: command}
		o := options(root, h)
		if _, err := service.Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("%s: %v", command, err)
		}
		ca := read(t, root, etc+"ca.crt")
		h.fail = ""
		if _, restarted := step(t, o, h); !restarted || read(t, root, etc+"ca.crt") != ca {
			t.Errorf("after a failed %s the next run did not start the service, or made another authority", command)
		}
		if _, restarted := step(t, o, h); restarted {
			t.Errorf("and the one after that did again")
		}
	}
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	o.Ready = func(context.Context) error { return errors.New("refused") }
	if _, err := service.Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "journalctl") {
		t.Errorf("a registry that does not answer: %v", err)
	}
}

func TestRenew(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	if _, err := service.Renew(t.Context(), service.RenewOptions{Root: root, Now: o.Now}); err == nil {
		t.Error("where nothing is installed")
	}
	step(t, o, h)
	ca, cert := read(t, root, etc+"ca.crt"), read(t, root, etc+"tls.crt")
	h.ran = nil
	if _, err := service.Renew(t.Context(), service.RenewOptions{Root: root, Now: o.Now, Run: h}); err != nil {
		t.Fatal(err)
	}
	if read(t, root, etc+"ca.crt") != ca || read(t, root, etc+"tls.crt") == cert ||
		!slices.Contains(h.ran, "systemctl try-reload-or-restart "+service.Unit) {
		t.Errorf("the certificate was not renewed alone: %v", h.ran)
	}
	if changed, restarted := step(t, o, h); len(changed) > 0 || restarted {
		t.Errorf("afterwards: %v, %v", changed, restarted)
	}
	o.Now = o.Now.AddDate(9, 11, 15)
	if _, err := service.Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--new-ca") {
		t.Errorf("an authority that ends soon: %v", err)
	}
	got, err := service.Renew(t.Context(), service.RenewOptions{Root: root, Now: o.Now, NewAuthority: true})
	if err != nil || !lasts(o.Now, got.Ends, 365) || read(t, root, etc+"ca.crt") == ca {
		t.Errorf("a new authority: until %s, %v", got.Ends, err)
	}
	if changed, _ := step(t, o, h); len(changed) > 0 {
		t.Errorf("afterwards: %v", changed)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	for _, name := range []string{"docker/registry/v2/x", "kkbundle.lock", "of-others"} {
		path := filepath.Join(root, o.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	ca := read(t, root, etc+"ca.crt")
	removed, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, Run: h})
	if err != nil || len(h.active) > 0 || len(removed) != 6 {
		t.Errorf("%v, %v; active %v", removed, err, h.active)
	}
	if changed, restarted := step(t, o, h); !slices.Equal(changed, []string{
		"kkbundle-site-registry.conf", service.Unit,
		renewal, timer,
	}) || !restarted || read(t, root, etc+"ca.crt") != ca {
		t.Errorf("installed again: %v, %v", changed, restarted)
	}
	if slices.Contains(h.ran, "userdel "+service.User) {
		t.Errorf("the user of content that stays was removed: %v", h.ran)
	}
	if _, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, WithData: true, Run: h}); err != nil {
		t.Fatal(err)
	}
	if last := h.ran[len(h.ran)-1]; last != "userdel "+service.User {
		t.Errorf("the user stays: %v", h.ran)
	}
	left, err := os.ReadDir(filepath.Join(root, o.Dir))
	if err != nil || len(left) != 1 || left[0].Name() != "of-others" {
		t.Errorf("left of the directory: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(root, etc)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the configuration is still there: %v", err)
	}
	h.ran, h.fail = nil, "getent"
	if _, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, WithData: true, Run: h}); err != nil ||
		slices.Contains(h.ran, "userdel "+service.User) {
		t.Errorf("a user that is not there: %v, %v", err, h.ran)
	}
	if removed, err := service.Remove(t.Context(), service.RemoveOptions{Root: root}); err != nil || len(removed) > 0 {
		t.Errorf("the second time: %v, %v", removed, err)
	}
}

// TestRemoveFollowsNoLinks: the service's user can replace what it owns by links.
func TestRemoveFollowsNoLinks(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	precious := filepath.Join(root, "precious")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(precious, "registry/v2"), 0o755), os.MkdirAll(filepath.Join(root, o.Dir), 0o755),
		os.Symlink(precious, filepath.Join(root, o.Dir, "docker")),
		os.Symlink(precious, filepath.Join(root, o.Dir, "kkbundle.lock")),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, WithData: true, Run: h}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(precious, "registry/v2")); err != nil {
		t.Errorf("what a link led to was removed: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root, o.Dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory with the links is still there: %v", err)
	}
}

// TestPrepareFollowsNoLinks runs the commands on a directory with an older version's content and with links of the
// service's user. Debian and Enterprise Linux have the user daemon.
func TestPrepareFollowsNoLinks(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root changes owners")
	}
	root := t.TempDir()
	target, disk, dir := filepath.Join(root, "containerd.sock"), filepath.Join(root, "disk"),
		filepath.Join(root, "registry")
	below := filepath.Join(disk, "docker/registry")
	if err := errors.Join(
		os.WriteFile(target, nil, 0o600), os.MkdirAll(below, 0o755), os.Symlink(disk, dir),
		os.WriteFile(below+"/blob", nil, 0o600),
		os.Symlink(target, below+"/link"), os.Symlink(root, below+"/directory"),
	); err != nil {
		t.Fatal(err)
	}
	s := service.Spec{User: "daemon", Dir: dir}
	for _, args := range s.Prepare()[2:] { // without the user, and files that this service does not have
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	owner := func(name string) uint32 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Uid
	}
	if owner(target) != 0 || owner(root) != 0 {
		t.Error("what the links lead to has another owner")
	}
	if owner(below+"/blob") == 0 || owner(disk) == 0 {
		t.Error("the content is still root's")
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(o *service.Options){
		"relative":           func(o *service.Options) { o.Dir = "registry" },
		"absolute path":      func(o *service.Options) { o.Dir = "/srv/a\nExecStart=/bin/sh" },
		"below /var/run":     func(o *service.Options) { o.Dir = "/var/run/registry" },
		"below /home":        func(o *service.Options) { o.Dir = "/home/me/registry" },
		"listen address":     func(o *service.Options) { o.Listen = ":5000 --plain-http" },
		"metrics":            func(o *service.Options) { o.Metrics = "x" },
		"want a host name":   func(o *service.Options) { o.Names = []string{"a b"} },
		"needs at least one": func(o *service.Options) { o.Names = nil },
	} {
		o := options(t.TempDir(), nil)
		change(&o)
		if _, err := service.Install(t.Context(), o); err == nil ||
			what != "relative" && !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	root := t.TempDir()
	unit := filepath.Join(root, "etc/systemd/system", service.Unit)
	if err := errors.Join(os.MkdirAll(filepath.Dir(unit), 0o755),
		os.WriteFile(unit, []byte("[Unit]\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Install(t.Context(), options(root, nil)); !errors.As(err, new(*hostfile.ForeignError)) {
		t.Errorf("a unit of others: %v", err)
	}
	if _, err := service.Remove(t.Context(), service.RemoveOptions{Root: root}); err == nil {
		t.Error("a unit of others was removed")
	}
}

// TestSpec holds all that a service has against one file: the registry of this host with each of its programs, and
// one whose directory is in another that only root may enter.
func TestSpec(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, s := range []service.Spec{
		{
			Mark: "# Ours.", Description: "Kkbundle's registry", User: "reader", UserFile: "/etc/r/user.conf",
			Dir:      "/srv/registry",
			Readable: []string{"/etc/r/tls.key"}, Command: []string{"/bin/kkbundle", "registry", "serve"},
			Listen: ":5000",
		},
		{
			Mark: "# Ours.", Description: "Registry program", User: "reader", UserFile: "/etc/r/user.conf",
			Dir:      "/var/lib/r/registry",
			Readable: []string{"/etc/r/tls.key", "/etc/r/config.yaml"},
			Command:  []string{"/bin/registry", "serve", "/etc/r/config.yaml"}, Program: true, Listen: "10.0.0.3:443",
		},
		{
			Mark: "# Ours.", Description: "Read-only", User: "reader", UserFile: "/etc/r/user.conf",
			Dir: "/var/lib/r/registry", ReadOnly: true,
			Readable: []string{"/etc/r/tls.key"}, Command: []string{"/bin/registry", "serve", "/etc/r/config.yaml"},
			Program: true, Listen: "10.0.0.3:5000",
		},
	} {
		fmt.Fprintf(&b, "== %s: user\n%s== commands\n", s.Description, s.UserText())
		for _, args := range s.Prepare() {
			fmt.Fprintln(&b, strings.Join(args, " "))
		}
		fmt.Fprintf(&b, "== unit\n%s", s.UnitText())
	}
	const file = "testdata/spec.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(want)); diff != "" {
		t.Errorf("%s (-got +want; -update writes it):\n%s", file, diff)
	}
}

// TestUnit has systemd look at the units.
func TestUnit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not there")
	}
	for _, own := range []bool{false, true} {
		root, units := t.TempDir(), t.TempDir()
		o := options(root, nil)
		o.Listen, o.Metrics, o.Delete = "10.0.0.3:443", "127.0.0.1:5001", true
		if own {
			o = ownOptions(o)
		}
		if _, err := service.Install(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		args := []string{"verify", "--man=no"}
		for _, unit := range []string{service.Unit, renewal, timer} {
			// The programs are looked for where they will be, which is not here.
			text := strings.Replace(read(t, root, "/etc/systemd/system/"+unit), "ExecStart=/", "ExecStart="+root+"/", 1)
			file := filepath.Join(units, unit)
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, file)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "kkbundle") {
			t.Errorf("%v\n%s", err, out)
		}
		text := read(t, units, service.Unit)
		if want := "AmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n"; !strings.Contains(text, want) {
			t.Errorf("port 443 is not open to it:\n%s", text)
		}
	}
}

// TestProgramsHaveLabelsThatSystemdExecutes holds that the unit's programs lie where SELinux policies have executable
// types, that they get these labels before a start where SELinux is on, and that programs of earlier releases are
// removed.
func TestProgramsHaveLabelsThatSystemdExecutes(t *testing.T) {
	t.Parallel()
	const earlier = "/usr/local/lib/kkbundle-site-registry/kkbundle"
	for _, selinux := range []bool{false, true} {
		root, h := t.TempDir(), &host{}
		names := []string{earlier}
		if selinux {
			names = append(names, "/sys/fs/selinux/enforce")
		}
		for _, name := range names {
			if err := errors.Join(os.MkdirAll(filepath.Dir(root+name), 0o755),
				os.WriteFile(root+name, []byte("1"), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		step(t, options(root, h), h)
		if !strings.Contains(read(t, root, "/etc/systemd/system/"+service.Unit),
			"\nExecStart=/opt/kkbundle-site-registry/bin/kkbundle ") {
			t.Error(read(t, root, "/etc/systemd/system/"+service.Unit))
		}
		label := slices.Index(h.ran, "restorecon -R /opt/kkbundle-site-registry/bin")
		if start := slices.Index(h.ran, "systemctl restart "+service.Unit); selinux != (label >= 0) || label > start {
			t.Errorf("SELinux %v: %q", selinux, h.ran)
		}
		if _, err := os.Stat(root + earlier); err == nil {
			t.Error("the earlier program is still there")
		}
	}
}

// Before version 250, systemd makes the directories above a bound path with the service's umask, for root. The
// service's user must be able to pass through them, and nobody else may read its files.
// https://github.com/systemd/systemd/issues/19899
func TestUserPassesThroughDirectoriesOfOldSystemd(t *testing.T) {
	t.Parallel()
	unit := string(service.Spec{
		User: "registry", Dir: "/var/lib/registry",
		Readable: []string{"/etc/kkbundle/registry/tls.key"},
	}.UnitText())
	_, rest, _ := strings.Cut(unit, "\nUMask=")
	text, _, _ := strings.Cut(rest, "\n")
	umask, err := strconv.ParseUint(text, 8, 32)
	if err != nil {
		t.Fatal(err)
	}
	if dir := 0o755 &^ umask; dir&0o001 == 0 {
		t.Errorf("directories have mode %o: user registry cannot reach its files", dir)
	}
	if file := 0o666 &^ umask; file&0o066 != 0 {
		t.Errorf("files have mode %o", file)
	}
}
