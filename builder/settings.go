package builder

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/charts/sandbox"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Kubernetes' programs do not start with arguments and feature gates that their release does not have. On a host,
// that ends an installation halfway. So the bundle's own programs are asked: each runs with the settings of the
// cluster file, and ends before it does anything. Their help would not do: it lists no gates that are generally
// available, and no deprecated flags, and the programs take both. The kubelet also gets its configuration as a
// whole. kube-proxy cannot be asked: it wants to watch the file of its configuration, which the sandbox refuses.

// maxLayer bounds the bytes that are searched for a program; the images of Kubernetes' programs have 0.1 GB.
const maxLayer = 2 << 30

// programTime is longer than a program takes to read its arguments, on a busy machine.
const programTime = 30 * time.Second

// A setting is an argument for a program, with its place in the cluster file.
type setting struct {
	path, argument string
}

// settingsOf returns the cluster file's settings by program.
func settingsOf(c *manifest.Cluster) map[string][]setting {
	all := map[string][]setting{}
	for _, a := range c.Kubernetes.Arguments() {
		all[a.Program] = append(all[a.Program], setting{a.Path, "--" + a.Name + "=" + a.Value})
	}
	for _, g := range c.Kubernetes.FeatureGates() {
		if g.Program == kubelet {
			all[kubelet] = append(all[kubelet], setting{g.Path, "--feature-gates=" + g.Name + "=" + g.Value})
		}
	}
	return all
}

const kubelet = "kubelet"

// checkSettings asks the programs of every release of the project whether they take its settings.
func (b *builder) checkSettings(ctx context.Context) error {
	clusters, err := b.releases()
	if err != nil || runtime.GOOS != "linux" {
		return err
	}
	var errs []error
	for _, c := range clusters {
		all := settingsOf(c)
		for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", kubelet} {
			if len(all[program]) == 0 {
				continue
			}
			refused, err := b.refused(ctx, c, program, all[program])
			if ctx.Err() != nil || len(cache.EntryErrors(err)) > 0 {
				return errors.Join(err, context.Cause(ctx))
			}
			if err != nil {
				b.note("%s %s could not be asked whether it takes the cluster's settings (%v)", program,
					c.Kubernetes.Version, err)
			}
			for _, r := range refused {
				errs = append(errs, &InputError{c.Problem(r.path, fmt.Sprintf("%s %s does not start with %s: %s",
					program, c.Kubernetes.Version, r.argument, r.reason))})
			}
		}
		refused, err := b.checkKubelet(ctx, c)
		if err != nil {
			return err
		}
		errs = append(errs, refused)
	}
	return errors.Join(errs...)
}

// checkKubelet asks the kubelet of a release whether it takes its configuration: kubeadm does not look at the values.
// refused is an error of the cluster file.
func (b *builder) checkKubelet(ctx context.Context, c *manifest.Cluster) (refused, err error) {
	if len(c.Kubernetes.Kubelet) == 0 {
		return nil, nil
	}
	reason, err := b.refusedConfig(ctx, c)
	switch {
	case ctx.Err() != nil || len(cache.EntryErrors(err)) > 0:
		return nil, errors.Join(err, context.Cause(ctx))
	case err != nil:
		b.note("kubelet %s could not be asked whether it takes its configuration (%v)", c.Kubernetes.Version, err)
	case reason != "":
		refused = &InputError{c.Problem("kubernetes.kubelet", fmt.Sprintf("kubelet %s does not start with this: %s",
			c.Kubernetes.Version, reason))}
	}
	return refused, nil
}

// refusedConfig returns why the kubelet does not take its configuration, "" if it does. One that does not take it
// without the cluster file's section either cannot be asked: it needs something of a host.
func (b *builder) refusedConfig(ctx context.Context, c *manifest.Cluster) (reason string, err error) {
	without := *c
	without.Kubernetes.Kubelet = nil
	for _, one := range []*manifest.Cluster{c, &without} {
		config, err := kubeadm.KubeletConfig(one)
		if err != nil {
			return "", err
		}
		now, err := b.complainsOfConfig(ctx, one, config)
		switch {
		case err != nil || one == c && now == "":
			return "", err
		case one == c:
			reason = now
		case now != "":
			return "", errors.New(now)
		}
	}
	return reason, nil
}

// complainsOfConfig runs the kubelet with a configuration, which it checks before it looks at its host. It returns
// what it says of the configuration, but for feature gates, which refused asks for.
func (b *builder) complainsOfConfig(ctx context.Context, c *manifest.Cluster,
	config []byte,
) (reason string, err error) {
	content, err := b.openProgram(ctx, c, kubelet)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	const file = "config.yaml"
	_, err = sandbox.Program{
		Name: kubelet, Content: content, Files: map[string][]byte{file: config}, Args: []string{"--config=" + file},
		Limit: programTime,
	}.Run(ctx)
	failed, ran := errors.AsType[*sandbox.FailedError](err)
	if !ran {
		return "", err
	}
	words := regexp.MustCompile(
		`(?:failed to validate kubelet configuration, error: (.+), path: &TypeMeta|failed to decode: (.+)"\n)`,
	).FindStringSubmatch(failed.Stderr)
	switch {
	case words != nil:
		return strings.ReplaceAll(words[1]+words[2], `\"`, `"`), nil
	case strings.Contains(failed.Stderr, `"command failed"`), // for want of a host
		complaint().MatchString(failed.Stderr):
		return "", nil
	}
	return "", failed
}

// A refusal is a setting that a program does not take, and the program's own word.
type refusal struct {
	setting
	reason string
}

// refused returns the settings that a program of a release refuses.
func (b *builder) refused(ctx context.Context, c *manifest.Cluster, program string,
	settings []setting,
) ([]refusal, error) {
	var args []string
	for _, s := range settings {
		args = append(args, s.argument)
	}
	all, err := b.complains(ctx, c, program, args)
	_, unclear := errors.AsType[*sandbox.FailedError](err) // warnings of many settings are more than what is kept
	if !unclear && (err != nil || all == "") {
		return nil, err
	}
	var list []refusal
	for _, s := range settings {
		reason, err := b.complains(ctx, c, program, []string{s.argument})
		if err != nil {
			return nil, err
		}
		if reason != "" {
			list = append(list, refusal{s, reason})
		}
	}
	if list == nil && !unclear { // they do not go together
		list = append(list, refusal{setting{settings[0].path, strings.Join(args, " ")}, all})
	}
	return list, nil
}

// complains runs a program with arguments, and returns its reason for not starting with them, "" if it takes them.
func (b *builder) complains(ctx context.Context, c *manifest.Cluster, program string,
	args []string,
) (reason string, err error) {
	content, err := b.openProgram(ctx, c, program)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	if program == kubelet {
		// It sets the gates of its arguments, then reads its configuration, of which there is none.
		args = append(slices.Clone(args), "--config=none")
	} else {
		args = append(slices.Clone(args), "--version")
	}
	_, err = sandbox.Program{Name: program, Content: content, Args: args, Limit: programTime}.Run(ctx)
	failed, ran := errors.AsType[*sandbox.FailedError](err)
	if !ran {
		return "", err
	}
	word := complaint().FindString(failed.Stderr)
	switch {
	case word != "":
		return strings.TrimRight(word, `\"`), nil
	case program == kubelet && strings.Contains(failed.Stderr, "config file"):
		return "", nil
	}
	return "", failed
}

// complaint matches what the flag libraries of Kubernetes' programs say of an argument.
func complaint() *regexp.Regexp {
	return regexp.MustCompile(
		`(?:unknown flag|unrecognized feature gate): [\w.-]+|cannot set feature gate [^"\n]+|invalid argument [^\n]+|feature gate [^"\n]+ is locked[^"\n]*`)
}

// openProgram opens a program of a release for this machine, out of the cache: kubelet is a file, the others are in
// their images.
func (b *builder) openProgram(ctx context.Context, c *manifest.Cluster, program string) (io.ReadCloser, error) {
	platform := "linux/" + runtime.GOARCH
	kind := manifest.ItemImage
	if program == kubelet {
		kind = manifest.ItemFile
	}
	ref, err := catalog.Ref(c, manifest.Need{Kind: kind, Name: program}, platform)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(b.lock.Items, func(p manifest.Pin) bool {
		return p.Kind == kind && p.Ref == ref && (p.Platform == platform || p.Platform == "")
	})
	if i < 0 {
		return nil, fmt.Errorf("the bundle has none for %s", platform)
	}
	if kind == manifest.ItemFile {
		return b.cached(ctx, b.lock.Items[i].Digest)
	}
	layers, err := b.layersOf(ctx, b.lock.Items[i].Digest, 0)
	if err != nil {
		return nil, err
	}
	for _, l := range slices.Backward(layers) {
		in, err := b.openMember(ctx, l.Digest, program)
		if in != nil || err != nil {
			return in, err
		}
	}
	return nil, fmt.Errorf("%s has no program of that name", ref)
}

// cached opens a blob that is in the cache. Without a cache, there is none.
func (b *builder) cached(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	_, there, err := b.cache.Stat(ctx, d)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, errors.New("it is not in the cache")
	}
	return b.cache.Open(ctx, d)
}

// layersOf returns the layers of an image for this machine.
func (b *builder) layersOf(ctx context.Context, d digest.Digest, depth int) ([]ocispec.Descriptor, error) {
	data, err := b.cache.ReadBlob(ctx, d, bundle.MaxDocument)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := bundle.DecodeManifest(data, &doc); err != nil {
		return nil, err
	}
	for _, m := range doc.Manifests {
		if p := m.Platform; depth == 0 && p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH {
			return b.layersOf(ctx, m.Digest, depth+1)
		}
	}
	return doc.Layers, nil
}

// A member is a file of a layer.
type member struct {
	io.Reader
	closers []io.Closer
}

// Close closes the layer.
func (m member) Close() error {
	var errs []error
	for _, c := range m.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// openMember opens the program of a name in a layer, nil if the layer has none.
func (b *builder) openMember(ctx context.Context, layer digest.Digest, name string) (_ io.ReadCloser, err error) {
	blob, err := b.cached(ctx, layer)
	if err != nil {
		return nil, err
	}
	m := member{closers: []io.Closer{blob}}
	defer func() {
		if m.Reader == nil {
			err = errors.Join(err, m.Close())
		}
	}()
	in := bufio.NewReader(blob)
	var text io.Reader = in
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		m.closers, text = append(m.closers, z), z
	}
	for entries := tar.NewReader(io.LimitReader(text, maxLayer)); ; {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil //nolint:nilnil // another layer may have it
		case err != nil:
			return nil, err
		case h.Typeflag == tar.TypeReg && path.Base(h.Name) == name:
			m.Reader = entries
			return m, nil
		}
	}
}
