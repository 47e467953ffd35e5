package convert

import (
	"fmt"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// hauler reads one of Hauler's kinds (pkg/apis/hauler.cattle.io/v1).
func (f *reader) hauler(kind string, o *object) error {
	metadata := o.mapping("metadata")
	defaults := f.haulerDefaults(metadata.mapping("annotations"))
	metadata.skip("name", "creationTimestamp", "labels")
	metadata.rest()
	spec := o.mapping("spec")
	switch kind {
	case "Images":
		for _, n := range spec.list("images") {
			f.haulerImage(f.object(n, "spec.images"), defaults)
		}
	case "Charts":
		for _, chart := range spec.objects("charts") {
			f.haulerChart(chart)
		}
	case "Files":
		for _, file := range spec.objects("files") {
			f.haulerFile(file)
		}
	case "ImageTxts":
		for _, list := range spec.objects("imageTxts") {
			f.note(list.node, "imageTxts: the list %s was not carried over: fetch it and convert it by itself",
				shorten(list.text("ref")))
		}
	default:
		return fmt.Errorf("kind %q is none of Hauler's that are known: Images, Charts, Files and ImageTxts",
			shorten(kind))
	}
	spec.rest()
	return nil
}

// haulerSettings apply to every image of a document.
type haulerSettings struct{ registry, platform, key string }

func (f *reader) haulerDefaults(o *object) haulerSettings {
	s := haulerSettings{
		registry: o.text("hauler.dev/registry"), platform: o.text("hauler.dev/platform"),
		key: o.text("hauler.dev/key"),
	}
	o.rest()
	return s
}

func (f *reader) haulerImage(o *object, defaults haulerSettings) {
	name := o.text("name")
	first, _, found := strings.Cut(name, "/")
	if defaults.registry != "" && (!found || !strings.ContainsAny(first, ".:") && first != "localhost") {
		name = defaults.registry + "/" + name
	}
	image := manifest.Image{Name: name}
	if p := or(o.text("platform"), defaults.platform); p != "" {
		image.Platforms = f.onPlatform(o.line(), p)
	} else if f.unsaid.Name == "" {
		f.unsaid, f.unsaidAt = image, lineOf(o.node)
	}
	if key := or(o.text("key"), defaults.key); key != "" {
		image.Verify = &manifest.Verify{Key: key}
	}
	for _, key := range []string{
		"certificate-identity", "certificate-identity-regexp", "certificate-oidc-issuer",
		"certificate-oidc-issuer-regexp", "certificate-github-workflow-repository",
	} {
		o.drop(key, "checking signatures without a key needs Sigstore's servers; name a public key")
	}
	o.drop("use-tlog-verify", "the transparency log is not queried")
	o.drop("rewrite", "use push --rename when the registry is seeded")
	o.drop("exclude-extras", "referrers: none leaves attachments out")
	o.rest()
	f.image(o.node, image)
}

func (f *reader) haulerChart(o *object) {
	name, repo, version := o.text("name"), o.text("repoURL"), o.text("version")
	values := o.texts("valuesFiles")
	o.skip("add-images", "add-dependencies") // build does both
	o.drop("rewrite", "use push --rename when the registry is seeded")
	o.drop("verify", "provenance files travel with a chart but are not checked")
	o.drop("plainHTTP", "name the host under sources with plainHTTP: true")
	o.drop("insecureSkipTLSVerify", "name the host's authority under sources with ca")
	for _, key := range []string{"caFile", "certFile", "keyFile"} {
		o.drop(key, "name it under sources")
	}
	o.skip("keyring")
	o.drop("exclude-extras", "referrers: none leaves attachments out")
	o.rest()
	if dir, local := haulerDirectory(repo); local {
		chart := strings.TrimPrefix(name, "file://")
		if !path.IsAbs(chart) {
			chart = path.Join(dir, chart)
		}
		f.addChart(o.node, manifest.Chart{Path: chart, Values: values}, manifest.Addon{})
		return
	}
	chart := f.repoChart(o.node, name, repo, version)
	chart.Values = values
	f.addChart(o.node, chart, manifest.Addon{})
}

// haulerDirectory returns the directory that a repoURL names: none, a path, or a file: URL. Others are repositories.
func haulerDirectory(repo string) (dir string, ok bool) {
	if rest, ok := strings.CutPrefix(repo, "file://"); ok {
		return rest, true
	}
	return repo, !strings.Contains(repo, "://")
}

func (f *reader) haulerFile(o *object) {
	address, name := o.text("path"), o.text("name")
	o.rest()
	file := manifest.File{Name: fileName(or(name, address))}
	switch {
	case isURL(address):
		file.URL = address
	case address == "" || strings.HasSuffix(address, "/") || path.Ext(address) == "" && name == "":
		f.note(o.node, "files: %s was left out: kkbundle carries single files, and this may be a directory",
			shorten(address))
		return
	default:
		file.Path = address
	}
	f.addFile(o.node, file)
}

func or(first, second string) string {
	if first != "" {
		return first
	}
	return second
}
