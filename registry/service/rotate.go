package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// credentials returns the current logins of the files.
func (w *installation) credentials(files []hostfile.File) (pull, push Credential) {
	current := func(r role) Credential {
		i := slices.IndexFunc(files, func(f hostfile.File) bool { return f.Path == r.file })
		if i < 0 {
			return Credential{r.user, r.password}
		}
		users := r.users(files[i].Data)
		if len(users) == 0 {
			return Credential{r.user, r.password}
		}
		return Credential{users[len(users)-1], r.password}
	}
	if w.Own {
		own := current(role{Login, htpasswdPath, passwordPath})
		return own, own
	}
	return current(pullRole()), current(pushRole())
}

// RotateOptions are the options of Rotate.
type RotateOptions struct {
	Root       string
	Pull, Push bool   // the logins to replace
	Finish     bool   // end the replaced logins
	Run        Runner // nil if Root is not a running host
}

// Rotated lists the logins after Rotate.
type Rotated struct {
	Settings
	Pull, Push Credential
	Old        []string // users that are still accepted until Finish
	Ended      []string // users that Finish has ended
}

// Rotate makes new logins of an installed registry. The registry accepts the replaced ones until another Rotate with
// Finish, because only the operator knows all clients. A rotation that was started stays: Rotate makes no third login.
func Rotate(ctx context.Context, o RotateOptions) (Rotated, error) {
	settings, err := Load(o.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Rotated{}, errors.New("no registry is installed here; run kkbundle registry install")
	case err != nil:
		return Rotated{}, err
	case settings.Own:
		return Rotated{}, fmt.Errorf(
			"the registry program runs with your configuration: change the users in %s (htpasswd -B)", htpasswdPath)
	}
	w := &installation{Options: Options{Settings: settings, Root: o.Root, Run: o.Run}}
	if len(w.existing(pullersPath)) == 0 {
		return Rotated{}, errors.New(
			"an older release installed this registry with one login: run kkbundle registry install first")
	}
	res := Rotated{Settings: settings}
	for _, one := range []struct {
		role
		wanted bool
	}{{pullRole(), o.Pull}, {pushRole(), o.Push}} {
		if !one.wanted {
			continue
		}
		if err := w.rotate(one.role, o.Finish, &res); err != nil {
			return res, err
		}
	}
	res.Pull, res.Push = w.credentials([]hostfile.File{
		{Path: pullersPath, Data: w.existing(pullersPath)}, {Path: htpasswdPath, Data: w.existing(htpasswdPath)},
	})
	return res, w.reloadLogins(ctx)
}

func (w *installation) rotate(r role, finish bool, res *Rotated) error {
	file := w.existing(r.file)
	users := r.users(file)
	switch {
	case finish && len(users) > 1:
		old := users[0]
		_, rest := part(file, func(line string) bool { return strings.HasPrefix(line, old+":") })
		res.Ended = append(res.Ended, old)
		return w.write(r.file, rest, group)
	case finish:
		return nil
	case len(users) > 1 && w.matches(r, file, users[len(users)-1]): // continued after an interruption, or repeated
		res.Old = append(res.Old, users[0])
		return nil
	case len(users) > 1:
		return fmt.Errorf("%s: the rotation of %s is unfinished, and %s has another password: run kkbundle registry rotate --finish first", r.file, users[0], r.password)
	}
	password := []byte(rand.Text())
	next := r.next(users)
	line, err := Htpasswd(next, password)
	if err != nil {
		return err
	}
	if len(file) > 0 && !bytes.HasSuffix(file, []byte("\n")) {
		file = append(file, '\n')
	}
	res.Old = append(res.Old, users...)
	// The password comes first: a run that is killed in between leaves the old login alone, and the next one starts
	// again.
	if err := w.write(r.password, append(password, '\n'), private); err != nil {
		return err
	}
	return w.write(r.file, slices.Concat(file, line), group)
}

// matches reports whether the password file has the user's password, or is gone because the operator noted it.
func (w *installation) matches(r role, file []byte, user string) bool {
	password := bytes.TrimSpace(w.existing(r.password))
	if len(password) == 0 {
		return true
	}
	for line := range strings.Lines(string(file)) {
		name, hash, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == user {
			return bcrypt.CompareHashAndPassword([]byte(hash), password) == nil
		}
	}
	return false
}

// reloadLogins makes the service read its users again. Transfers continue.
func (w *installation) reloadLogins(ctx context.Context) error {
	if w.Run == nil {
		return nil
	}
	for _, args := range [][]string{
		{"chown", "root:" + User, htpasswdPath, pullersPath},
		{"systemctl", "reload", Unit},
	} {
		if err := w.Run.Run(ctx, args...); err != nil {
			return fmt.Errorf("the new logins are in %s, but the registry did not read them: %w", configDir, err)
		}
	}
	return nil
}
