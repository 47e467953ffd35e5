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
	paths := []string{timerPath, renewPath, unitPath, usersPath, path.Dir(programDir), earlierProgramDir, stampPath}
	if o.WithData {
		settings, err := Load(o.Root)
		switch {
		case err == nil:
			content, err := o.content(settings.Dir)
			if err != nil {
				return nil, err
			}
			paths = append(paths, content...)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		paths = append(paths, configDir)
	}
	var removed []string
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

// content returns the paths of the registry's content in its directory. Foreign files stay, and so does then the
// directory.
func (o RemoveOptions) content(dir string) ([]string, error) {
	if dir == "" || dir == "/" || path.Clean(dir) != dir {
		return nil, fmt.Errorf("%s: %q is not a registry's directory", statePath, dir)
	}
	names := []string{path.Join(dir, "docker/registry"), path.Join(dir, "docker"), path.Join(dir, "kkbundle.lock"), path.Join(dir, "kkbundle.secret")}
	entries, err := os.ReadDir(filepath.Join(o.Root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		switch e.Name() {
		case "docker", "kkbundle.lock", "kkbundle.secret":
		default:
			return names, err
		}
	}
	return append(names, dir), err
}
