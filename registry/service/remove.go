package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// RemoveOptions are the options of Remove.
type RemoveOptions struct {
	Root     string
	WithData bool   // content, certificates and logins too
	Run      Runner // nil if Root is not a running host
}

// Remove stops the service and removes its files; it returns their paths. Without WithData a later Install restores the
// same registry. The system user is then kept too, because it owns the content.
func Remove(ctx context.Context, o RemoveOptions) ([]string, error) {
	units, err := o.units()
	if err != nil {
		return nil, err
	}
	for _, unit := range units {
		if o.Run == nil {
			break
		}
		if err := o.Run.Run(ctx, "systemctl", "disable", "--now", unit); err != nil {
			return nil, err
		}
	}
	var removed []string
	paths := []string{timerPath, renewPath, unitPath, usersPath, path.Dir(programDir), earlierProgramDir, stampPath}
	if o.WithData {
		settings, err := Load(o.Root)
		switch {
		case err == nil:
			content, err := o.removeContent(settings.Dir)
			removed = append(removed, content...)
			if err != nil {
				return removed, err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		paths = append(paths, configDir)
	}
	for _, name := range paths {
		target := filepath.Join(o.Root, name)
		if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(target); err != nil {
			return removed, err
		}
		removed = append(removed, name)
	}
	if o.Run == nil {
		return removed, nil
	}
	if err := o.Run.Run(ctx, "systemctl", "daemon-reload"); err != nil || !o.WithData {
		return removed, err
	}
	if o.Run.Run(ctx, "getent", "passwd", User) != nil {
		return removed, nil // the user does not exist
	}
	return removed, o.Run.Run(ctx, "userdel", User)
}

// units returns the installed units in the order in which they stop.
func (o RemoveOptions) units() ([]string, error) {
	var units []string
	for _, unit := range []string{timer, renewUnit, Unit} {
		text, err := os.ReadFile(filepath.Join(o.Root, unitDir, unit))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case !bytes.HasPrefix(text, []byte(mark)):
			return nil, fmt.Errorf("%s was not written by kkbundle registry install: nothing is removed", unitDir+unit)
		}
		units = append(units, unit)
	}
	return units, nil
}

// removeContent removes the registry's content from its directory, and the directory unless foreign files stay in it.
// It returns the removed paths. Links in the directory are the service user's: they are removed and not followed.
func (o RemoveOptions) removeContent(dir string) (removed []string, err error) {
	if dir == "" || dir == "/" || path.Clean(dir) != dir {
		return nil, fmt.Errorf("%s: %q is not a registry's directory", statePath, dir)
	}
	within, err := os.OpenRoot(filepath.Join(o.Root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, within.Close()) }()
	for _, name := range []string{"docker", "kkbundle.lock", "kkbundle.secret"} {
		if _, err := within.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := within.RemoveAll(name); err != nil {
			return removed, err
		}
		removed = append(removed, path.Join(dir, name))
	}
	if left, err := fs.ReadDir(within.FS(), "."); err != nil || len(left) > 0 {
		return removed, err
	}
	return append(removed, dir), os.Remove(filepath.Join(o.Root, dir))
}
