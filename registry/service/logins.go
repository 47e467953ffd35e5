package service

import (
	"bytes"
	"crypto/rand"
	"fmt"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/hostfile"
)

// logins returns the htpasswd file, and the file of a generated password. An existing htpasswd file stays: the operator
// may have added users.
func (w *installation) logins() ([]hostfile.File, error) {
	if have := w.existing(htpasswdPath); len(have) > 0 {
		return []hostfile.File{{Path: htpasswdPath, Mode: group, Data: have, Secret: true}}, nil
	}
	password := bytes.TrimSpace(w.existing(passwordPath))
	if len(password) == 0 {
		password = []byte(rand.Text()) // 130 bits
	}
	users, err := Htpasswd(Login, password)
	if err != nil {
		return nil, err
	}
	return []hostfile.File{
		{Path: passwordPath, Mode: private, Data: append(password, '\n'), Mark: string(password), Secret: true},
		{Path: htpasswdPath, Mode: group, Data: users, Secret: true},
	}, nil
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
