// Package packagesets pins the packages that a manifest wants of a distribution, with their dependencies: from
// repositories on servers or on a disk image, by keys that check their signatures.
package packagesets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/deb"
	"github.com/kkbundle/kkbundle/fetch/packages/rpm"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A packageRepository is a repository to choose packages from.
type packageRepository interface {
	Load(ctx context.Context, files packages.Files, u *packages.Universe, now time.Time) (notes []string, err error)
}

// A fileLister is a repository with a separate list of all files.
type fileLister interface {
	LoadFiles(ctx context.Context, files packages.Files, u *packages.Universe, wanted map[string]bool) error
}

// A choice selects one set of packages for one platform.
type choice struct {
	dir      upstream.BaseDir
	override func(address string) (string, bool)
	log      *slog.Logger
	jobs     int
	set      manifest.PackageSet
	platform string
	arch     string // in the distribution's spelling
	known    packages.Distribution
	files    packages.Files
	universe *packages.Universe
	// verified is the source of trust in the packages of a disk image, "" for repositories.
	verified manifest.Verification
}

// Sets chooses packages of distributions.
type Sets struct {
	Network packages.Files // of repositories on servers
	// Override returns the replacement of an address, if the manifest has one.
	Override func(address string) (string, bool)
	Dir      upstream.BaseDir
	Log      *slog.Logger
	Jobs     int
	choosing sync.Mutex
}

// Resolve pins packages and their dependencies for a platform.
func (p *Sets) Resolve(ctx context.Context, set manifest.PackageSet,
	platform string,
) (pins []manifest.Pin, err error) {
	p.choosing.Lock() // one at a time: a distribution's lists take much memory
	defer p.choosing.Unlock()
	if set.Roles {
		return nil, errors.New("roles need a cluster, whose tasks need packages: name its file under cluster, or name packages under install and leave roles out")
	}
	c := &choice{dir: p.Dir, override: p.Override, log: p.Log, jobs: p.Jobs, set: set, platform: platform}
	if c.known, err = knownDistribution(set); err != nil {
		return nil, err
	}
	if err := c.prepare(c.known.Debian); err != nil {
		return nil, err
	}
	if set.ISO != "" {
		image, err := OpenImage(ctx, p.Dir, set.ISO, set.SHA256)
		if err != nil {
			return nil, err
		}
		defer image.Close()
		c.files, c.verified = image, image.verified
		if err := c.loadImage(ctx, image); err != nil {
			return nil, err
		}
		return c.pins(ctx, nil)
	}
	if len(set.Install) == 0 {
		return nil, errors.New("no packages are named; write some under install")
	}
	repositories, err := c.repositories()
	if err != nil {
		return nil, err
	}
	c.files = p.Network
	if err := c.load(ctx, repositories); err != nil {
		return nil, err
	}
	return c.pins(ctx, repositories)
}

func knownDistribution(set manifest.PackageSet) (packages.Distribution, error) {
	d, ok := packages.FindDistribution(set.Distribution)
	if ok || set.ISO != "" {
		return d, nil
	}
	if len(set.Repositories) == 0 {
		return d, fmt.Errorf("no repositories are known for it: name them under repositories, or use one of %s",
			strings.Join(packages.Distributions(), ", "))
	}
	d.Debian = set.Repositories[0].Suite != ""
	return d, nil
}

// prepare creates an empty universe of packages of one format.
func (c *choice) prepare(debian bool) error {
	system, machine, _ := strings.Cut(c.platform, "/")
	c.known.Debian, c.arch = debian, packageArch(machine, debian)
	if system != "linux" || c.arch == "" {
		return fmt.Errorf("no packages exist for %s; set the existing platforms under platforms", c.platform)
	}
	if debian {
		c.universe = packages.NewUniverse(deb.Format{Arch: c.arch})
	} else {
		c.universe = packages.NewUniverse(rpm.Format{})
	}
	return nil
}

// packageArch returns a machine's architecture in the spelling of Debian or rpm, "" for an unknown one.
func packageArch(machine string, debian bool) string {
	names := map[string][2]string{
		"amd64": {"amd64", "x86_64"}, "arm64": {"arm64", "aarch64"}, "arm/v7": {"armhf", "armv7hl"},
		"386":     {"i386", "i686"},
		"ppc64le": {"ppc64el", "ppc64le"}, "s390x": {"s390x", "s390x"}, "riscv64": {"riscv64", "riscv64"},
		"loong64": {"loong64", "loongarch64"},
	}[machine]
	if debian {
		return names[0]
	}
	return names[1]
}

// repositories returns the repositories to read. The error lists all problems with them.
func (c *choice) repositories() ([]packageRepository, error) {
	var (
		list []packageRepository
		errs []error
	)
	if !c.set.OnlyRepositories {
		keys, err := c.distributionKeys()
		if err != nil {
			return nil, err
		}
		_, machine, _ := strings.Cut(c.platform, "/")
		for _, src := range c.known.Sources {
			if src.Architecture == "" || src.Architecture == machine {
				list = append(list, c.repository(manifest.Repository{
					URL: src.URL, Suite: src.Suite,
					Components: src.Components,
				}, keys))
			}
		}
	}
	for _, r := range c.set.Repositories {
		if (r.Suite != "") != c.known.Debian {
			errs = append(errs, fmt.Errorf(
				"%s: repositories of apt have a suite, and those of dnf have none: this one does not match the others",
				r.URL))
			continue
		}
		keys, err := c.repositoryKeys(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.URL, err))
			continue
		}
		list = append(list, c.repository(r, keys))
	}
	if len(list) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("no repositories are known for %s: name them under repositories", c.platform))
	}
	return list, errors.Join(errs...)
}

func (c *choice) repository(r manifest.Repository, keys *signature.Keys) packageRepository {
	address := strings.TrimSuffix(scalar.Expand(r.URL, c.platform), "/")
	if r.Suite != "" {
		return deb.Repository{
			URL: address, Suite: r.Suite, Components: r.Components, Arch: c.arch, Keys: keys,
			AllowExpired: c.set.AllowExpired,
		}
	}
	return &rpm.Repository{URL: address, Arch: c.arch, Keys: keys, Base: c.isBase}
}

func (c *choice) isBase(name string) bool { return slices.Contains(c.known.Base, name) }

// keys reads a keyring.
func (c *choice) keys(file string) (*signature.Keys, error) {
	data, err := capped.ReadFile(c.dir.Path(file), signature.MaxKeyring)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	keys, err := signature.ReadKeys(data)
	if err != nil {
		return nil, fmt.Errorf("keyring %s: %w", file, err)
	}
	keys.AllowExpired = c.set.AllowExpired
	return keys, nil
}

// load reads the repositories' packages. The error lists all problems.
func (c *choice) load(ctx context.Context, list []packageRepository) error {
	var errs []error
	for _, r := range list {
		notes, err := r.Load(ctx, c.files, c.universe, time.Now())
		c.tell(ctx, notes)
		if err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(errs...)
}

func (c *choice) tell(ctx context.Context, notes []string) {
	for _, note := range notes {
		c.log.WarnContext(ctx, "of packages", "distribution", c.set.Distribution, "note", note)
	}
}

// pins returns the pins of the chosen packages.
func (c *choice) pins(ctx context.Context, list []packageRepository) ([]manifest.Pin, error) {
	chosen, err := c.choose(ctx, list)
	if err != nil {
		return nil, err
	}
	c.tell(ctx, chosen.Notes)
	c.log.InfoContext(ctx, "choosing packages", "distribution", c.set.Distribution, "platform", c.platform,
		"packages", len(chosen.Packages), "bytes", chosen.Size(), "assumed", strings.Join(chosen.Assumed, " "))
	if err := c.checkSignatures(ctx, chosen.Packages); err != nil {
		return nil, err
	}
	pins := make([]manifest.Pin, 0, len(chosen.Packages))
	for _, p := range chosen.Packages {
		sum, err := c.sha256(ctx, p)
		if err != nil {
			return nil, err
		}
		file := path.Base(p.File())
		pin := manifest.Pin{
			Kind: manifest.ItemFile, Ref: manifest.PackageRef(c.set.Distribution, file), Name: file, Version: p.Version,
			URL:    p.Address,
			Digest: sum, Size: p.Size, Verified: c.verification(p),
			Package: p.Name, Provides: c.answers(p),
		}
		if c.set.ISO != "" {
			pin.URL = manifest.PackageInImage(c.set.ISO, p.Address)
		} else if asked, replaced := c.override(p.Address); replaced {
			pin.From = asked
		}
		if p.Arch == c.arch {
			pin.Platform = c.platform
		}
		pins = append(pins, pin)
	}
	return pins, nil
}

// sha256 returns the digest of a package. One whose list has a SHA512 alone is downloaded for it.
func (c *choice) sha256(ctx context.Context, p *packages.Package) (d digest.Digest, err error) {
	if sum, ok := p.Sum.SHA256(); ok {
		return digest.NewDigestFromEncoded(digest.SHA256, sum), nil
	}
	file, err := c.files.Open(ctx, p.Address, p.Size, p.Sum)
	if err != nil {
		return "", fmt.Errorf("package %s: %w", p.File(), err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return digest.SHA256.FromReader(upstream.Stopping(ctx, file))
}

// answers returns the names under install that a package provides besides its own: on Rocky Linux 9 iptables is
// provided by iptables-nft. Paths and the like are left out, since no bundle is asked for them.
func (c *choice) answers(p *packages.Package) []string {
	var names []string
	for _, want := range c.set.Install {
		name, _, _ := strings.Cut(want, "=")
		provided := func(r packages.Relation) bool { return r.Name == name }
		if name != p.Name && !strings.ContainsAny(name, "/(,") && slices.ContainsFunc(p.Provides, provided) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// choose solves the request. If no package is known to have a required path, it reads the lists of all files.
func (c *choice) choose(ctx context.Context, list []packageRepository) (*packages.Solution, error) {
	if len(c.set.Install) == 0 {
		all := &packages.Solution{}
		var unusable []error
		c.universe.All(func(p *packages.Package) {
			all.Packages, unusable = append(all.Packages, p), append(unusable, p.Unusable)
		})
		if err := errors.Join(unusable...); err != nil {
			return nil, err
		}
		slices.SortFunc(all.Packages, func(a, b *packages.Package) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
		})
		return all, nil
	}
	request := packages.Request{
		Install: c.set.Install, Full: c.set.Closure == manifest.ClosureFull,
		Recommends: c.set.Recommends,
	}
	wanted := map[string]bool{}
	for {
		chosen, err := c.universe.Solve(request)
		var unknown *packages.PathError
		if err == nil || !errors.As(err, &unknown) || wanted[unknown.Path] {
			return chosen, err
		}
		wanted[unknown.Path] = true
		if len(wanted) == 1 {
			c.universe.UnknownPaths(wanted)
		}
		for _, r := range list {
			if l, ok := r.(fileLister); ok {
				if err := l.LoadFiles(ctx, c.files, c.universe, wanted); err != nil {
					return nil, err
				}
			}
		}
	}
}
