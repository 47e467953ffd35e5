package builder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/charts/sandbox"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/proof/closure"
)

// The images of a release are those that its kubeadm lists (`kubeadm config images list`), and not those of a table:
// patch releases change them. The program is verified like every other file of the bundle. It runs as a
// sandbox.Program.

const (
	kubeadmLimit  = 30 * time.Second // it takes less than a second
	kubeadmOutput = 64 << 10         // bytes; eight lines
	kubeadmImages = 64               // a release has seven
)

// A kubeadmProgram is the kubeadm of a cluster's release, for the platform of this machine.
type kubeadmProgram struct {
	cluster *manifest.Cluster
	pin     manifest.Pin // its content is in the cache
}

// defaults returns the tags that kubeadm takes by itself.
func (s *session) defaults(ctx context.Context, k kubeadmProgram) (catalogfile.KubeadmImages, error) {
	config, err := kubeadm.DefaultsConfig(k.cluster)
	if err != nil {
		return catalogfile.KubeadmImages{}, err
	}
	refs, err := s.listImages(ctx, k.pin.Digest, config)
	if err != nil {
		return catalogfile.KubeadmImages{}, err
	}
	tags := map[string]string{}
	for _, ref := range refs {
		at := strings.LastIndexByte(ref, ':')
		tags[ref[strings.LastIndexByte(ref, '/')+1:at]] = ref[at+1:]
	}
	images := catalogfile.KubeadmImages{
		Etcd: tags["etcd"], CoreDNS: tags["coredns"], Pause: tags["pause"],
		Program: k.pin.Digest,
	}
	for _, name := range catalogfile.KubeadmComponents() {
		if images.Tag(name) == "" {
			return images, fmt.Errorf("it lists no image of %s, but %s", name, strings.Join(refs, ", "))
		}
	}
	return images, nil
}

// configured returns the images that kubeadm takes with the configuration of its cluster.
func (s *session) configured(ctx context.Context, k kubeadmProgram) ([]string, error) {
	config, err := kubeadm.ImagesConfig(k.cluster)
	if err != nil {
		return nil, err
	}
	return s.listImages(ctx, k.pin.Digest, config)
}

// listImages has a kubeadm list the images of a configuration.
func (s *session) listImages(ctx context.Context, of digest.Digest, config []byte) (refs []string, err error) {
	blob, err := s.cache.Open(ctx, of)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	const file = "config.yaml"
	answer, err := sandbox.Program{
		Name: "kubeadm", Content: blob, Files: map[string][]byte{file: config},
		Args:  []string{"config", "images", "list", "--config=" + file},
		Limit: kubeadmLimit, Output: kubeadmOutput,
	}.Run(ctx)
	failed, ran := errors.AsType[*sandbox.FailedError](err)
	switch {
	case errors.Is(err, sandbox.ErrTime):
		return nil, fmt.Errorf("it gave no answer within %s", kubeadmLimit)
	case ran:
		return nil, fmt.Errorf("%w: %s", failed.Err, lastLine(failed.Stderr))
	case err != nil:
		return nil, err
	}
	return imagesIn(answer)
}

// imagesIn reads kubeadm's list, a reference per line.
func imagesIn(answer []byte) ([]string, error) {
	lines := strings.Fields(string(answer[:min(len(answer), kubeadmOutput)]))
	if len(answer) > kubeadmOutput || len(lines) > kubeadmImages || len(lines) == 0 {
		return nil, fmt.Errorf("its list of images has %d bytes", len(answer))
	}
	refs := make([]string, 0, len(lines))
	for _, line := range lines {
		ref, err := scalar.ImageName(line)
		if err != nil {
			return nil, fmt.Errorf("its list of images: %w", err)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// lastLine returns kubeadm's own word, its last line but for a hint about --v. From 1.34 on it begins with "error: ".
func lastLine(text string) string {
	const hint = "To see the stack trace of this error"
	word := ""
	for line := range strings.Lines(strings.TrimSpace(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "error: ") {
			return line
		}
		if !strings.HasPrefix(line, hint) {
			word = line
		}
	}
	return word
}

// releases returns the clusters of the project with kubeadm, and the intermediate releases of their upgrades.
func (p *Project) releases() ([]*manifest.Cluster, error) {
	var list []*manifest.Cluster
	for _, c := range p.clusters {
		if c.Kubernetes.Distribution != manifest.DistributionKubernetes {
			continue
		}
		steps, err := catalog.Steps(c, plan.Needed(c))
		if err != nil {
			return nil, err
		}
		for _, step := range steps {
			list = append(list, step.Cluster)
		}
		list = append(list, c)
	}
	return list, nil
}

// learn asks the kubeadm of each of these releases for its images. It reports whether they differ from those of the
// project, which then is another.
func (s *session) learn(ctx context.Context, l *manifest.Lock, clusters []*manifest.Cluster) (differs bool, err error) {
	listed := maps.Clone(s.kubeadm)
	if listed == nil {
		listed = map[string]catalogfile.KubeadmImages{}
	}
	var differ []string
	for _, c := range clusters {
		version := c.Kubernetes.Version
		now, err := s.defaultsOf(ctx, c, l)
		if ctx.Err() != nil || len(cache.EntryErrors(err)) > 0 {
			return false, err
		}
		if err != nil {
			if err := s.unasked(c, err); err != nil {
				return false, err
			}
			continue
		}
		now.Assumed = listed[version].Assumed
		for _, name := range catalogfile.KubeadmComponents() {
			own := *c
			own.Components = nil
			if was, err := catalog.Version(&own, name); err != nil || was != now.Tag(name) {
				differ = append(differ, fmt.Sprintf("kubeadm %s takes %s %s", version, name, now.Tag(name)))
			}
		}
		listed[version] = now
	}
	other := *s.Project
	other.kubeadm = listed
	s.Project = &other
	if len(differ) == 0 {
		return false, nil
	}
	slices.Sort(differ)
	s.note("%s, as it says itself; the catalog did not know that", strings.Join(slices.Compact(differ), ", "))
	s.Project, err = s.again()
	return true, err
}

// unasked reports a kubeadm that listed no images. It is an error for a release that the catalog does not know
// itself, unless the user accepts its assumptions.
func (s *session) unasked(c *manifest.Cluster, reason error) error {
	exact, err := catalog.IsExact(c)
	if err != nil {
		return err
	}
	version := c.Kubernetes.Version
	if !exact && !s.Assume && !s.kubeadm[version].Assumed {
		return &InputError{fmt.Errorf(
			"kubernetes.version: kubeadm %s cannot be asked for its images: %w; the catalog does not know this release: build on Linux, choose a release that it knows, or pass --assume to take the images of the newest one that it knows", version, reason)}
	}
	s.note("kubeadm %s could not be asked for its images (%v); they are taken from the catalog", version, reason)
	return nil
}

// defaultsOf returns the tags of one release.
func (s *session) defaultsOf(ctx context.Context, c *manifest.Cluster,
	l *manifest.Lock,
) (catalogfile.KubeadmImages, error) {
	k, err := s.programFor(ctx, c, l)
	if err != nil {
		return catalogfile.KubeadmImages{}, err
	}
	return s.defaults(ctx, k)
}

// programFor brings the kubeadm of a cluster for this machine into the cache: the lock's, or else upstream's, because
// images do not depend on the architecture of the program that lists them.
func (s *session) programFor(ctx context.Context, c *manifest.Cluster, l *manifest.Lock) (kubeadmProgram, error) {
	k := kubeadmProgram{cluster: c}
	if runtime.GOOS != "linux" {
		return k, fmt.Errorf("it is a program of Linux, and this is %s", runtime.GOOS)
	}
	platform := "linux/" + runtime.GOARCH
	ref, pin, found := s.lockedProgram(c, l, platform)
	m := s.begin(PhaseResolve)
	defer m.end()
	o := s.fetchOptions(m)
	o.Platforms = []string{platform}
	if !found {
		if ref == "" {
			return k, fmt.Errorf("upstream does not publish it for %s", platform)
		}
		alone, err := fetch.Resolve(ctx, &manifest.Bundle{
			Metadata: s.Manifest.Metadata, Platforms: o.Platforms,
			Files: s.programFiles(c, platform),
		}, o)
		if err != nil {
			return k, err
		}
		pin = alone.Items[0]
	}
	k.pin = pin
	_, err := fetch.All(ctx, &manifest.Lock{Metadata: s.Manifest.Metadata, Items: []manifest.Pin{pin}}, o)
	return k, err
}

// programFiles returns kubeadm's file for one platform.
func (s *session) programFiles(c *manifest.Cluster, platform string) []manifest.File {
	items, err := catalog.Items(c, kubeadmNeed())
	if err != nil {
		return nil
	}
	for _, f := range items.Files {
		if len(f.Platforms) == 0 || slices.Contains(f.Platforms, platform) {
			f.Platforms = []string{platform}
			return []manifest.File{f}
		}
	}
	return nil
}

// lockedProgram returns the reference of kubeadm for a platform, "" if there is none, and its pin in a lock.
func (s *session) lockedProgram(c *manifest.Cluster, l *manifest.Lock,
	platform string,
) (ref string, pin manifest.Pin, found bool) {
	ref, err := catalog.Ref(c, kubeadmNeed(), platform)
	if err != nil {
		return "", pin, false
	}
	i := slices.IndexFunc(l.Items, func(p manifest.Pin) bool {
		return p.Kind == manifest.ItemFile && p.Ref == ref && (p.Platform == platform || p.Platform == "")
	})
	if i < 0 {
		return ref, pin, false
	}
	return ref, l.Items[i], true
}

func kubeadmNeed() manifest.Need { return manifest.Need{Kind: manifest.ItemFile, Name: "kubeadm"} }

// programNeeds returns the images that the bundle's own kubeadm lists for its clusters. It is empty for a bundle
// without a kubeadm for this machine: the lock of such a bundle has the images that the kubeadm of the same release
// listed.
func (b *builder) programNeeds(ctx context.Context) ([]closure.Need, error) {
	clusters, err := b.releases()
	if err != nil || runtime.GOOS != "linux" {
		return nil, err
	}
	var needs []closure.Need
	for _, c := range clusters {
		_, pin, found := b.lockedProgram(c, b.lock, "linux/"+runtime.GOARCH)
		if !found {
			continue
		}
		if _, cached, err := b.cache.Stat(ctx, pin.Digest); err != nil || !cached {
			continue // without a cache; it was asked when the lock was made
		}
		k := kubeadmProgram{c, pin}
		refs, err := b.configured(ctx, k)
		if ctx.Err() != nil || len(cache.EntryErrors(err)) > 0 {
			return nil, err
		}
		if err != nil {
			if _, plain := b.defaults(ctx, k); plain == nil {
				return nil, &InputError{fmt.Errorf(
					"kubeadm %s refuses the cluster's configuration: %w; correct kubernetes.kubeadm in the cluster file", c.Kubernetes.Version, err)}
			}
			if err := b.unasked(c, err); err != nil {
				return nil, err
			}
			continue
		}
		by := closure.User{
			Program: "kubeadm " + c.Kubernetes.Version,
			Roles:   []manifest.Role{manifest.RoleControlPlane},
		}
		for _, ref := range refs {
			needs = append(needs, closure.Need{
				Kind: manifest.ItemImage, Ref: ref, Platforms: b.Manifest.Platforms,
				By: by,
			})
		}
	}
	return needs, nil
}

// LockedKubeadm returns a catalog of the images that the lock of a bundle has for kubeadm. It is empty if the bundle
// has no lock.
func LockedKubeadm(ctx context.Context, c *bundle.Catalog) (*catalogfile.Catalog, error) {
	if _, ok := c.Find(bundle.KindLock, bundle.DocumentLock, ""); !ok {
		return &catalogfile.Catalog{}, nil // bundles of other tools have none
	}
	data, err := c.Document(ctx, bundle.KindLock, bundle.DocumentLock)
	if err != nil {
		return nil, err
	}
	l, err := manifest.ParseLock(bundle.DocumentLock, data)
	if err != nil {
		return nil, err
	}
	return &catalogfile.Catalog{Kubeadm: l.Kubeadm}, nil
}

// listed returns the releases of the project that kubeadm listed images of, or that were assumed.
func (p *Project) listed() map[string]catalogfile.KubeadmImages {
	var own map[string]catalogfile.KubeadmImages
	clusters, _ := p.releases() // loading the project reported the error
	for _, c := range clusters {
		if one, ok := p.kubeadm[c.Kubernetes.Version]; ok {
			if own == nil {
				own = map[string]catalogfile.KubeadmImages{}
			}
			own[c.Kubernetes.Version] = one
		}
	}
	return own
}

// learnUnknown asks for the images of releases that neither the catalog nor the lock knows itself. A list of images
// goes without an answer, with a note.
func (s *session) learnUnknown(ctx context.Context) error {
	clusters, err := s.releases()
	if err != nil {
		return err
	}
	var unknown []*manifest.Cluster
	for _, c := range clusters {
		exact, err := catalog.IsExact(c)
		if err != nil {
			return err
		}
		if !exact {
			unknown = append(unknown, c)
		}
	}
	_, err = s.learn(ctx, &manifest.Lock{}, unknown)
	if input, ok := errors.AsType[*InputError](err); ok {
		s.note("%v", input)
		return nil
	}
	return err
}
