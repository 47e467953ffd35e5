package closure

import (
	"errors"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// OfCluster returns everything that an installation of the cluster needs from a bundle, on hosts of these platforms:
// the needs declared by tasks, the images that programs pull by their configuration, and the charts and files named in
// the cluster file. The bundle carries those files below a directory, "" for the first cluster's. The error joins
// everything unknown to the catalog.
func OfCluster(c *manifest.Cluster, platforms []string, below string) ([]Need, error) {
	w := clusterWalk{cluster: c.WithDefaults(), platforms: platforms}
	for _, phase := range plan.Plan(w.cluster) {
		for _, task := range phase.Tasks {
			by := User{Task: task.Name, Roles: task.Roles}
			for _, need := range task.Needs() {
				w.component(need, by)
			}
		}
	}
	pulls, err := plan.Pulls(w.cluster)
	if err != nil {
		w.errs = append(w.errs, err)
	}
	for _, p := range pulls {
		w.add(Need{
			Kind: manifest.ItemImage, Ref: p.Ref, Platforms: platforms,
			By: User{Program: p.Program, Roles: p.Roles},
		})
	}
	for _, file := range w.cluster.Kubernetes.Patches {
		w.add(Need{
			Kind: bundle.KindManifest, Ref: path.Join(below, file),
			By: User{Task: kubeadm.PatchesTaskName, Roles: []manifest.Role{manifest.RoleCluster}},
		})
	}
	for _, a := range w.cluster.Addons {
		by := User{Task: addon.TaskName(a), Roles: []manifest.Role{manifest.RoleControlPlane}}
		if a.Chart != "" {
			w.add(Need{Kind: manifest.ItemChart, Name: a.Chart, By: by})
		}
		w.files(below, slices.Concat(a.Values, a.Manifests), by)
	}
	if cni := w.cluster.CNI; len(cni.Values) > 0 {
		w.files(below, cni.Values, User{Task: string(cni.Primary()), Roles: []manifest.Role{manifest.RoleControlPlane}})
	}
	return w.needs, errors.Join(w.errs...)
}

type clusterWalk struct {
	cluster   *manifest.Cluster
	platforms []string
	needs     []Need
	errs      []error
}

// files adds files named in the cluster file, which a bundle carries below a directory, under the names that install
// uses.
func (w *clusterWalk) files(below string, files []string, by User) {
	for _, file := range files {
		w.add(Need{Kind: bundle.KindManifest, Ref: path.Join(below, file), By: by})
	}
}

func (w *clusterWalk) add(n Need) { w.needs = append(w.needs, n) }

// component adds the items of a component in the catalog.
func (w *clusterWalk) component(need manifest.Need, by User) {
	what, err := catalog.Resolve(w.cluster, []manifest.Demand{{Need: need, Tasks: []string{by.Task}, Roles: by.Roles}},
		catalog.Options{Platforms: w.platforms})
	if err != nil {
		w.errs = append(w.errs, err)
		return
	}
	for _, image := range what.Images {
		ref, err := image.Ref()
		if err != nil {
			w.errs = append(w.errs, err)
			continue
		}
		w.add(Need{Kind: manifest.ItemImage, Ref: ref, Platforms: orAll(image.Platforms, w.platforms), By: by})
	}
	for _, chart := range what.Charts {
		w.add(Need{
			Kind: manifest.ItemChart, Ref: manifest.ChartRef(chart, chart.Name, chart.Version), Name: chart.Name,
			By: by,
		})
	}
	for _, f := range what.Files {
		for _, platform := range orAll(f.Platforms, w.platforms) {
			w.add(Need{
				Kind: manifest.ItemFile, Ref: manifest.FileURL(f, platform), Name: f.Name,
				Platforms: []string{platform}, By: by,
			})
		}
	}
}

// orAll returns own, the platforms that the catalog limits a component to, or else all.
func orAll(own, all []string) []string {
	if len(own) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(own), func(p string) bool { return !slices.Contains(all, p) })
}

// OfImages returns the needs of the places where images were found. own holds, by reference, the platforms of images
// for which the manifest has a list of its own.
func OfImages(images []discover.Image, platforms []string, own map[string][]string) []Need {
	needs := make([]Need, 0, len(images))
	for _, image := range images {
		wanted, ok := own[image.Ref]
		if !ok {
			wanted = platforms
		}
		needs = append(needs, Need{
			Kind: manifest.ItemImage, Ref: image.Ref, Platforms: wanted, Lenient: true,
			By: User{Place: image.Place},
		})
	}
	return needs
}
