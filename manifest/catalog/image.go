package catalog

import (
	"fmt"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// An ImageName is an image of the catalog in the parts that the values of charts name.
type ImageName struct {
	Registry, Repository string
	// Full is Registry/Repository.
	Full, Tag string
}

func parseImage(ref string) ImageName {
	i := strings.LastIndexByte(ref, ':')
	one := ImageName{Full: ref[:i], Tag: ref[i+1:]}
	one.Registry, one.Repository, _ = strings.Cut(one.Full, "/")
	return one
}

// Value returns an image in the form of most charts. Charts that use digests by default must switch them off: the
// bundle has the tag, and its digest is in the lock.
func (i ImageName) Value() map[string]any { return map[string]any{"repository": i.Full, "tag": i.Tag} }

// ImageOf returns the image of a component with a single one.
func ImageOf(c *manifest.Cluster, component string) (ImageName, error) {
	ref, err := ImageRef(c, component)
	if err != nil {
		return ImageName{}, err
	}
	return parseImage(ref), nil
}

// ImagesOf returns the images of a component by the last part of their names: node, cni, kube-controllers.
func ImagesOf(c *manifest.Cluster, component string) (map[string]ImageName, error) {
	refs, err := Refs(c, manifest.Need{Kind: manifest.ItemImage, Name: component}, "")
	if err != nil {
		return nil, err
	}
	list := map[string]ImageName{}
	for _, ref := range refs {
		one := parseImage(ref)
		list[path.Base(one.Full)] = one
	}
	return list, nil
}

// PickImages returns images of a component in order. An image that the catalog does not have is an error.
func PickImages(c *manifest.Cluster, component string, names ...string) ([]ImageName, error) {
	all, err := ImagesOf(c, component)
	if err != nil {
		return nil, err
	}
	list := make([]ImageName, 0, len(names))
	for _, name := range names {
		one, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("the catalog's %s has no image called %s", component, name)
		}
		list = append(list, one)
	}
	return list, nil
}
