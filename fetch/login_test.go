package fetch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func TestBadCredentials(t *testing.T) {
	t.Parallel()
	for what, auth := range map[string]registrytest.Auth{
		"basic": registrytest.AuthBasic,
		"token": registrytest.AuthToken,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, registrytest.Options{TLS: true, Auth: auth, Password: "right-one"})
			u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
			b := images([]string{"linux/amd64"}, "registry.k8s.io/app:1")
			o := u.options(newStore(t))
			o.Keychain = badKeychain{}
			_, err := fetch.Resolve(t.Context(), b, o)
			wantError(t, err, "registry.k8s.io (mirror "+u.Host+"/k8s)", "rejects the configured credentials",
				"kkbundle login "+u.Host, "401")
			if strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "tried") {
				t.Errorf("shows the password, or tried again: %v", err)
			}
			o.Keychain = authn.NewMultiKeychain()
			_, err = fetch.Resolve(t.Context(), b, o)
			wantError(t, err, "requires credentials", "kkbundle login "+u.Host)
		})
	}
}

type badKeychain struct{}

func (badKeychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{Username: "anna", Password: "wr0ng"}), nil
}

// TestDockerConfig uses the credentials that docker login wrote.
func TestDockerConfig(t *testing.T) {
	u := newUpstream(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	u.pushImage("k8s/app:1", platformImage(t, "linux/amd64"))
	dir := t.TempDir()
	config := `{"auths": {"` + u.Host + `": {"username": "` + u.Username + `", "password": "` + u.Password + `"}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	o := u.options(newStore(t))
	o.Keychain = nil
	if _, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/app:1"), o); err != nil {
		t.Fatal(err)
	}
}
