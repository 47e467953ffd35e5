package cli

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

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover/kustomize"
	"github.com/kkbundle/kkbundle/manifest"
)

// maxMatches bounds the files that the patterns under manifests match.
const maxMatches = 10_000

// beside is where a path of the manifest leads.
func (p *project) beside(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.dir, filepath.FromSlash(name))
}

// matches expands the patterns under manifests into files and kustomize directories, sorted. kkbundle's own files, which
// may lie among them, are left out. The error joins every problem.
func (p *project) matches() (files, dirs []string, err error) {
	if len(p.manifest.Manifests) == 0 {
		return nil, nil, nil
	}
	root, err := os.OpenRoot(cmp.Or(p.dir, "."))
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	var errs []error
	for i, pattern := range p.manifest.Manifests {
		names, err := fs.Glob(root.FS(), path.Clean(pattern))
		if err == nil && len(names) == 0 {
			err = errors.New("no file and no directory is called so")
		}
		for _, name := range names {
			isDir, refused := isKustomization(root, name)
			switch {
			case refused != nil:
				err = errors.Join(err, refused)
			case isDir:
				dirs = append(dirs, name)
			case !p.ownFile(name):
				files = append(files, name)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: manifests[%d]: %s: %w", p.file, i, pattern, err))
		}
	}
	if len(files)+len(dirs) > maxMatches {
		errs = append(errs, fmt.Errorf("%s: manifests: more than %d files match", p.file, maxMatches))
	}
	slices.Sort(files)
	slices.Sort(dirs)
	return slices.Compact(files), slices.Compact(dirs), errors.Join(errs...)
}

// isKustomization tells a directory to build from a file to read, and refuses what is neither.
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

// ownFile tells whether a file is the manifest, its lock, or a cluster file or a catalog of it.
func (p *project) ownFile(name string) bool {
	own := []string{filepath.Base(p.file), filepath.Base(lockFile(p.file))}
	for i, file := range p.manifest.ClusterFiles() {
		file = path.Clean(filepath.ToSlash(file))
		own = append(own, file)
		for _, catalog := range p.clusters[i].Catalog {
			own = append(own, path.Join(path.Dir(file), filepath.ToSlash(catalog)))
		}
	}
	return slices.Contains(own, name)
}

// yamlJobs are for the files, all at once, and for each kustomize directory.
func (f *finder) yamlJobs() (jobs []findJob, problems []string) {
	files, dirs, err := f.matches()
	if err != nil {
		return nil, []string{err.Error()}
	}
	files = append(files, f.applied...)
	slices.Sort(files)
	files = slices.Compact(files)
	var request findRequest
	total := 0
	for _, name := range files {
		data, err := readSmall(f.beside(name))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		if total += len(data); total > maxRendered {
			return nil, append(problems, fmt.Sprintf("%s: manifests: the files have more than %s", f.file, size(maxRendered)))
		}
		request.YAML = append(request.YAML, charts.ValuesFile{Name: name, Data: data})
		f.seen.inputs = append(f.seen.inputs, inputOf(name, data))
	}
	if len(files) > 0 {
		jobs = append(jobs, findJob{request: request})
	}
	for _, dir := range dirs {
		k := kustomizeRequest{Root: cmp.Or(f.dir, "."), Dir: dir}
		jobs = append(jobs, findJob{request: findRequest{Source: "kustomization " + dir, Kustomize: &k}})
	}
	return jobs, problems
}

func inputOf(name string, data []byte) manifest.Input {
	return manifest.Input{Path: name, Digest: digest.FromBytes(data)}
}

// inputsOf notes files as inputs.
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

// digestOf is the digest of a file, or of a chart directory's archive.
func (p *project) digestOf(name string) (digest.Digest, error) {
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

// checkInputs compares the files that the lock's images were found with to what they are now. stale says how they differ.
func (p *project) checkInputs(l *manifest.Lock) (stale, err error) {
	files, _, err := p.matches()
	if err != nil {
		return nil, &findError{[]string{err.Error()}}
	}
	for _, c := range p.manifest.Charts {
		if c.Path != "" && !c.ImagesListed {
			files = append(files, c.Path)
		}
		files = append(files, c.Values...)
	}
	files = append(files, p.applied...)
	return l.CheckInputs(files, func(name string) digest.Digest {
		d, err := p.digestOf(name)
		if err != nil {
			return ""
		}
		return d
	}), nil
}

// documents are what the bundle carries besides the items and the lock: what install reads, and the YAML under manifests.
func (p *project) documents(l *manifest.Lock) ([]document, error) {
	list := slices.Clone(p.extras)
	for _, in := range l.Inputs {
		if p.isValues(in.Path) {
			continue
		}
		data, err := readSmall(p.beside(in.Path))
		if err != nil {
			return nil, err
		}
		if digest.FromBytes(data) != in.Digest {
			return nil, &inputError{fmt.Errorf("%s changed while the bundle was built: build again", in.Path)}
		}
		i := slices.IndexFunc(list, func(d document) bool { return d.ref == in.Path })
		switch {
		case i < 0:
			list = append(list, document{bundle.KindManifest, in.Path, data})
		case !bytes.Equal(list[i].data, data):
			return nil, &inputError{fmt.Errorf("%s is the name of another file in the bundle: rename it", in.Path)}
		}
	}
	return list, nil
}

// isValues tells whether an input is a local chart, values of a chart or YAML of a cluster's, and not YAML to be carried.
func (p *project) isValues(name string) bool {
	for _, c := range p.manifest.Charts {
		if c.Path == name || slices.Contains(c.Values, name) {
			return true
		}
	}
	if slices.Contains(p.applied, name) {
		return true // the bundle carries them with the cluster file
	}
	return slices.ContainsFunc(p.manifest.Uses, func(use manifest.ChartUse) bool { return slices.Contains(use.Values, name) })
}
