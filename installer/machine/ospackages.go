package machine

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
	"time"

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// PackagesTask installs missing operating system packages for the host's roles. The host's own package sources are
// neither changed nor used: apt and dnf get one directory as their only source, for one command.
func PackagesTask(c *manifest.Cluster) task.Task {
	step := task.Task{
		Name:        "os-packages",
		Independent: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			missing, _, err := missingPackages(ctx, t)
			return len(missing) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			missing, distribution, err := missingPackages(ctx, t)
			if err != nil || len(missing) == 0 {
				return err
			}
			if c.OSPackages == manifest.PackagesOfHost {
				return installPackages(ctx, t, "", missing)
			}
			return installFromBundle(ctx, t, distribution, missing)
		},
		Leaves: task.Leaves{Paths: []string{marks.Packages}},
	}
	if c.OSPackages == manifest.PackagesOfNobody {
		step.Done = func(context.Context, *task.Host) (bool, error) { return true, nil }
	}
	return step
}

// missingPackages returns the packages that the host lacks for its roles, and the bundle's name of its distribution.
// The result is empty if the bundle or the catalog lacks the distribution; the precheck reports that.
func missingPackages(ctx context.Context, t *task.Host) (names []string, distribution string, err error) {
	facts, err := t.Facts(ctx, node.Probe{
		Packages: t.Site.Packages.AllCandidates(t.Roles),
		Modules:  precheck.Modules(t.Site.Cluster),
	})
	if err != nil {
		return nil, "", err
	}
	distribution, ok := precheck.Distribution(facts.OS, t.Site.Distributions())
	if t.Site.Cluster.OSPackages == manifest.PackagesOfHost {
		distribution, ok = strings.ToLower(facts.OS.ID)+"/"+facts.OS.VersionID, true
	}
	if !ok || facts.Packages == nil {
		return nil, distribution, nil
	}
	wanted, err := t.Site.Packages.For(t.Roles, distribution)
	if err != nil {
		return nil, distribution, nil //nolint:nilerr // a distribution that nobody has names for
	}
	wanted = precheck.Unneeded(&facts, t.Site.Cluster, wanted)
	return slices.DeleteFunc(wanted, func(name string) bool { return facts.Packages[name] != "" }), distribution, nil
}

// installFromBundle installs packages from a temporary repository directory on the host.
func installFromBundle(ctx context.Context, t *task.Host, distribution string, names []string) error {
	repo, err := t.Site.Repositories.Of(distribution, t.Arch, func() (*task.PackageRepository, error) {
		return makeRepository(ctx, t.Site, distribution, t.Arch)
	})
	if err != nil {
		return fmt.Errorf("packages of %s: %w", distribution, err)
	}
	dir := path.Join(marks.Packages, distribution)
	if err := sendPackages(ctx, t, dir, repo); err != nil {
		return err
	}
	var lists []task.File
	for _, name := range slices.Sorted(maps.Keys(repo.Lists)) {
		lists = append(lists, task.File{Path: path.Join(dir, name), Mode: 0o644, Data: repo.Lists[name]})
	}
	if err := t.Write(ctx, lists...); err != nil {
		return err
	}
	if err := installPackages(ctx, t, dir, names); err != nil {
		return err
	}
	return t.Run(ctx, "rm", "-rf", "--", marks.Packages)
}

// sendPackages sends the packages to a directory of the host, except those from an earlier try.
func sendPackages(ctx context.Context, t *task.Host, dir string, repo *task.PackageRepository) (err error) {
	var plan transfer.Plan
	for _, it := range repo.Items {
		content, err := t.Site.Bundle.ContentOf(ctx, it)
		if err != nil {
			return err
		}
		t.Site.RecordItem(content.Digest, it)
		plan.Files = append(plan.Files, transfer.PlannedFile{
			Name: path.Base(it.Ref), Digest: content.Digest.String(), Size: content.Size,
			Path: path.Join(dir, path.Base(it.Ref)), Mode: 0o644,
		})
	}
	receiver := t.Helper(ctx, "receive")
	defer func() {
		if closeErr := receiver.Close(); err == nil {
			err = closeErr
		}
	}()
	open := func(ctx context.Context, d string, offset int64) (io.ReadCloser, error) {
		t.Site.NoteOpened(ctx, t.Name, t.Site.ItemOf(digest.Digest(d)))
		return t.Site.Bundle.Blob(ctx, digest.Digest(d), offset)
	}
	_, err = transfer.Send(ctx, receiver, receiver, plan, transfer.Source{Open: open})
	return err
}

// installPackages installs packages from the repository in dir, or from the host's own sources if dir is empty.
func installPackages(ctx context.Context, t *task.Host, dir string, names []string) error {
	apt, err := t.HasCommands(ctx, "apt-get")
	if err != nil {
		return err
	}
	if apt {
		return aptInstall(ctx, t, dir, names)
	}
	for _, manager := range []string{"dnf", "yum"} {
		there, err := t.HasCommands(ctx, manager)
		if err != nil {
			return err
		}
		if there {
			return dnfInstall(ctx, t, manager, dir, names)
		}
	}
	return errors.New("the host has neither apt-get nor dnf nor yum: install the packages by hand, or set osPackages: none: " + strings.Join(names, " "))
}

// aptInstall keeps the host's package lists and caches unchanged. It first finishes an interrupted dpkg, as apt
// requires.
func aptInstall(ctx context.Context, t *task.Host, dir string, names []string) error {
	var options []string
	if dir != "" {
		sources := path.Join(dir, "sources.list")
		if err := t.Write(ctx, task.File{Path: sources, Mode: 0o644, Data: []byte("deb [trusted=yes] file:" + dir +
			" ./\n")}); err != nil {
			return err
		}
		lists := path.Join(marks.Packages, "lists")
		if err := t.Run(ctx, "mkdir", "-p", "--", lists+"/partial"); err != nil {
			return err
		}
		for _, o := range []string{
			"Dir::Etc::SourceList=" + sources, "Dir::Etc::SourceParts=-", "Dir::State::Lists=" + lists,
			"Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=",
			"APT::Sandbox::User=root", // only root can read the directory
		} {
			options = append(options, "-o", o)
		}
	}
	if err := configurePending(ctx, t); err != nil {
		return err
	}
	const wait = "DPkg::Lock::Timeout=300" // seconds: automatic upgrades sometimes hold the lock
	apt := slices.Concat([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "-o", wait}, options)
	change := slices.Concat(apt, []string{
		"--yes", "--no-install-recommends", "--no-remove", "-o",
		"Dpkg::Options::=--force-confold",
	})
	for _, args := range [][]string{
		slices.Concat(apt, []string{"update"}),
		slices.Concat(change, []string{"--fix-broken", "install"}),
		// --reinstall: apt treats a partly unpacked package as installed
		slices.Concat(change, []string{"--reinstall", "install", "--"}, names),
	} {
		if err := t.Run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// configurePending finishes an interrupted dpkg. It waits for a dpkg that still runs, whose session may be lost. Its
// other failures, such as missing dependencies, are left to apt --fix-broken.
func configurePending(ctx context.Context, t *task.Host) error {
	const longest = 5 * time.Minute
	var ended error
	err := task.Eventually(ctx, longest, func(ctx context.Context) error {
		err := t.Run(ctx, "dpkg", "--configure", "--pending")
		var failed *host.ExitError
		if errors.As(err, &failed) && strings.Contains(failed.Stderr, "lock") {
			return err
		}
		if failed == nil {
			ended = err // the connection failed
		}
		return nil
	})
	return errors.Join(err, ended)
}

// repositoryOptions override the host's /etc/dnf/dnf.conf: kkbundle has checked the packages by their digests, and
// writes the lists itself. The lists say nothing of modules, without which dnf refuses packages of a module, such as
// container-selinux of release 8.
const repositoryOptions = "enabled=1\ngpgcheck=0\nrepo_gpgcheck=0\nmodule_hotfixes=1\n"

// dnfInstall supports dnf and yum, which lacks --repofrompath.
func dnfInstall(ctx context.Context, t *task.Host, manager, dir string, names []string) error {
	args := []string{manager, "--assumeyes", "--quiet"}
	if dir != "" {
		repos := path.Join(marks.Packages, "repos")
		text := "[kkbundle]\nname=kkbundle\nbaseurl=file://" + dir + "\n" + repositoryOptions
		if err := t.Write(ctx, task.File{
			Path: path.Join(repos, "kkbundle.repo"), Mode: 0o644,
			Data: []byte(text),
		}); err != nil {
			return err
		}
		args = append(args, "--setopt=reposdir="+repos, "--disablerepo=*", "--enablerepo=kkbundle",
			"--setopt=cachedir="+path.Join(marks.Packages, "cache"))
	}
	return t.Run(ctx, slices.Concat(args, []string{"--setopt=install_weak_deps=False", "install", "--"}, names)...)
}

func makeRepository(ctx context.Context, site *task.Site, distribution, arch string) (*task.PackageRepository, error) {
	repo := &task.PackageRepository{Lists: map[string][]byte{}}
	files := map[string]bool{}
	for _, it := range site.Items {
		of, ok := manifest.PackageDistribution(it.Ref)
		if p := it.Descriptor.Platform; ok && of == distribution && (p == nil || p.Architecture == arch) {
			repo.Items = append(repo.Items, it)
			files[path.Base(it.Ref)] = true
		}
	}
	// Not closed: its only bundle is the run's.
	s, err := serve.New(ctx, serve.Options{
		Bundles: []string{distribution}, Logger: site.Logger,
		Open: func(string) (*bundle.Reader, error) { return site.Bundle, nil },
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
		repo.Lists[name] = b.Bytes()
	}
	return repo, nil
}
