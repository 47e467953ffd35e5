package service

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/hostfile"
)

// logins are the file of users, and that of the password that was made for it. A file of users that is there belongs to the
// operator, who may have added users, and stays.
func (w *work) logins() ([]hostfile.File, error) {
	if have := w.kept(htpasswdPath); len(have) > 0 {
		return []hostfile.File{{Path: htpasswdPath, Mode: group, Data: have, Secret: true}}, nil
	}
	password := bytes.TrimSpace(w.kept(passwordPath))
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

// Htpasswd returns an htpasswd file with one user, whose password is random. Its hash is the cheapest that bcrypt makes: the registry program
// computes it for every request, and a random password needs no protection against guessing.
func Htpasswd(user string, password []byte) ([]byte, error) {
	hash, err := bcrypt.GenerateFromPassword(password, bcrypt.MinCost)
	if err != nil {
		return nil, fmt.Errorf("registry password: %w", err)
	}
	return fmt.Appendf(nil, "%s:%s\n", user, hash), nil
}

func put(root, name string, data []byte, mode fs.FileMode) error {
	target := filepath.Join(root, name)
	const listable = 0o755
	if err := os.MkdirAll(filepath.Dir(target), listable); err != nil {
		return err
	}
	return hostfile.Write(target, bytes.NewReader(data), mode)
}
