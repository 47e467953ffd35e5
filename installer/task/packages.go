package task

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// Distributions are those that the bundle has packages for, sorted.
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

// RolePackages knows the packages that hosts need. What is the same for many hosts is worked out once.
type RolePackages struct {
	cluster *manifest.Cluster
	Wanted  bool // there is a bundle with packages
	names   func(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error)

	mu    sync.Mutex
	known map[string][]string
}

func NewRolePackages(
	c *manifest.Cluster, wanted bool, names func(*manifest.Cluster, []manifest.Role, string) ([]string, error),
) *RolePackages {
	return &RolePackages{cluster: c, Wanted: wanted, names: names, known: map[string][]string{}}
}

// Of returns the names that hosts with these roles are asked for, as all families Of distributions have them: which one
// a host is Of it says in the same answer. There are none if that does not matter.
func (p *RolePackages) Candidates(roles []manifest.Role) []string {
	if !p.Wanted {
		return nil
	}
	return p.AllCandidates(roles)
}

// OfAny returns them whether there is a bundle with packages or not.
func (p *RolePackages) AllCandidates(roles []manifest.Role) []string {
	var list []string
	for _, one := range []string{"debian", "rhel"} {
		names, _ := p.For(roles, one) // who has no names is not asked
		list = append(list, names...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// ClusterOn is installer.PackagesOf for the cluster.
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

// An PackageRepository is the packages of a distribution for one architecture, and the lists that make a repository of them.
type PackageRepository struct {
	Items []bundle.Item
	Lists map[string][]byte
}

// PackageRepositories makes each repository once for all hosts.
type PackageRepositories struct {
	mu    sync.Mutex
	Known map[string]*PackageRepository
}

// Of returns the repository Of a distribution for an architecture, which make makes once.
func (o *PackageRepositories) Of(distribution, arch string, make func() (*PackageRepository, error)) (*PackageRepository, error) {
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
