package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
)

// A Listed is a tag that a registry has.
type Listed struct {
	Repository string // with the registry's host
	Tag        string
	Chart      bool // its repository has Helm charts
}

// ErrNoList is the error, for errors.Is, of a registry that does not list its repositories.
var ErrNoList = errors.New("the registry does not list its repositories")

// Repositories returns the repositories of a registry, sorted: that of at itself, HOST/REPOSITORY, and those below it,
// or all where at is a HOST. Public registries list no repositories, or more than can be read: such a registry is taken
// to have the repository at alone. Nothing is stored, and Options.Store may be nil.
func Repositories(ctx context.Context, at string, o Options) ([]string, error) {
	s, err := newReader(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	host, prefix, _ := strings.Cut(strings.Trim(at, "/"), "/")
	registry, err := name.NewRegistry(host)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", at, err)
	}
	names, err := s.listed(ctx, registry, prefix)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, n := range names {
		if isBelow(n, prefix) {
			list = append(list, host+"/"+n)
		}
	}
	slices.Sort(list)
	if len(list) == 0 {
		return nil, fmt.Errorf("registry %s has no repository at %q or below it", host, prefix)
	}
	return list, nil
}

// catalogTime is longer than a registry takes to list thousands of repositories.
const catalogTime = 30 * time.Second

// listed returns the repositories that a registry lists. If none is prefix or below it, prefix is asked for its tags.
func (s *session) listed(ctx context.Context, registry name.Registry, prefix string) ([]string, error) {
	if prefix == "" {
		names, err := s.registries.Catalog(ctx, registry)
		if err != nil {
			err = fmt.Errorf("%w: name one, %s/REPOSITORY: %w", ErrNoList, registry.RegistryStr(), err)
		}
		return names, err
	}
	limited, cancel := context.WithTimeout(ctx, catalogTime)
	defer cancel()
	names, err := s.registries.Catalog(limited, registry)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case upstream.AnsweredWith(err, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusNotImplemented):
		return []string{prefix}, nil // its tags can be asked for all the same
	case err == nil && slices.ContainsFunc(names, func(n string) bool { return isBelow(n, prefix) }):
		return names, nil
	}
	reason := "it does not list this one"
	if err != nil {
		reason = oneLine(err)
	}
	tags, absent := s.listTags(ctx, registry.RegistryStr()+"/"+prefix, nil)
	switch {
	case absent == nil && len(tags) > 0:
		s.log.WarnContext(ctx, "the registry's list of repositories cannot be used: repositories below this one are not looked for",
			"repository", registry.RegistryStr()+"/"+prefix, "reason", reason)
		return []string{prefix}, nil
	case err != nil:
		return nil, fmt.Errorf("%w: name one, %s/REPOSITORY: %w", ErrNoList, registry.RegistryStr(), err)
	}
	return names, nil
}

// isBelow reports whether a repository is at a prefix or below it.
func isBelow(repository, prefix string) bool {
	return prefix == "" || repository == prefix || strings.HasPrefix(repository, prefix+"/")
}

// newReader starts a session that stores nothing.
func newReader(o Options) (*session, error) {
	if o.Store == nil {
		o.Store = noStore{}
	}
	return newSession(o)
}

// Tags returns the tags of repositories, in their order. Signatures and other referrers under tags of their own are
// left out: they travel with their image. keep, if not nil, chooses among the tags. Whether a repository has charts is
// read from the manifest of one kept tag. Nothing is stored, and Options.Store may be nil. The error joins those of all
// repositories.
func Tags(ctx context.Context, repositories []string, keep func(repository, tag string) bool,
	o Options,
) ([]Listed, error) {
	s, err := newReader(o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	found := make([][]Listed, len(repositories))
	errs := make([]error, len(repositories))
	s.each(len(repositories), func(i int) {
		if ctx.Err() == nil {
			found[i], errs[i] = s.listTags(ctx, repositories[i], keep)
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return slices.Concat(found...), errors.Join(errs...)
}

// listTags returns the kept tags of a repository.
func (s *session) listTags(ctx context.Context, repository string,
	keep func(repository, tag string) bool,
) ([]Listed, error) {
	home, err := name.NewRepository(repository)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", upstream.Printable(repository), err)
	}
	repo, err := s.registries.Repository(home)
	if err != nil {
		return nil, err
	}
	tags, err := repo.Tags(ctx)
	if isGone(err) {
		return nil, nil // its last tag was deleted; registries list the empty repository still
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", repository, err)
	}
	slices.Sort(tags)
	tags = slices.DeleteFunc(slices.Compact(tags), func(tag string) bool {
		_, err := name.NewTag(home.Name() + ":" + tag)
		return err != nil || attachedTag.MatchString(tag) || keep != nil && !keep(repository, tag)
	})
	if len(tags) == 0 {
		return nil, nil
	}
	charts, err := hasCharts(ctx, repo, tags[len(tags)-1])
	if err != nil {
		return nil, fmt.Errorf("%s:%s: %w", repository, tags[len(tags)-1], err)
	}
	list := make([]Listed, len(tags))
	for i, tag := range tags {
		list[i] = Listed{repository, tag, charts}
	}
	return list, nil
}

// attachedTag matches the tags of cosign's signatures, attestations and SBOMs, and the fallback tags of the referrers
// API (OCI distribution spec 1.1, "Referrers Tag Schema").
var attachedTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z]+)?$`)

// hasCharts reports whether a tag is that of a Helm chart.
func hasCharts(ctx context.Context, r *registries.Repository, tag string) (bool, error) {
	desc, data, err := r.Peek(ctx, tag)
	if err != nil || registries.IsIndex(desc.MediaType) {
		return false, err
	}
	doc, err := registries.ParseManifest(desc, data)
	if err != nil {
		return false, err
	}
	return doc.Config != nil && doc.Config.MediaType == chartConfig, nil
}
