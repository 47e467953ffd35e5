package builder

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover/kustomize"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// maxMatches bounds the files that the patterns under manifests match.
const maxMatches = 10_000

// beside resolves a path of the manifest.
func (p *Project) beside(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.dir, filepath.FromSlash(name))
}

// matched are the files and kustomize directories of patterns, sorted, and the groups of each.
type matched struct {
	files, dirs []string
	members     memberships
}

// match expands the patterns under manifests. It leaves out kkbundle's own files. The error joins every problem.
func (p *Project) match() (m matched, err error) {
	m.members = memberships{}
	if len(p.Manifest.Manifests) == 0 {
		return m, nil
	}
	root, err := os.OpenRoot(cmp.Or(p.dir, "."))
	if err != nil {
		return m, err
	}
	defer root.Close()
	var errs []error
	for i, y := range p.Manifest.Manifests {
		pattern := y.Path
		names, err := fs.Glob(root.FS(), path.Clean(pattern))
		refuse := func(err error) {
			errs = append(errs, p.Manifest.Problem(fmt.Sprintf("manifests[%d]", i), pattern+": "+err.Error()))
		}
		switch {
		case err != nil:
			refuse(err)
		case len(names) == 0 && strings.Contains(pattern, "://"):
			refuse(errors.New("want a file here, not an address: download it beside the manifest, and name the file"))
		case len(names) == 0:
			refuse(errors.New("no file and no directory matches"))
		}
		for _, name := range names {
			isDir, refused := isKustomization(root, name)
			switch {
			case refused != nil:
				refuse(refused)
			case isDir:
				m.dirs = append(m.dirs, name)
				m.members.add(name, y.Group)
			case !p.ownFile(name):
				m.files = append(m.files, name)
				m.members.add(name, y.Group)
			}
		}
	}
	if len(m.files)+len(m.dirs) > maxMatches {
		errs = append(errs, fmt.Errorf("%s: manifests: more than %d files match", p.File, maxMatches))
	}
	slices.Sort(m.files)
	slices.Sort(m.dirs)
	m.files, m.dirs = slices.Compact(m.files), slices.Compact(m.dirs)
	return m, errors.Join(errs...)
}

// allYAML is match with the files that deploy and the clusters apply.
func (p *Project) allYAML() (matched, error) {
	m, err := p.match()
	for _, y := range p.applied {
		m.files = append(m.files, y.Path)
		m.members.add(y.Path, y.Group)
	}
	slices.Sort(m.files)
	m.files = slices.Compact(m.files)
	return m, err
}

// isKustomization reports whether name is a directory with a kustomization, and not a file. Anything else is an error.
func isKustomization(root *os.Root, name string) (bool, error) {
	info, err := root.Stat(name)
	switch {
	case err != nil:
		return false, err
	case kustomize.IsFile(path.Base(name)):
		return false, fmt.Errorf("%s is a kustomization: name its directory", name)
	case info.Mode().IsRegular():
		return false, nil
	case !info.IsDir():
		return false, fmt.Errorf("%s is neither a file nor a directory", name)
	}
	entries, err := fs.ReadDir(root.FS(), name)
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return kustomize.IsFile(e.Name()) }) {
		err = fmt.Errorf("%s is a directory without a kustomization.yaml: write %s", name, path.Join(name, "*.yaml"))
	}
	return true, err
}

// ownFile reports whether a file is the manifest, one that it includes, its lock, or one of its cluster files or, once
// these were read, catalogs.
func (p *Project) ownFile(name string) bool {
	own := []string{filepath.Base(p.File), filepath.Base(LockFile(p.File))}
	for _, file := range p.Manifest.ClusterFiles() {
		own = append(own, path.Clean(filepath.ToSlash(file)))
	}
	return slices.Contains(own, name) || slices.Contains(p.catalogs, name) || p.includes(name)
}

// includes reports whether a file is one that the manifest includes.
func (p *Project) includes(name string) bool {
	return slices.ContainsFunc(p.Manifest.Included, func(in manifest.Input) bool { return in.Path == name })
}

// yamlJobs returns one job for all YAML files with the same groups, and one for each kustomize directory.
func (f *finder) yamlJobs() (jobs []findJob, problems []string) {
	m, err := f.allYAML()
	if err != nil {
		return nil, []string{err.Error()}
	}
	byGroups := map[string]int{} // positions in jobs
	total := 0
	for _, name := range m.files {
		data, text, err := f.readText(f.beside(name))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if total += len(data); total > charts.MaxRendered {
			return nil, append(problems, fmt.Sprintf("%s: manifests: the files have more than %s", f.File,
				plain.Size(charts.MaxRendered)))
		}
		at, ok := byGroups[strings.Join(m.members[name].groups(), ",")]
		if !ok {
			at = len(jobs)
			byGroups[strings.Join(m.members[name].groups(), ",")] = at
			jobs = append(jobs, findJob{member: m.members[name]})
		}
		request := &jobs[at].request
		request.YAML = append(request.YAML, charts.ValuesFile{Name: name, Data: text})
		f.seen.inputs = append(f.seen.inputs, inputOf(name, data))
	}
	root, err := filepath.Abs(cmp.Or(f.dir, ".")) // the child works in a directory of its own
	if err != nil && len(m.dirs) > 0 {
		return nil, append(problems, err.Error())
	}
	for _, dir := range m.dirs {
		k := kustomizeRequest{Root: root, Dir: dir}
		jobs = append(jobs, findJob{
			member:  m.members[dir],
			request: findRequest{Source: "kustomization " + dir, Kustomize: &k},
		})
	}
	return jobs, problems
}

func inputOf(name string, data []byte) manifest.Input {
	return manifest.Input{Path: name, Digest: digest.FromBytes(data)}
}

// inputsOf records files as inputs of the lock.
func (f *finder) inputsOf(names []string) (problems []string) {
	for _, name := range names {
		d, err := f.digestOf(name)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		f.seen.inputs = append(f.seen.inputs, manifest.Input{Path: name, Digest: d})
	}
	return problems
}

// digestOf returns the digest of a file, or of the archive of a chart directory.
func (p *Project) digestOf(name string) (digest.Digest, error) {
	at := p.beside(name)
	info, err := os.Stat(at)
	if err != nil {
		return "", err
	}
	d := digest.SHA256.Digester()
	if info.IsDir() {
		c, err := charts.LoadDir(at)
		if err != nil {
			return "", err
		}
		if err := c.Archive(d.Hash()); err != nil {
			return "", err
		}
		return d.Digest(), nil
	}
	file, err := os.Open(at)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := io.Copy(d.Hash(), file); err != nil {
		return "", err
	}
	return d.Digest(), nil
}

// checkInputs compares the files that the lock was made from with their content now. stale describes the difference.
func (p *Project) checkInputs(l *manifest.Lock) (stale, err error) {
	m, err := p.allYAML()
	if err != nil {
		return nil, &FindError{[]string{err.Error()}}
	}
	files := m.files
	for _, c := range p.Manifest.Charts {
		if c.Path != "" && !c.ImagesListed {
			files = append(files, c.Path)
		}
		files = append(files, c.Values...)
	}
	for _, in := range p.Manifest.Included {
		files = append(files, in.Path)
	}
	own := *l
	own.Inputs = slices.DeleteFunc(slices.Clone(l.Inputs), isCatalog)
	return own.CheckInputs(files, func(name string) digest.Digest {
		for _, in := range p.Manifest.Included {
			if in.Path == name { // as it was merged
				return in.Digest
			}
		}
		d, err := p.digestOf(name)
		if err != nil {
			return ""
		}
		return d
	}), nil
}

// catalogInput returns the catalog of a build with clusters, as an input of the lock.
func (p *Project) catalogInput() (in manifest.Input, ok bool) {
	i := slices.IndexFunc(p.extras, func(d bundle.Document) bool { return d.Ref == bundle.DocumentCatalog })
	if i < 0 {
		return manifest.Input{}, false
	}
	return inputOf(bundle.DocumentCatalog, p.extras[i].Data), true
}

func isCatalog(in manifest.Input) bool { return in.Path == bundle.DocumentCatalog }

// otherCatalog reports whether a lock was made with another catalog than that of this build. Its items agree all the
// same: a lock covers everything that the clusters need.
func (p *Project) otherCatalog(l *manifest.Lock) bool {
	now, ok := p.catalogInput()
	i := slices.IndexFunc(l.Inputs, isCatalog)
	return ok && i >= 0 && l.Inputs[i].Digest != now.Digest
}

// documents returns the documents of the bundle besides the lock: the files that install reads, and the YAML under
// manifests.
func (p *Project) documents(l *manifest.Lock) ([]bundle.Document, error) {
	list := slices.Clone(p.extras)
	for _, in := range l.Inputs {
		if isCatalog(in) || slices.Contains(p.catalogs, in.Path) || p.isValues(in.Path) || p.includes(in.Path) {
			continue
		}
		data, err := ReadFile(p.beside(in.Path))
		if err != nil {
			return nil, err
		}
		if digest.FromBytes(data) != in.Digest {
			return nil, &InputError{fmt.Errorf("%s changed while the bundle was built: build again", in.Path)}
		}
		i := slices.IndexFunc(list, func(d bundle.Document) bool { return d.Ref == in.Path })
		switch {
		case i < 0:
			list = append(list, bundle.Document{Kind: bundle.KindManifest, Ref: in.Path, Data: data})
		case !bytes.Equal(list[i].Data, data):
			return nil, &InputError{fmt.Errorf("%s is the name of another file in the bundle: rename it", in.Path)}
		}
	}
	return list, nil
}

// isValues reports whether an input is a local chart, a values file or YAML of a cluster file, and not YAML under
// manifests.
func (p *Project) isValues(name string) bool {
	for _, c := range p.Manifest.Charts {
		if c.Path == name || slices.Contains(c.Values, name) {
			return true
		}
	}
	if p.isApplied(name) {
		return true // carried with the cluster file
	}
	return slices.ContainsFunc(p.Manifest.Uses,
		func(use manifest.ChartUse) bool { return slices.Contains(use.Values, name) })
}

// CheckFiles checks that the files exist that a manifest names, and are no directories where a file is wanted. The
// error joins document.Problems, with the place of each name, and an *InputError for each missing cluster file, as of
// Load.
func CheckFiles(file string, b *manifest.Bundle) error {
	c := fileCheck{Project: &Project{File: file, Manifest: b, dir: filepath.Dir(file)}}
	p, exists, check := c.Project, c.exists, c.file
	for i, image := range b.Images {
		if image.Verify != nil {
			check(fmt.Sprintf("images[%d].verify.key", i), image.Verify.Key)
		}
	}
	for i, c := range b.Charts {
		exists(fmt.Sprintf("charts[%d].path", i), c.Path)
		for j, name := range c.Values {
			check(fmt.Sprintf("charts[%d].values[%d]", i, j), name)
		}
		if c.Verify != nil {
			check(fmt.Sprintf("charts[%d].verify.key", i), c.Verify.Key)
		}
	}
	for i, f := range b.Files {
		for _, platform := range f.PlatformsIn(b.Platforms) {
			check(fmt.Sprintf("files[%d].path", i), scalar.Expand(f.Path, platform))
		}
	}
	for _, program := range b.Programs() {
		check("self.path", scalar.Expand(program.File.Path, program.Platform))
	}
	for i, s := range b.Sources {
		exists(fmt.Sprintf("sources[%d].directory", i), s.Directory)
		for _, one := range [][2]string{{"ca", s.CA}, {"cert", s.Cert}, {"key", s.Key}} {
			check(fmt.Sprintf("sources[%d].%s", i, one[0]), one[1])
		}
	}
	for i, set := range b.Packages {
		check(fmt.Sprintf("packages[%d].iso", i), set.ISO)
		check(fmt.Sprintf("packages[%d].keyring", i), set.Keyring)
		for j, r := range set.Repositories {
			check(fmt.Sprintf("packages[%d].repositories[%d].keyring", i, j), r.Keyring)
		}
	}
	check("trust.root", b.Trust.Root)
	for i, a := range b.Deploy {
		for j, name := range a.Values {
			check(fmt.Sprintf("deploy[%d].values[%d]", i, j), name)
		}
		for j, name := range a.Manifests {
			exists(fmt.Sprintf("deploy[%d].manifests[%d]", i, j), name)
		}
	}
	_, err := p.match()
	errs := []error{c.problems.Err(), err}
	for _, name := range b.ClusterFiles() {
		_, err := p.clusterFile(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// A fileCheck finds names of files in a manifest that nothing, or a directory, has.
type fileCheck struct {
	*Project
	problems document.Problems
}

func (c *fileCheck) problem(path, message string) {
	var list document.Problems
	if errors.As(c.Manifest.Problem(path, message), &list) {
		c.problems = append(c.problems, list...)
	}
}

func (c *fileCheck) exists(path, name string) {
	info, err := os.Stat(c.beside(name))
	switch {
	case name == "":
	case err != nil:
		c.problem(path, name+": there is no such file")
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeCharDevice) != 0: // an ISO may be a block device
		c.problem(path, name+" is a pipe, a socket or a device: name a file")
	}
}

func (c *fileCheck) file(path, name string) {
	if info, err := os.Stat(c.beside(name)); err == nil && info.IsDir() && name != "" {
		c.problem(path, name+" is a directory: name a file, or pack the directory into an archive")
		return
	}
	c.exists(path, name)
}

// clusterFile reads a cluster file of the manifest.
func (p *Project) clusterFile(name string) ([]byte, error) {
	data, err := ReadFile(p.beside(name))
	if err != nil {
		return nil, fmt.Errorf("%s names the cluster file: %w", p.File, err)
	}
	return data, nil
}

// IdleCharts returns the names of charts that the manifest lists and neither deploy nor a cluster installs. Without a
// cluster there is none.
func (p *Project) IdleCharts() []string {
	if len(p.clusters) == 0 {
		return nil
	}
	var idle []string
	for _, c := range p.charts {
		name := p.chartName(c)
		if name != "" && !slices.ContainsFunc(p.Manifest.Uses,
			func(use manifest.ChartUse) bool { return use.Chart == name }) {
			idle = append(idle, name)
		}
	}
	return idle
}

// chartName returns the name of a chart, "" if only its archive has it.
func (p *Project) chartName(c manifest.Chart) string {
	if c.Name != "" || c.Path == "" {
		return c.Name
	}
	data, err := ReadFile(filepath.Join(p.beside(c.Path), "Chart.yaml"))
	var about struct{ Name string }
	if err != nil || yaml.Unmarshal(data, &about) != nil {
		return "" // an archive, or an error that resolving reports
	}
	return about.Name
}
