// Package convert translates the files of other tools for disconnected sites into kkbundle's own files.
//
// It reads KubeKey's Manifest and Cluster (v3), Config and Inventory (v4), KKCluster of CAPKK, Hauler's Images, Charts,
// Files and ImageTxts, a Zarf package definition, lists of images, and lists of addresses such as the output of
// Kubespray's generate_list.sh. The package opens no connection and reads no file except the given one. Anything that
// cannot be translated becomes a Note.
package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A Note describes an assumption, or a place in a file that was not carried over.
type Note struct {
	File string `json:"file"` // "" for several files
	Line int    `json:"line"` // from 1; 0 for the whole file
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

// Result is the content of other tools' files in kkbundle's types.
type Result struct {
	// Bundle may be incomplete: name, version and platforms are empty if no file has them.
	Bundle manifest.Bundle
	// Clusters has one cluster for each version of Kubernetes, and more if a file lists several networks, runtimes or
	// registries, in the order of the file.
	Clusters []manifest.Cluster
	// Inventory has the hosts, without passwords and keys; nil if no file has hosts.
	Inventory *manifest.Inventory
	Notes     []Note
	// Formats are the detected formats, such as "KubeKey v3 Manifest".
	Formats []string
}

// Bounds on the input; the largest lists in use have a few thousand entries.
const (
	maxValues = 200_000
	maxLine   = 8 << 10 // bytes
	maxNotes  = 1000
)

// errTooMuch is returned for a file with far more values than any person writes, for example by YAML aliases.
var errTooMuch = fmt.Errorf("more than %d values", maxValues)

// errEmpty is returned for a file with comments at most.
var errEmpty = errors.New("the file is empty")

// Read reads one file. Relative paths in it stay unchanged; see Move. It fails for a file of an unknown format or with
// a syntax error.
func Read(file string, data []byte) (Result, error) {
	f := &reader{Result: &Result{}, file: file, left: maxValues}
	if err := f.read(data); err != nil {
		return Result{}, fmt.Errorf("%s: %w", file, err)
	}
	if f.unsaid.Name != "" && len(f.Bundle.Platforms) > 0 {
		f.noteAt(f.unsaidAt, "image %s names no platform, and others name theirs: it is brought for those, %s; name all with --platform",
			shorten(f.unsaid.Name), strings.Join(f.Bundle.Platforms, ", "))
	}
	return *f.Result, nil
}

// reader reads one file.
type reader struct {
	*Result
	file string
	left int // number of values that may still be read
	// images has the index of each image by its reference, and tags by that without a digest.
	images, tags map[string]int
	// unsaid is the first image that names no platform where each image may name its own.
	unsaid   manifest.Image
	unsaidAt int
	// releases has the first release of each chart.
	releases map[string]manifest.Addon
	// deployed are the releases of Zarf's charts and manifests.
	deployed []manifest.Addon
	// group is that of the items that are read, and api the apiVersion of their document.
	group, api string
}

// inGroups returns the group of an item that is there in two: none, for one that several parts need.
func inGroups(a, b string) string {
	if a == b {
		return a
	}
	return ""
}

func (f *reader) note(n *yaml.Node, format string, args ...any) { f.noteAt(lineOf(n), format, args...) }

func lineOf(n *yaml.Node) int {
	if n == nil {
		return 0
	}
	return n.Line
}

func (f *reader) noteAt(line int, format string, args ...any) {
	switch {
	case len(f.Notes) < maxNotes:
		f.Notes = append(f.Notes, Note{f.file, line, fmt.Sprintf(format, args...)})
	case len(f.Notes) == maxNotes:
		f.Notes = append(f.Notes, Note{f.file, 0, "more was not carried over"})
	}
}

// read detects the format of a file. A list has no format of its own: any file that is no mapping is a list, of lines
// or of YAML or JSON.
func (f *reader) read(data []byte) error {
	data = document.UTF8(data)
	documents, err := parse(data)
	if err != nil {
		if filled := quoted(data); !bytes.Equal(filled, data) {
			if again, none := parse(filled); none == nil {
				f.notePlaceholders(data)
				documents, data, err = again, filled, nil
			}
		}
	}
	if err != nil && bytes.Contains(data, []byte("apiVersion:")) {
		return fmt.Errorf("parse YAML: %w", err)
	}
	if err == nil {
		if list := listIn(documents); list != nil {
			return f.sequence(list)
		}
	}
	switch {
	case err == nil && len(documents) == 0:
		return errEmpty
	case err != nil || documents[0].Kind != yaml.MappingNode:
		return f.list(data)
	}
	for _, document := range documents {
		if below := f.object(document, "").mapping("metadata").take("spec"); below != nil {
			return fmt.Errorf("line %d: metadata.spec: spec lies below metadata, where it is not read; move it and all below it to the left, beside metadata", below.Line-1)
		}
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

// placeholder matches a value that begins with a name to be filled in, as sed and configure scripts do: @HOME@/key.
// YAML has no plain values that begin with @.
func placeholder() *regexp.Regexp {
	return regexp.MustCompile(`([:,[{-][ \t]+)(@[A-Za-z][A-Za-z0-9_]*@[^\s,\[\]{}"']*)`)
}

// quoted puts the values that begin with a placeholder in quotes.
func quoted(data []byte) []byte { return placeholder().ReplaceAll(data, []byte(`$1"$2"`)) }

func (f *reader) notePlaceholders(data []byte) {
	for _, at := range placeholder().FindAllSubmatchIndex(data, maxNotes+1) {
		f.noteAt(bytes.Count(data[:at[4]], []byte("\n"))+1,
			"%s has a placeholder that is not filled in, and is kept as it is", data[at[4]:at[5]])
	}
}

// parse returns the documents of a YAML file.
func parse(data []byte) ([]*yaml.Node, error) {
	const maxDocuments = 1000
	if n := capped.Values(data); n > maxValues {
		return nil, fmt.Errorf("the file has about %d values; at most %d are read", n, maxValues)
	}
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
	return nil, fmt.Errorf("more than %d documents", maxDocuments)
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
	case slices.Contains([]string{"ZarfPackageConfig", "ZarfInitConfig", "ZarfComponentConfig"}, kind):
		f.is("Zarf package definition")
		f.api = api
		f.zarf(o)
	default:
		return fmt.Errorf("line %d: unknown apiVersion %q, kind %q; known are %s", n.Line, shorten(api), shorten(kind),
			known)
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

// platform adds a platform to the bundle and returns it in kkbundle's spelling, "" if it is none that is known, which is
// noted.
func (f *reader) platform(line int, name string) string {
	if name == "" {
		return ""
	}
	if !strings.Contains(name, "/") {
		name = "linux/" + name
	}
	known, err := scalar.PlatformString(name)
	if err != nil {
		f.once(line, "platform %s was not carried over: %v", shorten(name), err)
		return ""
	}
	if !slices.Contains(f.Bundle.Platforms, known) {
		f.Bundle.Platforms = append(f.Bundle.Platforms, known)
	}
	return known
}

// onPlatform is an image's list of the platform that its entry names; none is for all.
func (f *reader) onPlatform(line int, name string) []string {
	if known := f.platform(line, name); known != "" {
		return []string{known}
	}
	return nil
}

// image adds an image unless it was added before.
func (f *reader) image(n *yaml.Node, image manifest.Image) { f.imageAt(lineOf(n), image) }

func (f *reader) imageAt(line int, image manifest.Image) {
	if name, d, ok := strings.Cut(image.Name, "@"); ok && image.Digest == "" {
		// A name with tag and digest is a pin; one with a digest alone has no other identification.
		if base := path.Base(name); strings.Contains(base, ":") {
			image.Name, image.Digest = name, d
		}
	}
	ref, err := image.Ref()
	if err == nil {
		err = digestOf(image)
	}
	if len(f.Bundle.Values) > 0 && strings.Contains(image.Name, "${") {
		ref, err = image.Name, nil // only the build knows the whole name
	}
	if err != nil {
		f.noteAt(line, "image %s was left out: %v", shorten(image.Name), err)
		return
	}
	if f.images == nil {
		f.images, f.tags = map[string]int{}, map[string]int{}
	}
	if at, twice := f.images[ref]; twice {
		f.imageAgain(line, &f.Bundle.Images[at], image)
		return
	}
	tag, _, _ := strings.Cut(ref, "@")
	if at, twice := f.tags[tag]; twice && strings.Contains(path.Base(tag), ":") {
		first := &f.Bundle.Images[at]
		if first.Digest == "" || image.Digest == "" { // one of them says it more exactly
			first.Digest = or(first.Digest, image.Digest)
			f.images[ref] = at
			f.imageAgain(line, first, image)
			return
		}
		// A tag has one digest in a bundle; the other image arrives by its own.
		image.Name, image.Digest = tag[:strings.LastIndexByte(tag, ':')]+"@"+image.Digest, ""
	} else {
		f.tags[tag] = len(f.Bundle.Images)
	}
	f.images[ref] = len(f.Bundle.Images)
	f.Bundle.Images = append(f.Bundle.Images, image)
}

// digestOf returns an error if an image has a digest that no bundle has.
func digestOf(image manifest.Image) error {
	_, inName, _ := strings.Cut(image.Name, "@")
	d := or(image.Digest, inName)
	if algorithm, hex, _ := strings.Cut(d, ":"); d == "" || strings.Contains(d, "${") ||
		algorithm == "sha256" && scalar.IsHex(hex, 64) {
		return nil
	}
	return fmt.Errorf("the digest %q is not read: want sha256: and 64 hexadecimal digits in lower case", shorten(d))
}

// imageAgain gives an image the platforms of its second entry, too; an entry without any is for all.
func (f *reader) imageAgain(line int, first *manifest.Image, again manifest.Image) {
	first.Group = inGroups(first.Group, again.Group)
	switch {
	case len(first.Platforms) == 0 || len(again.Platforms) == 0:
		first.Platforms = nil
	default:
		platforms := slices.Clone(first.Platforms)
		for _, p := range again.Platforms {
			if !slices.Contains(platforms, p) {
				platforms = append(platforms, p)
			}
		}
		first.Platforms = platforms
	}
	switch {
	case again.Verify == nil || first.Verify != nil && *first.Verify == *again.Verify:
	case first.Verify == nil:
		first.Verify = again.Verify
	default:
		f.noteAt(line, "image %s is there twice with different keys: its signature is checked with the first, %s",
			shorten(again.Name), shorten(first.Verify.Key))
	}
}

// addFile adds a file under a unique name.
func (f *reader) addFile(n *yaml.Node, file manifest.File) {
	for i := range f.Bundle.Files {
		if o := &f.Bundle.Files[i]; o.URL == file.URL && o.Path == file.Path {
			f.fileAgain(n, o, file)
			return
		}
	}
	base := file.Name
	for i := 2; slices.ContainsFunc(f.Bundle.Files, func(o manifest.File) bool { return o.Name == file.Name }); i++ {
		file.Name = fmt.Sprintf("%s-%d", base, i)
	}
	f.Bundle.Files = append(f.Bundle.Files, file)
}

// fileAgain gives a file what its second entry has beyond the first, and notes the rest: a bundle has one file for
// one address.
func (f *reader) fileAgain(n *yaml.Node, first *manifest.File, again manifest.File) {
	first.Group = inGroups(first.Group, again.Group)
	if len(first.SHA256) == 0 {
		first.SHA256 = again.SHA256
	}
	first.Checksums = or(first.Checksums, again.Checksums)
	first.Mode |= again.Mode
	if again.Name != first.Name {
		f.note(n, "file %s is there twice: it is carried once, as %s", shorten(again.Name), first.Name)
	}
	if len(again.SHA256) > 0 && !maps.Equal(first.SHA256, again.SHA256) {
		f.note(n, "file %s is there twice with different sha256 sums: the first counts", shorten(again.Name))
	}
}

// addChart adds a chart, and for each further release of it with other values an entry of deploy: a chart has one
// list of values. release has the names of the release, as far as the file has them.
func (f *reader) addChart(n *yaml.Node, chart manifest.Chart, release manifest.Addon) {
	id := chart
	id.Values, id.Group = nil, ""
	key := fmt.Sprint(id)
	release.Chart, release.Values = chart.Name, chart.Values
	first, twice := f.releases[key]
	if !twice {
		f.Bundle.Charts = append(f.Bundle.Charts, chart)
		if f.releases == nil {
			f.releases = map[string]manifest.Addon{}
		}
		f.releases[key] = release
		return
	}
	isFirst := func(o manifest.Chart) bool { o.Values, o.Group = nil, ""; return fmt.Sprint(o) == key }
	at := &f.Bundle.Charts[slices.IndexFunc(f.Bundle.Charts, isFirst)]
	at.Group = inGroups(at.Group, chart.Group)
	switch {
	case sameRelease(first, release):
		return
	case chart.Name == "":
		f.note(n, "the chart %s is there twice with different values: those of the second were not carried over; list each release under deploy", shorten(or(chart.Path, chart.URL)))
		return
	}
	at.Values = nil // each entry of deploy has its own
	f.deploy(first)
	f.deploy(release)
	f.once(lineOf(n), "the chart %s has a further release: each is under deploy, where the other charts can be listed, too", shorten(chart.Name))
}

// sameRelease reports whether two entries of deploy install a chart with the same values. Names count if both have
// them.
func sameRelease(a, b manifest.Addon) bool {
	same := func(x, y string) bool { return x == y || x == "" || y == "" }
	return a.Chart == b.Chart && same(a.Release, b.Release) && same(a.Namespace, b.Namespace) &&
		slices.Equal(a.Values, b.Values)
}

// deploy adds an entry under a unique release name, unless there is the same.
func (f *reader) deploy(a manifest.Addon) {
	if slices.ContainsFunc(f.Bundle.Deploy, func(b manifest.Addon) bool { return sameRelease(a, b) }) {
		return
	}
	base := or(a.Release, a.Chart)
	taken := func(o manifest.Addon) bool { return or(o.Release, o.Chart) == base && o.Namespace == a.Namespace }
	for i := 2; slices.ContainsFunc(f.Bundle.Deploy, taken); i++ {
		base = fmt.Sprintf("%s-%d", or(a.Release, a.Chart), i)
	}
	if a.Release = base; base == a.Chart {
		a.Release = ""
	}
	f.Bundle.Deploy = append(f.Bundle.Deploy, a)
}

// repoChart is repoChart for a file whose tool takes the newest version of a chart if none is given.
func (f *reader) repoChart(n *yaml.Node, name, repo, version string) manifest.Chart {
	if version == "" {
		version = "*"
		f.note(n, "the chart %s has no version: the newest is used, and the lock pins it", shorten(name))
	}
	return repoChart(name, repo, version)
}

// repoChart returns a chart in a repository, whose OCI address may end in the chart's name.
func repoChart(name, repo, version string) manifest.Chart {
	if rest, ok := strings.CutPrefix(repo, "oci://"); ok && (name == "" || path.Base(rest) == name) {
		return manifest.Chart{Name: path.Base(rest), Repo: "oci://" + path.Dir(rest), Version: version}
	}
	return manifest.Chart{Name: name, Repo: repo, Version: version}
}

// fileName returns the last part of an address or path, as a valid name in a bundle.
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

// isURL reports whether s is an HTTP address.
func isURL(s string) bool { return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://") }

// shorten bounds messages; the omitted part may be a secret or a megabyte.
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

// pathsOf returns the paths of items.
func pathsOf(charts []manifest.Chart, entries []manifest.Addon, files []manifest.File,
	yamls []manifest.YAML,
) (paths []*string) {
	for i := range charts {
		c := &charts[i]
		paths = append(paths, &c.Path)
		for k := range c.Values {
			paths = append(paths, &c.Values[k])
		}
	}
	for i := range entries {
		a := &entries[i]
		a.Values = slices.Clone(a.Values)
		for k := range a.Values {
			paths = append(paths, &a.Values[k])
		}
	}
	for i := range files {
		paths = append(paths, &files[i].Path)
	}
	for i := range yamls {
		paths = append(paths, &yamls[i].Path)
	}
	return paths
}

// Move replaces every relative path by the result of to.
func (r *Result) Move(to func(path string) (string, error)) error {
	b := &r.Bundle
	paths := pathsOf(b.Charts, b.Deploy, b.Files, b.Manifests)
	for _, v := range b.Variants {
		paths = append(paths, pathsOf(v.Charts, v.Deploy, v.Files, v.Manifests)...)
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
	paths = append(paths, &r.Bundle.Trust.Root)
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

// clusterPaths returns the paths of a cluster file. Variants may share their lists, so each cluster first gets its own
// copies.
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
		c.Addons[i].Manifests = slices.Clone(c.Addons[i].Manifests)
		for k := range c.Addons[i].Manifests {
			paths = append(paths, &c.Addons[i].Manifests[k])
		}
	}
	return paths
}

// Join adds the content of another Result.
func (r *Result) Join(o Result) {
	f := &reader{Result: r, images: map[string]int{}, tags: map[string]int{}}
	for i, image := range r.Bundle.Images {
		if ref, err := image.Ref(); err == nil {
			tag, _, _ := strings.Cut(ref, "@")
			f.images[ref], f.tags[tag] = i, i
		}
	}
	b := &r.Bundle
	b.Metadata.Name, b.Metadata.Version = or(b.Metadata.Name, o.Bundle.Metadata.Name),
		or(b.Metadata.Version, o.Bundle.Metadata.Version)
	for _, p := range o.Bundle.Platforms {
		f.platform(0, p)
	}
	for _, d := range o.Bundle.Values { // before the items that name them
		if _, known := b.Values.Find(d.Name); !known {
			b.Values = append(b.Values, d)
		}
	}
	for _, image := range o.Bundle.Images {
		f.image(nil, image)
	}
	f.joinCharts(o.Bundle)
	b.Packages = append(b.Packages, o.Bundle.Packages...)
	b.Zone, b.PlatformPolicy = or(b.Zone, o.Bundle.Zone),
		manifest.PlatformPolicy(or(string(b.PlatformPolicy), string(o.Bundle.PlatformPolicy)))
	switch {
	case r.Inventory == nil:
		r.Inventory = o.Inventory
	case o.Inventory != nil:
		r.Notes = append(r.Notes, Note{Text: "a second inventory was left out: convert it into a directory of its own"})
	}
	for _, file := range o.Bundle.Files {
		f.addFile(nil, file)
	}
	for _, y := range o.Bundle.Manifests {
		f.addManifest(y)
	}
	f.joinParts(o.Bundle)
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

// joinParts adds the groups and variants of another Result.
func (f *reader) joinParts(o manifest.Bundle) {
	for name, g := range o.Groups {
		if f.Bundle.Groups == nil {
			f.Bundle.Groups = map[string]manifest.Group{}
		}
		if _, known := f.Bundle.Groups[name]; !known {
			f.Bundle.Groups[name] = g
		}
	}
	for name, v := range o.Variants {
		if f.Bundle.Variants == nil {
			f.Bundle.Variants = map[string]manifest.Variant{}
		}
		own := f.Bundle.Variants[name]
		own.Images, own.Charts = append(own.Images, v.Images...), append(own.Charts, v.Charts...)
		own.Files, own.Manifests = append(own.Files, v.Files...), append(own.Manifests, v.Manifests...)
		own.Deploy = append(own.Deploy, v.Deploy...)
		f.Bundle.Variants[name] = own
	}
	f.usedGroups()
}

// usedGroups forgets groups that no item has.
func (f *reader) usedGroups() {
	used := map[string]bool{}
	collect := func(images []manifest.Image, charts []manifest.Chart, files []manifest.File, yamls []manifest.YAML) {
		for _, x := range images {
			used[x.Group] = true
		}
		for _, x := range charts {
			used[x.Group] = true
		}
		for _, x := range files {
			used[x.Group] = true
		}
		for _, x := range yamls {
			used[x.Group] = true
		}
	}
	b := &f.Bundle
	collect(b.Images, b.Charts, b.Files, b.Manifests)
	for _, v := range b.Variants {
		collect(v.Images, v.Charts, v.Files, v.Manifests)
	}
	maps.DeleteFunc(b.Groups, func(name string, _ manifest.Group) bool { return !used[name] })
	if len(b.Groups) == 0 {
		b.Groups = nil
	}
}

// joinCharts adds the charts of another Result with their releases.
func (f *reader) joinCharts(o manifest.Bundle) {
	own := f.Bundle
	f.Bundle.Charts, f.Bundle.Deploy = nil, nil
	said := len(f.Notes)
	for _, b := range []manifest.Bundle{own, o} {
		f.Notes = f.Notes[:said] // those of own were noted before
		for _, chart := range b.Charts {
			releases := slices.DeleteFunc(slices.Clone(b.Deploy),
				func(a manifest.Addon) bool { return chart.Name == "" || a.Chart != chart.Name })
			if len(releases) == 0 {
				f.addChart(nil, chart, manifest.Addon{})
			}
			for _, release := range releases {
				chart.Values = release.Values
				f.addChart(nil, chart, release)
			}
		}
	}
}

// sameKind reports whether two clusters have the same version, network, runtime and registry. The first one is kept: a
// Cluster is more precise than a Manifest that lists the needs of a cluster.
func sameKind(a, b manifest.Cluster) bool {
	x, y := a.WithDefaults(), b.WithDefaults()
	return x.Kubernetes.Version == y.Kubernetes.Version && x.Kubernetes.Distribution == y.Kubernetes.Distribution &&
		x.CNI.Type == y.CNI.Type &&
		x.CRI.Type == y.CRI.Type && x.ImageRegistry.Type == y.ImageRegistry.Type
}
