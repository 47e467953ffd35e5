package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/kkbundle/kkbundle/internal/disk"
)

const (
	image        = "kkbundle-image.tar"
	imageName    = "ghcr.io/kkbundle/kkbundle"
	imageProgram = "usr/bin/kkbundle"
)

// A container is an image of the release.
type container struct {
	file, name string
	// programs are those of the image; the first one is its entrypoint.
	programs []program
	config   ocispec.ImageConfig
}

// A program is a file of the release's directory, without the architecture at its end, and its place in an image.
type program struct{ file, at string }

// containers returns the images of kkbundle and of the provider for Cluster API, which runs kkbundle.
func containers() []container {
	const linux = "kkbundle-linux-"
	return []container{
		{image, imageName, []program{{linux, imageProgram}}, ocispec.ImageConfig{
			WorkingDir: "/work", Env: []string{"PATH=/usr/bin", "HOME=/root"},
		}},
		{providerImage, providerName, []program{
			{providerProgram, "usr/bin/manager"}, {linux, "usr/local/bin/kkbundle"},
		}, ocispec.ImageConfig{User: "65532:65532", Env: []string{"PATH=/usr/local/bin:/usr/bin"}}},
	}
}

// writeImages writes the archives of all images, with the architectures whose programs are there.
func (r *release) writeImages() error {
	for _, c := range containers() {
		if err := r.writeImage(c); err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
	}
	return nil
}

// has reports whether all programs of an image are there for an architecture.
func (r *release) has(c container, arch string) bool {
	return !slices.ContainsFunc(c.programs, func(p program) bool {
		_, err := os.Stat(filepath.Join(r.dir, p.file+arch))
		return err != nil
	})
}

// writeImage writes one archive with an image for each architecture. As an OCI image layout it has an index of both
// under the version; Docker's list (manifest.json) has each architecture as VERSION-ARCHITECTURE, for engines that read
// no index.
func (r *release) writeImage(c container) error {
	var file bytes.Buffer
	l := layout{tar: archive{tar.NewWriter(&file), r.date}}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, arch := range []string{"amd64", "arm64"} {
		if !r.has(c, arch) {
			continue
		}
		desc, err := r.addPlatform(&l, c, arch)
		if err != nil {
			return err
		}
		index.Manifests = append(index.Manifests, desc)
	}
	if len(index.Manifests) == 0 {
		return nil
	}
	root, err := l.addJSON(ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	root.Annotations = map[string]string{ocispec.AnnotationRefName: r.version, "io.containerd.image.name": c.name +
		":" + r.version}
	top := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{root},
	}
	for _, one := range []struct {
		name    string
		content any
	}{
		{ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}},
		{ocispec.ImageIndexFile, top},
		{"manifest.json", l.docker},
	} {
		text, err := json.Marshal(one.content)
		if err != nil {
			return err
		}
		if err := l.tar.file(one.name, 0o644, bytes.NewReader(text), int64(len(text))); err != nil {
			return err
		}
	}
	if err := l.tar.Close(); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(r.dir, c.file), 0o644, &file)
}

// addPlatform adds the image of one architecture.
func (r *release) addPlatform(l *layout, c container, arch string) (desc ocispec.Descriptor, err error) {
	packed, unpacked, err := r.imageFiles(c, arch)
	if err != nil {
		return desc, err
	}
	layer, err := l.add(ocispec.MediaTypeImageLayerGzip, packed)
	if err != nil {
		return desc, err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	c.config.Entrypoint = []string{"/" + c.programs[0].at}
	c.config.Labels = map[string]string{
		ocispec.AnnotationTitle: path.Base(c.name), ocispec.AnnotationVersion: r.version,
		ocispec.AnnotationRevision: r.commit,
		ocispec.AnnotationSource:   home, ocispec.AnnotationLicenses: "Apache-2.0",
	}
	config, err := l.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Created: &r.date, Platform: platform, Config: c.config,
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{unpacked}},
		History: []ocispec.History{{Created: &r.date, CreatedBy: "make dist"}},
	})
	if err != nil {
		return desc, err
	}
	desc, err = l.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{layer},
	})
	desc.Platform = &platform
	l.docker = append(l.docker, dockerImage{Config: blobPath(config), RepoTags: []string{c.name + ":" + r.version +
		"-" + arch}, Layers: []string{blobPath(layer)}})
	return desc, err
}

// imageFiles returns the only layer, and the digest of its uncompressed form: the programs, certificate authorities,
// and directories for temporary files, the user's cache and work.
func (r *release) imageFiles(c container, arch string) (packed []byte, unpacked digest.Digest, err error) {
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	whole := digest.SHA256.Digester()
	layer := archive{tar.NewWriter(io.MultiWriter(z, whole.Hash())), r.date}
	for _, dir := range []struct {
		name string
		mode int64
	}{
		{"etc/", 0o755},
		{"etc/ssl/", 0o755},
		{"etc/ssl/certs/", 0o755},
		{"root/", 0o700},
		{"tmp/", 0o1777},
		{"usr/", 0o755},
		{"usr/bin/", 0o755},
		{"usr/local/", 0o755},
		{"usr/local/bin/", 0o755},
		{"work/", 0o755},
	} {
		if err := layer.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: dir.name, Mode: dir.mode, ModTime: r.date,
			Format: tar.FormatPAX,
		}); err != nil {
			return nil, "", err
		}
	}
	roots := authorities()
	if err := layer.file("etc/ssl/certs/ca-certificates.crt", 0o644, bytes.NewReader(roots),
		int64(len(roots))); err != nil {
		return nil, "", err
	}
	for _, p := range c.programs {
		if err := layer.program(filepath.Join(r.dir, p.file+arch), p.at); err != nil {
			return nil, "", err
		}
	}
	if err := layer.Close(); err != nil {
		return nil, "", err
	}
	if err := z.Close(); err != nil {
		return nil, "", err
	}
	return buffer.Bytes(), whole.Digest(), nil
}

// authorities returns Mozilla's certificate authorities as PEM. Those that are trusted with conditions are left out:
// a file of certificates cannot express these.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return text.Bytes()
}

// A layout is an OCI image layout in a tar archive.
type layout struct {
	tar    archive
	docker []dockerImage
}

// A dockerImage is an entry of manifest.json, Docker's list of an archive's images.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func blobPath(d ocispec.Descriptor) string {
	return path.Join(ocispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded())
}

func (l *layout) add(mediaType string, data []byte) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.SHA256.FromBytes(data), Size: int64(len(data))}
	return desc, l.tar.file(blobPath(desc), 0o644, bytes.NewReader(data), desc.Size)
}

func (l *layout) addJSON(mediaType string, content any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return l.add(mediaType, data)
}

// An archive is a tar archive whose files have one time and belong to root.
type archive struct {
	*tar.Writer
	date time.Time
}

func (a archive) file(name string, mode int64, content io.Reader, size int64) error {
	if err := a.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: a.date,
		Format: tar.FormatPAX,
	}); err != nil {
		return err
	}
	_, err := io.Copy(a, content)
	return err
}

// program adds a program of the release.
func (a archive) program(from, at string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return a.file(at, 0o755, file, info.Size())
}
