package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/plain"
)

type imagesOptions struct {
	lockOptions
	names bool
}

func newImagesCmd(g *globals) *cobra.Command {
	var o imagesOptions
	cmd := &cobra.Command{
		Use:   "images MANIFEST",
		Short: "Show each image of a manifest and who wants it",
		Long: `Shows each image that a bundle of the manifest would have and who wants it: the manifest itself, the cluster, or an
object of a chart or of Kubernetes YAML. What may be an image and cannot be decided comes after them. Charts are
downloaded for that, and images are not.

Undecided texts are decided in the manifest: list images that are needed under images, say where custom resources name
images under imageRules, and name what is no image, or not needed, under excludeImages.`,
		Example: `  kkbundle images manifest.yaml
  kkbundle images --names manifest.yaml`,
		Args: takes("MANIFEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runImages(cmd.Context(), g, args[0], o)
		},
	}
	o.fetchFlags.add(cmd.Flags())
	o.findFlags.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.names, "names", false, "print the references alone, one a line")
	return cmd
}

// imagesResult is what images prints with --json. Everything is sorted.
type imagesResult struct {
	Version   int             `json:"version"` // 1
	Images    []wantedImage   `json:"images"`
	Undecided []undecidedItem `json:"undecided"`
	Excluded  []wantedImage   `json:"excluded"`
}

type wantedImage struct {
	Ref      string   `json:"ref"`
	WantedBy []wanter `json:"wantedBy"`
}

// A wanter is who wants an image: by is manifest, cluster, chart or yaml.
type wanter struct {
	By string `json:"by"`
	discover.Place
	// Component and Roles are the catalog's name of a cluster's image and the groups of hosts that run it.
	Component string          `json:"component,omitempty"`
	Roles     []manifest.Role `json:"roles,omitempty"`
}

type undecidedItem struct {
	Text string `json:"text"`
	Why  string `json:"why"`
	discover.Place
}

func runImages(ctx context.Context, g *globals, file string, o imagesOptions) error {
	p, err := loadProject(file)
	if err != nil {
		return err
	}
	g.noteProblems(p.notes)
	g.assumed(p.assumptions)
	c, _, err := o.openCache()
	if err != nil {
		return err
	}
	f := newFinder(g, p, c, o.lockOptions)
	r, failed := mending(g, c, func() (imagesResult, error) { return f.images(ctx) })
	if r.Version == 0 {
		return failed
	}
	if err := g.printImages(r, o.names); err != nil {
		return err
	}
	if len(r.Undecided) > 0 && o.strict && failed == nil {
		var texts []string
		for _, u := range r.Undecided {
			texts = append(texts, undecidedText(discover.Doubt(u)))
		}
		failed = &undecidedError{texts}
	}
	return failed
}

// images looks for images and puts them together with those that are listed. What it found is returned with the error of
// what could not be searched.
func (f *finder) images(ctx context.Context) (imagesResult, error) {
	list, err := f.charts(ctx)
	if ctx.Err() != nil {
		return imagesResult{}, err
	}
	err = errors.Join(err, f.find(ctx, list))
	if ctx.Err() != nil || len(damagedEntries(err)) > 0 {
		return imagesResult{}, err
	}
	wanted, bad := f.listed()
	if bad != nil {
		return imagesResult{}, bad
	}
	for _, image := range f.seen.Images {
		wanted[image.Ref] = append(wanted[image.Ref], wanterOf(image.Place))
	}
	r := imagesResult{Version: 1, Images: sortedImages(wanted), Undecided: []undecidedItem{}}
	excluded := map[string][]wanter{}
	for _, image := range f.seen.excluded {
		if wanted[image.Ref] == nil {
			excluded[image.Ref] = append(excluded[image.Ref], wanterOf(image.Place))
		}
	}
	r.Excluded = sortedImages(excluded)
	for _, d := range f.undecided(slices.Collect(maps.Keys(wanted))) {
		r.Undecided = append(r.Undecided, undecidedItem(d))
	}
	return r, err
}

// charts downloads what is to be rendered.
func (f *finder) charts(ctx context.Context) ([]fetch.Chart, error) {
	m := f.newMeter("resolve")
	defer m.stop()
	b := *f.manifest
	b.Charts = slices.DeleteFunc(slices.Clone(b.Charts), func(c manifest.Chart) bool { return c.ImagesListed })
	return fetch.Charts(ctx, &b, f.fetchOptions(f.project, f.cache, f.jobs, m))
}

// listed returns the images that the manifest lists and the cluster needs.
func (f *finder) listed() (map[string][]wanter, error) {
	wanted := map[string][]wanter{}
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
		place := discover.Place{File: f.file, Path: fmt.Sprintf("images[%d]", i)}
		wanted[ref] = append(wanted[ref], wanter{By: "manifest", Place: place})
	}
	return wanted, nil
}

// addWanters notes what a cluster needs and on which hosts, also on the way of an upgrade. Several clusters can need the same
// in the same way.
func addWanters(wanted map[string][]wanter, c *manifest.Cluster) error {
	demands := installer.Needed(c)
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
				w := wanter{By: "cluster", Component: d.Name, Roles: d.Roles}
				if !slices.ContainsFunc(wanted[ref], func(o wanter) bool { return o.Component == d.Name && slices.Equal(o.Roles, d.Roles) }) {
					wanted[ref] = append(wanted[ref], w)
				}
			}
		}
	}
	return nil
}

func wanterOf(p discover.Place) wanter {
	if strings.HasPrefix(p.Source, "chart ") {
		return wanter{By: "chart", Place: p}
	}
	return wanter{By: "yaml", Place: p}
}

func sortedImages(m map[string][]wanter) []wantedImage {
	list := make([]wantedImage, 0, len(m))
	for _, ref := range slices.Sorted(maps.Keys(m)) {
		list = append(list, wantedImage{ref, m[ref]})
	}
	return list
}

// String says who it is in a line.
func (w wanter) String() string {
	if w.By != "cluster" {
		return w.Place.String()
	}
	var roles []string
	for _, r := range w.Roles {
		roles = append(roles, string(r))
	}
	return fmt.Sprintf("cluster: %s on %s", w.Component, strings.Join(roles, ", "))
}

func (g *globals) printImages(r imagesResult, names bool) error {
	if g.json {
		return printJSON(g.Out, r)
	}
	var b strings.Builder
	for _, image := range r.Images {
		fmt.Fprintln(&b, plain.Line(image.Ref))
		for _, w := range image.WantedBy {
			if !names {
				fmt.Fprintf(&b, "    %s\n", plain.Line(w.String()))
			}
		}
	}
	if !names && len(r.Excluded) > 0 {
		fmt.Fprintf(&b, "\nExcluded:\n")
		for _, image := range r.Excluded {
			fmt.Fprintf(&b, "    %s\n", plain.Line(image.Ref))
		}
	}
	if !names && len(r.Undecided) > 0 {
		fmt.Fprintf(&b, "\nUndecided:\n")
		for _, u := range r.Undecided {
			fmt.Fprintf(&b, "    %s\n", plain.Line(undecidedText(discover.Doubt(u))))
		}
	}
	_, err := io.WriteString(g.Out, b.String())
	return err
}
