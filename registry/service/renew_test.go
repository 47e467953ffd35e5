package service_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/registry/service"
)

const (
	timer   = "kkbundle-site-registry-certificates.timer"
	renewal = "kkbundle-site-registry-certificates.service"
	units   = "/etc/systemd/system/"
	reload  = "systemctl try-reload-or-restart " + service.Unit
)

// lasts reports whether a certificate that was issued now is valid for so many days.
func lasts(now, ends time.Time, days int) bool {
	return ends.Sub(now).Round(24*time.Hour) == time.Duration(days)*24*time.Hour
}

// ends returns the end of a certificate in /etc/kkbundle-site-registry.
func ends(t *testing.T, root, name string) time.Time {
	t.Helper()
	cert, err := pki.ParseCertificate([]byte(read(t, root, etc+name)))
	if err != nil {
		t.Fatal(err)
	}
	return cert.NotAfter
}

// ownOptions returns the options of a registry program with the operator's configuration.
func ownOptions(o service.Options) service.Options {
	o.Own, o.Config, o.Program.Name, o.Tool = true, []byte("version: 0.1\n"), "registry", program("kkbundle")
	return o
}

func TestCertificateLastsAYear(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	o := options(root, nil)
	res, err := service.Install(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if end := ends(t, root, "tls.crt"); !lasts(o.Now, end, 365) || !end.Equal(res.Ends) {
		t.Errorf("the certificate ends on %s, and is reported to end on %s", end, res.Ends)
	}
	if end := ends(t, root, "ca.crt"); !lasts(o.Now, end, 3650) {
		t.Errorf("the authority ends on %s", end)
	}
}

// TestTimerRunsInstalledProgram holds that the timer's service runs a program that is installed with it, for each of
// the registry's programs.
func TestTimerRunsInstalledProgram(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		root, h := t.TempDir(), &host{}
		o := options(root, h)
		if own {
			o = ownOptions(o)
		}
		step(t, o, h)
		_, line, _ := strings.Cut(read(t, root, units+renewal), "\nExecStart=")
		line, _, _ = strings.Cut(line, "\n")
		command, args, _ := strings.Cut(line, " ")
		info, err := os.Stat(filepath.Join(root, command))
		if err != nil || info.Mode().Perm() != 0o755 || filepath.Base(command) != "kkbundle" ||
			args != "registry certs renew --days 60" {
			t.Errorf("own %t: %s: %v", own, line, err)
		}
		if text := read(t, root, units+timer); !strings.Contains(text, "\nOnCalendar=*-*-* ") ||
			!strings.Contains(text, "\nPersistent=true\n") {
			t.Errorf("the timer does not run every day:\n%s", text)
		}
		if !h.active[timer] || !slices.ContainsFunc(h.ran, func(line string) bool {
			return strings.HasPrefix(line, "systemctl enable ") && strings.Contains(line, timer)
		}) {
			t.Errorf("the timer does not run: %v", h.ran)
		}
		if !own {
			continue
		}
		o.Tool = program("kkbundle 2")
		if step(t, o, h); read(t, root, command) != "kkbundle 2" {
			t.Error("the timer's program was not updated")
		}
	}
}

// TestRenewDays has the timer's service run through a year, and be interrupted.
func TestRenewDays(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	renew := func(days int) (service.Renewed, error) {
		h.ran = nil
		return service.Renew(t.Context(), service.RenewOptions{
			Root: root, Within: 60 * 24 * time.Hour,
			Now: o.Now.AddDate(0, 0, days), Run: h,
		})
	}
	first, ca := ends(t, root, "tls.crt"), read(t, root, etc+"ca.crt")
	for _, days := range []int{0, 200, 304} {
		if got, err := renew(days); err != nil || got.Changed || !got.Ends.Equal(first) || len(h.ran) > 0 {
			t.Errorf("after %d days: %+v, %v; ran %v", days, got, err, h.ran)
		}
	}
	h.fail = "try-reload"
	if _, err := renew(306); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("the registry does not reload: %v", err)
	}
	h.fail = ""
	got, err := renew(307)
	if err != nil || !got.Changed || !slices.Contains(h.ran, reload) ||
		!slices.Contains(h.ran, "chown root:"+service.User+" "+etc+"tls.key") {
		t.Errorf("after an interruption: %+v, %v; ran %v", got, err, h.ran)
	}
	if end := ends(t, root, "tls.crt"); !lasts(o.Now.AddDate(0, 0, 307), end, 365) || !got.Ends.Equal(end) ||
		read(t, root, etc+"ca.crt") != ca {
		t.Errorf("renewed until %s", end)
	}
	if got, err := renew(308); err != nil || got.Changed || len(h.ran) > 0 {
		t.Errorf("the next day: %+v, %v; ran %v", got, err, h.ran)
	}
	o.Now = o.Now.AddDate(0, 0, 308)
	if changed, restarted := step(t, o, h); len(changed) > 0 || restarted {
		t.Errorf("install after the renewal: %v, restarted %v", changed, restarted)
	}
}

// TestRenewKeepsAuthority holds that only --new-ca makes an authority: clients would refuse the registry.
func TestRenewKeepsAuthority(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	if err := os.Remove(filepath.Join(root, etc, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	cert := read(t, root, etc+"tls.crt")
	for _, within := range []time.Duration{0, 60 * 24 * time.Hour} {
		_, err := service.Renew(t.Context(), service.RenewOptions{
			Root: root, Within: within,
			Now: o.Now.AddDate(0, 11, 0), Run: h,
		})
		if err == nil || !strings.Contains(err.Error(), "--new-ca") || read(t, root, etc+"tls.crt") != cert {
			t.Errorf("without ca.crt: %v", err)
		}
	}
}

// TestOlderInstallationGetsTimer holds that an installation of an earlier release keeps its certificate of ten years
// until it is renewed, and gets the timer.
func TestOlderInstallationGetsTimer(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	ca, err := pki.ParseAuthority(pki.Pair{
		Cert: []byte(read(t, root, etc+"ca.crt")),
		Key:  []byte(read(t, root, etc+"ca.key")),
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.ParseNames(o.Names), o.Now, pki.Life)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{etc + "tls.crt": pair.Cert, etc + "tls.key": pair.Key} {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{timer, renewal} {
		if err := os.Remove(filepath.Join(root, units, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if step(t, o, h); !h.active[timer] || read(t, root, units+timer) == "" ||
		read(t, root, etc+"tls.crt") != string(pair.Cert) {
		t.Errorf("the older installation has the timer %v, and its certificate until %s", h.active,
			ends(t, root, "tls.crt"))
	}
	if _, err := service.Renew(t.Context(), service.RenewOptions{Root: root, Now: o.Now, Run: h}); err != nil ||
		!lasts(o.Now, ends(t, root, "tls.crt"), 365) {
		t.Errorf("renewed until %s, %v", ends(t, root, "tls.crt"), err)
	}
}

// TestRenewalByInstallKilled holds that an install that stops between a new certificate and the restart is finished
// by the next one.
func TestRenewalByInstallKilled(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	o.Now, h.fail = o.Now.AddDate(0, 0, 310), "daemon-reload"
	if _, err := service.Install(context.WithoutCancel(t.Context()), o); err == nil {
		t.Fatal("a failed command is no error")
	}
	h.fail = ""
	if changed, restarted := step(t, o, h); len(changed) > 0 || !restarted {
		t.Errorf("the next run: %v, restarted %v", changed, restarted)
	}
}

// TestRemoveStopsTimer holds that uninstall removes the timer, and leaves everything alone if it is not ours.
func TestRemoveStopsTimer(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	o := options(root, h)
	step(t, o, h)
	file := filepath.Join(root, units, timer)
	text := read(t, root, units+timer)
	if err := os.WriteFile(file, []byte("[Timer]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, Run: h}); err == nil ||
		len(h.active) != 2 {
		t.Errorf("a timer of others: %v, active %v", err, h.active)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	removed, err := service.Remove(t.Context(), service.RemoveOptions{Root: root, Run: h})
	if err != nil || len(h.active) > 0 || !slices.Contains(removed, units+timer) ||
		!slices.Contains(removed, units+renewal) {
		t.Errorf("removed %v, %v; active %v", removed, err, h.active)
	}
}
