package builder

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// A Project is a manifest with everything it names: clusters, their values and catalogs. It does not change after Load.
type Project struct {
	File        string           // the manifest
	Manifest    *manifest.Bundle // with the needs of its clusters
	Notes       kubekey.Notes    // parts of the cluster files that are not supported
	Assumptions []string         // facts that the catalog took for granted

	dir      string              // base of relative paths
	extras   []bundle.Document   // manifest, cluster files and values, which the bundle carries for install
	own      []manifest.Image    // images that the manifest itself lists
	charts   []manifest.Chart    // likewise
	clusters []*manifest.Cluster // with defaults, in the order of the manifest
	below    []string            // for each cluster, the directory of its files in the bundle
	catalogs []string            // catalogs that the clusters name, relative to the manifest
	applied  []manifest.YAML     // files that the clusters and deploy apply, relative to the manifest
	hosts    *fetch.Hosts        // facts about upstream hosts, learnt while fetching
	unused   document.Problems   // values and groups that nothing uses
	settled  *manifest.Lock      // in place of the lock beside the manifest; nil without one
	loading
}

// loading has the inputs of a project that are not in its files.
type loading struct {
	// kubeadm has the images that kubeadm listed, by release, and the releases that were assumed. It is nil if there
	// are none.
	kubeadm map[string]catalogfile.KubeadmImages
	locked  []values.Given // values that were given for the lock
	text    []byte         // the manifest, where no file has it
	LoadOptions
}

// LoadOptions are what Load needs to know beyond the files. The zero value is a sensible default.
type LoadOptions struct {
	// Assume accepts minor releases of Kubernetes that the catalog does not know. The lock records them.
	Assume bool
	// Values are given for the values of the manifest. Variable returns those of environment variables; nil looks none
	// up.
	Values   []values.Given
	Variable func(name string) (string, bool)
	// Variant is the variant of a manifest with variants: see LoadFamily.
	Variant string
}

// Load is LoadWith without options.
func Load(file string) (*Project, error) { return LoadWith(file, LoadOptions{}) }

// LoadAssuming is LoadWith that assumes.
func LoadAssuming(file string) (*Project, error) { return LoadWith(file, LoadOptions{Assume: true}) }

// LoadWith reads a manifest and everything it names. Problems of these files are document.Problems or an *InputError.
// Images that kubeadm listed for the lock beside the manifest are taken from there, and so are values that were given
// for it and are not given now.
func LoadWith(file string, o LoadOptions) (*Project, error) {
	l := lockBeside(file, o.Variant)
	return load(file, loading{kubeadm: l.Kubeadm, locked: l.Given(false), LoadOptions: o})
}

// CommandLine is the File of a project that no file describes.
const CommandLine = "command line"

// Of makes a project of a manifest that is in no file. Paths in it are relative to the current directory. It has no
// lock, and the bundle carries the manifest as text.
func Of(b manifest.Bundle) (*Project, error) {
	b.APIVersion, b.Kind = manifest.APIVersion, manifest.KindBundle
	data, err := yaml.Marshal(b)
	if err != nil {
		return nil, err
	}
	p, err := load(CommandLine, loading{text: data})
	if problems, ok := errors.AsType[document.Problems](err); ok {
		for i := range problems {
			problems[i].Line, problems[i].Column = 0, 0 // nobody sees the text
		}
	}
	return p, err
}

// lockBeside reads the lock beside a manifest, of a variant or, for "", of everything. An unreadable lock has nothing
// here; Build reports it.
func lockBeside(file, variant string) *manifest.Lock {
	data, err := ReadFile(LockFile(file))
	if err != nil {
		return &manifest.Lock{}
	}
	l, err := manifest.ParseLock(LockFile(file), data)
	if err != nil {
		return &manifest.Lock{}
	}
	if variant != "" {
		l, _ = l.Of(variant)
	}
	return l
}

// again loads the project's files anew, with the images that kubeadm listed.
func (p *Project) again() (*Project, error) {
	q, err := load(p.File, p.loading)
	if err != nil {
		return nil, err
	}
	q.hosts = p.hosts
	return q, nil
}

// read reads the manifest, and returns it with its text.
func (l loading) read(file string) (*manifest.Bundle, []byte, error) {
	if l.text != nil {
		b, err := manifest.ParseVariant(file, l.text, nil, l.Variant, l.resolve)
		return b, l.text, err
	}
	data, err := ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	b, err := parse(file, data, l.Variant, l.resolve)
	return b, data, err
}

func load(file string, how loading) (*Project, error) {
	b, data, err := how.read(file)
	if unknown, ok := errors.AsType[*manifest.VariantError](err); ok {
		return nil, &InputError{fmt.Errorf("%s: %w", file, unknown)}
	}
	if err != nil {
		return nil, err
	}
	if b.Variant != how.Variant {
		return nil, &InputError{fmt.Errorf("%s has variants: name one of them with --variant", file)}
	}
	if b.Merged != nil {
		data = b.Merged
	}
	p := &Project{
		File: file, Manifest: b, dir: filepath.Dir(file), hosts: fetch.NewHosts(), own: b.Images,
		charts: b.Charts, loading: how,
		extras: []bundle.Document{{Kind: bundle.KindManifest, Ref: bundle.DocumentManifest, Data: data}},
	}
	if err := discover.CheckRules(b.ImageRules); err != nil {
		return nil, &InputError{fmt.Errorf("%s: %w", file, err)}
	}
	var errs []error
	if b.Trust.Root != "" {
		errs = append(errs, p.carry(file, "", []string{b.Trust.Root}))
	}
	errs = append(errs, p.useDeployments(), p.useHooks())
	for _, name := range b.ClusterFiles() {
		as, below := carriedAs(b, name)
		errs = append(errs, p.addCluster(name, as, below))
	}
	errs = append(errs, p.expandTexts())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := p.checkUnused(); err != nil {
		return nil, err
	}
	items := len(b.Images) + len(b.Charts) + len(b.Manifests) + len(b.Files) + len(b.Packages) + len(b.Git) +
		len(b.Programs())
	if len(b.ClusterFiles())+items+len(p.applied) == 0 {
		return nil, noContent(file)
	}
	if len(p.clusters) > 0 {
		data, err := catalog.Carried()
		if err != nil {
			return nil, err
		}
		p.extras = append(p.extras, bundle.Document{Kind: bundle.KindManifest, Ref: bundle.DocumentCatalog, Data: data})
	}
	if err := p.addPackages(); err != nil {
		return nil, err
	}
	return p, p.sameDocuments()
}

// checkUnused refuses values and groups that nothing uses. Those of a variant may be used by another one.
func (p *Project) checkUnused() error {
	p.unused = slices.Concat(p.Manifest.Set.Unused(), p.Manifest.UnusedGroups(p.clusters))
	if p.Variant != "" {
		return p.unknownGroups()
	}
	return errors.Join(p.unused.Err(), p.unknownGroups())
}

// addPackages adds the operating system packages that the tasks of the clusters need, to the entries of the manifest
// that ask for them. Without a cluster, resolving reports the missing names.
func (p *Project) addPackages() error {
	if len(p.clusters) == 0 {
		return nil
	}
	return p.Manifest.AddPackages(func(distribution string) ([]string, error) {
		var names []string
		for i, c := range p.clusters {
			more, err := plan.PackagesOf(c, nil, distribution)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Manifest.ClusterFiles()[i], err)
			}
			names = append(names, more...)
		}
		return names, nil
	})
}

// carriedAs returns the reference of a cluster file in the bundle, and the directory of the files that it names.
func carriedAs(b *manifest.Bundle, name string) (as, below string) {
	if name == b.Cluster {
		return bundle.DocumentCluster, "" // the default of install
	}
	as = filepath.ToSlash(filepath.Clean(name))
	return as, path.Dir(as)
}

// addCluster adds the needs of a cluster file and the files that install will read: the cluster file as document as,
// and the files that it names below a directory.
func (p *Project) addCluster(name, as, below string) error {
	file := filepath.Join(p.dir, name)
	data, err := p.clusterFile(name)
	if err != nil {
		return err
	}
	c, notes, err := kubekey.ReadClusterWith(p.Manifest.Set, file, data)
	if err != nil {
		return err
	}
	p.Notes = append(p.Notes, notes...)
	p.Notes = append(p.Notes,
		c.MachineFields("names a file or a variable of the machine that installs, which a bundle must not: install will need this file with -c")...)
	if c.IsForeign() {
		if data, err = yaml.Marshal(c); err != nil { // without secrets: it goes into the bundle
			return err
		}
	}
	c = c.WithDefaults()
	if c.Catalogs, err = ReadCatalogs(c, p.readExpanded, filepath.Dir(file)); err != nil {
		return err
	}
	for _, f := range c.Catalog {
		p.catalogs = append(p.catalogs, path.Join(path.Dir(filepath.ToSlash(name)), filepath.ToSlash(f)))
	}
	if p.Assume && catalog.IsUnknown(c) {
		p.kubeadm = maps.Clone(p.kubeadm)
		if p.kubeadm == nil {
			p.kubeadm = map[string]catalogfile.KubeadmImages{}
		}
		one := p.kubeadm[c.Kubernetes.Version]
		one.Assumed = true
		p.kubeadm[c.Kubernetes.Version] = one
	}
	c.Catalogs = append(c.Catalogs, &catalogfile.Catalog{Kubeadm: p.kubeadm})
	more, err := CheckVersions(file, c, catalog.Options{Platforms: p.Manifest.Platforms, Zone: p.Manifest.Zone})
	if err != nil {
		return err
	}
	p.Assumptions = append(p.Assumptions, more.Notes...)
	if p.Manifest, err = more.AddTo(p.Manifest); err != nil {
		return err
	}
	if err := p.useCharts(c, path.Dir(filepath.ToSlash(name))); err != nil {
		return &InputError{fmt.Errorf("%s: %w", file, err)}
	}
	p.extras, p.below = append(p.extras, bundle.Document{Kind: bundle.KindManifest, Ref: as, Data: data}),
		append(p.below, below)
	return p.carry(file, below, c.CarriedFiles())
}

// CheckVersions returns the catalog's items for a cluster with defaults that was read from this file. The error is an
// *InputError if the catalog does not know a version, or if versions are incompatible.
func CheckVersions(file string, c *manifest.Cluster, o catalog.Options) (catalog.Additions, error) {
	more, err := catalog.Resolve(c, plan.Needed(c), o)
	if err == nil {
		return more, nil
	}
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.HasPrefix(line, file+":") { // problems with a place name the file
			line = file + ": " + line
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return catalog.Additions{}, &InputError{errors.New(strings.Join(lines, "\n"))}
}

// sameDocuments removes duplicate documents. Different documents with one name are an error.
func (p *Project) sameDocuments() error {
	var once []bundle.Document
	for _, d := range p.extras {
		i := slices.IndexFunc(once, func(o bundle.Document) bool { return o.Ref == d.Ref })
		switch {
		case i < 0:
			once = append(once, d)
		case !bytes.Equal(once[i].Data, d.Data):
			return &InputError{fmt.Errorf("%s: two different files would be %s in the bundle: rename one of them",
				p.File, d.Ref)}
		}
	}
	p.extras = once
	return nil
}

// CarriedCatalog returns the catalog that a bundle carries, the Base of its clusters; nil if the bundle carries none.
func CarriedCatalog(ctx context.Context, c *bundle.Catalog) (*catalogfile.Catalog, error) {
	if _, ok := c.Find(bundle.KindManifest, bundle.DocumentCatalog, ""); !ok {
		return nil, nil //nolint:nilnil // bundles of earlier releases have none
	}
	data, err := c.Document(ctx, bundle.KindManifest, bundle.DocumentCatalog)
	if err != nil {
		return nil, err
	}
	return catalog.ParseCarried(bundle.DocumentCatalog, data)
}

// ReadCatalogs reads the catalogs that a cluster file in directory dir names.
func ReadCatalogs(c *manifest.Cluster, read func(path string) ([]byte, error),
	dir string,
) ([]*catalogfile.Catalog, error) {
	var list []*catalogfile.Catalog
	var errs []error
	for _, name := range c.Catalog {
		path := Beside(dir, name)
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

// Beside returns the path of a file that a file in dir names.
func Beside(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func noContent(file string) error {
	return &InputError{fmt.Errorf("%s names no content: add images, charts, files, packages or a cluster", file)}
}

// carry adds files that a cluster file names to the documents of the bundle, below a directory.
func (p *Project) carry(cluster, below string, files []string) error {
	var errs []error
	for _, f := range files {
		name := filepath.Join(filepath.Dir(cluster), f)
		data, err := ReadFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s names %s: %w", cluster, f, err))
			continue
		}
		if _, err := p.expand(name, data); err != nil {
			errs = append(errs, err)
			continue
		}
		p.extras = append(p.extras, bundle.Document{Kind: bundle.KindManifest, Ref: path.Join(below, f), Data: data})
	}
	return errors.Join(errs...)
}

// LockFile returns the path of a manifest's lock: manifest.lock.yaml for manifest.yaml.
func LockFile(file string) string {
	ext := filepath.Ext(file)
	return file[:len(file)-len(ext)] + ".lock" + ext
}

// Lock reads the lock beside the manifest. Without a lock file it returns nil and no error.
func (p *Project) Lock() (*manifest.Lock, error) {
	if p.settled != nil || p.text != nil {
		return p.settled, nil
	}
	file := LockFile(p.File)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // having no lock is a normal state
	}
	data, err := ReadLock(file)
	if err != nil {
		return nil, err
	}
	l, err := manifest.ParseLock(file, data)
	if err != nil {
		return nil, err
	}
	own, _ := l.Of(p.Variant) // of another manifest: it covers nothing
	return own, nil
}

// A Question is the input of fetch.Outdated.
type Question struct {
	Pins    []manifest.Pin
	Sources []sources.Source
}

// NewQuestion is NewQuestionWith without options.
func NewQuestion(path string) (*Question, error) { return NewQuestionWith(path, LoadOptions{}) }

// NewQuestionWith reads a manifest or a lock, a manifest like LoadWith.
func NewQuestionWith(path string, o LoadOptions) (*Question, error) {
	data, err := ReadLock(path)
	if err != nil {
		return nil, err
	}
	if manifest.IsLock(data) {
		return lockQuestion(path, data, o)
	}
	p, err := LoadWith(path, o)
	if err != nil {
		return nil, err
	}
	q := &Question{Sources: p.Manifest.Sources}
	l, err := p.Lock()
	switch {
	case err != nil:
		return nil, err
	case l != nil && l.Covers(p.Manifest) == nil:
		q.Pins = l.Items
	default:
		q.Pins, err = unlocked(p.Manifest)
	}
	return q, err
}

// lockQuestion takes the sources from the manifest beside the lock, if there is one.
func lockQuestion(path string, data []byte, o LoadOptions) (*Question, error) {
	l, err := manifest.ParseLock(path, data)
	if err != nil {
		return nil, err
	}
	q := &Question{Pins: l.Items}
	ext := filepath.Ext(path)
	beside := strings.TrimSuffix(strings.TrimSuffix(path, ext), ".lock") + ext
	if _, err := os.Stat(beside); err != nil || beside == path {
		return q, nil //nolint:nilerr // the manifest is optional
	}
	f, err := LoadFamily(beside, o)
	if err != nil {
		return nil, err
	}
	q.Sources = f.sources()
	return q, nil
}

// BundleQuestion returns the pins of a bundle's lock, or of its index without a lock, and the sources of its
// manifest. Sources that name files of this machine are refused.
func BundleQuestion(ctx context.Context, r *bundle.Reader) (*Question, error) {
	q := &Question{}
	if _, ok := r.Find(bundle.KindManifest, bundle.DocumentManifest, ""); ok {
		data, err := r.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
		if err != nil {
			return nil, err
		}
		b, err := parseCarried(ctx, &r.Catalog, data)
		if err != nil {
			return nil, err
		}
		if err := b.MachineSources(
			"names a file of this machine, which counts only in a file of yours: name the manifest, or the lock beside it, instead of the bundle").Err(); err != nil {
			return nil, err
		}
		q.Sources = b.Sources
	}
	if _, ok := r.Find(bundle.KindLock, bundle.DocumentLock, ""); ok {
		data, err := r.Document(ctx, bundle.KindLock, bundle.DocumentLock)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(bundle.DocumentLock, data)
		if err != nil {
			return nil, err
		}
		q.Pins = l.Items
		return q, nil
	}
	for _, it := range r.Index().Items {
		pin := manifest.Pin{
			Kind: it.Kind, Ref: it.Ref, Name: it.Name, Version: it.Version,
			Platform: bundle.PlatformString(it.Descriptor.Platform),
		}
		switch it.Kind {
		case bundle.KindImage:
			pin.Digest, pin.Platform = it.Descriptor.Digest, ""
		case bundle.KindChart, bundle.KindFile, bundle.KindGit:
		default:
			continue
		}
		q.Pins = append(q.Pins, pin)
	}
	return q, nil
}

// unlocked returns the items of a manifest without a lock. Without digests, none can be reported as moved.
func unlocked(b *manifest.Bundle) ([]manifest.Pin, error) {
	var pins []manifest.Pin
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(ref, "@")
		pin := manifest.Pin{Kind: manifest.ItemImage, Ref: ref, Name: name}
		if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
			pin.Name, pin.Version = name[:i], name[i+1:]
		}
		pins = append(pins, pin)
	}
	for _, c := range b.Charts {
		ref := manifest.ChartRef(c, c.Name, c.Version)
		pins = append(pins, manifest.Pin{
			Kind: manifest.ItemChart, Ref: ref, Name: cmp.Or(c.Name, ref),
			Version: c.Version,
		})
	}
	for _, r := range b.Git {
		pins = append(pins, manifest.Pin{Kind: manifest.ItemGit, Ref: r.Ref(), Name: r.RepositoryName()})
	}
	for _, f := range b.Files {
		for _, p := range f.PlatformsIn(b.Platforms) {
			pin := manifest.Pin{Kind: manifest.ItemFile, Ref: manifest.FileURL(f, p), Name: f.Name, Version: f.Version}
			if f.PerPlatform() {
				pin.Platform = p
			}
			pins = append(pins, pin)
			if !f.PerPlatform() {
				break
			}
		}
	}
	return pins, nil
}
