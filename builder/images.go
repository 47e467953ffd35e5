package builder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Images are the images of a manifest. Everything is sorted.
type Images struct {
	Version   int             `json:"version"` // 1
	Images    []WantedImage   `json:"images"`
	Undecided []UndecidedText `json:"undecided"`
	Excluded  []WantedImage   `json:"excluded"`
}

// A WantedImage is an image with the reasons for it.
type WantedImage struct {
	Ref      string   `json:"ref"`
	WantedBy []Wanter `json:"wantedBy"`
}

// A Wanter is one reason for an image. By is manifest, cluster, chart or yaml.
type Wanter struct {
	By string `json:"by"`
	discover.Place
	// Component is the catalog's name of a cluster's image, and Roles are the groups of hosts that run it.
	Component string          `json:"component,omitempty"`
	Roles     []manifest.Role `json:"roles,omitempty"`
}

// An UndecidedText may be an image.
type UndecidedText struct {
	Text string `json:"text"`
	Why  string `json:"why"`
	discover.Place
}

// Images lists the images of the manifest and the reasons for each. It downloads charts and no images. If some charts
// or files could not be searched, it returns the other images and a *FindError.
func (p *Project) Images(ctx context.Context, o Options) (r Images, err error) {
	s := newSession(p, o)
	if err := s.open(); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.cache.Close()) }()
	r, err = cache.Mend(s.cache, s.dropped, func() (Images, error) {
		if err := s.learnUnknown(ctx); err != nil {
			return Images{}, err
		}
		return (&finder{session: s}).images(ctx)
	})
	if len(r.Undecided) > 0 && s.Strict && err == nil {
		var texts []string
		for _, u := range r.Undecided {
			texts = append(texts, u.String())
		}
		err = &UndecidedError{texts}
	}
	return r, err
}

// images joins the images found with the listed ones. It returns results together with the error of the places that
// could not be searched.
func (f *finder) images(ctx context.Context) (Images, error) {
	list, err := f.charts(ctx)
	if ctx.Err() != nil {
		return Images{}, err
	}
	repositories, unbrought := f.bringRepositories(ctx)
	f.repositories = repositories
	err = errors.Join(err, unbrought, f.find(ctx, list))
	if ctx.Err() != nil || len(cache.EntryErrors(err)) > 0 {
		return Images{}, err
	}
	wanted, bad := f.listed()
	if bad != nil {
		return Images{}, bad
	}
	for _, image := range f.seen.Images {
		wanted[image.Ref] = append(wanted[image.Ref], wanterOf(image.Place))
	}
	r := Images{Version: 1, Images: sortedImages(wanted), Undecided: []UndecidedText{}}
	excluded := map[string][]Wanter{}
	for _, image := range f.seen.excluded {
		if wanted[image.Ref] == nil {
			excluded[image.Ref] = append(excluded[image.Ref], wanterOf(image.Place))
		}
	}
	r.Excluded = sortedImages(excluded)
	for _, d := range f.undecided(slices.Collect(maps.Keys(wanted))) {
		r.Undecided = append(r.Undecided, UndecidedText(d))
	}
	return r, err
}

// charts downloads the charts to render.
func (f *finder) charts(ctx context.Context) ([]fetch.Chart, error) {
	m := f.begin(PhaseResolve)
	defer m.end()
	b := *f.Manifest
	b.Charts = slices.DeleteFunc(slices.Clone(b.Charts), func(c manifest.Chart) bool { return c.ImagesListed })
	return fetch.Charts(ctx, &b, f.fetchOptions(m))
}

// listed returns the images that the manifest lists and the clusters need.
func (f *finder) listed() (map[string][]Wanter, error) {
	wanted := map[string][]Wanter{}
	for _, c := range f.clusters {
		if err := addWanters(wanted, c); err != nil {
			return nil, err
		}
	}
	for i, image := range f.own {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		place := discover.Place{File: f.File, Path: fmt.Sprintf("images[%d]", i)}
		wanted[ref] = append(wanted[ref], Wanter{By: "manifest", Place: place})
	}
	return wanted, nil
}

// addWanters adds the images that a cluster needs, with the hosts, and those of the releases that an upgrade passes
// through. Clusters with the same need share a line.
func addWanters(wanted map[string][]Wanter, c *manifest.Cluster) error {
	demands := plan.Needed(c)
	steps, err := catalog.Steps(c, demands)
	if err != nil {
		return err
	}
	for _, step := range append([]catalog.Step{{Cluster: c, Demands: demands}}, steps...) {
		for _, d := range step.Demands {
			if d.Kind != manifest.ItemImage {
				continue
			}
			refs, err := catalog.Refs(step.Cluster, d.Need, "")
			if err != nil {
				return err
			}
			for _, ref := range refs {
				w := Wanter{By: "cluster", Component: d.Name, Roles: d.Roles}
				if !slices.ContainsFunc(wanted[ref],
					func(o Wanter) bool { return o.Component == d.Name && slices.Equal(o.Roles, d.Roles) }) {
					wanted[ref] = append(wanted[ref], w)
				}
			}
		}
	}
	return nil
}

func wanterOf(p discover.Place) Wanter {
	if strings.HasPrefix(p.Source, "chart ") {
		return Wanter{By: "chart", Place: p}
	}
	return Wanter{By: "yaml", Place: p}
}

func sortedImages(m map[string][]Wanter) []WantedImage {
	list := make([]WantedImage, 0, len(m))
	for _, ref := range slices.Sorted(maps.Keys(m)) {
		list = append(list, WantedImage{ref, m[ref]})
	}
	return list
}

// String returns the text with its place and the reason for the doubt.
func (u UndecidedText) String() string { return discover.Doubt(u).String() }

// String returns the reason in one line.
func (w Wanter) String() string {
	if w.By != "cluster" {
		return w.Place.String()
	}
	var roles []string
	for _, r := range w.Roles {
		roles = append(roles, string(r))
	}
	return fmt.Sprintf("cluster: %s on %s", w.Component, strings.Join(roles, ", "))
}
