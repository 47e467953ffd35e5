package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// hooksFlag is --hooks: the scripts of this directory run in place of the bundle's.
type hooksFlag struct{ dir string }

func (f *hooksFlag) add(fs *pflag.FlagSet, on string) {
	fs.StringVar(&f.dir, "hooks", "", "`directory` of scripts to run on "+on+
		" before and after (pre_install*.sh, post_install*.sh), in place of those of the bundle")
}

// check returns an error if the directory is missing.
func (f *hooksFlag) check() error {
	if f.dir == "" {
		return nil
	}
	info, err := os.Stat(f.dir)
	if err != nil {
		return &builder.InputError{Err: fmt.Errorf("--hooks %s: %w", f.dir, usage.FileError(err))}
	}
	if !info.IsDir() {
		return &builder.InputError{Err: fmt.Errorf("--hooks %s: not a directory", f.dir)}
	}
	return nil
}

// read returns the scripts to run: those of the directory, or else those of the bundle, never both.
func (f *hooksFlag) read(ctx context.Context, b *bundle.Reader) (task.Hooks, error) {
	switch {
	case f.dir != "":
		h, err := engine.DirHooks(f.dir)
		if err != nil {
			err = fmt.Errorf("--hooks: %w", err)
		}
		return h, err
	case b == nil:
		return task.Hooks{}, nil
	}
	return engine.BundleHooks(ctx, &b.Catalog), nil
}

// tell names the scripts of the bundle, which run as root on hosts.
func (f *hooksFlag) tell(g *globals, h task.Hooks) {
	if f.dir == "" && len(h.Names) > 0 {
		g.Note("the bundle has %s for the hosts, which run as root: %s; --hooks DIR runs others in their place",
			plain.Count(len(h.Names), "script"), plain.Line(strings.Join(h.Names, ", ")))
	}
}

// An inspectedHook is a script of the bundle for hosts.
type inspectedHook struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`            // pre_install or post_install
	Group string `json:"group,omitempty"` // of the inventory
	Host  string `json:"host,omitempty"`
}

// hooksOf returns the scripts that a bundle carries, in the order in which they run.
func hooksOf(ctx context.Context, c *bundle.Catalog) (list []inspectedHook) {
	for _, name := range engine.BundleHooks(ctx, c).Names {
		h, err := engine.ParseHook(name)
		if err == nil {
			list = append(list, inspectedHook{name, h.Kind, string(h.Group), h.Host})
		}
	}
	rank := func(h inspectedHook) int {
		n := 3 * slices.Index(engine.HookKinds(), h.Kind) // of every host, a group, a host
		switch {
		case h.Group != "":
			n++
		case h.Host != "":
			n += 2
		}
		return n
	}
	slices.SortStableFunc(list, func(a, b inspectedHook) int { return rank(a) - rank(b) })
	return list
}

// printHooks prints the scripts that a bundle carries.
func (g *globals) printHooks(list []inspectedHook) error {
	var rows [][]string
	for _, h := range list {
		on := "every host"
		switch {
		case h.Group != "":
			on = "hosts of " + h.Group
		case h.Host != "":
			on = "host " + h.Host
		}
		rows = append(rows, []string{h.Name, h.Kind, on})
	}
	if len(rows) == 0 {
		return nil
	}
	return g.PrintTable([]string{"HOOK", "RUNS AT", "ON"}, rows)
}
