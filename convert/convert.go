// Package convert reads what other tools for disconnected sites take, and says the same in kkbundle's own files.
//
// Known are KubeKey's Manifest and Cluster (v3), Config and Inventory (v4), KKCluster of CAPKK, Hauler's Images, Charts, Files and ImageTxts, a Zarf package definition, lists of
// images, and lists of addresses such as Kubespray's generate_list.sh writes. The package opens no connection and reads no
// other file than the one it is given. What cannot be carried over is never passed over: it becomes a Note.
package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Note says what was not carried over from a place in a file, or what was assumed.
type Note struct {
	File string `json:"file"` // "" if it is about several files
	Line int    `json:"line"` // from 1; 0 if it is about the whole file
	Text string `json:"text"`
}

// String returns file:line: text.
func (n Note) String() string {
	switch {
	case n.File == "":
		return n.Text
	case n.Line == 0:
		return n.File + ": " + n.Text
	}
	return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text)
}

// Result is what files of other tools say, in kkbundle's words.
type Result struct {
	// Bundle lacks what a reader cannot know: name, version and platforms are empty where no file says them.
	Bundle manifest.Bundle
	// Clusters has one for each version of Kubernetes, and more where a file lists several networks, runtimes or registries, in
	// the order of the file.
	Clusters []manifest.Cluster
	// Inventory has the hosts, without passwords and keys; nil if no file names any.
	Inventory *manifest.Inventory
	Notes     []Note
	// Formats are what the files were taken for, such as "KubeKey v3 Manifest".
	Formats []string
}

// The bounds of what is read; the largest lists in use have a few thousand entries.
const (
	maxValues = 200_000
	maxLine   = 8 << 10 // bytes
	maxNotes  = 1000
)

// errTooMuch is returned for a file that says more than anybody writes, as aliases of YAML can.
var errTooMuch = fmt.Errorf("it has more than %d values", maxValues)

// Read reads one file. Relative paths in it are taken as they are; see Move. The error says that the file is of no known
// format, or where it is broken.
func Read(file string, data []byte) (Result, error) {
	f := &reader{Result: &Result{}, file: file, left: maxValues}
	if err := f.read(data); err != nil {
		return Result{}, fmt.Errorf("%s: %w", file, err)
	}
	return *f.Result, nil
}

// reader reads one file.
type reader struct {
	*Result
	file string
	left int // values that may still be looked at
	// images has the references that are there.
	images map[string]bool
}

func (f *reader) note(n *yaml.Node, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	f.noteAt(line, format, args...)
}

func (f *reader) noteAt(line int, format string, args ...any) {
	switch {
	case len(f.Notes) < maxNotes:
		f.Notes = append(f.Notes, Note{f.file, line, fmt.Sprintf(format, args...)})
	case len(f.Notes) == maxNotes:
		f.Notes = append(f.Notes, Note{f.file, 0, "there is more that was not carried over"})
	}
}

// read finds out what a file is. A list has no format of its own: it is what is no mapping.
func (f *reader) read(data []byte) error {
	documents, err := parse(data)
	if err != nil && bytes.Contains(data, []byte("apiVersion:")) {
		return fmt.Errorf("read it as YAML: %w", err)
	}
	if err != nil || len(documents) == 0 || documents[0].Kind != yaml.MappingNode {
		return f.list(data)
	}
	site, err := f.sites(documents, data)
	if err != nil {
		return err
	}
	if f.left <= 0 {
		return errTooMuch
	}
	if site {
		return nil
	}
	for _, document := range documents {
		if err := f.document(document); err != nil {
			return err
		}
	}
	return nil
}

// parse returns the documents of a YAML file.
func parse(data []byte) ([]*yaml.Node, error) {
	const maxDocuments = 1000
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var list []*yaml.Node
	for len(list) < maxDocuments {
		var n yaml.Node
		err := decoder.Decode(&n)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 && n.Content[0].Tag != "!!null" {
			list = append(list, n.Content[0])
		}
	}
	return nil, fmt.Errorf("it has more than %d documents", maxDocuments)
}

// document reads a YAML document by its apiVersion and kind.
func (f *reader) document(n *yaml.Node) error {
	o := f.object(n, "")
	api, kind := o.text("apiVersion"), o.text("kind")
	group, _, _ := strings.Cut(api, "/")
	switch {
	case group == "kubekey.kubesphere.io" && kind == "Manifest":
		f.is("KubeKey v3 Manifest")
		f.kubekey(o)
	case group == "content.hauler.cattle.io":
		f.is("Hauler " + kind)
		if err := f.hauler(kind, o); err != nil {
			return err
		}
	case kind == "ZarfPackageConfig" || kind == "ZarfInitConfig":
		f.is("Zarf package definition")
		f.zarf(o)
	default:
		return fmt.Errorf("line %d: apiVersion %q, kind %q is none that is known; known are %s", n.Line, shorten(api), shorten(kind), known)
	}
	o.rest()
	if f.left <= 0 {
		return errTooMuch
	}
	return nil
}

const known = "KubeKey's Manifest, Cluster, Config, Inventory and KKCluster, Hauler's Images, Charts, Files and ImageTxts, Zarf's ZarfPackageConfig, and lists of images or addresses"

func (f *reader) is(format string) {
	if !slices.Contains(f.Formats, format) {
		f.Formats = append(f.Formats, format)
	}
}

// platform adds a platform that the bundle is for.
func (f *reader) platform(arch string) {
	if arch == "" {
		return
	}
	if !strings.Contains(arch, "/") {
		arch = "linux/" + arch
	}
	if !slices.Contains(f.Bundle.Platforms, arch) {
		f.Bundle.Platforms = append(f.Bundle.Platforms, arch)
	}
}

// image adds an image unless it is there.
func (f *reader) image(n *yaml.Node, image manifest.Image) {
	line := 0
	if n != nil {
		line = n.Line
	}
	f.imageAt(line, image)
}

func (f *reader) imageAt(line int, image manifest.Image) {
	if name, d, ok := strings.Cut(image.Name, "@"); ok && image.Digest == "" {
		// A name with tag and digest is a pin; one with a digest alone has nothing else to be known by.
		if base := path.Base(name); strings.Contains(base, ":") {
			image.Name, image.Digest = name, d
		}
	}
	ref, err := image.Ref()
	if err != nil {
		f.noteAt(line, "image %s was left out: %v", shorten(image.Name), err)
		return
	}
	if f.images == nil {
		f.images = map[string]bool{}
	}
	if f.images[ref] {
		return
	}
	f.images[ref] = true
	f.Bundle.Images = append(f.Bundle.Images, image)
}

// addFile adds a file under a name that no other has.
func (f *reader) addFile(file manifest.File) {
	for _, o := range f.Bundle.Files {
		if o.URL == file.URL && o.Path == file.Path {
			return
		}
	}
	base := file.Name
	for i := 2; slices.ContainsFunc(f.Bundle.Files, func(o manifest.File) bool { return o.Name == file.Name }); i++ {
		file.Name = fmt.Sprintf("%s-%d", base, i)
	}
	f.Bundle.Files = append(f.Bundle.Files, file)
}

// addChart adds a chart unless it is there.
func (f *reader) addChart(chart manifest.Chart) {
	same := func(o manifest.Chart) bool {
		return o.Name == chart.Name && o.Repo == chart.Repo && o.URL == chart.URL && o.Version == chart.Version && o.Path == chart.Path
	}
	if !slices.ContainsFunc(f.Bundle.Charts, same) {
		f.Bundle.Charts = append(f.Bundle.Charts, chart)
	}
}

// repoChart is a chart in a repository, whose OCI address may have the chart's name as its last part.
func repoChart(name, repo, version string) manifest.Chart {
	if rest, ok := strings.CutPrefix(repo, "oci://"); ok && (name == "" || path.Base(rest) == name) {
		return manifest.Chart{Name: path.Base(rest), Repo: "oci://" + path.Dir(rest), Version: version}
	}
	return manifest.Chart{Name: name, Repo: repo, Version: version}
}

// fileName is the last part of an address or path, as a name that a bundle takes.
func fileName(address string) string {
	address, _, _ = strings.Cut(address, "?")
	base := path.Base(strings.TrimRight(address, "/"))
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-', r == '+':
			return r
		}
		return '-'
	}, base)
	return strings.TrimLeft(name, "-.")
}

// isURL tells whether a text is an address of a web server.
func isURL(s string) bool { return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://") }

// shorten keeps messages in bounds; what it leaves out may be a secret or a megabyte.
func shorten(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// Move replaces every relative path by what to returns for it.
func (r *Result) Move(to func(path string) (string, error)) error {
	var paths []*string
	for i := range r.Bundle.Charts {
		c := &r.Bundle.Charts[i]
		paths = append(paths, &c.Path)
		for k := range c.Values {
			paths = append(paths, &c.Values[k])
		}
	}
	for i := range r.Bundle.Files {
		paths = append(paths, &r.Bundle.Files[i].Path)
	}
	for i := range r.Bundle.Manifests {
		paths = append(paths, &r.Bundle.Manifests[i])
	}
	for i := range r.Bundle.Packages {
		paths = append(paths, &r.Bundle.Packages[i].ISO)
	}
	for i := range r.Clusters {
		paths = append(paths, clusterPaths(&r.Clusters[i])...)
	}
	for i := range r.Bundle.Images {
		if v := r.Bundle.Images[i].Verify; v != nil {
			paths = append(paths, &v.Key)
		}
	}
	for _, p := range paths {
		if *p == "" || path.IsAbs(*p) {
			continue
		}
		moved, err := to(*p)
		if err != nil {
			return err
		}
		*p = moved
	}
	return nil
}

// clusterPaths are the paths of a cluster file. Those of variants may be the same ones, so each cluster gets lists of its own.
func clusterPaths(c *manifest.Cluster) []*string {
	paths := []*string{&c.ImageRegistry.CA, &c.Etcd.CA, &c.Etcd.Cert, &c.Etcd.Key}
	c.Kubernetes.Patches = slices.Clone(c.Kubernetes.Patches)
	for i := range c.Kubernetes.Patches {
		paths = append(paths, &c.Kubernetes.Patches[i])
	}
	c.Addons = slices.Clone(c.Addons)
	for i := range c.Addons {
		c.Addons[i].Values = slices.Clone(c.Addons[i].Values)
		for k := range c.Addons[i].Values {
			paths = append(paths, &c.Addons[i].Values[k])
		}
	}
	return paths
}

// Join adds what another Result has.
func (r *Result) Join(o Result) {
	f := &reader{Result: r, images: map[string]bool{}}
	for _, image := range r.Bundle.Images {
		if ref, err := image.Ref(); err == nil {
			f.images[ref] = true
		}
	}
	b := &r.Bundle
	b.Metadata.Name, b.Metadata.Version = or(b.Metadata.Name, o.Bundle.Metadata.Name), or(b.Metadata.Version, o.Bundle.Metadata.Version)
	for _, p := range o.Bundle.Platforms {
		f.platform(p)
	}
	for _, image := range o.Bundle.Images {
		f.image(nil, image)
	}
	for _, chart := range o.Bundle.Charts {
		f.addChart(chart)
	}
	b.Packages = append(b.Packages, o.Bundle.Packages...)
	b.Zone, b.PlatformPolicy = or(b.Zone, o.Bundle.Zone), manifest.PlatformPolicy(or(string(b.PlatformPolicy), string(o.Bundle.PlatformPolicy)))
	switch {
	case r.Inventory == nil:
		r.Inventory = o.Inventory
	case o.Inventory != nil:
		r.Notes = append(r.Notes, Note{Text: "a second inventory was left out: convert it into a directory of its own"})
	}
	for _, file := range o.Bundle.Files {
		f.addFile(file)
	}
	for _, pattern := range o.Bundle.Manifests {
		f.addManifest(pattern)
	}
	for _, format := range o.Formats {
		f.is(format)
	}
	for _, c := range o.Clusters {
		same := func(k manifest.Cluster) bool { return sameKind(k, c) }
		if !slices.ContainsFunc(r.Clusters, same) {
			r.Clusters = append(r.Clusters, c)
		}
	}
	r.Notes = append(r.Notes, o.Notes...)
}

// sameKind tells whether two clusters are of the same version, network, runtime and registry. The first one counts: a Cluster
// says more than a Manifest that lists what it needs.
func sameKind(a, b manifest.Cluster) bool {
	x, y := a.WithDefaults(), b.WithDefaults()
	return x.Kubernetes.Version == y.Kubernetes.Version && x.Kubernetes.Distribution == y.Kubernetes.Distribution && x.CNI.Type == y.CNI.Type &&
		x.CRI.Type == y.CRI.Type && x.ImageRegistry.Type == y.ImageRegistry.Type
}
