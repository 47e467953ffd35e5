package task

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// Distributions returns the distributions that the bundle has packages for, sorted.
func (s *Site) Distributions() []string {
	var list []string
	for _, it := range s.Items {
		if distribution, ok := manifest.PackageDistribution(it.Ref); ok {
			list = append(list, distribution)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// UnsignedDistributions returns the distributions with packages that were accepted without a signature, sorted.
func (s *Site) UnsignedDistributions() []string {
	var list []string
	for _, it := range s.Items {
		distribution, ok := manifest.PackageDistribution(it.Ref)
		if ok && it.Descriptor.Annotations[bundle.AnnotationVerified] == string(manifest.VerifiedUnsigned) {
			list = append(list, distribution)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// RolePackages finds the packages that hosts need. It caches the results per roles and distribution.
type RolePackages struct {
	cluster *manifest.Cluster
	Wanted  bool // the bundle has packages
	names   func(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error)

	mu    sync.Mutex
	known map[string][]string
}

// NewRolePackages returns RolePackages for a cluster. names returns the packages for roles on a distribution.
func NewRolePackages(
	c *manifest.Cluster, wanted bool, names func(*manifest.Cluster, []manifest.Role, string) ([]string, error),
) *RolePackages {
	return &RolePackages{cluster: c, Wanted: wanted, names: names, known: map[string][]string{}}
}

// Candidates returns the package names to look for on a host whose distribution is not known yet; none if the bundle
// has no packages.
func (p *RolePackages) Candidates(roles []manifest.Role) []string {
	if !p.Wanted {
		return nil
	}
	return p.AllCandidates(roles)
}

// AllCandidates is Candidates even for a bundle without packages.
func (p *RolePackages) AllCandidates(roles []manifest.Role) []string {
	var list []string
	for _, one := range []string{"debian", "rhel", "rhel/10"} { // a release with packages of its own
		names, _ := p.For(roles, one) // a family without names adds none
		list = append(list, names...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// For returns the packages for roles on a distribution.
func (p *RolePackages) For(roles []manifest.Role, distribution string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := fmt.Sprint(roles, distribution)
	if list, ok := p.known[key]; ok {
		return list, nil
	}
	list, err := p.names(p.cluster, roles, distribution)
	if err == nil {
		p.known[key] = list
	}
	return list, err
}

// A PackageRepository holds the packages of a distribution for one architecture, and the index files of a repository.
type PackageRepository struct {
	Items []bundle.Item
	Lists map[string][]byte
}

// PackageRepositories builds each repository once for all hosts.
type PackageRepositories struct {
	mu    sync.Mutex
	Known map[string]*PackageRepository
}

// Of returns the repository of a distribution for an architecture, and calls make for the first host.
func (o *PackageRepositories) Of(distribution, arch string,
	make func() (*PackageRepository, error),
) (*PackageRepository, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := distribution + " " + arch
	if repo := o.Known[key]; repo != nil {
		return repo, nil
	}
	repo, err := make()
	if err != nil {
		return nil, err
	}
	if o.Known == nil {
		o.Known = map[string]*PackageRepository{}
	}
	o.Known[key] = repo
	return repo, nil
}
