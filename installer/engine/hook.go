package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// HooksOnHost is the directory of the operator's scripts on hosts. It is KubeKey's, so that scripts for KubeKey run
// unchanged.
const HooksOnHost = "/etc/kubekey/scripts"

// HookTask runs the operator's scripts of one kind, pre_install or post_install, on their hosts, as root:
//
//	pre_install.sh             on every host
//	GROUP/pre_install.sh       on the hosts of a group of the inventory, such as kube_worker/pre_install.sh
//	pre_install_HOST.sh        on one host
//
// in this order, with groups in the order of the inventory's format. A script that fails stops the installation. A
// script that succeeded runs again only if it changes, or with Force.
func HookTask(kind string) task.Task {
	return task.Task{
		Name:      kind,
		AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if t.Site.HooksDir == "" {
				return true, nil
			}
			if t.Site.Force {
				task.Because(ctx, "hooks run again with --force")
				return false, nil
			}
			hooks, err := hooks(t, kind)
			if err != nil {
				return false, err
			}
			var stamps []task.File
			for _, h := range hooks {
				stamps = append(stamps, h.file(), h.stamp())
			}
			return t.HasFiles(ctx, stamps...)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			hooks, err := hooks(t, kind)
			if err != nil {
				return err
			}
			for _, h := range hooks {
				if err := RunHook(ctx, t, h); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// A Hook is a script for a host. Its name is its path below the hooks directory.
type Hook struct {
	Name string
	Data []byte
}

func (h Hook) file() task.File {
	return task.File{Path: path.Join(HooksOnHost, h.Name), Mode: 0o755, Data: h.Data}
}

func (h Hook) stamp() task.File {
	return task.File{Path: path.Join(marks.Hooks, h.Name), Mode: 0o600, Data: h.Data}
}

// RunHook runs one script, unless it has succeeded before.
func RunHook(ctx context.Context, t *task.Host, h Hook) error {
	if !t.Site.Force {
		if done, err := t.HasFiles(ctx, h.file(), h.stamp()); err != nil || done {
			return err
		}
	}
	// Scripts may contain secrets. The directory of stamps also shows Reset that the scripts came from kkbundle.
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0700", marks.Hooks, HooksOnHost); err != nil {
		return err
	}
	if err := t.Write(ctx, h.file()); err != nil {
		return err
	}
	if err := t.Run(ctx, h.file().Path); err != nil {
		return fmt.Errorf("hook %s: %w", h.Name, err)
	}
	return t.Write(ctx, h.stamp())
}

// maxHook limits the size of a script.
const maxHook = 16 << 20

// hooks returns the scripts of one kind for this host, in order.
func hooks(t *task.Host, kind string) ([]Hook, error) {
	dir, err := os.OpenRoot(t.Site.HooksDir)
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	defer dir.Close()
	names := []string{kind + ".sh"}
	for _, role := range t.Roles {
		names = append(names, string(role)+"/"+kind+".sh")
	}
	names = append(names, kind+"_"+t.Name+".sh")
	var hooks []Hook
	for _, name := range names {
		data, err := readHook(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hook %s: %w", filepath.Join(t.Site.HooksDir, name), err)
		}
		if t.Site.Script != nil {
			if data, err = t.Site.Script(filepath.Join(t.Site.HooksDir, name), data); err != nil {
				return nil, err
			}
		}
		hooks = append(hooks, Hook{name, data})
	}
	return hooks, nil
}

func readHook(dir *os.Root, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHook+1))
	if err == nil && len(data) > maxHook {
		err = fmt.Errorf("larger than %d bytes", maxHook)
	}
	return data, err
}

// checkScript returns the problems of a hook with values.
func checkScript(s *task.Site, name string) error {
	dir, err := os.OpenRoot(s.HooksDir)
	if err != nil {
		return fmt.Errorf("hooks: %w", err)
	}
	defer dir.Close()
	data, err := readHook(dir, name)
	if err == nil {
		_, err = s.Script(filepath.Join(s.HooksDir, name), data)
	}
	return err
}

// CheckHooks refuses scripts that match no host or group, such as those with a misspelled name, and those with problems
// of values.
func CheckHooks(s *task.Site) error {
	if s.HooksDir == "" {
		return nil
	}
	known := []string{}
	for _, kind := range []string{"pre_install", "post_install"} {
		known = append(known, kind+".sh")
		for _, t := range s.Hosts {
			known = append(known, kind+"_"+t.Name+".sh")
			for _, role := range t.Roles {
				known = append(known, string(role)+"/"+kind+".sh")
			}
		}
		for _, role := range []manifest.Role{
			manifest.RoleControlPlane, manifest.RoleWorker, manifest.RoleEtcd,
			manifest.RoleRegistry, manifest.RoleNFS, manifest.RoleCluster,
		} {
			known = append(known, string(role)+"/"+kind+".sh") // a group may be empty
		}
	}
	var errs []error
	err := fs.WalkDir(os.DirFS(s.HooksDir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := path.Base(name)
		isHook := strings.HasPrefix(base, "pre_install") || strings.HasPrefix(base, "post_install")
		if isHook && strings.HasSuffix(base, ".sh") && !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("hook %s matches no host or group of the inventory: correct its name",
				filepath.Join(s.HooksDir, name)))
		} else if isHook && s.Script != nil {
			errs = append(errs, checkScript(s, name))
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("hooks: %w", err))
	}
	return errors.Join(errs...)
}
