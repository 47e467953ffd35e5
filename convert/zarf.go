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

// zarf reads a package definition of Zarf (schema v1alpha1 or v1beta1), or a component of v1beta1 in a file of its own.
func (f *reader) zarf(o *object) {
	constants := o.objects("constants")
	f.zarfTemplates(o.node, madeOfThemselves(constants))
	metadata := o.mapping("metadata")
	f.metadata(metadata)
	arch := metadata.text("architecture")
	f.platform(metadata.line(), arch)
	metadata.skip("uncompressed", "yolo", "aggregateChecksum", "allowNamespaceOverride",
		"preventNamespaceOverride")
	metadata.rest()
	o.skip("build", "documentation")
	f.zarfVariables(o.objects("variables"), "VAR", "at: site, ")
	f.zarfVariables(constants, "CONST", "")
	defer f.zarfConstants(constants)
	defer f.zarfDeployed()
	o.drop("values", "write values files for charts")
	components := o.objects("components")
	if one := o.mapping("component"); one.node != nil {
		components = append(components, one)
	}
	o.skip("publishData")
	f.zarfComponents(components)
	if arch != "" {
		f.unsaid = manifest.Image{} // the package's holds for all
	}
}

// zarfComponents reads the components of all packages, and for each flavor those of its variant.
func (f *reader) zarfComponents(list []*object) {
	var flavors []string
	of := map[string][]*object{}
	for _, c := range list {
		flavor := or(c.mapping("only").text("flavor"), c.mapping("selector").text("flavor"))
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

// zarfDeployed notes the releases that deploy lacks, as its entries: a bundle deploys what its manifest lists there.
func (f *reader) zarfDeployed() {
	listed := slices.Clone(f.Bundle.Deploy)
	for _, v := range f.Bundle.Variants {
		listed = append(listed, v.Deploy...)
	}
	const most = 50
	var entries []string
	for _, a := range f.deployed {
		has := func(b manifest.Addon) bool { return a.Chart != "" && a.Chart == b.Chart && a.Namespace == b.Namespace }
		if slices.ContainsFunc(listed, has) {
			continue
		}
		entry := "chart: " + a.Chart
		if a.Chart == "" {
			entry = "manifests: [" + strings.Join(a.Manifests, ", ") + "]"
		}
		if a.Release != "" && a.Release != a.Chart {
			entry += ", release: " + a.Release
		}
		if a.Namespace != "" {
			entry += ", namespace: " + a.Namespace
		}
		if entry = "{" + shorten(entry) + "}"; !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	if len(entries) > most {
		entries = append(entries[:most], "…")
	}
	if len(entries) > 0 {
		f.noteAt(0, "releases and namespaces were not carried over, and kkbundle deploys what the manifest lists: deploy: [%s]",
			strings.Join(entries, ", "))
	}
}

// zarfTemplate is a constant of Zarf's, or a variable that is given when a package is created.
// PKG_VAR is the older name of PKG_TMPL.
var zarfTemplate = regexp.MustCompile(`###ZARF_(PKG_TMPL|PKG_VAR|CONST)_([A-Z0-9_]+)###`)

// zarfTemplates makes a value of each of these that the definition itself names. Another ${ is that text.
// made are the constants that are made of the template of their own name and more, which is another value.
func (f *reader) zarfTemplates(n *yaml.Node, made []string) {
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
			name := strings.TrimLeft(m[2], "_0123456789")
			if name == "" {
				continue
			}
			if m[1] != "CONST" && slices.Contains(made, m[2]) {
				name = "PKG_" + name
			}
			if _, known := f.Bundle.Values.Find(name); !known {
				f.Bundle.Values = append(f.Bundle.Values, values.Definition{Name: name, Required: true})
			}
			text = strings.ReplaceAll(text, m[0], "${"+name+"}")
		}
		one.Value = text
	}
}

// madeOfThemselves returns the constants whose value has the template of their own name in it, as in
// {name: VERSION, value: "v###ZARF_PKG_TMPL_VERSION###"}. One that is nothing else is the template's value.
func madeOfThemselves(constants []*object) (names []string) {
	for _, c := range constants {
		name, value := c.text("name"), c.text("value")
		for _, m := range zarfTemplate.FindAllStringSubmatch(value, -1) {
			if m[2] == name && m[0] != value {
				names = append(names, name)
			}
		}
	}
	return names
}

// zarfConstants gives the values that constants have as defaults, notes those that nobody has given, and forgets those
// that nothing names: they were in parts that were not carried over.
func (f *reader) zarfConstants(constants []*object) {
	known := map[string]string{}
	for _, c := range constants {
		known[c.text("name")] = c.text("value")
	}
	for i := range f.Bundle.Values {
		d := &f.Bundle.Values[i]
		if value := known[d.Name]; value != "" && value != "${"+d.Name+"}" {
			byDefault := document.Scalar(value)
			d.Default, d.Required = &byDefault, false
		}
	}
	for before := -1; before != len(f.Bundle.Values); { // a default may be the last that names another
		before = len(f.Bundle.Values)
		text, err := yaml.Marshal(f.Bundle)
		f.Bundle.Values = slices.DeleteFunc(f.Bundle.Values, func(d values.Definition) bool {
			return err != nil || !strings.Contains(string(text), "${"+d.Name+"}")
		})
	}
	for i := range f.Bundle.Values {
		d := &f.Bundle.Values[i]
		if d.Default != nil {
			continue
		}
		if example := document.Scalar(f.zarfExample(d.Name)); example != "" {
			d.Example = &example
		}
		f.noteAt(0, "value %s: give it to lock and build with --set %s=…, or write a default", d.Name, d.Name)
	}
}

// zarfExample returns what stands for a value where a text of some form is wanted, until the value is given.
func (f *reader) zarfExample(name string) string {
	whole := func(text string) string { // with the defaults that name other values
		for _, d := range f.Bundle.Values {
			if d.Default != nil {
				text = strings.ReplaceAll(text, "${"+d.Name+"}", string(*d.Default))
			}
		}
		return text
	}
	is := "${" + name + "}"
	charts, files := slices.Clone(f.Bundle.Charts), slices.Clone(f.Bundle.Files)
	for _, v := range f.Bundle.Variants {
		charts, files = append(charts, v.Charts...), append(files, v.Files...)
	}
	for _, c := range charts {
		switch {
		case strings.Contains(whole(c.Version), is):
			return "1.0.0"
		case strings.HasPrefix(whole(c.Repo), is):
			return "https://charts.example.com"
		}
	}
	for _, x := range files {
		for _, sum := range x.SHA256 {
			if strings.Contains(whole(sum), is) {
				return strings.Repeat("0", 64)
			}
		}
	}
	return ""
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
	cluster, selector := only.mapping("cluster"), c.mapping("selector")
	if arch := or(cluster.text("architecture"), selector.text("architecture")); arch != "" {
		platforms = f.onPlatform(c.line(), arch)
	}
	cluster.skip("distros")
	only.drop("localOS", "files for one system are included for every system")
	target := c.mapping("target")
	target.drop("os", "files for one system are included for every system")
	only.skip("flavor")
	selector.skip("flavor")
	for _, o := range []*object{only, cluster, selector, target} {
		o.rest()
	}
	for _, n := range c.list("images") {
		f.zarfImage(n, platforms)
	}
	imported := f.zarfImport(c.mapping("import"))
	for _, chart := range c.objects("charts") {
		f.zarfChart(chart, imported)
	}
	for _, m := range c.objects("manifests") {
		f.zarfManifests(m)
	}
	for _, file := range c.objects("files") {
		f.zarfFile(file)
	}
	c.drop("repos", "list these under git, with their branches and tags (docs/build/git.md)")
	c.drop("repositories", "list these under git, with their branches and tags (docs/build/git.md)")
	c.skip("service", "stateAccess")
	c.drop("imageTars", "push the images to a registry, or unpack the archive and name its directory under sources")
	c.drop("imageArchives", "push the images to a registry, or unpack the archive and name its directory under sources")
	c.drop("dataInjections", "carry the data as files")
	c.drop("actions", "kkbundle runs no commands of a package; hooks of install run the operator's own scripts")
	c.drop("scripts", "kkbundle runs no commands of a package; hooks of install run the operator's own scripts")
	c.rest()
}

// zarfImport names the file of an imported component, and reports whether there is one.
func (f *reader) zarfImport(o *object) bool {
	dir, url := o.text("path"), o.text("url")
	o.skip("name")
	o.rest()
	switch {
	case o.node == nil:
		return false
	case dir != "" && !strings.Contains(dir, "$"):
		file := path.Join(path.Dir(f.file), dir)
		if ext := path.Ext(file); ext != ".yaml" && ext != ".yml" {
			file = path.Join(file, "zarf.yaml")
		}
		f.note(o.node, "components.import was not carried over: name %s as a further file of this command", shorten(file))
	default:
		f.note(o.node, "components.import was not carried over: convert the package %s by itself", shorten(or(url, dir)))
	}
	return true
}

// zarfGroup returns the group of a component that a site of Zarf's decides about, "" for one that all have.
func (f *reader) zarfGroup(c *object) string {
	name, about, on := c.text("name"), c.text("description"), c.yes("default")
	optional := c.yes("optional")
	if c.yes("required") || f.api == "zarf.dev/v1beta1" && !optional {
		return ""
	}
	if !document.IsName(name, false) {
		f.note(c.node, "component %s is optional in Zarf; in the bundle it is included: a group has a name of lower case letters, digits and hyphens", shorten(name))
		return ""
	}
	if f.Bundle.Groups == nil {
		f.Bundle.Groups = map[string]manifest.Group{}
	}
	f.Bundle.Groups[name] = manifest.Group{Description: strings.Join(strings.Fields(about), " "), Optional: !on}
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
	image := manifest.Image{Name: name, Platforms: platforms, Group: f.group}
	if len(platforms) == 0 && f.unsaid.Name == "" {
		f.unsaid, f.unsaidAt = image, lineOf(n)
	}
	f.image(n, image)
}

// zarfChart reads a chart. imported says that the component imports another, whose chart of that name it may complete.
func (f *reader) zarfChart(o *object, imported bool) {
	name, version, url, local := o.text("name"), o.text("version"), o.text("url"), o.text("localPath")
	if inRepo := o.text("repoName"); inRepo != "" {
		name = inRepo
	}
	o.skip("gitPath") // without a git repository it means nothing
	if from := f.zarfSource(o); from.url+from.local != "" {
		name, version, url, local = or(from.name, name), from.version, from.url, from.local
	}
	var values []string
	for _, v := range zarfValues(o) {
		if isURL(v) {
			f.note(o.node, "the values of chart %s at %s were not carried over: save them beside the manifest",
				shorten(name), shorten(v))
			continue
		}
		values = append(values, v)
	}
	release := manifest.Addon{Release: o.text("releaseName"), Namespace: o.text("namespace")}
	o.skip("noWait", "skipWait", "schemaValidation", "skipSchemaValidation", "serverSideApply")
	o.drop("variables", "write values files")
	o.drop("values", "write values files")
	o.rest()
	f.zarfRelease(o.text("name"), name, url, local, release)
	switch {
	case local != "":
		f.addChart(o.node, manifest.Chart{Path: local, Values: values, Group: f.group}, release)
	case isGit(url):
		f.note(o.node, "the chart %s was left out: it lies in a git repository; clone it and name its directory with path%s",
			shorten(name), andValues(values))
	case url == "" && imported:
		f.note(o.node, "the chart %s was left out: it is that of the imported component; convert that component, and write what is here at its chart%s",
			shorten(name), andValues(values))
	case url == "":
		f.note(o.node, "the chart %s was left out: it has neither url nor localPath%s", shorten(name), andValues(values))
	case strings.HasPrefix(url, "oci://"):
		chart := f.repoChart(o.node, "", url, version)
		chart.Values, chart.Group = values, f.group
		f.addChart(o.node, chart, release)
	default:
		chart := f.repoChart(o.node, name, url, version)
		chart.Values, chart.Group = values, f.group
		f.addChart(o.node, chart, release)
	}
}

// zarfRelease remembers the release of a chart that is carried. Zarf's name of a chart is that of its release, too.
func (f *reader) zarfRelease(named, chart, url, local string, release manifest.Addon) {
	if local == "" && (url == "" || isGit(url)) || release.Namespace == "" && release.Release == "" {
		return
	}
	if strings.HasPrefix(url, "oci://") && local == "" {
		chart = path.Base(url)
	}
	f.deployed = append(f.deployed, manifest.Addon{
		Chart: chart, Release: or(release.Release, named), Namespace: release.Namespace,
	})
}

// isGit reports whether the address of a chart is that of a git repository.
func isGit(url string) bool {
	return strings.HasSuffix(strings.TrimRight(url, "/"), ".git") || strings.Contains(url, ".git@")
}

// A chartSource is where v1beta1 has a chart.
type chartSource struct{ name, version, url, local string }

// zarfSource reads the source of a chart as v1beta1 writes it.
func (f *reader) zarfSource(o *object) (from chartSource) {
	helm, oci, git, local := o.mapping("helmRepository"), o.mapping("oci"), o.mapping("git"), o.mapping("local")
	ref := oci.mapping("ref")
	switch {
	case helm.node != nil:
		from = chartSource{name: helm.text("name"), version: helm.text("version"), url: helm.text("url")}
	case oci.node != nil:
		from = chartSource{version: or(ref.text("tag"), ref.text("digest")), url: oci.text("url")}
	case git.node != nil:
		from = chartSource{url: strings.TrimSuffix(git.text("url"), ".git") + ".git"}
		git.skip("path", "ref")
	default:
		from = chartSource{local: local.text("path")}
	}
	for _, one := range []*object{helm, oci, git, local, ref} {
		one.rest()
	}
	return from
}

// zarfValues returns the values files of a chart, which v1beta1 writes as mappings.
func zarfValues(o *object) (files []string) {
	for _, n := range o.list("valuesFiles") {
		if n.Kind != yaml.MappingNode {
			if file := o.f.scalar(n, "components.charts.valuesFiles"); file != "" {
				files = append(files, file)
			}
			continue
		}
		one := o.f.object(n, "valuesFiles")
		if file := one.text("path"); file != "" {
			files = append(files, file)
		}
		one.drop("enableTemplating", "write values files without templates")
		one.rest()
	}
	return files
}

// andValues names the values files of a chart that was left out.
func andValues(files []string) string {
	if len(files) == 0 {
		return ""
	}
	return ", with values: [" + shorten(strings.Join(files, ", ")) + "]"
}

func (f *reader) zarfManifests(o *object) {
	for _, one := range o.texts("files") {
		if !isURL(one) {
			f.addManifest(manifest.YAML{Path: one, Group: f.group})
			continue
		}
		f.remote(o.node, one)
	}
	kustomize := o.mapping("kustomize") // v1beta1
	kustomize.skip("allowAnyDirectory", "enablePlugins")
	for _, one := range append(o.texts("kustomizations"), kustomize.texts("files")...) {
		if isURL(one) || strings.Contains(one, "?ref=") {
			f.note(o.node, "kustomization %s was left out: download it and name its directory under manifests",
				shorten(one))
			continue
		}
		f.addManifest(manifest.YAML{Path: one, Group: f.group})
	}
	kustomize.rest()
	o.drop("enableTemplating", "manifests are carried unchanged")
	if namespace := o.text("namespace"); namespace != "" {
		f.deployed = append(f.deployed, manifest.Addon{
			Release: o.text("name"), Namespace: namespace, Manifests: append(o.texts("files"), o.texts("kustomizations")...),
		})
	}
	o.skip("name", "noWait", "skipWait", "kustomizeAllowAnyDirectory", "serverSideApply", "enableKustomizePlugins")
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
	source, sum := o.text("source"), or(o.text("shasum"), o.text("checksum"))
	target := or(o.text("target"), o.text("destination"))
	file := manifest.File{Name: or(or(fileName(target), fileName(source)), "file"), Group: f.group}
	if o.yes("executable") {
		file.Mode = 0o755
	}
	if at := strings.LastIndex(source, "@"); isURL(source) && at > 0 && len(source)-at == 65 {
		source, sum = source[:at], source[at+1:]
	}
	switch {
	case sum == "":
	case isSum(sum), strings.HasPrefix(sum, "${"):
		file.SHA256 = manifest.Sums{scalar.AllPlatforms: sum}
	default:
		f.note(o.node, "the shasum %s of file %s is no sha256 and was not carried over: write sha256 into the manifest, or the first download counts",
			shorten(sum), file.Name)
	}
	o.drop("extractPath", "the archive is carried as a whole")
	o.drop("symlinks", "a file is carried, not installed")
	o.drop("template", "files are carried unchanged")
	o.drop("enableTemplating", "files are carried unchanged")
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
