package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/settingcheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

func newCheckCmd(g *globals) *cobra.Command {
	var v valueFlags
	var cache string
	cmd := &cobra.Command{
		Use:   "check [DIR|FILE...]",
		Short: "Check manifests, cluster files and inventories together, without network",
		Long: `Checks all files of kkbundle and KubeKey in a directory, the current one by default, or the named files: each by
itself, and all together. The catalog must know the clusters' versions, hosts must fit the cluster, named files must
exist, and a lock must match its manifest. Connects to nothing, and lists all errors. Other YAML files are named and
skipped.

Kubernetes' own programs are asked whether they take a cluster file's arguments, feature gates and kubelet
configuration, if a lock beside the manifest has them and an earlier build left them in the cache.`,
		Example: "  kkbundle check\n  kkbundle check site\n  kkbundle check manifest.yaml inventory.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			files, skipped, err := filesToCheck(args)
			if err != nil {
				return err
			}
			o, err := v.options()
			if err != nil {
				return err
			}
			dir, err := cacheDir(cache)
			if err != nil {
				dir = "" // the check goes without
			}
			list, refused, err := g.checkFiles(cmd.Context(), files, dir, o)
			if err != nil {
				return err
			}
			if g.JSON {
				return g.PrintJSON(filesResult{Version: 1, Files: list, Skipped: skipped})
			}
			if len(skipped) > 0 {
				g.Note("note: not checked, for their apiVersion and kind are not kkbundle's: %s",
					plain.Line(strings.Join(skipped, ", ")))
			}
			for _, f := range list {
				g.Note("%s: %s", f.File, f.Kind)
			}
			if refused {
				g.Note("%s, valid, but install refuses the settings above", plain.Count(len(list), "file"))
				return nil
			}
			g.Note("%s, nothing wrong", plain.Count(len(list), "file"))
			return nil
		},
	}
	v.add(cmd.Flags())
	cmd.Flags().StringVar(&cache, "cache", "",
		"directory of earlier builds' downloads (default $KKBUNDLE_CACHE, else the user's cache directory)")
	return cmd
}

// filesResult is the JSON output of check.
type filesResult struct {
	Version int           `json:"version"` // 1
	Files   []checkedFile `json:"files"`
	// Skipped are other YAML files in named directories.
	Skipped []string `json:"skipped,omitempty"`
}

// A checkedFile is a file and its kind; files of KubeKey have theirs.
type checkedFile struct {
	File string `json:"file"`
	Kind string `json:"kind"`

	api   string
	meant string // the kind of kkbundle's that a file without its apiVersion looks like, "" for none
}

var (
	apiGrammar  = regexp.MustCompile(`(?m)^apiVersion:[ \t]*["']?([^\s"'#]+)`)
	kindGrammar = regexp.MustCompile(`(?m)^kind:[ \t]*["']?([^\s"'#]+)`)
)

// filesToCheck returns named files, and of named directories the files of kkbundle and KubeKey, with those that may
// be meant to be one. skipped are the other YAML files there.
func filesToCheck(args []string) (files, skipped []string, err error) {
	if len(args) == 0 {
		args = []string{"."}
	}
	for _, arg := range args {
		if info, err := os.Stat(arg); err != nil || !info.IsDir() {
			files = append(files, arg)
			continue
		}
		ours, others, err := yamlFiles(arg)
		if err != nil {
			return nil, nil, err
		}
		if len(ours) == 0 {
			return nil, nil, &builder.InputError{Err: fmt.Errorf(
				"%s has no file of kkbundle: write some with kkbundle init", arg)}
		}
		files, skipped = append(files, ours...), append(skipped, others...)
	}
	return files, skipped, nil
}

// yamlFiles returns the YAML files in a directory: those of kkbundle and KubeKey, with those that may be meant to be
// one, and the others.
func yamlFiles(dir string) (ours, others []string, err error) {
	all, err := readYAML(dir)
	for _, f := range all {
		if f.Kind != "" || f.meant != "" || strings.HasPrefix(f.api, "kkbundle.io/") {
			ours = append(ours, f.File)
		} else {
			others = append(others, f.File)
		}
	}
	return ours, others, err
}

// ourFiles returns the files of kkbundle and KubeKey of one kind in a directory.
func ourFiles(dir, kind string) (files []string, err error) {
	all, err := readYAML(dir)
	for _, f := range all {
		if f.Kind == kind {
			files = append(files, f.File)
		}
	}
	return files, err
}

// readYAML returns the YAML files in a directory.
func readYAML(dir string) (files []checkedFile, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.Type().IsRegular() || !usage.IsYAML(path) {
			continue
		}
		data, err := builder.ReadFile(path)
		if err != nil {
			continue
		}
		files = append(files, fileKind(path, data))
	}
	return files, nil
}

// fileKind returns the kind that a file says it has, "" if it is not for kkbundle.
func fileKind(path string, data []byte) checkedFile {
	data = document.UTF8(data)
	f := checkedFile{File: path}
	if m := apiGrammar.FindSubmatch(data); m != nil {
		f.api = string(m[1])
	}
	kind := ""
	if m := kindGrammar.FindSubmatch(data); m != nil {
		kind = string(m[1])
	}
	if f.api == "" { // JSON, or keys in quotes
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
		}
		_ = yaml.Unmarshal(data, &head) // of a file of another form, nothing is known
		f.api, kind = head.APIVersion, cmp.Or(head.Kind, kind)
	}
	if strings.HasPrefix(f.api, "kkbundle.io/") || strings.HasPrefix(f.api, "kubekey.kubesphere.io/") ||
		bytes.Contains(data, []byte("kind: KKCluster")) {
		f.Kind = kind
		return f
	}
	f.meant = meantKind(f.api, kind, data)
	return f
}

var (
	inventoryGrammar = regexp.MustCompile(`(?m)^hosts:(?s:.*)^groups:|^groups:(?s:.*)^hosts:`)
	bundleGrammar    = regexp.MustCompile(`(?m)^platforms:(?s:.*)^(images|charts|files|cluster|packages):`)
)

// meantKind returns the kind that a file without kkbundle's apiVersion may be meant to have: by its own word, with no
// apiVersion or a misspelled one, or by its keys.
func meantKind(api, kind string, data []byte) string {
	const typos = 4
	switch misspelled := plain.Distance(api, manifest.APIVersion, typos) < typos; {
	case api != "" && !misspelled:
		return ""
	case slices.Contains(manifest.Kinds(), kind):
		return kind
	case kind != "" && !misspelled:
		return ""
	case inventoryGrammar.Match(data):
		return manifest.KindInventory
	case bundleGrammar.Match(data):
		return manifest.KindBundle
	}
	return ""
}

// A fileChecker collects the problems of files that belong together.
type fileChecker struct {
	g           *globals
	said        map[string]bool // problems
	errs        []error
	manifests   []checkedFile
	clusters    map[string]*manifest.Cluster // by path; nil if it is wrong
	inventories map[string]*manifest.Inventory
	refused     bool   // install refuses a setting
	cache       string // directory of downloads, "" for none
	values      builder.LoadOptions
	sets        map[string]*values.Set // of the manifest that names a cluster file, by path
	included    map[string]bool        // files that are checked as a part of a manifest, by path
}

// checkFiles checks files, each by itself and all together, and reports whether install refuses valid settings. The
// error joins all problems. cache is the directory of earlier downloads.
func (g *globals) checkFiles(ctx context.Context, files []string, cache string,
	o builder.LoadOptions,
) (list []checkedFile, refused bool, err error) {
	c := &fileChecker{
		g: g, said: map[string]bool{}, clusters: map[string]*manifest.Cluster{},
		inventories: map[string]*manifest.Inventory{}, values: o, sets: map[string]*values.Set{},
		cache: cache, included: map[string]bool{},
	}
	c.findSets(files)
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		data, err := builder.ReadFile(file)
		if err != nil {
			c.add(err)
			continue
		}
		f := fileKind(file, data)
		list = append(list, f)
		if !c.included[filepath.Clean(file)] {
			c.file(f, data)
		}
	}
	for _, f := range c.manifests {
		c.project(ctx, f.File)
	}
	c.fit()
	c.noteUnasked()
	for _, k := range c.clusters {
		c.refused = c.refused || k != nil && k.CheckInstall() != nil
	}
	return list, c.refused, errors.Join(c.errs...)
}

// findSets reads the values of the manifests, for the cluster files that these name, and finds the files that they
// include.
func (c *fileChecker) findSets(files []string) {
	sets := map[string]map[string]*values.Set{} // by manifest and cluster file
	includes := map[string][]string{}           // by manifest
	for _, file := range files {
		data, err := builder.ReadFile(file)
		if err != nil || fileKind(file, data).Kind != manifest.KindBundle {
			continue
		}
		_ = c.variants(file, data, func(o builder.LoadOptions) error { // said when the manifest is checked
			b, err := builder.ReadManifest(file, data, o)
			if err != nil { // its cluster files are checked with examples
				b, _ = builder.SampleManifest(file, data)
			}
			for _, in := range b.Included {
				includes[filepath.Clean(file)] = append(includes[filepath.Clean(file)],
					filepath.Join(filepath.Dir(file), in.Path))
			}
			for _, name := range b.ClusterFiles() {
				if sets[file] == nil {
					sets[file] = map[string]*values.Set{}
				}
				sets[file][filepath.Join(filepath.Dir(file), name)] = b.Set
			}
			return nil
		})
	}
	all := slices.Concat(slices.Collect(maps.Values(includes))...)
	for file, parts := range includes {
		if !slices.Contains(all, file) { // files that include each other are checked alone, which says so
			for _, part := range parts {
				c.included[part] = true
			}
		}
	}
	for _, file := range files {
		if !c.included[filepath.Clean(file)] {
			maps.Copy(c.sets, sets[file])
		}
	}
}

// variants calls check for each variant of a manifest, or once for a manifest without variants. The error names the
// variants that it is of.
func (c *fileChecker) variants(file string, data []byte, check func(o builder.LoadOptions) error) error {
	names, err := builder.VariantNames(file, data)
	if err != nil || len(names) == 0 {
		return check(c.values)
	}
	var errs []error
	for _, name := range names {
		o := c.values
		o.Variant = name
		errs = append(errs, check(o))
	}
	return builder.OfVariants(names, errs)
}

// add adds an error without the lines that were said before.
func (c *fileChecker) add(err error) {
	if err == nil {
		return
	}
	var lines []string
	all := strings.Split(err.Error(), "\n")
	for _, line := range all {
		if !c.said[line] {
			c.said[line] = true
			lines = append(lines, line)
		}
	}
	switch {
	case len(lines) == len(all):
		c.errs = append(c.errs, err)
	case len(lines) > 0:
		c.errs = append(c.errs, &builder.InputError{Err: errors.New(strings.Join(lines, "\n"))})
	}
}

// file checks a file by itself.
func (c *fileChecker) file(f checkedFile, data []byte) {
	foreign := !strings.HasPrefix(f.api, "kkbundle.io/")
	var err error
	switch {
	case f.Kind == manifest.KindBundle:
		c.manifests = append(c.manifests, f)
		err = c.variants(f.File, data, func(o builder.LoadOptions) error {
			b, err := builder.ReadManifest(f.File, data, o)
			return errors.Join(err, builder.CheckFiles(f.File, b))
		})
	case f.Kind == manifest.KindLock:
		_, err = manifest.ParseLock(f.File, data)
	case f.Kind == manifest.KindCatalog:
		_, err = manifest.ParseCatalog(f.File, data)
	case f.Kind == manifest.KindTrust:
		_, err = manifest.ParseTrust(f.File, data)
	case f.Kind == manifest.KindPrecheckRules:
		_, err = manifest.ParsePrecheckRules(f.File, data, precheck.IDs())
	case f.Kind == "Config" || f.Kind == manifest.KindCluster && !foreign:
		err = c.cluster(f.File)
	case f.Kind == manifest.KindInventory:
		c.inventories[f.File], err = site.ReadInventory(c.g.Console, f.File)
	case f.Kind == manifest.KindCluster || f.Kind == "KKCluster": // hosts and cluster in one
		err = c.cluster(f.File)
		c.add(err)
		c.inventories[f.File], err = site.ReadInventory(c.g.Console, f.File)
	case f.meant != "":
		err = &builder.InputError{Err: fmt.Errorf(
			"%s was not read: it looks like kkbundle's %s, and its apiVersion is %s; write apiVersion: %s and kind: %s",
			f.File, f.meant, cmp.Or(f.api, "missing"), manifest.APIVersion, f.meant)}
	default:
		if program := manifest.Convertible(data); program != "" {
			err = &builder.InputError{Err: fmt.Errorf(
				"%s is a file of %s: kkbundle convert %s makes files of kkbundle from it", f.File, program, f.File)}
			break
		}
		known := strings.Join(manifest.Kinds(), ", ")
		err = &builder.InputError{Err: fmt.Errorf("%s is no file of kkbundle (%s)", f.File, known)}
		if !foreign && f.Kind != "" {
			err = &builder.InputError{Err: fmt.Errorf("%s: kind: kkbundle has no %q: write one of %s", f.File, f.Kind, known)}
		}
	}
	c.add(err)
}

// cluster checks a cluster file.
func (c *fileChecker) cluster(file string) error {
	k, assumptions, err := c.g.checkCluster(c.sets[filepath.Clean(file)], file, nil)
	c.clusters[file] = k
	c.assumed(assumptions)
	return err
}

// assumed prints assumptions, each once: a manifest has those of its cluster file.
func (c *fileChecker) assumed(lines []string) {
	for _, line := range lines {
		if !c.said[line] {
			c.said[line] = true
			c.g.assumed([]string{line})
		}
	}
}

// project checks a manifest with everything it names, and its lock.
func (c *fileChecker) project(ctx context.Context, file string) {
	family, err := builder.LoadFamily(file, c.values)
	if err != nil {
		c.add(err)
		return
	}
	var names []string
	var stale []error
	for _, p := range family.Projects {
		names, stale = append(names, p.Variant), append(stale, c.one(file, p))
	}
	c.add(builder.OfVariants(names, stale))
	for _, p := range family.Projects {
		c.askPrograms(ctx, p)
	}
}

// one checks a bundle of a manifest with everything it names. The error is that of its lock.
func (c *fileChecker) one(file string, p *builder.Project) error {
	c.assumed(p.Assumptions)
	c.g.noteIdleCharts(p)
	for _, name := range p.Manifest.ClusterFiles() {
		path := filepath.Join(filepath.Dir(file), name)
		if _, known := c.clusters[path]; known {
			continue
		}
		k, err := site.ReadClusterWith(c.g.Console, p.Manifest.Set, path, nil)
		c.add(err)
		if c.clusters[path] = k; k != nil {
			c.g.noteGaps(k.CheckInstall())
		}
	}
	lock, err := p.Lock()
	if err == nil && lock != nil {
		if err = lock.Covers(p.Manifest); err != nil {
			err = fmt.Errorf("%s: %w", builder.LockFile(file), err)
		}
	}
	return err
}

// askPrograms asks Kubernetes' programs whether they take the settings of a manifest's cluster files, and says in one
// line why some were not asked.
func (c *fileChecker) askPrograms(ctx context.Context, p *builder.Project) {
	unasked, err := p.AskPrograms(ctx, c.cache)
	c.add(err)
	if unasked != "" {
		c.g.Note("note: %s: Kubernetes' programs were not asked whether they take the cluster's settings: %s",
			plain.Line(p.File), plain.Line(unasked))
	}
}

// noteUnasked names cluster files with settings for Kubernetes' programs that no checked manifest names.
func (c *fileChecker) noteUnasked() {
	for _, file := range slices.Sorted(maps.Keys(c.clusters)) {
		k := c.clusters[file]
		if _, named := c.sets[filepath.Clean(file)]; named || k == nil || len(settingcheck.Programs(k.WithDefaults())) == 0 {
			continue
		}
		c.g.Note("note: %s: Kubernetes' programs were not asked whether they take the cluster's settings: no checked manifest names this file",
			plain.Line(file))
	}
}

// fit checks inventories with the cluster, if it is clear which.
func (c *fileChecker) fit() {
	file := ""
	for _, f := range c.manifests {
		if data, err := builder.ReadFile(f.File); err == nil {
			if b, _ := builder.ReadManifest(f.File, data, c.values); b.Cluster != "" { // its problems were said
				file = filepath.Join(filepath.Dir(f.File), b.Cluster)
			}
		}
	}
	if _, known := c.clusters[file]; !known {
		file = ""
		for name := range c.clusters {
			file = name
		}
		if len(c.clusters) > 1 && len(c.inventories) > 0 {
			c.g.Note("note: %d cluster files and no manifest that names one as its cluster: inventories were not checked with them", len(c.clusters))
			return
		}
	}
	k := c.clusters[file]
	if k == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.inventories)) {
		if inv := c.inventories[name]; inv != nil {
			gaps := inv.CheckInstall()
			c.refused = c.refused || gaps != nil
			c.g.noteGaps(gaps)
			c.add(fit(inv, k))
		}
	}
}

// checkCluster reads a cluster file and checks its versions against the catalog, whose assumptions are returned.
func (g *globals) checkCluster(set *values.Set, file string,
	settings []string,
) (c *manifest.Cluster, assumptions []string, err error) {
	if c, err = site.ReadClusterWith(g.Console, set, file, settings); err != nil {
		return nil, nil, err
	}
	g.noteGaps(c.CheckInstall())
	d := c.WithDefaults()
	var errs []error
	if d.Catalogs, err = builder.ReadCatalogs(c, builder.ReadFile, filepath.Dir(file)); err != nil {
		return nil, nil, err
	}
	for _, name := range c.CarriedFiles() {
		if _, err := builder.ReadFile(filepath.Join(filepath.Dir(file), name)); err != nil {
			errs = append(errs, fmt.Errorf("%s names %s: %w", file, name, err))
		}
	}
	more, err := builder.CheckVersions(file, d, catalog.Options{Platforms: exampleStarter().Platforms})
	return c, more.Notes, errors.Join(append(errs, err)...)
}

// noteIdleCharts names charts that travel in the bundle, and that install will not install.
func (g *globals) noteIdleCharts(p *builder.Project) {
	for _, name := range p.IdleCharts() {
		g.Note("note: chart %s travels in the bundle and nothing installs it; addons in %s would", plain.Line(name),
			plain.Line(p.Manifest.ClusterFiles()[0]))
	}
}
