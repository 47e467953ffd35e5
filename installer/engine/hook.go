package engine

import (
	"bytes"
	"cmp"
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

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// HooksOnHost is the directory of the operator's scripts on hosts. It is KubeKey's, so that scripts for KubeKey run
// unchanged.
const HooksOnHost = "/etc/kubekey/scripts"

// HookTask runs the scripts of one kind, pre_install or post_install, on their hosts, as root:
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
			if len(t.Site.Hooks.Names) == 0 {
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
	names := []string{kind + ".sh"}
	for _, role := range t.Roles {
		names = append(names, string(role)+"/"+kind+".sh")
	}
	names = append(names, kind+"_"+t.Name+".sh")
	var hooks []Hook
	for _, name := range names {
		if !slices.Contains(t.Site.Hooks.Names, name) {
			continue
		}
		data, err := readHook(t.Site, name)
		if err != nil {
			return nil, err
		}
		hooks = append(hooks, Hook{name, data})
	}
	return hooks, nil
}

// readHook returns a script with values.
func readHook(s *task.Site, name string) ([]byte, error) {
	data, err := s.Hooks.Read(name)
	if err != nil {
		return nil, fmt.Errorf("hook %s: %w", s.Hooks.Place(name), err)
	}
	if s.Script == nil {
		return data, nil
	}
	return s.Script(s.Hooks.Place(name), data)
}

// A HookName has the time and the hosts of a script, by its path.
type HookName struct {
	Kind  string        // pre_install or post_install
	Group manifest.Role // of the inventory, "" for any
	Host  string        // "" for any
}

// PostInstall is the kind of scripts that run at the end.
const PostInstall = "post_install"

// HookKinds returns the times at which scripts run, in order.
func HookKinds() []string { return []string{"pre_install", PostInstall} }

// isHook reports whether a file is meant as a script that runs on hosts, also with a typing error.
func isHook(name string) bool {
	base, isScript := strings.CutSuffix(path.Base(name), ".sh")
	if !isScript {
		return false
	}
	words := strings.SplitN(base, "_", 3) // post_install_HOST
	return slices.ContainsFunc(HookKinds(), func(kind string) bool { return strings.HasPrefix(base, kind) }) ||
		plain.Nearest(words[0], HookKinds()) != "" ||
		plain.Nearest(strings.Join(words[:min(len(words), 2)], "_"), HookKinds()) != ""
}

// ParseHook reads the path of a script below a directory of hooks. The error says that no inventory gives it a meaning.
func ParseHook(name string) (h HookName, err error) {
	dir, base := path.Split(name)
	base, isScript := strings.CutSuffix(base, ".sh")
	h.Group = manifest.Role(strings.TrimSuffix(dir, "/"))
	rest := ""
	for _, kind := range HookKinds() {
		if after, found := strings.CutPrefix(base, kind); found && isScript {
			h.Kind, rest = kind, after
		}
	}
	host, named := strings.CutPrefix(rest, "_")
	h.Host = host
	groups := []manifest.Role{
		manifest.RoleControlPlane, manifest.RoleWorker, manifest.RoleEtcd,
		manifest.RoleRegistry, manifest.RoleNFS, manifest.RoleCluster,
	}
	switch {
	case h.Kind == "", rest != "" && !named, named && !scalar.IsToken(host), h.Group != "" && h.Host != "":
		return h, fmt.Errorf("%s is no name of a hook: want pre_install.sh, GROUP/pre_install.sh or pre_install_HOST.sh, or the same of post_install", name)
	case h.Group != "" && !slices.Contains(groups, h.Group):
		return h, fmt.Errorf("%s: an inventory has no group %s", name, h.Group)
	}
	return h, nil
}

// DirHooks returns the scripts of a directory.
func DirHooks(dir string) (task.Hooks, error) {
	h := task.Hooks{
		Place: func(name string) string { return filepath.Join(dir, name) },
		Read: func(name string) ([]byte, error) {
			root, err := os.OpenRoot(dir)
			if err != nil {
				return nil, err
			}
			defer root.Close()
			if info, err := root.Stat(name); err != nil || !info.Mode().IsRegular() {
				return nil, cmp.Or(err, errors.New("not a regular file"))
			}
			return readSmall(root, name)
		},
	}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			if info, err := os.Stat(h.Place(name)); err == nil && info.IsDir() {
				return fmt.Errorf("%s is a link to a directory: put a directory there", h.Place(name))
			}
		}
		if !d.IsDir() && isHook(name) {
			h.Names = append(h.Names, name)
		}
		return nil
	})
	return h, err
}

// BundleHooks returns the scripts that a bundle carries. They may be for hosts of other sites.
func BundleHooks(ctx context.Context, c *bundle.Catalog) task.Hooks {
	h := task.Hooks{
		Anywhere: true,
		Place:    func(name string) string { return bundle.DocumentHooks + name },
		Read: func(name string) ([]byte, error) {
			return c.Document(ctx, bundle.KindManifest, bundle.DocumentHooks+name)
		},
	}
	for _, it := range c.Index().Items {
		name, found := strings.CutPrefix(it.Ref, bundle.DocumentHooks)
		if _, err := ParseHook(name); it.Kind == bundle.KindManifest && found && err == nil {
			h.Names = append(h.Names, name)
		}
	}
	return h
}

func readSmall(dir *os.Root, name string) ([]byte, error) {
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

// CheckScript refuses a script that no host can run, as editors of Windows write it: Linux looks for an interpreter
// whose name ends in the carriage return, and for none behind a byte order mark.
func CheckScript(data []byte) error {
	first, _, _ := bytes.Cut(data, []byte("\n"))
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return errors.New("it begins with a byte order mark, and hosts would not find its interpreter; save it as UTF-8 without BOM, or remove it with sed -i '1s/^\\xef\\xbb\\xbf//' FILE")
	case bytes.HasPrefix(data, []byte("#!")) && bytes.HasSuffix(first, []byte("\r")):
		return errors.New("its lines end in CRLF, and hosts would not find its interpreter; save it with LF, or run sed -i 's/\\r$//' FILE")
	}
	return nil
}

// CheckHooks refuses scripts that match no host or group, such as those with a misspelled name, those that no host can
// run, and those with problems of values. A bundle's script for a host of another site is none of these.
func CheckHooks(s *task.Site) error {
	var errs []error
	for _, name := range s.Hooks.Names {
		h, err := ParseHook(name)
		known := h.Host == "" || s.Hooks.Anywhere ||
			slices.ContainsFunc(s.Hosts, func(t *task.Host) bool { return t.Name == h.Host })
		if err != nil || !known {
			errs = append(errs, fmt.Errorf("hook %s matches no host or group of the inventory: correct its name",
				s.Hooks.Place(name)))
			continue
		}
		data, err := readHook(s, name)
		if err == nil {
			if err = CheckScript(data); err != nil {
				err = fmt.Errorf("hook %s: %w", s.Hooks.Place(name), err)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
