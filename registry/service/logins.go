package service

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// A role is a login that kkbundle makes: its first user, the htpasswd file with the role's users, and the file of the
// password. A rotation alternates between two users.
type role struct{ user, file, password string }

// pullRole and pushRole are the two roles. Operators add users of theirs to the same htpasswd files.
func pullRole() role { return role{Login, pullersPath, passwordPath} }
func pushRole() role { return role{PushLogin, htpasswdPath, pushPasswordPath} }

// owns reports whether a line of an htpasswd file is one of the role's two users.
func (r role) owns(line string) bool {
	user, _, _ := strings.Cut(line, ":")
	return user == r.user || user == r.user+"-2"
}

// users returns the role's users in an htpasswd file: the current one is the last.
func (r role) users(file []byte) []string {
	var list []string
	for line := range strings.Lines(string(file)) {
		if r.owns(line) {
			user, _, _ := strings.Cut(line, ":")
			list = append(list, user)
		}
	}
	return list
}

// next returns the user that follows the current one.
func (r role) next(users []string) string {
	if len(users) > 0 && users[len(users)-1] == r.user {
		return r.user + "-2"
	}
	return r.user
}

// logins returns the htpasswd files, and the files of generated passwords. Existing htpasswd files stay: the operator
// may have added users. An older release had one file, whose user Login could push: that user may only pull now.
func (w *installation) logins() ([]hostfile.File, error) {
	have := w.existing(htpasswdPath)
	if w.Own {
		return w.ownLogins(have)
	}
	pull, push := pullRole(), pushRole()
	pullers, pushers := w.existing(pull.file), have
	if len(pullers) == 0 {
		pullers, pushers = part(have, pull.owns)
	}
	var files []hostfile.File
	for _, one := range []struct {
		role
		data []byte
		keep bool
	}{{pull, pullers, len(pullers) > 0}, {push, pushers, len(w.existing(pull.file)) > 0 && len(pushers) > 0}} {
		if one.keep {
			files = append(files, hostfile.File{Path: one.file, Mode: group, Data: one.data, Secrecy: hostfile.Secret})
			continue
		}
		more, err := w.newLogin(one.role, one.data)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

// newLogin adds the role's first user to an htpasswd file, with the password of its file or a new one.
func (w *installation) newLogin(r role, file []byte) ([]hostfile.File, error) {
	password := bytes.TrimSpace(w.existing(r.password))
	if len(password) == 0 {
		password = []byte(rand.Text()) // 130 bits
	}
	line, err := Htpasswd(r.user, password)
	if err != nil {
		return nil, err
	}
	return []hostfile.File{
		{
			Path: r.password, Mode: private, Data: append(password, '\n'), Mark: string(password),
			Secrecy: hostfile.Secret,
		},
		{
			Path: r.file, Mode: group, Data: slices.Concat(file, line), Mark: string(w.existing(r.file)),
			Secrecy: hostfile.Secret,
		},
	}, nil
}

// ownLogins returns the logins for the registry program, whose htpasswd file has no roles.
func (w *installation) ownLogins(have []byte) ([]hostfile.File, error) {
	if len(have) > 0 {
		return []hostfile.File{{Path: htpasswdPath, Mode: group, Data: have, Secrecy: hostfile.Secret}}, nil
	}
	return w.newLogin(role{Login, htpasswdPath, passwordPath}, nil)
}

// part splits the lines of a file.
func part(file []byte, first func(line string) bool) (yes, no []byte) {
	for line := range strings.Lines(string(file)) {
		if !strings.HasSuffix(line, "\n") {
			line += "\n"
		}
		if first(line) {
			yes = append(yes, line...)
		} else {
			no = append(no, line...)
		}
	}
	return yes, no
}

// Htpasswd returns an htpasswd file for one user with a random password. bcrypt's minimum cost suffices for random
// passwords, and the registry program computes the hash for every request.
func Htpasswd(user string, password []byte) ([]byte, error) {
	hash, err := bcrypt.GenerateFromPassword(password, bcrypt.MinCost)
	if err != nil {
		return nil, fmt.Errorf("registry password: %w", err)
	}
	return fmt.Appendf(nil, "%s:%s\n", user, hash), nil
}
