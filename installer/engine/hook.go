package installer

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

	"github.com/kkbundle/kkbundle/manifest"
)

// hooksOnHost is where the operator's scripts are put on hosts; the name is KubeKey's, whose scripts run unchanged.
const hooksOnHost = "/etc/kubekey/scripts"

// hookStamps has the scripts that have succeeded.
const hookStamps = stateDir + "/hooks"

// hookTask runs the operator's scripts of one kind, pre_install or post_install, on their hosts, as root:
//
//	pre_install.sh             on every host
//	GROUP/pre_install.sh       on the hosts of a group of the inventory, such as kube_worker/pre_install.sh
//	pre_install_HOST.sh        on one host
//
// in this order, groups in the order in which the inventory's format lists them. A script that fails stops the
// installation. One that has succeeded is not run again until it is changed, or with Force.
func hookTask(kind string) Task {
	return Task{
		Name:     kind,
		Together: true,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if t.run.HooksDir == "" {
				return true, nil
			}
			if t.run.Force {
				because(ctx, "hooks run again with --force")
				return false, nil
			}
			hooks, err := t.hooks(kind)
			if err != nil {
				return false, err
			}
			var stamps []textFile
			for _, h := range hooks {
				stamps = append(stamps, h.file(), h.stamp())
			}
			return t.has(ctx, stamps...)
		},
		Do: func(ctx context.Context, t *Target) error {
			hooks, err := t.hooks(kind)
			if err != nil {
				return err
			}
			for _, h := range hooks {
				if err := t.runHook(ctx, h); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// A hook is a script for a host. Its name is its path below the hooks directory.
type hook struct {
	name string
	data []byte
}

func (h hook) file() textFile {
	return textFile{path.Join(hooksOnHost, h.name), 0o755, h.data}
}

func (h hook) stamp() textFile {
	return textFile{path.Join(hookStamps, h.name), 0o600, h.data}
}

// runHook runs one script, unless it has run.
func (t *Target) runHook(ctx context.Context, h hook) error {
	if !t.run.Force {
		if done, err := t.has(ctx, h.file(), h.stamp()); err != nil || done {
			return err
		}
	}
	// Scripts may have secrets in them. The stamps' directory is also what tells Reset that the scripts are ours.
	if err := t.command(ctx, "mkdir", "-p", "-m", "0700", hookStamps, hooksOnHost); err != nil {
		return err
	}
	if err := t.write(ctx, h.file()); err != nil {
		return err
	}
	if err := t.command(ctx, h.file().path); err != nil {
		return fmt.Errorf("hook %s: %w", h.name, err)
	}
	return t.write(ctx, h.stamp())
}

// maxHook bounds a script.
const maxHook = 16 << 20

// hooks reads the scripts of one kind that are for this host, in the order in which they run.
func (t *Target) hooks(kind string) ([]hook, error) {
	dir, err := os.OpenRoot(t.run.HooksDir)
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	defer dir.Close()
	names := []string{kind + ".sh"}
	for _, role := range t.Roles {
		names = append(names, string(role)+"/"+kind+".sh")
	}
	names = append(names, kind+"_"+t.Name+".sh")
	var hooks []hook
	for _, name := range names {
		data, err := readHook(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hook %s: %w", filepath.Join(t.run.HooksDir, name), err)
		}
		hooks = append(hooks, hook{name, data})
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
		err = fmt.Errorf("it has more than %d bytes", maxHook)
	}
	return data, err
}

// checkHooks refuses scripts that would run nowhere: a host's name that is spelled wrong must not be found out on site.
func (r *Site) checkHooks() error {
	if r.HooksDir == "" {
		return nil
	}
	known := []string{}
	for _, kind := range []string{"pre_install", "post_install"} {
		known = append(known, kind+".sh")
		for _, t := range r.targets {
			known = append(known, kind+"_"+t.Name+".sh")
			for _, role := range t.Roles {
				known = append(known, string(role)+"/"+kind+".sh")
			}
		}
		for _, role := range []manifest.Role{manifest.RoleControlPlane, manifest.RoleWorker, manifest.RoleEtcd, manifest.RoleRegistry, manifest.RoleNFS, manifest.RoleCluster} {
			known = append(known, string(role)+"/"+kind+".sh") // a group may be empty
		}
	}
	var errs []error
	err := fs.WalkDir(os.DirFS(r.HooksDir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		base := path.Base(name)
		isHook := strings.HasPrefix(base, "pre_install") || strings.HasPrefix(base, "post_install")
		if isHook && strings.HasSuffix(base, ".sh") && !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("hook %s is for no host: there is no such host or group in the inventory", filepath.Join(r.HooksDir, name)))
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("hooks: %w", err))
	}
	return errors.Join(errs...)
}
