package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/convert"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/gather"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// gatherFlags say what init makes a manifest of.
type gatherFlags struct {
	kubeFlags
	loginFlags
	fromCluster                          bool
	fromRegistry, fromHarbor, fromImages string
	namespaces, match                    []string
}

// A gatherSource is a kind of place that a manifest is made of.
type gatherSource string

const (
	gatherCluster  gatherSource = "from-cluster"
	gatherRegistry gatherSource = "from-registry"
	gatherHarbor   gatherSource = "from-harbor"
	gatherImages   gatherSource = "from-images"
)

func (f *gatherFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.fromCluster, string(gatherCluster), false, "a manifest of what runs in the cluster of a kubeconfig")
	fs.StringSliceVarP(&f.namespaces, "namespace", "n", nil,
		"with --from-cluster: a `namespace`, with its objects (default all but Kubernetes' own, without objects)")
	f.kubeFlags.add(fs)
	fs.StringVar(&f.fromRegistry, string(gatherRegistry), "", "a manifest of what `HOST[/REPOSITORY]` has")
	fs.StringVar(&f.fromHarbor, string(gatherHarbor), "", "a manifest of what `HOST/PROJECT` has")
	fs.StringVar(&f.fromImages, string(gatherImages), "", "a manifest of the images in a `FILE`")
	fs.StringArrayVar(&f.match, "match", nil,
		"of a registry, only tags like this `PATTERN`, NAME:TAG or HOST/REPOSITORY:TAG; * matches any characters but / (repeated)")
	f.loginFlags.add(fs)
}

// source returns the place that the flags name, "" without any.
func (f *gatherFlags) source(fs *pflag.FlagSet) (gatherSource, error) {
	var from gatherSource
	for _, one := range []gatherSource{gatherCluster, gatherRegistry, gatherHarbor, gatherImages} {
		switch {
		case !fs.Changed(string(one)):
		case from != "":
			return "", usage.Errorf("--%s and --%s exclude each other", from, one)
		default:
			from = one
		}
	}
	allowed := map[string][]gatherSource{
		"namespace": {gatherCluster}, "kubeconfig": {gatherCluster}, "context": {gatherCluster},
		"match": {gatherRegistry, gatherHarbor}, "ca": {gatherRegistry, gatherHarbor},
		"username": {gatherRegistry, gatherHarbor}, "plain-http": {gatherRegistry, gatherHarbor},
	}
	for _, flag := range []string{"namespace", "kubeconfig", "context", "match", "ca", "username", "plain-http"} {
		if fs.Changed(flag) && !slices.Contains(allowed[flag], from) {
			return "", usage.Errorf("--%s goes with --%s", flag, allowed[flag][0])
		}
	}
	for _, flag := range []string{"apps", "control-plane", "worker", "registry"} {
		if from != "" && fs.Changed(flag) {
			return "", usage.Errorf("--%s and --%s exclude each other", from, flag)
		}
	}
	return from, nil
}

func runGather(ctx context.Context, g *globals, dir string, from gatherSource, o initOptions) error {
	if from == "" {
		return nil
	}
	found, place, err := o.gather(ctx, g, dir, from)
	if err != nil {
		return err
	}
	b := found.Bundle
	b.APIVersion, b.Kind, b.Platforms = manifest.APIVersion, manifest.KindBundle, o.platforms
	b.Metadata = manifest.Metadata{Name: cmp.Or(o.name, nameOf(dir)), Version: "0.1.0"}
	data, err := commentedYAML("Written by kkbundle init --"+string(from)+" from "+plain.Line(place)+". Edit it.", b)
	if err == nil {
		_, err = manifest.ParseBundle(defaultManifest, data)
	}
	if err != nil {
		return &builder.InputError{Err: fmt.Errorf(
			"what was found in %s does not make a valid manifest; nothing was written:\n%w", plain.Line(place), err)}
	}
	files := append([]gather.File{{Path: defaultManifest, Data: data}}, found.Files...)
	written, err := writeGathered(dir, files)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(initResult{Version: 1, Files: written, Notes: found.Notes})
	}
	for _, n := range found.Notes {
		g.Note("note: %s", plain.Line(n))
	}
	g.Note("wrote %s: %s, %s, %s", plain.Line(strings.Join(written, ", ")), plain.Count(len(b.Images), "image"),
		plain.Count(len(b.Charts), "chart"), plain.Count(len(b.Manifests), "YAML file"))
	g.Note("next: edit them, then: kkbundle check %s && kkbundle build %s", dir, written[0])
	return nil
}

// gather reads the source that the flags name. place is its name for messages: an address or a file.
func (o *initOptions) gather(ctx context.Context, g *globals, dir string, from gatherSource) (found gather.Result, place string, err error) {
	switch from {
	case gatherCluster:
		config, err := o.kubeFlags.config()
		if err != nil {
			return gather.Result{}, "", err
		}
		found, err := gather.Cluster(ctx, config, o.namespaces, g.Logger())
		return found, config.Host, err
	case gatherImages:
		found, err := listedImages(g, o.fromImages)
		return found, o.fromImages, err
	}
	at := strings.TrimRight(cmp.Or(o.fromRegistry, o.fromHarbor), "/")
	trip, plainHTTP, err := o.transport(ctx, g, at)
	if err != nil {
		return gather.Result{}, "", err
	}
	keychain, err := o.keychain(g)
	if err != nil {
		return gather.Result{}, "", err
	}
	host, _, _ := strings.Cut(at, "/")
	address := "https://" + host
	if plainHTTP {
		address = "http://" + host
	}
	source := sources.Source{Host: host, CA: o.ca, Cert: o.cert, Key: o.key, PlainHTTP: o.plainHTTP}
	options := fetch.Options{Keychain: keychain, Logger: g.Logger()}
	if o.ca != "" || o.cert != "" || o.plainHTTP {
		options.Sources = []sources.Source{source}
	}
	if from == gatherHarbor {
		found, err = o.harborProject(ctx, at, &harbor.Client{URL: address, HTTP: trip}, options)
	} else {
		found, err = gather.Registry(ctx, at, o.match, options)
	}
	if wrong, ok := errors.AsType[*gather.PatternError](err); ok {
		return found, at, &usage.Error{Err: wrong}
	}
	if err != nil || options.Sources == nil {
		return found, at, err
	}
	found.Bundle.Sources, err = sourcesFrom(dir, source)
	return found, at, err
}

// harborProject returns the images and charts of a project of Harbor. It asks Harbor's API with the login for the host.
func (o *initOptions) harborProject(ctx context.Context, at string, client *harbor.Client,
	options fetch.Options,
) (gather.Result, error) {
	ref, err := name.NewRepository(at)
	if err != nil {
		return gather.Result{}, usage.Errorf("--from-harbor %s: want HOST/PROJECT", at)
	}
	auth, err := authn.Resolve(ctx, options.Keychain, ref)
	if err != nil {
		return gather.Result{}, fmt.Errorf("login for %s: %w", ref.RegistryStr(), err)
	}
	login, err := auth.Authorization()
	if err != nil {
		return gather.Result{}, fmt.Errorf("login for %s: %w", ref.RegistryStr(), err)
	}
	client.Username, client.Password = login.Username, login.Password
	return gather.Harbor(ctx, client, at, o.match, options)
}

// sourcesFrom returns a source whose files are named as a manifest in dir names them.
func sourcesFrom(dir string, s sources.Source) ([]sources.Source, error) {
	for _, file := range []*string{&s.CA, &s.Cert, &s.Key} {
		if *file == "" {
			continue
		}
		name, err := relative(dir, *file)
		if err != nil {
			return nil, err
		}
		*file = name
	}
	return []sources.Source{s}, nil
}

// listedImages reads a list of images.
func listedImages(g *globals, file string) (gather.Result, error) {
	var data []byte
	var err error
	if file == standardStream {
		data, err = io.ReadAll(io.LimitReader(g.In, maxList+1))
		if err == nil && len(data) > maxList {
			err = fmt.Errorf("the list has more than %d bytes", maxList)
		}
	} else {
		data, err = builder.ReadFile(file)
	}
	if err != nil {
		return gather.Result{}, err
	}
	list, err := convert.Read(filepath.ToSlash(file), data)
	if err != nil {
		return gather.Result{}, &builder.InputError{Err: err}
	}
	if len(list.Clusters) > 0 || list.Inventory != nil || len(list.Bundle.Images) == 0 {
		return gather.Result{}, &builder.InputError{Err: fmt.Errorf(
			"%s is no list of images: kkbundle convert reads files of other tools", file)}
	}
	found := gather.Result{Bundle: manifest.Bundle{Images: list.Bundle.Images, Files: list.Bundle.Files}}
	for _, n := range list.Notes {
		found.Notes = append(found.Notes, n.String())
	}
	return found, nil
}

// maxList is the most bytes of a list from standard input.
const maxList = 16 << 20

// writeGathered writes files below a directory, or none if one exists. It returns their paths.
func writeGathered(dir string, gathered []gather.File) ([]string, error) {
	var files newFiles
	for _, f := range gathered {
		if !filepath.IsLocal(filepath.FromSlash(f.Path)) {
			return nil, fmt.Errorf("%s lies outside of %s", plain.Line(f.Path), dir)
		}
		one := newFile{path: filepath.Join(dir, filepath.FromSlash(f.Path)), data: f.Data}
		if f.Private {
			one.mode = 0o600
		}
		files = append(files, one)
	}
	return files.writeForInit()
}
