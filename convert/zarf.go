package convert

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// zarf reads a package definition of Zarf (schema v1alpha1; keys renamed in v1beta1 are noted).
func (f *reader) zarf(o *object) {
	f.zarfTemplates(o.node)
	metadata := o.mapping("metadata")
	f.metadata(metadata)
	f.platform(metadata.text("architecture"))
	metadata.skip("uncompressed", "yolo", "aggregateChecksum", "allowNamespaceOverride")
	metadata.rest()
	o.skip("build", "documentation")
	constants := o.objects("constants")
	f.zarfVariables(o.objects("variables"), "VAR", "at: site, ")
	f.zarfVariables(constants, "CONST", "")
	defer f.zarfConstants(constants)
	o.drop("values", "write values files for charts")
	f.zarfComponents(o.objects("components"))
}

// zarfComponents reads the components of all packages, and for each flavor those of its variant.
func (f *reader) zarfComponents(list []*object) {
	var flavors []string
	of := map[string][]*object{}
	for _, c := range list {
		flavor := c.mapping("only").text("flavor")
		if flavor == "" {
			f.zarfComponent(c)
			continue
		}
		if !document.IsName(flavor, false) {
			f.note(c.node, "flavor %s was not carried over, its content is always included: a variant has a name of lower case letters, digits and hyphens", shorten(flavor))
			f.zarfComponent(c)
			continue
		}
		if of[flavor] == nil {
			flavors = append(flavors, flavor)
		}
		of[flavor] = append(of[flavor], c)
	}
	for _, flavor := range flavors {
		f.zarfFlavor(flavor, of[flavor])
	}
	f.usedGroups()
}

// zarfFlavor makes a variant of the components of a flavor. What every package has is not in it.
func (f *reader) zarfFlavor(flavor string, list []*object) {
	all := *f
	base := f.Bundle
	f.images, f.tags, f.releases = nil, nil, nil
	f.Bundle.Images, f.Bundle.Charts, f.Bundle.Deploy, f.Bundle.Files, f.Bundle.Manifests = nil, nil, nil, nil, nil
	for _, c := range list {
		f.zarfComponent(c)
	}
	own := f.Bundle
	f.images, f.tags, f.releases = all.images, all.tags, all.releases
	f.Bundle.Images, f.Bundle.Charts, f.Bundle.Deploy, f.Bundle.Files, f.Bundle.Manifests = base.Images, base.Charts,
		base.Deploy, base.Files, base.Manifests
	if f.Bundle.Variants == nil {
		f.Bundle.Variants = map[string]manifest.Variant{}
	}
	f.Bundle.Variants[flavor] = manifest.Variant{
		Images: f.imagesOfFlavor(own.Images, base.Images),
		Charts: own.Charts, Deploy: own.Deploy, Files: own.Files,
		Manifests: slices.DeleteFunc(own.Manifests, func(y manifest.YAML) bool {
			return slices.ContainsFunc(base.Manifests, func(o manifest.YAML) bool {
				return o.Path == y.Path && o.Group == ""
			})
		}),
	}
	f.replacedByFlavor(flavor, &own, &base)
}

// imagesOfFlavor leaves out images that every package has for all platforms. Others are for the platforms and groups of
// both.
func (f *reader) imagesOfFlavor(own, base []manifest.Image) (list []manifest.Image) {
	for _, i := range own {
		at := slices.IndexFunc(base, func(o manifest.Image) bool { return o.Name == i.Name })
		if at >= 0 && base[at].Group == "" && len(base[at].Platforms) == 0 {
			continue
		}
		if at >= 0 {
			f.imageAgain(0, &i, base[at])
		}
		list = append(list, i)
	}
	return list
}

// replacedByFlavor says which items of all packages a flavor's own replace.
func (f *reader) replacedByFlavor(flavor string, own, base *manifest.Bundle) {
	for _, c := range own.Charts {
		if c.Name != "" && slices.ContainsFunc(base.Charts, func(o manifest.Chart) bool { return o.Name == c.Name }) {
			f.noteAt(0, "chart %s of flavor %s takes the place of the one without a flavor", shorten(c.Name), shorten(flavor))
		}
	}
	for _, x := range own.Files {
		if slices.ContainsFunc(base.Files, func(o manifest.File) bool { return o.Name == x.Name }) {
			f.noteAt(0, "file %s of flavor %s takes the place of the one without a flavor; rename it to have both",
				shorten(x.Name), shorten(flavor))
		}
	}
	for _, d := range own.Deploy {
		if slices.ContainsFunc(base.Deploy, func(o manifest.Addon) bool {
			return o.Namespace == d.Namespace && o.Release == d.Release
		}) {
			f.noteAt(0, "release %s of flavor %s takes the place of the one without a flavor", shorten(d.Release), shorten(flavor))
		}
	}
}

// zarfTemplate is a constant of Zarf's, or a variable that is given when a package is created.
var zarfTemplate = regexp.MustCompile(`###ZARF_(?:PKG_TMPL|CONST)_([A-Z0-9_]+)###`)

// zarfTemplates makes a value of each of these that the definition itself names. Another ${ is that text.
func (f *reader) zarfTemplates(n *yaml.Node) {
	var texts []*yaml.Node
	found := false
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if f.left--; n == nil || f.left < 0 || n.Kind == yaml.AliasNode {
			return
		}
		if n.Kind == yaml.ScalarNode {
			texts = append(texts, n)
			found = found || zarfTemplate.MatchString(n.Value)
		}
		for _, one := range n.Content {
			walk(one)
		}
	}
	if walk(n); !found {
		return
	}
	for _, one := range texts {
		text := strings.ReplaceAll(one.Value, "${", "$${")
		for _, m := range zarfTemplate.FindAllStringSubmatch(text, -1) {
			name := strings.TrimLeft(m[1], "_0123456789")
			if name == "" {
				continue
			}
			if _, known := f.Bundle.Values.Find(name); !known {
				f.Bundle.Values = append(f.Bundle.Values, values.Definition{Name: name, Required: true})
			}
			text = strings.ReplaceAll(text, m[0], "${"+name+"}")
		}
		one.Value = text
	}
}

// zarfConstants gives the values that constants have as defaults, notes those that nobody has given, and forgets those
// that nothing names: they were in parts that were not carried over.
func (f *reader) zarfConstants(constants []*object) {
	known := map[string]string{}
	for _, c := range constants {
		known[c.text("name")] = c.text("value")
	}
	text, err := yaml.Marshal(f.Bundle)
	f.Bundle.Values = slices.DeleteFunc(f.Bundle.Values, func(d values.Definition) bool {
		return err != nil || !strings.Contains(string(text), "${"+d.Name+"}")
	})
	for i := range f.Bundle.Values {
		d := &f.Bundle.Values[i]
		if value := known[d.Name]; value != "" {
			byDefault := document.Scalar(value)
			d.Default, d.Required = &byDefault, false
			continue
		}
		f.noteAt(0, "value %s: give it to lock and build with --set %s=…, or write a default", d.Name, d.Name)
	}
}

// zarfVariables notes variables and constants of files that Zarf replaces in charts and manifests: the files have to
// name values instead.
func (f *reader) zarfVariables(list []*object, kind, at string) {
	for _, v := range list {
		name := v.text("name")
		entry := at
		if byDefault := v.text("default"); byDefault != "" {
			entry += "default: " + strconv.Quote(byDefault) + ", "
		}
		if value := v.text("value"); value != "" {
			entry += "default: " + strconv.Quote(value) + ", "
		}
		if v.yes("sensitive") {
			entry = "at: site, secret: true, "
		}
		f.note(v.node, "###ZARF_%s_%s### in files was not carried over: write values: {%s: {%s}}, ${%s} in the files, and # kkbundle: values at their top (docs/build/values.md)",
			kind, shorten(name), shorten(name), shorten(strings.TrimSuffix(entry, ", ")), shorten(name))
		v.skip("description", "prompt", "autoIndent", "pattern", "type")
		v.rest()
	}
}

// zarfComponent reads the content that a component carries. Its deployment does not concern the bundle.
func (f *reader) zarfComponent(c *object) {
	f.group = f.zarfGroup(c)
	defer func() { f.group = "" }()
	c.skip("group", "healthChecks")
	var platforms []string
	only := c.mapping("only")
	cluster := only.mapping("cluster")
	if arch := cluster.text("architecture"); arch != "" {
		platforms = []string{"linux/" + arch}
		f.platform(arch)
	}
	cluster.skip("distros")
	only.drop("localOS", "files for one system are included for every system")
	only.skip("flavor")
	only.rest()
	for _, n := range c.list("images") {
		f.zarfImage(n, platforms)
	}
	for _, chart := range c.objects("charts") {
		f.zarfChart(chart)
	}
	for _, m := range c.objects("manifests") {
		f.zarfManifests(m)
	}
	for _, file := range c.objects("files") {
		f.zarfFile(file)
	}
	c.drop("repos", "kkbundle carries no git repositories; pack them as files")
	c.drop("imageTars", "push the images to a registry, or unpack the archive and name its directory under sources")
	c.drop("imageArchives", "push the images to a registry, or unpack the archive and name its directory under sources")
	c.drop("dataInjections", "carry the data as files")
	c.drop("actions", "kkbundle runs no commands of a package; hooks of install run the operator's own scripts")
	c.drop("scripts", "kkbundle runs no commands of a package; hooks of install run the operator's own scripts")
	c.drop("import", "convert the imported package by itself")
	c.rest()
}

// zarfGroup returns the group of a component that a site of Zarf's decides about, "" for one that all have.
func (f *reader) zarfGroup(c *object) string {
	name, about, on := c.text("name"), c.text("description"), c.yes("default")
	if c.yes("required") {
		return ""
	}
	if !document.IsName(name, false) {
		f.note(c.node, "component %s is optional in Zarf; in the bundle it is included: a group has a name of lower case letters, digits and hyphens", shorten(name))
		return ""
	}
	if f.Bundle.Groups == nil {
		f.Bundle.Groups = map[string]manifest.Group{}
	}
	f.Bundle.Groups[name] = manifest.Group{Description: about, Optional: !on}
	return name
}

func (f *reader) zarfImage(n *yaml.Node, platforms []string) {
	name := n.Value
	if n.Kind == yaml.MappingNode { // v1beta1
		o := f.object(n, "images")
		name = o.text("name")
		o.skip("source")
		o.rest()
	}
	if strings.Contains(name, "###ZARF") {
		f.note(n, "image %s was left out: it has a variable", shorten(name))
		return
	}
	f.image(n, manifest.Image{Name: name, Platforms: platforms, Group: f.group})
}

func (f *reader) zarfChart(o *object) {
	name, version, url, local := o.text("name"), o.text("version"), o.text("url"), o.text("localPath")
	if inRepo := o.text("repoName"); inRepo != "" {
		name = inRepo
	}
	git := o.text("gitPath")
	var values []string
	for _, v := range o.texts("valuesFiles") {
		if isURL(v) {
			f.note(o.node, "the values of chart %s at %s were not carried over: save them beside the manifest",
				shorten(name), shorten(v))
			continue
		}
		values = append(values, v)
	}
	release := manifest.Addon{Release: o.text("releaseName"), Namespace: o.text("namespace")}
	o.skip("noWait", "schemaValidation", "serverSideApply")
	o.drop("variables", "write values files")
	o.drop("values", "write values files")
	o.rest()
	switch {
	case local != "":
		f.addChart(o.node, manifest.Chart{Path: local, Values: values, Group: f.group}, release)
	case git != "" || strings.HasSuffix(url, ".git") || strings.Contains(url, ".git@"):
		f.note(o.node, "the chart %s was left out: it lies in a git repository; clone it and name its directory with path", shorten(name))
	case url == "":
		f.note(o.node, "the chart %s was left out: it has neither url nor localPath", shorten(name))
	case strings.HasPrefix(url, "oci://"):
		chart := f.repoChart(o.node, "", url, version)
		chart.Values, chart.Group = values, f.group
		f.addChart(o.node, chart, release)
	default:
		f.addChart(o.node, manifest.Chart{
			Name: name, Repo: url, Version: version, Values: values, Group: f.group,
		}, release)
	}
}

func (f *reader) zarfManifests(o *object) {
	for _, one := range o.texts("files") {
		if !isURL(one) {
			f.addManifest(manifest.YAML{Path: one, Group: f.group})
			continue
		}
		f.remote(o.node, one)
	}
	for _, one := range o.texts("kustomizations") {
		if isURL(one) || strings.Contains(one, "?ref=") {
			f.note(o.node, "kustomization %s was left out: download it and name its directory under manifests",
				shorten(one))
			continue
		}
		f.addManifest(manifest.YAML{Path: one, Group: f.group})
	}
	o.skip("name", "namespace", "noWait", "kustomizeAllowAnyDirectory", "serverSideApply", "enableKustomizePlugins")
	o.drop("template", "manifests are carried unchanged")
	o.rest()
}

// remote adds a manifest on a web server: it is carried as a file, and its images are not found.
func (f *reader) remote(n *yaml.Node, address string) {
	url, sum, _ := strings.Cut(address, "@")
	file := manifest.File{Name: fileName(url), URL: url, Group: f.group}
	if sum != "" {
		file.SHA256 = manifest.Sums{scalar.AllPlatforms: sum}
	}
	f.addFile(n, file)
	f.note(n, "the manifest %s is carried as a file without its images: download it and list it under manifests",
		shorten(url))
}

func (f *reader) addManifest(y manifest.YAML) {
	for i := range f.Bundle.Manifests {
		if o := &f.Bundle.Manifests[i]; o.Path == y.Path {
			o.Group = inGroups(o.Group, y.Group)
			return
		}
	}
	f.Bundle.Manifests = append(f.Bundle.Manifests, y)
}

func (f *reader) zarfFile(o *object) {
	source, sum, target := o.text("source"), o.text("shasum"), o.text("target")
	file := manifest.File{Name: fileName(or(path.Base(target), source)), Group: f.group}
	if o.yes("executable") {
		file.Mode = 0o755
	}
	if at := strings.LastIndex(source, "@"); isURL(source) && at > 0 && len(source)-at == 65 {
		source, sum = source[:at], source[at+1:]
	}
	if sum != "" {
		file.SHA256 = manifest.Sums{scalar.AllPlatforms: sum}
	}
	o.drop("extractPath", "the archive is carried as a whole")
	o.drop("symlinks", "a file is carried, not installed")
	o.drop("template", "files are carried unchanged")
	o.rest()
	if isURL(source) {
		file.URL = source
	} else {
		file.Path = source
	}
	if target != "" {
		f.note(o.node, "file %s is carried; extract it to %s by hand", file.Name, shorten(target))
	}
	f.addFile(o.node, file)
}
