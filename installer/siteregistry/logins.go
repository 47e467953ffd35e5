package siteregistry

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/registry/service"
)

// A passFile is a file of the work directory with the hosts' login. It holds PASSWORD, which belongs to the first
// user, or USER:PASSWORD.
type passFile struct {
	name string
	user string // the first user; the second is named user-2
	make func() string
}

// oldSuffix is added to the name of a file for the login that a rotation replaces. The file exists during a rotation.
const oldSuffix = ".old"

// OldLogin returns the name of the file with the login that a rotation replaces.
func OldLogin(name string) string { return name + oldSuffix }

// keep returns the login, and creates it if it is missing.
func (f passFile) keep(site *task.Site) (task.Login, error) {
	data, err := site.Dir.Keep(f.name, func() ([]byte, error) { return []byte(f.make()), nil })
	if err != nil {
		return task.Login{}, err
	}
	return f.login(site, data), nil
}

// old returns the login that a rotation replaces, or nil.
func (f passFile) old(site *task.Site) (*task.Login, error) {
	data, err := site.Dir.Read(OldLogin(f.name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no rotation is the normal case
	}
	if err != nil {
		return nil, err
	}
	l := f.login(site, data)
	return &l, nil
}

func (f passFile) login(site *task.Site, data []byte) task.Login {
	text := strings.TrimSpace(string(data))
	user, password, named := strings.Cut(text, ":")
	if !named {
		user, password = f.user, text
	}
	hide(site, task.Login{Username: user, Password: password})
	return task.Login{Username: user, Password: password}
}

func hide(site *task.Site, l task.Login) {
	site.Mask.Hide(l.Password)
	site.Mask.Hide(l.Username + ":" + l.Password)
}

// rotate replaces the login, and keeps the replaced one beside it. A rotation that was interrupted continues with its
// login.
func (f passFile) rotate(site *task.Site) error {
	now, err := f.keep(site)
	if err != nil {
		return err
	}
	old, err := f.old(site)
	if err != nil || old != nil && *old != now {
		return err
	}
	line := func(l task.Login) []byte { return []byte(l.Username + ":" + l.Password) }
	if err := site.Dir.Write(OldLogin(f.name), line(now)); err != nil {
		return err
	}
	next := task.Login{Username: f.user, Password: f.make()}
	if now.Username == f.user {
		next.Username += "-2"
	}
	hide(site, next)
	return site.Dir.Write(f.name, line(next))
}

// Htpasswd returns a password file of the work directory if it has these logins only, else a new one.
func Htpasswd(s *task.Site, name string, logins ...task.Login) ([]byte, error) {
	data, err := s.Dir.Read(name)
	if err == nil && hasLogins(data, logins) {
		return data, nil
	}
	data = nil
	for _, l := range logins {
		line, err := service.Htpasswd(l.Username, []byte(l.Password))
		if err != nil {
			return nil, err
		}
		data = append(data, line...)
	}
	return data, s.Dir.Write(name, data)
}

func hasLogins(data []byte, logins []task.Login) bool {
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if len(lines) != len(logins) {
		return false
	}
	for i, l := range logins {
		user, hash, _ := bytes.Cut(lines[i], []byte(":"))
		if string(user) != l.Username || bcrypt.CompareHashAndPassword(hash, []byte(l.Password)) != nil {
			return false
		}
	}
	return true
}

// checkRotated refuses a run with --limit during a rotation: hosts outside the limit would keep the replaced login.
func checkRotated(site *task.Site) error {
	f := Of(site.Cluster).hosts
	old, err := f.old(site)
	if err != nil || old == nil || site.Scope.Whole() {
		return err
	}
	return errors.New("the rotation of the registry's logins is unfinished, and all hosts need the new login: run kkbundle registry rotate again, or leave out --limit")
}
