package registry_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	helmregistry "helm.sh/helm/v3/pkg/registry"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestHelmPullsPushedChart uses Helm's own client, as helm pull oci:// does.
func TestHelmPullsPushedChart(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic}),
		bundletest.NewBuilder(t)
	archive := bundletest.ChartArchive(t, "demo", "0.1.0+build.1")
	b.Chart("https://charts.example/stable/demo:0.1.0+build.1", "demo", "0.1.0+build.1", archive)
	push(t, b.Bundle(), options(s))
	client, err := helmregistry.NewClient(
		helmregistry.ClientOptHTTPClient(&http.Client{Transport: s.Transport()}),
		helmregistry.ClientOptBasicAuth(s.Username, s.Password),
		helmregistry.ClientOptWriter(&bytes.Buffer{}),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")),
	)
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Pull(s.Host + "/charts.example/stable/demo:0.1.0+build.1")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Chart.Data, archive) || got.Chart.Meta.Name != "demo" {
		t.Errorf("chart %s with %d bytes, want demo with %d", got.Chart.Meta.Name, len(got.Chart.Data), len(archive))
	}
}

// TestSkopeoCopiesPushedImages has skopeo copy all platforms, which reads and checks every blob.
func TestSkopeoCopiesPushedImages(t *testing.T) {
	t.Parallel()
	skopeo, err := exec.LookPath("skopeo")
	if err != nil {
		t.Skip("skopeo is not installed")
	}
	s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken}), bundletest.New(t)
	sum := push(t, b, options(s))
	certs := t.TempDir()
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	access := []string{"--cert-dir", certs, "--creds", s.Username + ":" + s.Password}
	for i, it := range b.Reader.Index().Items {
		source := "docker://" + sum.Items[i].Destination
		raw, err := exec.CommandContext(t.Context(), skopeo,
			append([]string{"inspect", "--raw", source}, access...)...).Output()
		if got := digest.FromBytes(raw); err != nil || got != it.Descriptor.Digest {
			t.Errorf("%s: %v; skopeo got %s, want %s", it, err, got, it.Descriptor.Digest)
		}
		cmd := exec.CommandContext(t.Context(), skopeo, "--insecure-policy", "copy", "--all",
			"--src-cert-dir", certs, "--src-creds", s.Username+":"+s.Password, source, "dir:"+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", it, err, out)
		}
	}
}
