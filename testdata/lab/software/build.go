package software

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Options say what Build makes and where.
type Options struct {
	Dir   string  // "" is DefaultDir
	Small bool    // only what `make demo` shows: small programs of our own, for two architectures
	With  []Extra // what else is made, not in a small build
	// Checkout has the programs and files of kkbundle that the extra ManagementCluster publishes: the provider's.
	Checkout string
	Hosts    []Release // of hosts besides Bookworm, not in a small build
	Log      io.Writer // what is made and how long it took; nil drops it
}

// Software is where Build put things.
type Software struct {
	Upstream string             // the registry's storage and the files that package upstream serves
	Extra    []string           // directories with more files, of Options.With and those that people have given
	RootFS   string             // the root file system of the lab's hosts; "" for a small build
	Roots    map[Release]string // root file systems of the other releases in Options.Hosts
	Bin      string             // the commands of the cluster, as links; "" for a small build
}

// RootsOf returns the root file system of each release.
func (s *Software) RootsOf(releases []Release) []string {
	var roots []string
	for _, r := range releases {
		roots = append(roots, cmp.Or(s.Roots[r], s.RootFS))
	}
	return roots
}

type builder struct {
	dir string
	log io.Writer
	// checkout is Options.Checkout.
	checkout string
	arches   []string          // of what runs on nodes, the machine's own first
	bin      map[string]string // recipe's name and architecture: directory of its commands
}

// Build makes what is not there yet. Concurrent calls, of other processes too, wait for each other. What it needs
// besides Go is listed by Needs; Build fails with the list of what is missing.
func Build(ctx context.Context, o Options) (s *Software, err error) {
	b := &builder{
		log: o.Log, dir: o.Dir, checkout: o.Checkout, arches: []string{runtime.GOARCH}, bin: map[string]string{},
	}
	if b.log == nil {
		b.log = io.Discard
	}
	if b.dir == "" {
		if b.dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	if missing := Missing(o.Small); len(missing) > 0 {
		return nil, fmt.Errorf("the lab needs the Debian packages %s: run `go run . needs` in testdata/lab as root, or apt-get install them", strings.Join(missing, " "))
	}
	unlock, err := lock(ctx, b.dir, b.say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := b.sweep(); err != nil {
		return nil, err
	}
	if o.Small {
		return b.small(ctx)
	}
	if slices.Contains(o.With, BothArches) {
		b.arches = arches()
	}
	if s, err = b.full(ctx); err != nil {
		return nil, err
	}
	if s.Roots, err = b.roots(ctx, o.Hosts); err != nil {
		return nil, err
	}
	if s.Extra, err = b.extras(ctx, o.With); err != nil {
		return nil, err
	}
	s.Upstream, err = b.withImages(ctx, s.Upstream, o.With)
	return s, err
}

func (b *builder) full(ctx context.Context) (*Software, error) {
	native := []recipe{
		containerd("containerd", ContainerdVersion), runc(), cni(), registry(),
	}
	native = slices.Concat(native, ownFlannel().recipes(), OwnRelease().recipes())
	for _, arch := range b.arches {
		if err := b.compileAll(ctx, native, arch); err != nil {
			return nil, err
		}
	}
	for _, arch := range arches() {
		if err := b.compileAll(ctx, []recipe{own("pause"), own("labapp")}, arch); err != nil {
			return nil, err
		}
	}
	var s Software
	var err error
	if s.Bin, err = b.links(); err != nil {
		return nil, err
	}
	if s.RootFS, err = b.rootFS(ctx); err != nil {
		return nil, err
	}
	s.Upstream, err = b.upstream(ctx, false)
	return &s, err
}

func (b *builder) small(ctx context.Context) (*Software, error) {
	for _, arch := range arches() {
		if err := b.compileAll(ctx, []recipe{own("pause"), own("labapp")}, arch); err != nil {
			return nil, err
		}
	}
	upstream, err := b.upstream(ctx, true)
	if err != nil {
		return nil, err
	}
	return &Software{Upstream: upstream}, nil
}

// arches are the architectures of the images that exist for more than one; the machine's own comes first.
func arches() []string {
	if runtime.GOARCH == "arm64" {
		return []string{"arm64", "amd64"}
	}
	return []string{"amd64", "arm64"}
}

func (b *builder) compileAll(ctx context.Context, recipes []recipe, arch string) error {
	for _, r := range recipes {
		dir, err := b.compile(ctx, r, arch)
		if err != nil {
			return err
		}
		b.bin[r.Name+"-"+arch] = dir
	}
	return nil
}

// command returns the path of a compiled command.
func (b *builder) command(recipe, arch, name string) string {
	return filepath.Join(b.bin[recipe+"-"+arch], name)
}

// output makes one thing, unless it is there, and says how long it took.
func (b *builder) output(name, key string, fill func(tmp string) error) (string, error) {
	start := time.Now()
	dir := filepath.Join(b.dir, name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	b.say("making %s", name)
	dir, err := output(b.dir, name, key, fill)
	if err != nil {
		return "", err
	}
	b.say("made %s in %s", name, time.Since(start).Round(time.Second))
	return dir, nil
}

func (b *builder) say(format string, args ...any) {
	fmt.Fprintf(b.log, "lab: "+format+"\n", args...)
}

// sweep removes what builds that were killed left half-made. Only the holder of the lock may call it.
func (b *builder) sweep() error {
	left, err := filepath.Glob(filepath.Join(b.dir, "tmp-*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := removeTree(dir); err != nil {
			return fmt.Errorf("remove what an interrupted build left: %w", err)
		}
	}
	return nil
}

// removeTree is os.RemoveAll that first makes directories writable: those of the module cache are not.
func removeTree(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// links makes one directory with all commands of the machine's architecture.
func (b *builder) links() (string, error) {
	key, err := keyOf(b.bin)
	if err != nil {
		return "", err
	}
	return b.output("bin", key, func(tmp string) error {
		for name, dir := range b.bin {
			if !strings.HasSuffix(name, "-"+runtime.GOARCH) || name == "cni-"+runtime.GOARCH {
				continue
			}
			commands, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, c := range commands {
				if err := os.Symlink(filepath.Join(dir, c.Name()), filepath.Join(tmp, c.Name())); err != nil {
					return err
				}
			}
		}
		return os.Symlink(b.bin["cni-"+runtime.GOARCH], filepath.Join(tmp, "cni"))
	})
}
