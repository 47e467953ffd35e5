package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry"
)

type publishOptions struct {
	registryFlags
	tags    []string
	deltas  []string
	decrypt bool // publish encrypted content in clear
}

func newPublishCmd(g *globals) *cobra.Command {
	var o publishOptions
	cmd := &cobra.Command{
		Use:   "publish BUNDLE oci://HOST/PATH[:TAG]",
		Short: "Publish a bundle to an OCI registry",
		Long: `Publishes a bundle as one artifact, for sites with a connection, which download it with pull. The layers are the
bundle's blobs: a new version sends only new blobs, and a repeated run only missing ones. The default tag is the
bundle's version, or the beginning of its digest; --tag sets more. Moved tags are reported. Signatures beside the
bundle (BUNDLE.sigstore.json) are published with it.

--delta attaches a file of kkbundle delta that makes BUNDLE from an older one. pull --have OLD downloads it in place
of blobs where it is smaller. With two deltas, one that makes BUNDLE and one that makes its old bundle, a site may
skip a version.

A published bundle is not encrypted: its blobs are stored in clear. So an encrypted bundle is published only with
--decrypt.

Clusters cannot pull images from it; use push for that. Credentials come from docker's configuration and its helpers,
or from --username and --password-stdin; proxies from HTTPS_PROXY, HTTP_PROXY and NO_PROXY.`,
		Example: `  kkbundle publish site-1.4.0.kkb oci://registry.corp.example/bundles/site
  kkbundle publish --tag latest site-1.4.0.kkb oci://registry.corp.example/bundles/site:1.4.0
  kkbundle publish --delta site-1.5.0.kkd site-1.5.0.kkb oci://registry.corp.example/bundles/site`,
		Args: takes("BUNDLE", "oci://HOST/PATH[:TAG]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPublish(cmd.Context(), g, args[0], args[1], o)
		},
	}
	o.registryFlags.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().BoolVar(&o.decrypt, "decrypt", false, "publish the content of an encrypted bundle in clear")
	cmd.Flags().StringArrayVar(&o.deltas, "delta", nil, "attach this delta (repeated)")
	cmd.Flags().StringArrayVar(&o.tags, "tag", nil, "set this tag, too (repeated)")
	return cmd
}

// publishResult is the JSON output of publish.
type publishResult struct {
	Version int `json:"version"` // 1
	registry.PublishSummary
	Duration plain.Duration `json:"duration"`
}

func runPublish(ctx context.Context, g *globals, path, address string, o publishOptions) error {
	start := time.Now()
	to, err := usage.ParseAddress(address)
	if err != nil {
		return err
	}
	options, err := o.library(ctx, g, to)
	if err != nil {
		return err
	}
	r, err := g.openBundle(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Encrypted() && !o.decrypt {
		return usage.Errorf("%s is encrypted, and a published bundle is not: give --decrypt to publish the content in clear", path)
	}
	if options.Signatures, err = signaturesBeside(path); err != nil {
		return err
	}
	if options.Deltas, err = deltasFor(ctx, r, path, o.deltas); err != nil {
		return err
	}
	if to.Tag == "" {
		to.Tag = defaultTag(r)
	}
	options.Tags = append([]string{to.Tag}, options.Tags...)
	m := g.NewMeter("publish")
	options.Progress = m.Set
	sum, err := registry.Publish(ctx, r, options)
	m.Stop()
	if err != nil {
		return &pushError{err}
	}
	took := time.Since(start)
	if g.JSON {
		return g.PrintJSON(publishResult{Version: 1, PublishSummary: sum, Duration: plain.Duration(took)})
	}
	for _, tag := range sum.Tags {
		if before, moved := sum.Moved[tag]; moved {
			g.Note("tag %s was moved from %s", tag, before)
		}
	}
	g.Note("%s: %s sent, %s there already (%s)", to, plain.Size(sum.BytesSent), plain.Size(sum.BytesPresent),
		took.Round(100*time.Millisecond))
	return g.Result("%s%s@%s", usage.Scheme, sum.Repository, sum.Digest)
}

// library returns the options of registry.Publish.
func (o *publishOptions) library(ctx context.Context, g *globals, to usage.Address) (registry.PublishOptions, error) {
	options := registry.PublishOptions{
		Repository: to.Repository, Tags: o.tags, Jobs: int(o.jobs), Logger: g.Logger(),
	}
	if to.Digest != "" {
		return options, usage.Errorf("publish computes the digest: name a tag instead")
	}
	if err := o.registryFlags.check(); err != nil {
		return options, err
	}
	for _, tag := range o.tags {
		if err := registry.CheckTag(tag); err != nil {
			return options, usage.Errorf("--tag: %w", err)
		}
	}
	var err error
	if options.Auth, err = o.keychain(g); err != nil {
		return options, err
	}
	options.Transport, options.PlainHTTP, err = o.transport(ctx, g, to.Repository)
	return options, err
}

// defaultTag returns the bundle's version with "_" for "+", as Helm does, or the beginning of its digest if that is
// no valid tag.
func defaultTag(r *bundle.Reader) string {
	tag := strings.ReplaceAll(r.Index().Version, "+", "_")
	if registry.CheckTag(tag) == nil {
		return tag
	}
	return r.Digest().Encoded()[:12]
}

// deltasFor checks deltas to attach to a bundle.
func deltasFor(ctx context.Context, r *bundle.Reader, name string, paths []string) ([]registry.Delta, error) {
	all := make([]registry.Delta, 0, len(paths))
	makes := map[digest.Digest]bool{r.Digest(): true} // the bundle, and the old bundles of deltas that make it
	for _, path := range paths {
		d, err := readDelta(ctx, path)
		if err != nil {
			return nil, err
		}
		if d.New == r.Digest() {
			makes[d.Old] = true
		}
		all = append(all, d)
	}
	for i, d := range all {
		if !makes[d.New] {
			return nil, usage.Errorf("--delta %s makes bundle %s, but %s is bundle %s: name a delta that makes it",
				paths[i], d.New, name, r.Digest())
		}
	}
	return all, nil
}

// readDelta checks a delta to publish.
func readDelta(ctx context.Context, path string) (d registry.Delta, err error) {
	if err := usage.CheckFile(path); err != nil {
		return d, err
	}
	head, err := delta.Check(path)
	if err != nil {
		return d, err
	}
	if head.Old == "" {
		return d, usage.Errorf("--delta %s is a pack, which is not made against a bundle", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return d, err
	}
	sum, err := disk.Digest(ctx, path, func(int) {})
	if err != nil {
		return d, err
	}
	d.Delta = published.Delta{Old: head.Old, New: head.New, File: ocispec.Descriptor{Digest: sum, Size: info.Size()}}
	d.Open = func(offset int64) (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
	return d, nil
}

// signaturesBeside reads the signatures beside a bundle.
func signaturesBeside(path string) (all []published.Signature, err error) {
	path = bundle.BaseName(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if s := (published.Signature{Suffix: suffix}); !ok || s.Check() != nil {
			continue
		}
		data, err := readSidecar(filepath.Join(filepath.Dir(path), e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, published.Signature{Suffix: suffix, Data: data})
	}
	return all, nil
}

func readSidecar(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, published.MaxSignatureSize+1)) // a larger one is refused later
}
