package siteregistry

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestRegistryConfig(t *testing.T) {
	t.Parallel()
	allowed := &manifest.Cluster{ImageRegistry: manifest.ImageRegistry{AllowDelete: true}}
	for name, one := range map[string]struct {
		listener listener
		storage  kube.Document
	}{
		"registry.yaml": {listener{"10.0.0.3:5000", htpasswdFile, "secret"}, readOnly()},
		"registry-push.yaml": {
			listener{"127.0.0.1:5001", pushHtpasswdFile, "secret"},
			writable(new(manifest.Cluster)),
		},
		"registry-push-delete.yaml": {listener{"127.0.0.1:5001", pushHtpasswdFile, "secret"}, writable(allowed)},
	} {
		got, err := registryConfig(one.listener, one.storage)
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Golden(t, name, got)
	}
}
