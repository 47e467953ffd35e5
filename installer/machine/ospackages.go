package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/serve"

	"github.com/opencontainers/go-digest"
)

// packagesOnHost is where the bundle's packages lie while they are being installed.
const packagesOnHost = stateDir + "/packages"

// osPackagesTask installs what the host's roles need of its distribution and the host lacks. The host's own sources of
// packages are not moved, edited or asked: apt and dnf are told to look at one directory instead, in that one command.
func osPackagesTask(c *manifest.Cluster) Task {
	task := Task{
		Name:  "os-packages",
		Apart: true,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			missing, _, err := t.missingPackages(ctx)
			return len(missing) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			missing, distribution, err := t.missingPackages(ctx)
			if err != nil || len(missing) == 0 {
				return err
			}
			if c.OSPackages == manifest.PackagesOfHost {
				return t.installPackages(ctx, "", missing)
			}
			return t.installFromBundle(ctx, distribution, missing)
		},
		Leaves: Leaves{Paths: []string{packagesOnHost}},
	}
	if c.OSPackages == manifest.PackagesOfNobody {
		task.Done = func(context.Context, *Target) (bool, error) { return true, nil }
	}
	return task
}

// missingPackages returns what the host lacks of what its roles need, and the distribution that the bundle has for it. There
// is nothing to do where the bundle has none, or nobody knows what the distribution calls them: the precheck has said so.
func (t *Target) missingPackages(ctx context.Context) (names []string, distribution string, err error) {
	facts, err := t.facts(ctx, node.Probe{Packages: t.run.packages.ofAny(t.Roles)})
	if err != nil {
		return nil, "", err
	}
	distribution, ok := precheck.Distribution(facts.OS, t.run.distributions())
	if t.run.cluster.OSPackages == manifest.PackagesOfHost {
		distribution, ok = strings.ToLower(facts.OS.ID), true
	}
	if !ok || facts.Packages == nil {
		return nil, distribution, nil
	}
	wanted, err := t.run.packages.on(t.Roles, distribution)
	if err != nil {
		return nil, distribution, nil //nolint:nilerr // a distribution that nobody has names for
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return facts.Packages[name] != "" }), distribution, nil
}

// installFromBundle puts the distribution's packages on the host, as a repository in a directory, installs from it what is
// missing, and takes it away again.
func (t *Target) installFromBundle(ctx context.Context, distribution string, names []string) error {
	repo, err := t.run.repositories.of(distribution, t.Arch, func() (*osRepository, error) {
		return t.run.makeRepository(ctx, distribution, t.Arch)
	})
	if err != nil {
		return fmt.Errorf("packages of %s: %w", distribution, err)
	}
	dir := path.Join(packagesOnHost, distribution)
	if err := t.sendPackages(ctx, dir, repo); err != nil {
		return err
	}
	var lists []textFile
	for _, name := range slices.Sorted(maps.Keys(repo.lists)) {
		lists = append(lists, textFile{path.Join(dir, name), 0o644, repo.lists[name]})
	}
	if err := t.write(ctx, lists...); err != nil {
		return err
	}
	if err := t.installPackages(ctx, dir, names); err != nil {
		return err
	}
	return t.command(ctx, "rm", "-rf", "--", packagesOnHost)
}

// sendPackages puts the packages' files into a directory of the host, those that are not there from an earlier try.
func (t *Target) sendPackages(ctx context.Context, dir string, repo *osRepository) (err error) {
	var plan node.Plan
	for _, it := range repo.items {
		content, err := t.run.Bundle.ContentOf(ctx, it)
		if err != nil {
			return err
		}
		t.run.remember(content.Digest, it)
		plan.Files = append(plan.Files, node.PlannedFile{
			Name: path.Base(it.Ref), Digest: content.Digest.String(), Size: content.Size, Path: path.Join(dir, path.Base(it.Ref)), Mode: 0o644,
		})
	}
	receiver := t.helper(ctx, "receive")
	defer func() {
		if closeErr := receiver.Close(); err == nil {
			err = closeErr
		}
	}()
	_, err = node.Send(ctx, receiver, receiver, plan, func(ctx context.Context, d string, offset int64) (io.ReadCloser, error) {
		t.run.opened(ctx, t.Name, t.run.itemOf(digest.Digest(d)))
		return t.run.Bundle.Blob(ctx, digest.Digest(d), offset)
	})
	return err
}

// installPackages installs packages from the repository in a directory; "" are the host's own sources.
func (t *Target) installPackages(ctx context.Context, dir string, names []string) error {
	apt, err := t.hasCommands(ctx, "apt-get")
	if err != nil {
		return err
	}
	if apt {
		return t.aptInstall(ctx, dir, names)
	}
	for _, manager := range []string{"dnf", "yum"} {
		there, err := t.hasCommands(ctx, manager)
		if err != nil {
			return err
		}
		if there {
			return t.dnfInstall(ctx, manager, dir, names)
		}
	}
	return errors.New("the host has neither apt-get nor dnf nor yum: install the packages by hand, or say osPackages: none: " + strings.Join(names, " "))
}

// aptInstall leaves the host's lists and caches of lists alone. What an interrupted dpkg has left half configured is
// finished first, as apt would ask for.
func (t *Target) aptInstall(ctx context.Context, dir string, names []string) error {
	var options []string
	if dir != "" {
		sources := path.Join(dir, "sources.list")
		if err := t.write(ctx, textFile{sources, 0o644, []byte("deb [trusted=yes] file:" + dir + " ./\n")}); err != nil {
			return err
		}
		lists := path.Join(packagesOnHost, "lists")
		if err := t.command(ctx, "mkdir", "-p", "--", lists+"/partial"); err != nil {
			return err
		}
		for _, o := range []string{
			"Dir::Etc::SourceList=" + sources, "Dir::Etc::SourceParts=-", "Dir::State::Lists=" + lists, "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=",
			"APT::Sandbox::User=root", // the directory is root's
		} {
			options = append(options, "-o", o)
		}
	}
	if err := t.configurePending(ctx); err != nil {
		return err
	}
	const wait = "DPkg::Lock::Timeout=300" // seconds: automatic upgrades hold it at times
	apt := slices.Concat([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "-o", wait}, options)
	change := slices.Concat(apt, []string{"--yes", "--no-install-recommends", "--no-remove", "-o", "Dpkg::Options::=--force-confold"})
	for _, args := range [][]string{
		slices.Concat(apt, []string{"update"}),
		slices.Concat(change, []string{"--fix-broken", "install"}),
		// without --reinstall apt takes a package for installed whose unpacking was cut off
		slices.Concat(change, []string{"--reinstall", "install", "--"}, names),
	} {
		if err := t.command(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// configurePending finishes what an interrupted dpkg has left. One whose session was lost may still be at work: it is waited
// for. It fails where a package is unpacked and what it depends on is not; that comes with what apt mends afterwards.
func (t *Target) configurePending(ctx context.Context) error {
	const longest = 5 * time.Minute
	var ended error // not for want of the lock
	err := eventually(ctx, longest, func(ctx context.Context) error {
		err := t.command(ctx, "dpkg", "--configure", "--pending")
		var failed *host.ExitError
		if errors.As(err, &failed) && strings.Contains(failed.Stderr, "lock") {
			return err
		}
		if failed == nil {
			ended = err // the host is gone
		}
		return nil
	})
	return errors.Join(err, ended)
}

// dnfInstall works with dnf and with yum, which has no --repofrompath.
func (t *Target) dnfInstall(ctx context.Context, manager, dir string, names []string) error {
	args := []string{manager, "--assumeyes", "--quiet"}
	if dir != "" {
		repos := path.Join(packagesOnHost, "repos")
		text := "[kkbundle]\nname=kkbundle\nbaseurl=file://" + dir + "\nenabled=1\ngpgcheck=0\n"
		if err := t.write(ctx, textFile{path.Join(repos, "kkbundle.repo"), 0o644, []byte(text)}); err != nil {
			return err
		}
		args = append(args, "--setopt=reposdir="+repos, "--disablerepo=*", "--enablerepo=kkbundle", "--setopt=cachedir="+path.Join(packagesOnHost, "cache"))
	}
	return t.command(ctx, slices.Concat(args, []string{"--setopt=install_weak_deps=False", "install", "--"}, names)...)
}

// An osRepository is the packages of a distribution for one architecture, and the lists that make a repository of them.
type osRepository struct {
	items []bundle.Item
	lists map[string][]byte
}

// osRepositories makes each repository once for all hosts.
type osRepositories struct {
	mu    sync.Mutex
	known map[string]*osRepository
}

// of returns the repository of a distribution for an architecture, which make makes once.
func (o *osRepositories) of(distribution, arch string, make func() (*osRepository, error)) (*osRepository, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := distribution + " " + arch
	if repo := o.known[key]; repo != nil {
		return repo, nil
	}
	repo, err := make()
	if err != nil {
		return nil, err
	}
	if o.known == nil {
		o.known = map[string]*osRepository{}
	}
	o.known[key] = repo
	return repo, nil
}

func (r *Site) makeRepository(ctx context.Context, distribution, arch string) (*osRepository, error) {
	repo := &osRepository{lists: map[string][]byte{}}
	files := map[string]bool{}
	for _, it := range r.items {
		of, ok := manifest.PackageDistribution(it.Ref)
		if p := it.Descriptor.Platform; ok && of == distribution && (p == nil || p.Architecture == arch) {
			repo.items = append(repo.items, it)
			files[path.Base(it.Ref)] = true
		}
	}
	// The server is not closed: its one bundle is this run's.
	s, err := serve.New(ctx, serve.Options{
		Bundles: []string{distribution}, Logger: r.Logger,
		Open: func(string) (*bundle.Reader, error) { return r.Bundle, nil },
	})
	if err != nil {
		return nil, err
	}
	dir := path.Dir(manifest.PackageRef(distribution, "x")) + "/"
	lists, err := s.Repository(ctx, dir, func(file string) bool { return files[file] })
	if err != nil {
		return nil, err
	}
	for name, list := range lists {
		var b bytes.Buffer
		if _, err := list.WriteTo(&b); err != nil {
			return nil, err
		}
		repo.lists[name] = b.Bytes()
	}
	return repo, nil
}
