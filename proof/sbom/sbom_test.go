package sbom_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/sbom"
)

const labelled = "docker.io/library/labelled:2.0"

func sample(t *testing.T) (*bundle.Reader, *manifest.Lock) {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 1))
	img, err := mutate.ConfigFile(bundletest.RandomImage(t, 2, 1, 10), &v1.ConfigFile{
		OS: "linux", Architecture: "amd64",
		Config: v1.Config{Labels: map[string]string{ocispec.AnnotationLicenses: "Apache-2.0 OR MIT"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Image(labelled, img)
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	b.File("https://files.example/it", "it", &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		[]byte(bundletest.FileContent))
	b.File("local/notes", "notes", nil, []byte("notes"))
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return b.Bundle().Reader, &manifest.Lock{Items: []manifest.Pin{
		{
			Kind: "file", Ref: "https://files.example/it", Platform: "linux/amd64",
			From: "https://me:secret@files.site/it?token=secret", Verified: "upstream",
		},
		{Kind: "file", Ref: "local/notes", URL: "/home/secret/notes", Verified: "first use"},
		{Kind: "image", Ref: labelled, Digest: digest.Digest(d.String()), Verified: "upstream"},
		{
			Kind: "referrer", Ref: "docker.io/library/labelled@" + digest.FromString("r").String(),
			Digest: digest.FromString("r"), ArtifactType: "application/spdx+json", Subject: digest.Digest(d.String()),
		},
	}}
}

type part struct {
	Type, Name, Version, PURL string
	Ref                       string `json:"bom-ref"`
	Hashes                    []struct{ Alg, Content string }
	Licenses                  []struct{ Expression string }
	ExternalReferences        []struct{ Type, URL string }
}

type bom struct {
	Format       string `json:"bomFormat"`
	Spec         string `json:"specVersion"`
	SerialNumber string `json:"serialNumber"`
	Components   []part
	Dependencies []struct {
		Ref       string
		DependsOn []string
	}
}

// TestNew looks at the structure. The whole was held against bom-1.6.schema.json of CycloneDX/specification; where
// $CYCLONEDX_OUT names a file, the document is written there for doing it again.
func TestNew(t *testing.T) {
	t.Parallel()
	r, l := sample(t)
	data, err := sbom.New(t.Context(), r.Index(), l, r.ReadBlob)
	if err != nil {
		t.Fatal(err)
	}
	if out := os.Getenv("CYCLONEDX_OUT"); out != "" {
		if err := os.WriteFile(out, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(string(data), "secret") {
		t.Errorf("a secret, or a path of this machine, is in %s", data)
	}
	var got bom
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	serial := regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if got.Format != "CycloneDX" || got.Spec != "1.6" || !serial.MatchString(got.SerialNumber) {
		t.Errorf("%s %s %s", got.Format, got.Spec, got.SerialNumber)
	}
	if len(got.Components) != len(r.Index().Items) || len(got.Dependencies) != 1 ||
		len(got.Dependencies[0].DependsOn) != len(got.Components) {
		t.Errorf("%d components, %v", len(got.Components), got.Dependencies)
	}
	file := digest.FromString(bundletest.FileContent)
	for _, want := range []struct{ name, kind, purl, licence, references string }{
		{
			"it", "file", "pkg:generic/it?checksum=sha256:" + file.Encoded() +
				"&download_url=https:%2F%2Ffiles.site%2Fit", "",
			"distribution https://files.site/it",
		},
		{"notes", "file", "pkg:generic/notes?checksum=sha256:" + digest.FromString("notes").Encoded(), "", ""},
		{
			labelled, "container", "pkg:oci/labelled@sha256:" + l.Items[2].Digest.Encoded() +
				"?repository_url=docker.io%2Flibrary%2Flabelled&tag=2.0",
			"Apache-2.0 OR MIT", "distribution oci://" + labelled + ", bom oci://" + l.Items[3].Ref,
		},
	} {
		i := slices.IndexFunc(got.Components, func(p part) bool { return strings.Contains(p.Ref, want.name) })
		if i < 0 {
			t.Errorf("no %s", want.name)
			continue
		}
		c := got.Components[i]
		var references []string
		for _, e := range c.ExternalReferences {
			references = append(references, e.Type+" "+e.URL)
		}
		licence := ""
		if len(c.Licenses) > 0 {
			licence = c.Licenses[0].Expression
		}
		if c.Type != want.kind || c.PURL != want.purl || licence != want.licence ||
			strings.Join(references, ", ") != want.references || len(c.Hashes) != 1 {
			t.Errorf("%s:\n got %+v\nwant %+v", want.name, c, want)
		}
	}
}

func TestSameBytes(t *testing.T) {
	t.Parallel()
	r, l := sample(t)
	first, err := sbom.New(t.Context(), r.Index(), l, r.ReadBlob)
	if err != nil {
		t.Fatal(err)
	}
	x := r.Index()
	x.Items = slices.Clone(x.Items)
	slices.Reverse(x.Items)
	slices.Reverse(l.Items)
	again, err := sbom.New(t.Context(), x, l, r.ReadBlob)
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("another order gives another bill: %v", err)
	}
	x.Version += "1"
	other, err := sbom.New(t.Context(), x, l, r.ReadBlob)
	if err != nil {
		t.Fatal(err)
	}
	serial := func(data []byte) string {
		var b bom
		if err := json.Unmarshal(data, &b); err != nil {
			t.Fatal(err)
		}
		return b.SerialNumber
	}
	if serial(first) == serial(other) {
		t.Error("two bundles' bills have one serial number")
	}
}

// TestPackages: package URLs as the types deb and rpm have them; an epoch is part of the one's version and apart in
// the other's.
func TestPackages(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	for _, p := range []struct{ distribution, file, version, names string }{
		{"debian/12", "kk-app_2.0~rc1+b1_amd64.deb", "1:2.0~rc1+b1", "kk-app,app"},
		{"rocky/9", "kk-app-2.0-3.el9.noarch.rpm", "1:2.0-3.el9", "kk-app"},
		{"openeuler/24.03", "other.rpm", "1-1", ""},
	} {
		b.File(manifest.PackageRef(p.distribution, p.file), p.file, nil, []byte(p.file))
		it := &b.Index.Items[len(b.Index.Items)-1]
		it.Version = p.version
		if p.names != "" {
			it.Descriptor.Annotations = map[string]string{bundle.AnnotationPackage: p.names}
		}
	}
	r := b.Bundle().Reader
	data, err := sbom.New(t.Context(), r.Index(), &manifest.Lock{}, r.ReadBlob)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"pkg:deb/debian/kk-app@1:2.0~rc1%2Bb1?arch=amd64&distro=debian-12"`,
		`"pkg:rpm/rocky/kk-app@2.0-3.el9?arch=noarch&distro=rocky-9&epoch=1"`,
		`"pkg:generic/other.rpm@1-1?checksum=`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("there is no %s in\n%s", want, data)
		}
	}
}
