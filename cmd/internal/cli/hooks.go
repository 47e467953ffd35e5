package cli

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
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
		return engine.DirHooks(f.dir)
	case b == nil:
		return task.Hooks{}, nil
	}
	return engine.BundleHooks(ctx, &b.Catalog), nil
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
	slices.SortStableFunc(list, func(a, b inspectedHook) int {
		return slices.Index(engine.HookKinds(), a.Kind) - slices.Index(engine.HookKinds(), b.Kind)
	})
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
