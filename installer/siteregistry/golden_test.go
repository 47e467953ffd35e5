package siteregistry

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestRegistryConfig(t *testing.T) {
	t.Parallel()
	got, err := registryConfig("10.0.0.3:5000", "secret")
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "registry.yaml", got)
}
