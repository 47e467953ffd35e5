package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/convert"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

type convertOptions struct {
	dir, name, version string
	platforms          []string
	force, strict      bool
}

func newConvertCmd(g *globals) *cobra.Command {
	var o convertOptions
	cmd := &cobra.Command{
		Use:   "convert FILE...",
		Short: "Convert files of other tools to a manifest",
		Long: `Converts files of other tools for disconnected sites: KubeKey's Manifest and Cluster (v3), Config and Inventory (v4),
KKCluster of CAPKK, Hauler's Images, Charts and Files, a Zarf package definition, a list of images, or the lists of
Kubespray's generate_list.sh. Writes manifest.yaml, and cluster.yaml and inventory.yaml if a file describes a cluster
or hosts.

Several files become one manifest. Several versions of Kubernetes, networks, runtimes or registries become one cluster
file each. Passwords and keys are never written: a note names the environment variable to set.

Notes list keys that could not be carried over, and assumptions, with their place; with --strict they are an error,
and nothing is written. Existing files are not replaced without --force. Guide: docs/start/convert.md.`,
		Example: "  kkbundle convert config-sample.yaml inventory.yaml -o site\n  kkbundle convert manifest-sample.yaml -o site\n  kkbundle convert temp/files.list temp/images.list --name kubespray",
		Args:    takesSome("FILE"),
		RunE:    func(_ *cobra.Command, args []string) error { return runConvert(g, args, o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.dir, "output", "o", ".", "the directory to write to; created if missing")
	f.StringVar(&o.name, "name", "", "the bundle's name (default from the files, else the first file's name)")
	f.StringVar(&o.version, "version", "", "the bundle's version (default from the files, else 0.1.0)")
	f.StringSliceVar(&o.platforms, "platform", nil,
		"the platforms of the bundle (default from the files, else linux/amd64)")
	f.BoolVar(&o.force, "force", false, "replace existing files")
	f.BoolVar(&o.strict, "strict", false, "fail, and write nothing, if something cannot be carried over")
	return cmd
}

// convertResult is the JSON output of convert.
type convertResult struct {
	Version int            `json:"version"` // 1
	Formats []string       `json:"formats"`
	Files   []string       `json:"files"` // written
	Notes   []convert.Note `json:"notes"`
}

func runConvert(g *globals, files []string, o convertOptions) error {
	var r convert.Result
	copies := copiedManifests{dir: o.dir, from: map[string]string{}}
	for _, file := range files {
		if err := addConverted(&r, &copies, file, o.dir); err != nil {
			return err
		}
	}
	complete(&r, files[0], o)
	if o.strict && len(r.Notes) > 0 {
		for _, n := range r.Notes {
			g.Note("%s", plain.Line(n.String()))
		}
		return &builder.InputError{Err: fmt.Errorf(
			"not everything can be carried over (%s), and nothing was written; without --strict the rest is",
			plain.Count(len(r.Notes), "note"))}
	}
	out, err := convertedFiles(r, o.dir)
	if err != nil {
		return err
	}
	out = append(out, copies.files...)
	result := convertResult{Version: 1, Formats: r.Formats, Notes: r.Notes}
	for _, file := range files {
		if out.has(file) {
			return usage.Errorf("a result would replace %s: name another directory with -o", plain.Line(file))
		}
	}
	if err := writeConverted(out, o); err != nil {
		return err
	}
	result.Files = out.paths()
	if g.JSON {
		return g.PrintJSON(result)
	}
	for _, n := range r.Notes {
		g.Note("%s", plain.Line(n.String()))
	}
	counts := []string{
		plain.Count(len(r.Bundle.Images), "image"), plain.Count(len(r.Bundle.Charts), "chart"),
		plain.Count(len(r.Bundle.Files), "file"),
	}
	if n := len(r.Bundle.Variants); n > 0 { // these have more of each
		counts = append(counts, plain.Count(n, "variant"))
	}
	return g.Result("%s: %s, %s; wrote %s", plain.Line(strings.Join(r.Formats, ", ")), strings.Join(counts, ", "),
		plain.Count(len(r.Notes), "note"), plain.Line(strings.Join(result.Files, ", ")))
}

// addConverted reads a file. Its relative paths become relative to dir.
func addConverted(r *convert.Result, copies *copiedManifests, file, dir string) error {
	data, err := builder.ReadFile(file)
	if err != nil {
		return err
	}
	one, err := convert.Read(filepath.ToSlash(file), data)
	if err != nil {
		return &builder.InputError{Err: err}
	}
	if err := one.Move(func(path string) (string, error) {
		return relative(dir, filepath.Join(filepath.Dir(file), path))
	}); err != nil {
		return err
	}
	if err := copies.take(&one, filepath.ToSlash(file)); err != nil {
		return err
	}
	r.Join(one)
	return nil
}

// copiedManifests are files that lie outside of the written manifest's directory, where its manifests have no place:
// they are copied into it. Charts, values and other files are named where they are.
type copiedManifests struct {
	dir   string
	from  map[string]string // source by destination, both as paths
	files newFiles
}

// take replaces the patterns of a result that lead out of the directory, each by its copies' place.
func (c *copiedManifests) take(r *convert.Result, file string) error {
	errs := []error{c.takeAll(r, r.Bundle.Manifests, file)}
	for _, v := range r.Bundle.Variants {
		errs = append(errs, c.takeAll(r, v.Manifests, file))
	}
	return errors.Join(errs...)
}

func (c *copiedManifests) takeAll(r *convert.Result, list []manifest.YAML, file string) error {
	for i := range list {
		pattern := list[i].Path
		if !path.IsAbs(pattern) && !strings.HasPrefix(pattern, "..") {
			continue
		}
		source := filepath.Join(c.dir, filepath.FromSlash(pattern))
		if path.IsAbs(pattern) {
			source = filepath.FromSlash(pattern)
		}
		beside, err := relative(c.dir, source)
		if err != nil {
			return err
		}
		found, err := filepath.Glob(source)
		if err != nil {
			continue // the manifest's check names it
		}
		if list[i].Path = c.place(beside); len(found) == 0 {
			r.Notes = append(r.Notes, convert.Note{File: file, Text: fmt.Sprintf("%s is not there: put it into %s",
				source, filepath.Join(c.dir, list[i].Path))})
		}
		for _, name := range found {
			if err := c.add(r, file, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// place returns the path of a copy below the directory, apart from the files that convert writes.
func (c *copiedManifests) place(name string) string {
	name = path.Clean("/" + name)[1:]
	if name == "manifests" || strings.HasPrefix(name, "manifests/") {
		return name
	}
	return path.Join("manifests", name)
}

// add copies a file, or the files of a directory. Links and the written directory itself are left out.
func (c *copiedManifests) add(r *convert.Result, file, root string) error {
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if filepath.Clean(name) == filepath.Clean(c.dir) {
				return fs.SkipDir
			}
			return nil
		}
		beside, err := relative(c.dir, name)
		if err != nil {
			return err
		}
		to := c.place(beside)
		switch from, twice := c.from[to]; {
		case !entry.Type().IsRegular():
			r.Notes = append(r.Notes, convert.Note{File: file, Text: name +
				" is not a regular file and was not copied"})
			return nil
		case twice && from == name:
			return nil
		case twice:
			return &builder.InputError{Err: fmt.Errorf(
				"%s and %s would both be copied to %s: convert their files into directories of their own", from, name,
				filepath.Join(c.dir, to))}
		}
		c.from[to] = name
		c.files = append(c.files, newFile{path: filepath.Join(c.dir, filepath.FromSlash(to)), from: name})
		return nil
	})
}

// relative returns path relative to dir.
func relative(dir, path string) (string, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(from, to)
	return filepath.ToSlash(rel), err
}

// complete sets missing values.
func complete(r *convert.Result, first string, o convertOptions) {
	b := &r.Bundle
	b.APIVersion, b.Kind = manifest.APIVersion, manifest.KindBundle
	validMetadata(r, filepath.ToSlash(first))
	base := filepath.Base(first)
	b.Metadata.Name = cmp.Or(o.name, b.Metadata.Name, validName(strings.TrimSuffix(base, filepath.Ext(base))), "bundle")
	b.Metadata.Version = cmp.Or(o.version, b.Metadata.Version, "0.1.0")
	if len(o.platforms) > 0 {
		b.Platforms = o.platforms
	}
	if len(b.Platforms) == 0 {
		b.Platforms = []string{"linux/amd64"}
		r.Notes = append(r.Notes, convert.Note{
			File: filepath.ToSlash(first),
			Text: "no platform given; linux/amd64 assumed (--platform)",
		})
	}
	for i := range r.Clusters {
		if c := &r.Clusters[i]; c.Metadata.Name == "" {
			c.Metadata = manifest.Metadata{Name: b.Metadata.Name}
		}
	}
	if r.Inventory == nil && len(r.Clusters) == 0 && empty(b) {
		r.Notes = append(r.Notes, convert.Note{
			File: filepath.ToSlash(first),
			Text: "manifest.yaml has no content, and build refuses it: add images, charts, files, packages or a cluster",
		})
	}
	together(r, filepath.ToSlash(first))
	defaultRegistry(r, filepath.ToSlash(first))
	noteRefused(r, filepath.ToSlash(first))
}

// validMetadata replaces characters in the name and the version of other tools that a bundle's cannot have.
func validMetadata(r *convert.Result, file string) {
	note := func(what, from, to string) {
		if from != to {
			r.Notes = append(r.Notes, convert.Note{File: file, Text: fmt.Sprintf("the %s %s is written as %s: bundles have no such %s",
				what, document.Shorten(from), cmp.Or(to, "the default"), what)})
		}
	}
	m := &r.Bundle.Metadata
	name, version := m.Name, m.Version
	if !strings.Contains(name, "${") { // a value, which the build checks
		m.Name = validName(name)
	}
	if version != "" && !strings.Contains(version, "${") && !scalar.IsToken(version) {
		m.Version = strings.TrimLeft(hyphened(version, "._+-"), "._+-")
	}
	note("name", name, m.Name)
	note("version", version, m.Version)
}

// validName returns a text as a name in lower case, with hyphens for characters that a name cannot have; "" if nothing
// is left of it.
func validName(text string) string {
	if document.IsName(text, true) {
		return text
	}
	var labels []string
	for label := range strings.SplitSeq(hyphened(strings.ToLower(text), ".-"), ".") {
		if label = strings.Trim(label, "-"); label != "" {
			labels = append(labels, label)
		}
	}
	if name := strings.Join(labels, "."); document.IsName(name, true) {
		return name
	}
	return ""
}

// hyphened returns a text with hyphens for all but digits, letters without accents, and the given characters.
func hyphened(text, others string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', 'A' <= c && c <= 'Z', strings.ContainsRune(others, c):
			return c
		}
		return '-'
	}, text)
}

// defaultRegistry writes the default host of the registry into the inventory.
func defaultRegistry(r *convert.Result, file string) {
	if r.Inventory == nil || len(r.Clusters) == 0 {
		return
	}
	before := len(r.Inventory.Groups.Registry)
	r.Inventory = r.Inventory.WithDefaults(&r.Clusters[0])
	if hosts := r.Inventory.Groups.Registry; len(hosts) > before {
		r.Notes = append(r.Notes,
			convert.Note{File: file, Text: "the inventory has no group image_registry; the registry is installed on " +
				hosts[0]})
	}
}

// noteRefused notes what install refuses in the converted files, such as kube-vip with k3s, or an address of the cluster
// that is a host's.
func noteRefused(r *convert.Result, file string) {
	for i, c := range r.Clusters {
		name := "cluster.yaml"
		if i > 0 {
			name = "the cluster file of Kubernetes " + c.WithDefaults().Kubernetes.Version
		}
		note := func(of string, err error) {
			problems, _ := errors.AsType[document.Problems](err)
			for _, p := range problems {
				r.Notes = append(r.Notes, convert.Note{File: file, Text: "install refuses " + of + ": " + p.Message})
			}
		}
		note(name, c.CheckInstall())
		if r.Inventory == nil {
			continue
		}
		note("inventory.yaml with "+name, r.Inventory.Check(&c))
		if c.Storage.NFS && len(r.Inventory.Groups.NFS) != 1 {
			r.Notes = append(r.Notes, convert.Note{File: file, Text: "install refuses inventory.yaml with " + name +
				": groups.nfs: storage.nfs is for one NFS server; name one host, or leave storage.nfs out"})
		}
	}
}

// together removes clusters with incompatible versions unless no other cluster is left. Each is a note.
func together(r *convert.Result, file string) {
	var good []manifest.Cluster
	for _, c := range r.Clusters {
		d := c.WithDefaults()
		_, err := catalog.Resolve(d, plan.Needed(d), catalog.Options{
			Platforms: r.Bundle.Platforms,
			Zone:      r.Bundle.Zone,
		})
		if err == nil {
			good = append(good, c)
			continue
		}
		causes := strings.Split(err.Error(), "\n")
		text := fmt.Sprintf("the cluster of Kubernetes %s with %s, %s and the registry %s does not go together: %s",
			d.Kubernetes.Version, d.CNI.Type, d.CRI.Type, d.ImageRegistry.Type, causes[0])
		if more := len(causes) - 1; more > 0 {
			text += fmt.Sprintf(" (and %s)", plain.Count(more, "further cause"))
		}
		r.Notes = append(r.Notes, convert.Note{File: file, Text: text})
	}
	if len(good) > 0 {
		r.Clusters = good
	}
}

// convertedFiles returns the files to write. It parses each, so that no invalid file is written.
func convertedFiles(r convert.Result, dir string) (newFiles, error) {
	var out newFiles
	for i, cluster := range r.Clusters {
		name := clusterFile(cluster, r.Clusters[0], r.Bundle.ClusterFiles())
		if i == 0 {
			r.Bundle.Cluster = name
		} else {
			r.Bundle.Clusters = append(r.Bundle.Clusters, name)
		}
		data, err := written(&cluster, r.Formats)
		if err == nil {
			_, err = manifest.ParseCluster(name, data)
		}
		if err != nil {
			return nil, refusedConversion(err)
		}
		out = append(out, newFile{path: filepath.Join(dir, name), data: data})
	}
	if r.Inventory != nil {
		data, err := written(r.Inventory, r.Formats)
		if err == nil {
			_, err = manifest.ParseInventory("inventory.yaml", data)
		}
		if err != nil {
			return nil, refusedConversion(err)
		}
		out = append(out, newFile{path: filepath.Join(dir, "inventory.yaml"), data: data})
		if empty(&r.Bundle) {
			return out, nil
		}
	}
	data, err := written(&r.Bundle, r.Formats)
	if err == nil {
		_, err = manifest.ParseBundle("manifest.yaml", data)
	}
	if err != nil {
		return nil, refusedConversion(err)
	}
	return append(out, newFile{path: filepath.Join(dir, "manifest.yaml"), data: data}), nil
}

// empty reports whether a manifest would have no items.
func empty(b *manifest.Bundle) bool {
	for _, v := range b.Variants {
		if len(v.Images)+len(v.Charts)+len(v.Files)+len(v.Manifests) > 0 {
			return false
		}
	}
	return len(b.ClusterFiles())+len(b.Images)+len(b.Charts)+len(b.Files)+len(b.Manifests)+len(b.Packages) == 0
}

// clusterFile returns a unique name: cluster.yaml for the first cluster, with the differences for others.
func clusterFile(c, first manifest.Cluster, taken []string) string {
	a, b := c.WithDefaults(), first.WithDefaults()
	name := "cluster"
	for _, part := range [][2]string{
		{a.Kubernetes.Version, b.Kubernetes.Version},
		{string(a.CNI.Type), string(b.CNI.Type)},
		{string(a.CNI.With), string(b.CNI.With)},
		{string(a.CRI.Type), string(b.CRI.Type)},
		{string(a.ImageRegistry.Type), string(b.ImageRegistry.Type)},
	} {
		if part[0] != part[1] && part[0] != "" {
			name += "-" + part[0]
		}
	}
	if slices.Contains(taken, name+".yaml") {
		name = fmt.Sprintf("%s-%d", name, len(taken)+1)
	}
	return name + ".yaml"
}

// refusedConversion returns the error of files that are not written: places in them would lead nowhere.
func refusedConversion(err error) error {
	if problems, ok := errors.AsType[document.Problems](err); ok {
		problems = slices.Clone(problems)
		for i := range problems {
			problems[i].Line, problems[i].Column = 0, 0
		}
		err = problems
	}
	return &builder.InputError{Err: fmt.Errorf("the files do not make a valid manifest; nothing was written:\n%w", err)}
}

func written(v any, formats []string) ([]byte, error) {
	return commentedYAML("Converted from: "+strings.Join(formats, ", ")+".", v)
}

// commentedYAML renders a file that begins with a comment of one line.
func commentedYAML(comment string, v any) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", comment)
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(v), e.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// writeConverted writes all files, or without --force none if one exists.
func writeConverted(files newFiles, o convertOptions) error {
	if taken := files.taken(); len(taken) > 0 && !o.force {
		return &builder.InputError{Err: fmt.Errorf(
			"%s exists: name another directory with -o, or replace it with --force", taken[0])}
	}
	return files.write()
}
