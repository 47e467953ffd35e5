package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/Masterminds/semver/v3"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	providerImage = "kkbundle-provider-image.tar"
	providerName  = "ghcr.io/kkbundle/provider" // as provider/config says
	// providerProgram begins the path of the provider's manager, which is in the image alone.
	providerProgram = "provider/manager-linux-"

	componentsFile = "infrastructure-components.yaml"
	metadataFile   = "metadata.yaml"
	// providerComponent is the provider in the catalog.
	providerComponent = "cluster-api-provider"
)

// writeProvider names the image of this release in the components of Cluster API's provider.
func (r *release) writeProvider() error {
	file := filepath.Join(r.dir, componentsFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const development = providerName + ":dev\n"
	if bytes.Count(text, []byte(development)) != 1 {
		return fmt.Errorf("%s: the image %s is not there once", file, strings.TrimSpace(development))
	}
	if err := r.checkProvider(); err != nil {
		return err
	}
	text = bytes.Replace(text, []byte(development), []byte(providerName+":"+r.version+"\n"), 1)
	return disk.WriteFile(file, 0o644, bytes.NewReader(text))
}

// checkProvider refuses a provider that nobody could install: clusterctl does not find the version in the provider's
// metadata, or the bundles of a release have the provider of another one. Builds between releases are no release.
func (r *release) checkProvider() error {
	version, err := semver.NewVersion(r.version)
	if err != nil {
		return nil //nolint:nilerr // no version
	}
	if err := r.checkSeries(version); err != nil || version.Prerelease() != "" {
		return err
	}
	ours, err := catalog.Merged()
	if err != nil {
		return err
	}
	if have := ours.Components[providerComponent].Default; have != r.version {
		return fmt.Errorf("manifest/catalog/data/clusterapi.yaml: the default of %s is %s: write %s", providerComponent, have,
			r.version)
	}
	return nil
}

// checkSeries refuses a version without a release series in the provider's metadata.
func (r *release) checkSeries(version *semver.Version) error {
	text, err := os.ReadFile(filepath.Join(r.dir, metadataFile))
	if err != nil {
		return err
	}
	var m struct {
		ReleaseSeries []struct{ Major, Minor uint64 } `yaml:"releaseSeries"`
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s: %w", metadataFile, err)
	}
	for _, s := range m.ReleaseSeries {
		if s.Major == version.Major() && s.Minor == version.Minor() {
			return nil
		}
	}
	return fmt.Errorf("provider/config/%s: add the release series %d.%d", metadataFile, version.Major(), version.Minor())
}
