package software

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// A Published image is one that the upstream has.
type Published struct {
	Ref       string   `json:"ref"`    // as people write it
	Digest    string   `json:"digest"` // of what the tag names: an index or a manifest
	MediaType string   `json:"mediaType"`
	Platforms []string `json:"platforms"`
}

// An imageSpec is an image as its publisher would describe it.
type imageSpec struct {
	ref        string
	docker     bool // Docker's media types, otherwise OCI's
	single     bool // a manifest under the tag, no index
	attested   bool // the index has an attestation besides, as BuildKit makes it
	arches     []string
	layers     func(arch string) ([]*layer, error)
	entrypoint []string
	cmd        []string
	user       string
}

// imageSet makes the layers that images share, once, and publishes images to a registry.
type imageSet struct {
	b        *builder
	work     string // directory of layers
	registry string // host:port
	made     map[string]*layer
}

func (s *imageSet) layer(name string, entries ...entry) (*layer, error) {
	return s.once(name, false, func(w io.Writer) error { return writeTar(w, entries) })
}

func (s *imageSet) once(name string, asZstd bool, write func(io.Writer) error) (*layer, error) {
	if l := s.made[name]; l != nil {
		return l, nil
	}
	l, err := newLayer(s.work, asZstd, write)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", name, err)
	}
	s.made[name] = l
	return l, nil
}

// base are the two layers that all images start from.
func (s *imageSet) base() ([]*layer, error) {
	files, err := s.layer("base",
		entry{Name: "etc/"}, entry{Name: "tmp/", Mode: 0o1777}, entry{Name: "var/"}, entry{Name: "var/run/"},
		entry{
			Name: "etc/passwd",
			Text: "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
		},
		entry{Name: "etc/group", Text: "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n"},
		entry{Name: "etc/nsswitch.conf", Text: "hosts: files dns\n"},
	)
	if err != nil {
		return nil, err
	}
	release, err := s.layer("release", entry{Name: "etc/"}, entry{
		Name: "etc/os-release",
		Text: "ID=lab\nNAME=\"kkbundle lab\"\nPRETTY_NAME=\"kkbundle lab\"\n",
	})
	return []*layer{files, release}, err
}

// command is the layer of one or more commands of a recipe, at dir.
func (s *imageSet) command(recipe, arch, dir string, names ...string) (*layer, error) {
	var entries []entry
	for _, n := range names {
		entries = append(entries, entry{Name: strings.TrimPrefix(dir+"/"+n, "/"), From: s.b.command(recipe, arch, n)})
	}
	return s.layer(recipe+arch+dir+strings.Join(names, " "), entries...)
}

// stack returns base and more, or the first error among more's makers.
func (s *imageSet) stack(more ...func() (*layer, error)) ([]*layer, error) {
	layers, err := s.base()
	if err != nil {
		return nil, err
	}
	for _, make := range more {
		l, err := make()
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	return layers, nil
}

// userland is the layer of iptables and its friends from Debian packages, for kube-proxy and flannel.
func (s *imageSet) userland(ctx context.Context, arch string) (*layer, error) {
	var links []entry
	for _, c := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
		"ip6tables-restore",
	} {
		links = append(links, entry{Name: "usr/sbin/" + c, Link: "xtables-nft-multi"})
	}
	return s.debian(ctx, arch, "userland", userlandPackages(), links...)
}

// debian is the layer of some Debian packages with all that they depend on, and more.
func (s *imageSet) debian(ctx context.Context, arch, name, packages string, more ...entry) (*layer, error) {
	if l := s.made[name+arch]; l != nil {
		return l, nil
	}
	file, err := s.b.debianFiles(ctx, arch, name, packages)
	if err != nil {
		return nil, err
	}
	return s.once(name+arch, false, func(w io.Writer) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		return errors.Join(normalTar(w, f, wanted, more), f.Close())
	})
}

func userlandPackages() string { return "iptables,nftables,conntrack,kmod,ipset,base-files,netbase" }

// wanted leaves out what a container has no use for, and what the base layers have.
func wanted(name string) bool {
	for _, p := range []string{
		"usr/share/doc/", "usr/share/man/", "usr/share/lintian/", "usr/share/bash-completion/", "usr/share/info/",
		"usr/share/common-licenses/",
		"var/lib/apt/", "var/lib/dpkg/", "var/cache/", "var/log/", "dev/", "proc/", "sys/", "etc/os-release", "tmp/",
		"var/run",
	} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

func (s *imageSet) busybox(ctx context.Context, arch string) func() (*layer, error) {
	return func() (*layer, error) {
		path, err := s.b.busybox(ctx, arch)
		if err != nil {
			return nil, err
		}
		entries := []entry{{Name: "bin/"}, {Name: "bin/busybox", From: path}}
		for _, c := range []string{
			"cat", "cp", "ip", "ls", "mkdir", "mv", "nslookup", "ps", "rm", "sh", "sleep",
			"test", "wget",
		} {
			entries = append(entries, entry{Name: "bin/" + c, Link: "busybox"})
		}
		return s.layer("busybox"+arch, entries...)
	}
}

// publish assembles the image and pushes it.
func (s *imageSet) publish(ctx context.Context, spec imageSpec) (p Published, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("image %s: %w", spec.ref, err)
		}
	}()
	to, err := name.NewTag(s.registry+"/"+spec.ref, name.Insecure)
	if err != nil {
		return p, err
	}
	p.Ref = spec.ref
	images := make([]v1.Image, len(spec.arches))
	for i, arch := range spec.arches {
		if images[i], err = s.image(spec, arch); err != nil {
			return p, err
		}
		p.Platforms = append(p.Platforms, "linux/"+arch)
	}
	if spec.single {
		return p, errors.Join(remote.Write(to, images[0], remote.WithContext(ctx)), p.describe(images[0]))
	}
	index, err := indexOf(spec, images)
	if err != nil {
		return p, err
	}
	return p, errors.Join(remote.WriteIndex(to, index, remote.WithContext(ctx)), p.describe(index))
}

func (p *Published) describe(of interface {
	Digest() (v1.Hash, error)
	MediaType() (types.MediaType, error)
},
) error {
	d, err := of.Digest()
	if err != nil {
		return err
	}
	m, err := of.MediaType()
	p.Digest, p.MediaType = d.String(), string(m)
	return err
}

func (s *imageSet) image(spec imageSpec, arch string) (v1.Image, error) {
	layers, err := spec.layers(arch)
	if err != nil {
		return nil, err
	}
	manifest, config := types.OCIManifestSchema1, types.OCIConfigJSON
	if spec.docker {
		manifest, config = types.DockerManifestSchema2, types.DockerConfigJSON
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, manifest), config)
	for _, l := range layers {
		add := mutate.Addendum{Layer: l.as(spec.docker), History: v1.History{
			Created:   v1.Time{Time: epoch()},
			CreatedBy: "kkbundle lab",
		}}
		if img, err = mutate.Append(img, add); err != nil {
			return nil, err
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", arch, v1.Time{Time: epoch()}
	c.Config.Entrypoint, c.Config.Cmd, c.Config.User = spec.entrypoint, spec.cmd, spec.user
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return mutate.ConfigFile(img, c)
}

func indexOf(spec imageSpec, images []v1.Image) (v1.ImageIndex, error) {
	media := types.OCIImageIndex
	if spec.docker {
		media = types.DockerManifestList
	}
	index := mutate.IndexMediaType(empty.Index, media)
	for i, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: spec.arches[i]}},
		})
	}
	if !spec.attested {
		return asPublished(index)
	}
	for _, img := range images {
		subject, err := img.Digest()
		if err != nil {
			return nil, err
		}
		attestation, err := attestationOf(spec.ref, subject)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
			Annotations: map[string]string{
				"vnd.docker.reference.digest": subject.String(),
				"vnd.docker.reference.type":   "attestation-manifest",
			},
		}})
	}
	return asPublished(index)
}

// asPublished takes the artifact types out of an index: this library writes them for images too, where nobody else
// does.
func asPublished(made v1.ImageIndex) (v1.ImageIndex, error) {
	m, err := made.IndexManifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	for i := range m.Manifests {
		m.Manifests[i].ArtifactType = ""
	}
	raw, err := json.Marshal(m)
	return plainIndex{made, m, raw}, err
}

type madeIndex = v1.ImageIndex // an embedded v1.ImageIndex would hide its method of that name

// plainIndex is an index with a manifest of its own.
type plainIndex struct {
	madeIndex
	manifest *v1.IndexManifest
	raw      []byte
}

func (p plainIndex) IndexManifest() (*v1.IndexManifest, error) { return p.manifest, nil }
func (p plainIndex) RawManifest() ([]byte, error)              { return p.raw, nil }
func (p plainIndex) Digest() (v1.Hash, error)                  { return sha256Of(p.raw), nil }
func (p plainIndex) Size() (int64, error)                      { return int64(len(p.raw)), nil }

// attestationOf is what BuildKit puts beside an image: an image of platform unknown/unknown whose layer is a statement.
func attestationOf(ref string, subject v1.Hash) (v1.Image, error) {
	statement, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v0.1", "predicateType": "https://slsa.dev/provenance/v0.2",
		"subject":   []any{map[string]any{"name": ref, "digest": map[string]string{"sha256": subject.Hex}}},
		"predicate": map[string]any{"buildType": "kkbundle lab"},
	})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:       static.NewLayer(statement, "application/vnd.in-toto+json"),
		Annotations: map[string]string{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v0.2"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "unknown", Architecture: "unknown", RootFS: v1.RootFS{
			Type:    "layers",
			DiffIDs: []v1.Hash{sha256Of(statement)},
		},
	})
}

// images publishes everything into a registry whose storage is dir.
func (b *builder) images(ctx context.Context, dir string, small bool) (published []Published, err error) {
	err = b.intoRegistry(ctx, dir, func(ctx context.Context, s *imageSet) error {
		specs := s.cluster(ctx)
		if small {
			specs = s.demo()
		}
		for _, spec := range specs {
			p, err := s.publish(ctx, spec)
			if err != nil {
				return err
			}
			published = append(published, p)
		}
		return publishChart(ctx, s.registry+"/ghcr.io/lab/charts/web:1.0.0",
			filepath.Join(filepath.Dir(dir), "files", webChart))
	})
	return published, err
}

// intoRegistry calls publish with a registry whose storage is dir.
func (b *builder) intoRegistry(ctx context.Context, dir string,
	publish func(context.Context, *imageSet) error,
) (err error) {
	work, err := os.MkdirTemp(b.dir, "tmp-layers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	srv, err := registrytest.New(registrytest.Options{Dir: dir}) //nolint:contextcheck // it runs until Close
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	return publish(ctx, &imageSet{b: b, work: work, registry: srv.Host, made: map[string]*layer{}})
}

func sha256Of(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}
