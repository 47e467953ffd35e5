package task

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/node/transfer"
	"github.com/kkbundle/kkbundle/manifest"
)

// A FileSource is where hosts find the bundle's files, if they do not come from the deploy machine.
type FileSource struct {
	// Repository returns the repository of an item of the bundle in the site's registry.
	Repository func(bundle.Item) (string, error)
	// Access returns the access to each of the registry's hosts, in the order in which a host asks them.
	Access func(*Host) ([]RegistryAccess, error)
}

func (f FileSource) registries(t *Host) ([]transfer.Registry, error) {
	hosts, err := f.Access(t)
	var list []transfer.Registry
	for _, one := range hosts {
		list = append(list, transfer.Registry{
			Address: one.Address, CA: string(one.CA), Authorization: one.Authorization(),
		})
	}
	return list, err
}

// pullsFiles reports whether a host asks the registry for files. The registry's own hosts have it only when they have
// its program; one that could not be reached is not asked by the same host again.
func (s *Site) pullsFiles(t *Host) bool {
	return s.Cluster.ImageDistribution.Programs == manifest.ProgramsRegistry && !s.IsRegistry(t) && !t.cutOff
}

// pulls reports what a host takes from registries in one transfer.
type pulls struct {
	site  *Site
	host  *Host
	event Event
	begun map[string]bool // by digest
	vain  bool            // a registry did not answer
}

// hear notes a pull, or why there was none, in install.log.
func (p *pulls) hear(ctx context.Context, one transfer.Pull) {
	item := p.site.ItemOf(digest.Digest(one.Digest))
	if one.Problem != "" {
		p.vain = p.vain || !one.Answered
		p.site.Note(ctx, p.host.Name, "not from the registry "+one.Registry+": "+item+": "+one.Problem)
		return
	}
	if !p.begun[one.Digest] {
		p.begun[one.Digest] = true
		size, _ := p.site.Bundle.Stat(digest.Digest(one.Digest))
		p.event.Total += size
		p.site.Note(ctx, p.host.Name, "from the registry "+one.Registry+": "+item)
	}
	p.event.Bytes += one.Bytes
	e := p.event
	e.State = Progress
	p.site.Tell(e)
}
