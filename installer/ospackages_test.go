//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A packaged host has a package manager, which is played: installing is what cannot be done here. It looks at what it
// is told to take packages from.
type packaged struct {
	*sitetest.Rooted
	distribution string
	manager      string // apt, dnf or yum

	mu        sync.Mutex
	installed map[string]bool
	locked    int  // how often dpkg still finds its lock taken
	half      bool // an interrupted dpkg has left something
	from      []string
}

// The host's own package sources.
const (
	ownList   = "deb http://mirror.site/debian bookworm main\n"
	ownSource = "Types: deb\nURIs: http://mirror.site/security\n"
	ownRepo   = "[baseos]\nbaseurl=http://mirror.site/baseos\n"
)

func newPackaged(t *testing.T, h *sitetest.Rooted, id, version, manager string) *packaged {
	t.Helper()
	p := &packaged{Rooted: h, distribution: id + "/" + version, manager: manager, installed: map[string]bool{}}
	h.Put(t, "/etc/apt/sources.list", ownList)
	h.Put(t, "/etc/apt/sources.list.d/site.sources", ownSource)
	h.Put(t, "/etc/yum.repos.d/site.repo", ownRepo)
	h.Answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error {
		if cmd.Args[1] != "facts" {
			return h.Helper(ctx, cmd)
		}
		var question node.Probe
		if err := json.NewDecoder(cmd.Stdin).Decode(&question); err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		facts := node.Facts{
			Version: node.FactsVersion, OS: node.OSRelease{ID: id, VersionID: version},
			Packages: map[string]string{},
		}
		for _, name := range question.Packages {
			if p.installed[name] {
				facts.Packages[name] = "1.0"
			}
		}
		return json.NewEncoder(cmd.Stdout).Encode(facts)
	})
	h.Answer("env", p.apt) // env DEBIAN_FRONTEND=noninteractive apt-get …
	h.Answer("dpkg", p.dpkg)
	h.Answer("dnf", p.dnf)
	h.Answer("yum", p.dnf)
	return p
}

// Run answers which package manager there is; this machine's is another.
func (p *packaged) Run(ctx context.Context, cmd host.Cmd) error {
	args := host.WithoutText(cmd.Args)
	if args[0] != "has-commands.sh" {
		return p.Rooted.Run(ctx, cmd)
	}
	if asked := args[1]; asked == p.manager || p.manager == "apt" && asked == "apt-get" {
		return nil
	}
	return sitetest.Exits(cmd, 1, "")
}

func (p *packaged) dpkg(_ context.Context, cmd host.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.locked > 0 {
		p.locked--
		return sitetest.Exits(cmd, 2, "dpkg: error: dpkg frontend lock was locked by another process with pid 7")
	}
	p.half = false
	return nil
}

func (p *packaged) apt(_ context.Context, cmd host.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, parts := "/etc/apt/sources.list", "/etc/apt/sources.list.d"
	for _, a := range cmd.Args {
		if v, ok := strings.CutPrefix(a, "Dir::Etc::SourceList="); ok {
			list = v
		}
		if v, ok := strings.CutPrefix(a, "Dir::Etc::SourceParts="); ok {
			parts = v
		}
	}
	from := strings.Fields(p.Content(list))
	if len(from) == 0 {
		return sitetest.Exits(cmd, 100, "E: the list of sources "+list+" is not there")
	}
	p.from = append(p.from, strings.Join(from, " ")+" and "+parts)
	return p.install(cmd, strings.TrimPrefix(from[len(from)-2], "file:"), "Packages")
}

func (p *packaged) dnf(_ context.Context, cmd host.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir := "/etc/yum.repos.d"
	for _, a := range cmd.Args {
		if v, ok := strings.CutPrefix(a, "--setopt=reposdir="); ok {
			dir = v
		}
	}
	_, base, _ := strings.Cut(p.Content(dir+"/kkbundle.repo"), "baseurl=file://")
	base, _, _ = strings.Cut(base, "\n")
	p.from = append(p.from, base+" "+strings.Join(cmd.Args[1:len(cmd.Args)-1], " "))
	return p.install(cmd, base, "repodata/repomd.xml")
}

// install takes what the arguments end with as installed, if the repository has its list and dpkg is in order.
func (p *packaged) install(cmd host.Cmd, dir, list string) error {
	end := slices.Index(cmd.Args, "--")
	switch {
	case strings.HasPrefix(dir, "/") && (p.Content(dir+"/"+list) == "" || p.Content(dir+"/socat.pkg") == ""):
		return sitetest.Exits(cmd, 100, "E: "+dir+" has no packages")
	case p.half:
		return sitetest.Exits(cmd, 100,
			"E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.")
	case end > 0:
		for _, name := range cmd.Args[end+1:] {
			p.installed[name] = true
		}
	}
	return nil
}

// sourcesOf is what the host has of its own.
func (p *packaged) sources() string {
	return p.Content("/etc/apt/sources.list") + p.Content("/etc/apt/sources.list.d/site.sources") + p.Content(
		"/etc/yum.repos.d/site.repo")
}

// packageSite has one host and a bundle with a package for its distribution.
func packageSite(t *testing.T, id, version, manager, more string) (*sitetest.Site, *packaged, func() *engine.Run) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, more)
	p := newPackaged(t, s.Hosts["cp1"], id, version, manager)
	b := bundletest.NewBuilder(t)
	b.File(manifest.PackageRef(p.distribution, "socat.pkg"), "socat",
		&ocispec.Platform{OS: "linux", Architecture: "amd64"}, []byte("a package"))
	opened := b.Bundle().Reader
	return s, p, func() *engine.Run {
		r := s.Run(t, opened)
		r.Hosts[0].Conn = p
		list := map[string]string{"apt": "Packages"}[manager]
		if list == "" {
			list = "repodata/repomd.xml"
		}
		// The lists that serve would make of real packages.
		r.Repositories.Known = map[string]*task.PackageRepository{p.distribution + " amd64": {
			Items: slices.DeleteFunc(slices.Clone(r.Items), func(it bundle.Item) bool { return it.Name != "socat" }),
			Lists: map[string][]byte{list: []byte("Package: socat\n")},
		}}
		return r
	}
}

func packagePhases(c *manifest.Cluster) []task.Phase {
	return []task.Phase{{Name: "init", Tasks: []task.Task{machine.PackagesTask(c)}}}
}

// TestPackagesInterrupted kills kkbundle after each command: the host's own sources are always what they were, and
// the next run completes.
func TestPackagesInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ id, version, manager string }{
		{"debian", "12", "apt"},
		{"almalinux", "9", "dnf"},
		{"centos", "7", "yum"},
	} {
		t.Run(c.manager, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				s, p, run := packageSite(t, c.id, c.version, c.manager, "")
				phases := packagePhases(s.Options.Cluster)
				life := &sitetest.Lifetime{Left: n}
				first := run()
				first.Hosts[0].Conn = &sitetest.MortalHost{Host: p, Life: life}
				err := first.Phases(t.Context(), phases)
				if p.sources() != ownList+ownSource+ownRepo {
					t.Fatalf("killed after %d commands, the host's sources are %q", n, p.sources())
				}
				if err := run().Phases(t.Context(), phases); err != nil {
					t.Fatalf("killed after %d commands: the next run: %v", n, err)
				}
				if !p.installed["socat"] || p.sources() != ownList+ownSource+ownRepo {
					t.Fatalf("killed after %d commands: installed %v, sources %q", n, p.installed, p.sources())
				}
				if left := p.Tree(t); strings.Contains(left, marks.Packages+"/") && err == nil {
					t.Errorf("packages are left on the host:\n%s", left)
				}
				s.States()
				if err := run().Phases(t.Context(), phases); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(s.States(), []string{"os-packages@cp1 done"}); diff != "" {
					t.Errorf("killed after %d commands: the third run (-got +want):\n%s", n, diff)
				}
				if err == nil {
					if n < 8 {
						t.Errorf("it takes %d commands: this test is not what it thinks it is", n)
					}
					return
				}
				if !errors.Is(err, sitetest.ErrKilled) {
					t.Fatalf("killed after %d commands: %v", n, err)
				}
			}
		})
	}
}

// TestPackagesSources holds that only the bundle's packages are looked at, or with osPackages: host only the host's.
func TestPackagesSources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ id, version, manager, more, want, not string }{
		"apt": {
			"debian", "12", "apt", "", "deb [trusted=yes] file:" + marks.Packages + "/debian/12 ./ and -",
			"mirror.site",
		},
		"dnf": {"almalinux", "9", "dnf", "", marks.Packages + "/almalinux/9 --assumeyes --quiet --setopt=reposdir=" +
			marks.Packages + "/repos --disablerepo=* --enablerepo=kkbundle", "repofrompath"},
		"host": {
			"debian", "12", "apt", "osPackages: host\n",
			"deb http://mirror.site/debian bookworm main and /etc/apt/sources.list.d", "file:",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, run := packageSite(t, c.id, c.version, c.manager, c.more)
			if err := run().Phases(t.Context(), packagePhases(s.Options.Cluster)); err != nil {
				t.Fatal(err)
			}
			for _, from := range p.from {
				if !strings.HasPrefix(from, c.want) || strings.Contains(from, c.not) {
					t.Errorf("it looks at %q, want %q", from, c.want)
				}
			}
			if len(p.from) == 0 {
				t.Error("the package manager was not called")
			}
		})
	}
}

// TestPackagesWait waits while another dpkg is at work, and finishes what one that was interrupted has left before
// anything else.
func TestPackagesWait(t *testing.T) {
	t.Parallel()
	s, p, run := packageSite(t, "debian", "12", "apt", "")
	p.locked, p.half = 2, true
	if err := run().Phases(t.Context(), packagePhases(s.Options.Cluster)); err != nil {
		t.Fatal(err)
	}
	if p.locked != 0 || p.half || !p.installed["socat"] {
		t.Errorf("locked %d, half %v, installed %v", p.locked, p.half, p.installed)
	}
}

// TestPackagesWithoutManager says what to do by hand.
func TestPackagesWithoutManager(t *testing.T) {
	t.Parallel()
	s, p, run := packageSite(t, "debian", "12", "apt", "")
	p.manager = "apk"
	err := run().Phases(t.Context(), packagePhases(s.Options.Cluster))
	if err == nil || !strings.Contains(err.Error(), "neither apt-get nor dnf nor yum") ||
		!strings.Contains(err.Error(), "socat") || !strings.Contains(err.Error(), "osPackages: none") {
		t.Errorf("got %v", err)
	}
}
