// Package kustomize builds kustomizations from files below one directory only: no network, no git, no plugins, no Helm,
// and no way out of the directory, including symbolic links.
package kustomize

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// Bounds on the input of a kustomization.
const (
	maxFile  = 4 << 20  // bytes of one file
	maxTotal = 64 << 20 // bytes of all files
	maxFiles = 5_000
	// maxValues bounds the values of a file to parse, some 400 bytes of memory each.
	maxValues = 300_000
	// maxProblem bounds a message of the YAML parser, which names each repeated key.
	maxProblem = 300 // bytes
)

// IsFile reports whether name is the file name of a kustomization
// (https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/).
func IsFile(name string) bool {
	return name == "kustomization.yaml" || name == "kustomization.yml" || name == "Kustomization"
}

// Build builds the kustomization in dir, a slash-separated path in root. It returns the resulting YAML and the sorted
// paths of the files read. Bases may lie anywhere below root.
//
// Build trusts kustomize not to loop. Run a hostile kustomization in a process without network that can be killed:
// addresses in kustomization files are refused, but kustomize would also follow those in its own plugins'
// configuration.
func Build(root *os.Root, dir string) (text []byte, files []string, err error) {
	d := &disk{root: root, read: map[string][]byte{}}
	options := krusty.MakeDefaultOptions()
	resources, err := krusty.MakeKustomizer(options).Run(d, path.Join("/", dir))
	if d.refused != nil { // kustomize would report a missing file
		return nil, nil, d.refused
	}
	if err != nil {
		return nil, nil, fmt.Errorf("kustomize: %w", err)
	}
	text, err = resources.AsYaml()
	if err != nil {
		return nil, nil, fmt.Errorf("kustomize: %w", err)
	}
	for name := range d.read {
		files = append(files, name)
	}
	slices.Sort(files)
	return text, files, nil
}

// disk is a filesys.FileSystem that begins at root and cannot be written.
type disk struct {
	filesys.FileSystem // nil: methods not defined below are not called, or panic instead of accessing the disk

	root    *os.Root
	read    map[string][]byte
	total   int64
	refused error
}

var errReadOnly = errors.New("read-only: searching for images writes no files")

// local returns the name in root of kustomize's path.
func local(name string) string {
	if name = strings.Trim(path.Clean("/"+name), "/"); name != "" {
		return name
	}
	return "."
}

// Mkdir and the other writing methods fail.
func (*disk) Mkdir(string) error                       { return errReadOnly }
func (*disk) MkdirAll(string) error                    { return errReadOnly }
func (*disk) RemoveAll(string) error                   { return nil } // for directories that git would have created
func (*disk) WriteFile(string, []byte) error           { return errReadOnly }
func (*disk) Create(string) (filesys.File, error)      { return nil, errReadOnly }
func (d *disk) Open(name string) (filesys.File, error) { return d.root.Open(local(name)) }

// Exists reports whether a file or directory exists.
func (d *disk) Exists(name string) bool {
	_, err := d.root.Stat(local(name))
	return err == nil
}

// IsDir reports whether a directory exists.
func (d *disk) IsDir(name string) bool {
	info, err := d.root.Stat(local(name))
	return err == nil && info.IsDir()
}

// CleanedAbs splits a path into an existing directory and a file in it.
func (d *disk) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	clean := path.Join("/", local(name))
	info, err := d.root.Stat(local(name))
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		return filesys.ConfirmedDir(clean), "", nil
	}
	return filesys.ConfirmedDir(path.Dir(clean)), path.Base(clean), nil
}

// Glob returns the matching files.
func (d *disk) Glob(pattern string) ([]string, error) {
	names, err := fs.Glob(d.root.FS(), local(pattern))
	for i := range names {
		names[i] = path.Join("/", names[i])
	}
	return names, err
}

// ReadDir returns the names in a directory.
func (d *disk) ReadDir(name string) ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), local(name))
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// ReadFile reads a file and records its name.
func (d *disk) ReadFile(name string) ([]byte, error) {
	name = local(name)
	if data, ok := d.read[name]; ok {
		return slices.Clone(data), nil
	}
	// A pipe may have no writer.
	if info, err := d.root.Stat(name); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return nil, d.refuse(fmt.Errorf("%s is not a regular file", name))
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	d.total += int64(len(data))
	if len(data) > maxFile || d.total > maxTotal || len(d.read) >= maxFiles {
		return nil, d.refuse(fmt.Errorf("%s: a kustomization reads at most %d files of %d bytes, and %d bytes in all",
			name, maxFiles, maxFile, maxTotal))
	}
	if IsFile(path.Base(name)) {
		if err := d.check(name, data); err != nil {
			return nil, d.refuse(err)
		}
	}
	d.read[name] = data
	return slices.Clone(data), nil
}

func (d *disk) refuse(err error) error {
	d.refused = cmp.Or(d.refused, err)
	return err
}

// check refuses a kustomization that would fetch or run something.
func (d *disk) check(name string, data []byte) error {
	if n := capped.Values(data); n > maxValues {
		return fmt.Errorf("%s: about %d values; at most %d are read", name, n, maxValues)
	}
	var k map[string]any
	if err := yaml.UnmarshalStrict(data, &k); err != nil { // equal keys are refused: kustomize could use another one
		return fmt.Errorf("%s: %s", name, plain.Clip(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "),
			maxProblem))
	}
	for _, key := range []string{"helmCharts", "helmChartInflationGenerator"} {
		if k[key] != nil {
			return fmt.Errorf("%s: %s is not rendered; name the chart and its values under charts of the manifest",
				name, key)
		}
	}
	for _, key := range []string{
		"resources", "bases", "components", "crds", "configurations", "generators",
		"transformers", "validators",
	} {
		list, _ := k[key].([]any)
		for _, one := range list {
			entry, ok := one.(string)
			if !ok || strings.Contains(entry, "\n") {
				continue // inline; kustomize reports any problem
			}
			if !d.Exists(path.Join(path.Dir(name), entry)) {
				return fmt.Errorf("%s: %s: %q is not in the manifest's directory, and nothing remote is fetched; put a copy there and name that",
					name, key, entry)
			}
		}
	}
	for _, value := range paths(k) {
		if u, err := url.Parse(value); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			return fmt.Errorf("%s: %q is not fetched; put a copy below the manifest's directory and name that", name,
				u.Redacted())
		}
	}
	return nil
}

// paths returns the values of every key called path, files, envs or env, at any level.
func paths(v any) []string {
	var found []string
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if s, ok := below.(string); ok && (key == "path" || key == "env") {
				found = append(found, s)
			}
			if list, ok := below.([]any); ok && (key == "files" || key == "envs" || key == "patchesStrategicMerge") {
				for _, one := range list {
					s, _ := one.(string)
					if _, file, named := strings.Cut(s, "="); named {
						s = file
					}
					found = append(found, s)
				}
			}
			found = append(found, paths(below)...)
		}
	case []any:
		for _, one := range v {
			found = append(found, paths(one)...)
		}
	}
	return found
}
