package software

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed src
var sources embed.FS

// compile builds a recipe's commands for linux on arch and returns the directory that holds them.
func (b *builder) compile(ctx context.Context, r recipe, arch string) (string, error) {
	inputs := []any{r, arch}
	if r.Source != "" {
		src, err := fs.ReadFile(sources, path.Join("src", r.Source, "main.go"))
		if err != nil {
			return "", fmt.Errorf("source of %s: %w", r.Name, err)
		}
		inputs = append(inputs, string(src))
	}
	key, err := keyOf(inputs...)
	if err != nil {
		return "", err
	}
	return b.output(r.Name+"-"+arch, key, func(tmp string) error { return b.goBuild(ctx, r, arch, tmp) })
}

func (b *builder) goBuild(ctx context.Context, r recipe, arch, out string) (err error) {
	work, err := os.MkdirTemp(b.dir, "tmp-src-")
	if err != nil {
		return fmt.Errorf("scratch directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	dir, err := b.source(ctx, r, work)
	if err != nil {
		return err
	}
	if len(r.ModEdit) > 0 {
		if err := b.goTool(ctx, dir, nil, append([]string{"mod", "edit"}, r.ModEdit...)...); err != nil {
			return err
		}
	}
	args := []string{
		"build", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w " + r.LDFlags), "-o",
		out + "/",
	}
	if r.Mod != "" {
		args = append(args, "-mod="+r.Mod)
	}
	if r.Tags != "" {
		args = append(args, "-tags", r.Tags)
	}
	for _, p := range r.Packages {
		args = append(args, p)
	}
	slices.Sort(args[len(args)-len(r.Packages):])
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch}
	if r.Cgo {
		tools, err := b.cTools(ctx, arch)
		if err != nil {
			return err
		}
		env = append(env, append(tools, "CGO_ENABLED=1")...)
	}
	if err := b.goTool(ctx, dir, env, args...); err != nil {
		return err
	}
	return rename(out, r)
}

// rename gives a lone command the recipe's name: Go calls it after its module, such as "v3" or "server".
func rename(out string, r recipe) error {
	made, err := os.ReadDir(out)
	if err != nil {
		return fmt.Errorf("commands of %s: %w", r.Name, err)
	}
	if len(made) != len(r.Packages) {
		return fmt.Errorf("go build made %d commands of %d", len(made), len(r.Packages))
	}
	for name := range r.Packages {
		if len(made) == 1 && made[0].Name() != name {
			return os.Rename(filepath.Join(out, made[0].Name()), filepath.Join(out, name))
		}
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			return fmt.Errorf("command of %s: %w", r.Name, err)
		}
	}
	return nil
}

// source returns the directory to build in: the module cache's, or a changed copy in work.
func (b *builder) source(ctx context.Context, r recipe, work string) (string, error) {
	if r.Source != "" {
		src, err := fs.ReadFile(sources, path.Join("src", r.Source, "main.go"))
		if err != nil {
			return "", fmt.Errorf("source of %s: %w", r.Name, err)
		}
		mod := "module lab.local/" + r.Name + "\n\ngo 1.26\n"
		return work, errors.Join(
			os.WriteFile(filepath.Join(work, "main.go"), src, 0o644),
			os.WriteFile(filepath.Join(work, "go.mod"), []byte(mod), 0o644),
		)
	}
	dir, err := b.module(ctx, r.Module)
	if err != nil || len(r.Copy) == 0 {
		return dir, err
	}
	for _, c := range r.Copy {
		if err := copyTree(filepath.Join(dir, c), filepath.Join(work, c)); err != nil {
			return "", fmt.Errorf("copy %s: %w", r.Module, err)
		}
	}
	for _, p := range r.Remove {
		if err := os.RemoveAll(filepath.Join(work, p)); err != nil {
			return "", fmt.Errorf("change %s: %w", r.Module, err)
		}
	}
	for from, to := range r.Rename {
		if err := os.Rename(filepath.Join(work, from), filepath.Join(work, to)); err != nil {
			return "", fmt.Errorf("change %s: %w", r.Module, err)
		}
	}
	for _, e := range r.Edits {
		if err := e.apply(work); err != nil {
			return "", fmt.Errorf("change %s: %w", r.Module, err)
		}
	}
	for name, text := range r.Add {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("change %s: %w", r.Module, err)
		}
	}
	return work, nil
}

func (e edit) apply(dir string) error {
	name := filepath.Join(dir, e.File)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	re, err := regexp.Compile(e.Match)
	if err != nil {
		return fmt.Errorf("edit of %s: %w", e.File, err)
	}
	if !re.Match(text) {
		return fmt.Errorf("%s has nothing that matches %s", e.File, e.Match)
	}
	return os.WriteFile(name, re.ReplaceAll(text, []byte(e.With)), 0o644)
}

// copyTree copies a file or a directory of the module cache, writable.
func copyTree(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// module downloads path@version and returns where the module cache has it.
func (b *builder) module(ctx context.Context, module string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir, cmd.Env = b.dir, goEnv(nil)
	cmd.Stdout, cmd.Stderr = &out, b.log
	runErr := cmd.Run()
	var m struct{ Dir, Error string }
	if err := json.Unmarshal(out.Bytes(), &m); err != nil {
		return "", fmt.Errorf("download %s: %w", module, errors.Join(runErr, err))
	}
	if runErr != nil || m.Error != "" {
		return "", fmt.Errorf("download %s: %w: %s", module, runErr, m.Error)
	}
	return m.Dir, nil
}

func (b *builder) goTool(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, goEnv(env)
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

// goEnv is the caller's environment without what would change the outcome of a build.
func goEnv(env []string) []string {
	return append(os.Environ(), append([]string{"GOFLAGS=", "GOWORK=off", "GO111MODULE=on"}, env...)...)
}
