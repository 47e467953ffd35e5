package service_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/registry/service"
)

// users lists the users of an htpasswd file of the installed registry.
func users(t *testing.T, root, file string) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(read(t, root, etc+file)) {
		user, _, _ := strings.Cut(line, ":")
		list = append(list, user)
	}
	return list
}

func fits(t *testing.T, root, file, user, password string) bool {
	t.Helper()
	for line := range strings.Lines(read(t, root, etc+file)) {
		if name, hash, _ := strings.Cut(strings.TrimSpace(line), ":"); name == user {
			return bcrypt.CompareHashAndPassword([]byte(hash), []byte(strings.TrimSpace(password))) == nil
		}
	}
	return false
}

// An older release made one login, which every client has.
func TestOlderLoginMayOnlyPull(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{false, true} { // the operator may have deleted the password's file
		root, h := t.TempDir(), &host{}
		o := options(root, h)
		step(t, o, h)
		hash, err := service.Htpasswd(service.Login, []byte("older"))
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"htpasswd": string(hash) + "ci:$2y$hash", "password": "older\n",
			"pull-htpasswd": "", "push-password": "",
		} {
			path := filepath.Join(root, etc, name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if text == "" || noted && name == "password" {
				continue
			}
			if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if _, restarted := step(t, o, h); !restarted {
			t.Error("the service still has the older users")
		}
		if diff := cmp.Diff([][]string{users(t, root, "pull-htpasswd"), users(t, root, "htpasswd")},
			[][]string{{"registry"}, {"ci", "registry-push"}}); diff != "" {
			t.Errorf("(-got +want):\n%s", diff)
		}
		if !fits(t, root, "pull-htpasswd", "registry", "older") ||
			!fits(t, root, "htpasswd", "registry-push", read(t, root, etc+"push-password")) {
			t.Error("the passwords do not fit")
		}
		if changed, restarted := step(t, o, h); len(changed) > 0 || restarted {
			t.Errorf("the second time: %v", changed)
		}
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	root, h := t.TempDir(), &host{}
	rotate := func(finish bool) service.Rotated {
		t.Helper()
		h.ran = nil
		res, err := service.Rotate(t.Context(), service.RotateOptions{
			Root: root, Pull: true, Push: true,
			Finish: finish, Run: h,
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(h.ran, "systemctl reload "+service.Unit) ||
			slices.Contains(h.ran, "systemctl restart "+service.Unit) {
			t.Errorf("ran %q", h.ran)
		}
		return res
	}
	step(t, options(root, h), h)
	old := read(t, root, etc+"password")
	if res := rotate(true); len(res.Ended) > 0 {
		t.Errorf("nothing to finish: %v", res.Ended)
	}
	res := rotate(false)
	if diff := cmp.Diff([]string{res.Pull.User, res.Push.User, strings.Join(res.Old, " ")},
		[]string{"registry-2", "registry-push-2", "registry registry-push"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	next := read(t, root, etc+"password")
	if !fits(t, root, "pull-htpasswd", "registry", old) || !fits(t, root, "pull-htpasswd", "registry-2", next) ||
		!fits(t, root, "htpasswd", "registry-push-2", read(t, root, etc+"push-password")) {
		t.Error("the registry does not accept both")
	}
	rotate(false)
	if read(t, root, etc+"password") != next {
		t.Error("a repeated command made a third login")
	}
	rotate(true)
	if diff := cmp.Diff([][]string{users(t, root, "pull-htpasswd"), users(t, root, "htpasswd")},
		[][]string{{"registry-2"}, {"registry-push-2"}}); diff != "" {
		t.Errorf("finished (-got +want):\n%s", diff)
	}
	if changed, _ := step(t, options(root, h), h); len(changed) > 0 {
		t.Errorf("an installation afterwards: %v", changed)
	}
	// A run that is killed after it wrote the password has changed no user; the next one starts again.
	if err := os.WriteFile(filepath.Join(root, etc, "password"), []byte("lost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if res := rotate(false); res.Pull.User != "registry" ||
		!fits(t, root, "pull-htpasswd", "registry", read(t, root, etc+"password")) {
		t.Errorf("after a kill: %v", res.Pull)
	}
}

func TestRotateRefuses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, err := service.Rotate(t.Context(), service.RotateOptions{Root: root, Pull: true}); err == nil ||
		!strings.Contains(err.Error(), "no registry is installed here") {
		t.Errorf("without a registry: %v", err)
	}
	o := ownOptions(options(root, nil))
	if _, err := service.Install(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Rotate(t.Context(), service.RotateOptions{Root: root, Pull: true}); err == nil ||
		!strings.Contains(err.Error(), "your configuration") {
		t.Errorf("the registry program: %v", err)
	}
	if got := users(t, root, "htpasswd"); !slices.Equal(got, []string{"registry"}) {
		t.Errorf("the registry program's users: %v", got)
	}
}
