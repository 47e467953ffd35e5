package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// maxFile bounds what is read of a file that users write; the largest real ones are a few hundred KiB.
const maxFile = 4 << 20

// plainly says of a file that is not there just that; whoever asks names the file.
func plainly(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("there is no such file")
	}
	return err
}

// readSmall reads a file that a user wrote. The error is an *inputError and names the file.
func readSmall(path string) ([]byte, error) {
	data, err := func() ([]byte, error) {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s: %w", path, plainly(err))
		case err != nil:
			return nil, err
		case info.IsDir():
			return nil, fmt.Errorf("%s is a directory: name a file", path)
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file", path)
		case info.Size() > maxFile:
			return nil, fmt.Errorf("%s has %s; at most %s are read", path, size(info.Size()), size(maxFile))
		}
		return os.ReadFile(path)
	}()
	if err != nil {
		return nil, &inputError{err}
	}
	return data, nil
}

// A project is a manifest with everything it refers to.
type project struct {
	dir         string // relative paths start here
	file        string
	manifest    *manifest.Bundle    // with what the cluster needs
	extras      []document          // manifest, cluster and values, carried in the bundle for install
	own         []manifest.Image    // that the manifest itself lists
	clusters    []*manifest.Cluster // with defaults, in the order of the manifest
	below       []string            // where the bundle carries the files of each one
	applied     []string            // files of YAML that the clusters apply, relative to the manifest
	hosts       *fetch.Hosts        // what is learnt of those that are asked
	memory      string              // directory of what files without a checksum were
	notes       kubekey.Notes       // what of the cluster files was not carried over
	assumptions []string            // of the catalog
}

func loadProject(file string) (*project, error) {
	data, err := readSmall(file)
	if err != nil {
		return nil, err
	}
	b, err := manifest.ParseBundle(file, data)
	if err != nil {
		return nil, err
	}
	p := &project{dir: filepath.Dir(file), file: file, manifest: b, hosts: fetch.NewHosts(), own: b.Images, extras: []document{{bundle.KindManifest, documentManifest, data}}}
	if err := discover.CheckRules(b.ImageRules); err != nil {
		return nil, &inputError{fmt.Errorf("%s: %w", file, err)}
	}
	for _, name := range b.ClusterFiles() {
		as, below := carriedAs(b, name)
		if err := p.addCluster(name, as, below); err != nil {
			return nil, err
		}
	}
	if err := p.addPackages(); err != nil {
		return nil, err
	}
	return p, p.sameDocuments()
}

// addPackages adds what the tasks of any of the clusters need to the packages of the manifest that want it. Where there is no
// cluster, resolving says that nothing names them.
func (p *project) addPackages() error {
	if len(p.clusters) == 0 {
		return nil
	}
	return p.manifest.AddPackages(func(distribution string) ([]string, error) {
		var names []string
		for i, c := range p.clusters {
			more, err := installer.PackagesOf(c, nil, distribution)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.manifest.ClusterFiles()[i], err)
			}
			names = append(names, more...)
		}
		return names, nil
	})
}

// carriedAs is what a bundle calls a cluster file, and the directory below which it carries what that names.
func carriedAs(b *manifest.Bundle, name string) (as, below string) {
	if name == b.Cluster {
		return documentCluster, "" // what install takes where it is given no other
	}
	as = filepath.ToSlash(filepath.Clean(name))
	return as, path.Dir(as)
}

// addCluster adds what the cluster of a file needs, and the files that install will read: the file as a document of the
// given name, and what it names below a directory.
func (p *project) addCluster(name, as, below string) error {
	file := filepath.Join(p.dir, name)
	data, err := readSmall(file)
	if err != nil {
		return fmt.Errorf("%s names the cluster file: %w", p.file, err)
	}
	c, notes, err := kubekey.ReadCluster(file, data)
	if err != nil {
		return err
	}
	p.notes = append(p.notes, notes...)
	if c.IsForeign() {
		if data, err = yaml.Marshal(c); err != nil { // without its secrets: it goes into the bundle
			return err
		}
	}
	c = c.WithDefaults()
	if c.Catalogs, err = readCatalogs(c, readSmall, filepath.Dir(file)); err != nil {
		return err
	}
	more, err := catalog.Resolve(c, installer.Needed(c), catalog.Options{Platforms: p.manifest.Platforms, Zone: p.manifest.Zone})
	if err != nil {
		return &inputError{fmt.Errorf("%s: %w", file, err)}
	}
	p.assumptions = append(p.assumptions, more.Notes...)
	if p.manifest, err = more.AddTo(p.manifest); err != nil {
		return err
	}
	if err := p.useCharts(c, path.Dir(filepath.ToSlash(name))); err != nil {
		return &inputError{fmt.Errorf("%s: %w", file, err)}
	}
	p.extras, p.below = append(p.extras, document{bundle.KindManifest, as, data}), append(p.below, below)
	return p.carry(file, below, clusterFiles(c))
}

// sameDocuments takes documents that are the same once, and refuses different ones of one name.
func (p *project) sameDocuments() error {
	var once []document
	for _, d := range p.extras {
		i := slices.IndexFunc(once, func(o document) bool { return o.ref == d.ref })
		switch {
		case i < 0:
			once = append(once, d)
		case !bytes.Equal(once[i].data, d.data):
			return &inputError{fmt.Errorf("%s: the bundle would carry two different files as %s; give the cluster files and what they name names of their own", p.file, d.ref)}
		}
	}
	p.extras = once
	return nil
}

// clusterFiles are the files that a cluster file names and install reads.
func clusterFiles(c *manifest.Cluster) []string {
	var files []string
	if c.ImageRegistry.CA != "" {
		files = append(files, c.ImageRegistry.CA)
	}
	for _, a := range c.Addons {
		files = append(files, slices.Concat(a.Values, a.Manifests)...)
	}
	files = append(files, c.Kubernetes.Patches...)
	files = append(files, c.CNI.Values...)
	files = append(files, c.Catalog...)
	slices.Sort(files)
	return slices.Compact(files)
}

// readCatalogs reads the catalogs that a cluster file in a directory names.
func readCatalogs(c *manifest.Cluster, read func(path string) ([]byte, error), dir string) ([]*manifest.Catalog, error) {
	var list []*manifest.Catalog
	var errs []error
	for _, name := range c.Catalog {
		path := filepath.Join(dir, name)
		data, err := read(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("catalog: %w", err))
			continue
		}
		one, err := manifest.ParseCatalog(path, data)
		list, errs = append(list, one), append(errs, err)
	}
	return list, errors.Join(errs...)
}

// carry puts files that a cluster file names into the bundle, under their names there, below a directory.
func (p *project) carry(cluster, below string, files []string) error {
	for _, f := range files {
		data, err := readSmall(filepath.Join(filepath.Dir(cluster), f))
		if err != nil {
			return fmt.Errorf("%s names %s: %w", cluster, f, err)
		}
		p.extras = append(p.extras, document{bundle.KindManifest, path.Join(below, f), data})
	}
	return nil
}

// lockFile is where the lock of a manifest lies: beside it, manifest.lock.yaml for manifest.yaml.
func lockFile(file string) string {
	ext := filepath.Ext(file)
	return file[:len(file)-len(ext)] + ".lock" + ext
}

// loadLock reads the lock beside the manifest: nil without error where there is none.
func (p *project) loadLock() (*manifest.Lock, error) {
	file := lockFile(p.file)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no lock is a normal state that callers branch on
	}
	data, err := readSmall(file)
	if err != nil {
		return nil, err
	}
	return manifest.ParseLock(file, data)
}
