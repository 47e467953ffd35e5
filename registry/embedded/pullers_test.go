package embedded_test

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/registry/embedded"
)

// usersFile writes an htpasswd file; every password is the user's name.
func usersFile(t *testing.T, users ...string) string {
	t.Helper()
	var text strings.Builder
	for _, user := range users {
		hash, err := bcrypt.GenerateFromPassword([]byte(user), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(user + ":" + string(hash) + "\n")
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree lists the files of a directory with their sizes.
func tree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	list := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			info, err := d.Info()
			if err == nil && info.Mode().IsRegular() {
				list[path] = info.Size()
			}
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// as sends a request with a user's login.
func as(t *testing.T, user, method, url, body string) (status int, text string, header http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, user)
	req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

func TestPullersChangeNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A user of both files may only pull.
	host, _ := start(t, embedded.Options{
		Dir: dir, Users: usersFile(t, "pusher", "both"),
		Pullers: usersFile(t, "node", "both"), Delete: true,
	})
	img := image(t, 1)
	ref := tag(t, host+"/lib/app:1")
	if err := remote.Write(ref, img,
		remote.WithAuth(&authn.Basic{Username: "pusher", Password: "pusher"})); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	other, err := image(t, 2).RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	status, _, header := as(t, "pusher", http.MethodPost, "http://"+host+"/v2/lib/app/blobs/uploads/", "")
	upload := header.Get("Location")
	if status != http.StatusAccepted || upload == "" {
		t.Fatal(status)
	}
	before := tree(t, dir)
	for _, user := range []string{"node", "both"} {
		pulled, err := remote.Image(ref, remote.WithAuth(&authn.Basic{Username: user, Password: user}))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pulled.Digest(); err != nil || got != digest {
			t.Errorf("%s pulls %s, %v", user, got, err)
		}
		for _, one := range []struct{ method, url, body string }{
			{http.MethodPut, "http://" + host + "/v2/lib/app/manifests/1", string(other)},
			{http.MethodDelete, "http://" + host + "/v2/lib/app/manifests/1", ""},
			{http.MethodDelete, "http://" + host + "/v2/lib/app/manifests/" + digest.String(), ""},
			{http.MethodDelete, "http://" + host + "/v2/lib/app/blobs/" + digest.String(), ""},
			{http.MethodPost, "http://" + host + "/v2/evil/blobs/uploads/", ""},
			{http.MethodPost, "http://" + host + "/v2/evil/blobs/uploads/?from=lib/app&mount=" + digest.String(), ""},
			{http.MethodPatch, upload, "x"},
			{http.MethodPut, upload + "&digest=" + digest.String(), "x"},
			{http.MethodDelete, upload, ""},
			{"MKCOL", "http://" + host + "/v2/evil/", ""},
		} {
			status, text, _ := as(t, user, one.method, one.url, one.body)
			if status != http.StatusForbidden ||
				!strings.Contains(text, `"code":"DENIED","message":"this login may only pull"`) {
				t.Errorf("%s: %s %s: %d %s", user, one.method, one.url, status, text)
			}
		}
		err = remote.Write(tag(t, host+"/lib/app:1"), image(t, 3),
			remote.WithAuth(&authn.Basic{Username: user, Password: user}))
		if err == nil || !strings.Contains(err.Error(), "DENIED: this login may only pull") {
			t.Errorf("a client prints %v", err)
		}
	}
	if diff := cmp.Diff(tree(t, dir), before); diff != "" {
		t.Errorf("something was written (-got +want):\n%s", diff)
	}
	if status, _, _ := as(t, "stranger", http.MethodGet, "http://"+host+"/v2/", ""); status != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", status)
	}
}

func TestPullersRequirePushers(t *testing.T) {
	t.Parallel()
	if _, err := embedded.Open(t.Context(), embedded.Options{
		Dir:     t.TempDir(),
		Pullers: usersFile(t, "node"),
	}); err == nil {
		t.Error("everybody may push")
	}
}
