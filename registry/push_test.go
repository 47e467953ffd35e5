package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// options are those for s, with no more patience than tests have.
func options(s *registrytest.Server) registry.PushOptions {
	return registry.PushOptions{
		Registry: s.Host, Auth: s.Keychain(), Transport: s.Transport(), PlainHTTP: strings.HasPrefix(s.URL, "http:"),
		Retries: 2,
	}
}

func push(t *testing.T, b *bundletest.Bundle, o registry.PushOptions) registry.PushSummary {
	t.Helper()
	sum, err := registry.Push(t.Context(), b.Reader, o)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func states(s registry.PushSummary) map[string]int {
	n := map[string]int{}
	for _, it := range s.Items {
		n[it.State]++
	}
	return n
}

func remoteOptions(t *testing.T, s *registrytest.Server) []remote.Option {
	t.Helper()
	return []remote.Option{
		remote.WithAuthFromKeychain(s.Keychain()), remote.WithTransport(s.Transport()),
		remote.WithContext(t.Context()),
	}
}

func get(t *testing.T, s *registrytest.Server, ref string) *remote.Descriptor {
	t.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	d, err := remote.Get(r, remoteOptions(t, s)...)
	if err != nil {
		t.Fatalf("%s: %v", ref, err)
	}
	return d
}

// checkPulled pulls every item with go-containerregistry, down to the layers, and compares digests with the bundle's.
func checkPulled(t *testing.T, s *registrytest.Server, b *bundletest.Bundle, sum registry.PushSummary) {
	t.Helper()
	for i, it := range b.Reader.Index().Items {
		if sum.Items[i].State == registry.StateSkipped {
			continue
		}
		d := get(t, s, sum.Items[i].Destination)
		if got, want := d.Digest.String(), it.Descriptor.Digest.String(); got != want {
			t.Errorf("%s has digest %s, want %s", sum.Items[i].Destination, got, want)
		}
		if d.MediaType.IsIndex() {
			idx, err := d.ImageIndex()
			if err != nil {
				t.Fatal(err)
			}
			m, _ := idx.IndexManifest()
			for _, c := range m.Manifests {
				img, err := idx.Image(c.Digest)
				if err != nil {
					t.Fatalf("%s of %s: %v", c.Digest, it.Ref, err)
				}
				checkLayers(t, img)
			}
			continue
		}
		img, err := d.Image()
		if err != nil {
			t.Fatal(err)
		}
		checkLayers(t, img)
	}
}

// checkLayers reads all layers: go-containerregistry compares their digests.
func checkLayers(t *testing.T, img v1.Image) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(rc); err != nil {
			t.Error(err)
		}
	}
}

func TestPushAllKinds(t *testing.T) {
	t.Parallel()
	cases := map[string]registrytest.Options{
		"plain":       {},
		"tls, basic":  {TLS: true, Auth: registrytest.AuthBasic},
		"tls, token":  {TLS: true, Auth: registrytest.AuthToken},
		"token apart": {TLS: true, Auth: registrytest.AuthToken, TokenApart: true, Dir: t.TempDir()},
		"relative":    {RelativeURLs: true},
	}
	for what, so := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, so), bundletest.New(t)
			o := options(s)
			o.Registry += "/mirror"
			sum := push(t, b, o)
			var got []string
			for _, it := range sum.Items {
				got = append(got, strings.TrimPrefix(it.Destination, s.Host+"/"))
			}
			want := []string{
				"mirror/charts.example/stable/demo:0.1.0",
				"mirror/files.example/tool/v1/linux/amd64/it:latest",
				"mirror/docker.io/library/app:1.0",
				"mirror/registry.example_5000/team/multi:2.1",
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("destinations (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(states(sum), map[string]int{registry.StatePushed: 4}); diff != "" {
				t.Errorf("states (-got +want):\n%s", diff)
			}
			// go-containerregistry itself refuses a token service on a private address: pull at another server over
			// the same files
			if so.TokenApart {
				s = registrytest.Start(t, registrytest.Options{Dir: so.Dir})
				for i := range sum.Items {
					sum.Items[i].Destination = strings.Replace(sum.Items[i].Destination,
						strings.Split(o.Registry, "/")[0], s.Host, 1)
				}
			}
			checkPulled(t, s, b, sum)
		})
	}
}

func TestPushAgainSendsNothing(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken}), bundletest.New(t)
	first := push(t, b, options(s))
	s.ForgetRequests()
	sum := push(t, b, options(s))
	for _, r := range s.Requests() {
		if r.Method != http.MethodHead && r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
	if s.Received() != 0 || sum.BytesSent != 0 || sum.BlobsSent != 0 ||
		sum.BlobsPresent != first.BlobsSent+first.BlobsMounted {
		t.Errorf("%d bytes received; summary %+v", s.Received(), sum)
	}
	if diff := cmp.Diff(states(sum), map[string]int{registry.StatePresent: 4}); diff != "" {
		t.Errorf("states (-got +want):\n%s", diff)
	}
	for i := range sum.Items {
		if sum.Items[i].Digest != first.Items[i].Digest || sum.Items[i].Digest == "" {
			t.Errorf("%s: digest %s, then %s", sum.Items[i].Ref, first.Items[i].Digest, sum.Items[i].Digest)
		}
	}
}

func TestPushSelect(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.New(t)
	o := options(s)
	o.Select = func(it bundle.Item) bool { return it.Kind == bundle.KindChart }
	if diff := cmp.Diff(states(push(t, b, o)), map[string]int{
		registry.StatePushed:  1,
		registry.StateSkipped: 3,
	}); diff != "" {
		t.Errorf("states (-got +want):\n%s", diff)
	}
}

// TestPushOneTokenEach: a repository costs one token, the ping is asked once, and the scopes allow mounting.
func TestPushOneTokenEach(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	b := bundletest.NewBuilder(t)
	img := bundletest.RandomImage(t, 7, 2, 4000)
	b.Image("a.example/one:1", img)
	b.Image("a.example/two:1", img)
	sum := push(t, b.Bundle(), options(s))
	want := map[string]bool{
		"repository:a.example/one:push,pull":                               true,
		"repository:a.example/two:push,pull repository:a.example/one:pull": true,
	}
	got := map[string]bool{}
	for _, scopes := range s.Scopes() {
		got[strings.Join(scopes, " ")] = true
	}
	if diff := cmp.Diff(got, want); diff != "" || len(s.Scopes()) != 2 {
		t.Errorf("%d tokens; scopes (-got +want):\n%s", len(s.Scopes()), diff)
	}
	if n := s.Count("GET", "^/v2/$"); n != 2 { // the challenge, and the login
		t.Errorf("%d pings, want 2", n)
	}
	if sum.BlobsSent != 3 || sum.BlobsMounted != 3 {
		t.Errorf("%d blobs sent and %d mounted, want 3 each", sum.BlobsSent, sum.BlobsMounted)
	}
}

func TestPushUploadsWhereMountIsRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{
		http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest,
		http.StatusInternalServerError,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{})
			b := bundletest.NewBuilder(t)
			img := bundletest.RandomImage(t, 7, 2, 4000)
			b.Image("a.example/one:1", img)
			b.Image("a.example/two:1", img)
			bun := b.Bundle()
			o := options(s)
			o.Jobs = 1
			// the first three sessions are for repository one; every second request after that is a mount
			s.AddFaults(registrytest.Fault{
				Method: "POST", Path: regexp.MustCompile("two/blobs/uploads/$"),
				Effect: registrytest.Fail(status, ""),
			})
			sum := push(t, bun, o)
			if sum.BlobsSent != 4 || sum.BlobsMounted != 2 {
				t.Errorf("%d blobs sent and %d mounted, want 4 and 2", sum.BlobsSent, sum.BlobsMounted)
			}
			checkPulled(t, s, bun, sum)
		})
	}
}

func TestPushExpiringTokens(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken, TokenUses: 3}),
		bundletest.New(t)
	o := options(s)
	o.Jobs = 2 // more could use up each other's tokens for ever
	checkPulled(t, s, b, push(t, b, o))
	if len(s.Scopes()) < 6 {
		t.Errorf("only %d tokens were issued", len(s.Scopes()))
	}
}

// TestPushTokenExpiresBeforeUpload: the token is used up when the layer's body is due, and the registry still gets it
// from its first byte, in one upload.
func TestPushTokenExpiresBeforeUpload(t *testing.T) {
	t.Parallel()
	for uses := 2; uses <= 5; uses++ {
		s, b := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken, TokenUses: uses}),
			bigBundle(t, layerSize)
		o := options(s)
		o.Jobs = 1
		sum := push(t, b, o)
		checkPulled(t, s, b, sum)
		if n := s.Count(http.MethodDelete, ""); n != 0 || sum.BlobsSent != 2 {
			t.Errorf("%d uses: %d uploads were abandoned, %d blobs sent", uses, n, sum.BlobsSent)
		}
		if s.Received() > layerSize+layerSize/8 {
			t.Errorf("%d uses: %d bytes received for a layer of %d", uses, s.Received(), layerSize)
		}
	}
}

// layerSize is enough for several reads and writes on the way, and for asking before sending.
const layerSize = 1 << 19

// bigBundle holds one image with a layer that needs many reads.
func bigBundle(t testing.TB, size int64) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Image("a.example/big:1", bundletest.RandomImage(t, 11, 1, size))
	return b.Bundle()
}

func TestPushRecovers(t *testing.T) {
	t.Parallel()
	uploads, manifests := regexp.MustCompile(`/blobs/uploads/.`), regexp.MustCompile(`/manifests/`)
	cases := map[string][]registrytest.Fault{
		"429 with Retry-After": {{
			Path: regexp.MustCompile(`^/v2/.+`), Times: 1,
			Effect: registrytest.Fail(429, "0"),
		}},
		"503 everywhere once": {
			{Method: "HEAD", Effect: registrytest.Fail(503, "0")},
			{Method: "POST", Effect: registrytest.Fail(503, "0")},
			{Method: "PUT", Effect: registrytest.Fail(503, "0")},
		},
		"503 at login": {{Path: regexp.MustCompile(`^/v2/$`), Effect: registrytest.Fail(503, "0")}},
		"upload cut": {{
			Method: "PUT", Path: uploads, Times: 2,
			Effect: registrytest.CutRequest(layerSize / 4),
		}},
		"session lost": {{
			Method: "PUT", Path: uploads,
			Effect: registrytest.FailWith(404, "0", `{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}`),
		}},
		"digest refused once": {{
			Method: "PUT", Path: uploads,
			Effect: registrytest.FailWith(400, "0", `{"errors":[{"code":"DIGEST_INVALID"}]}`),
		}},
		"no Expect: 100":         {{Method: "PUT", Path: uploads, Effect: registrytest.Fail(417, "0")}},
		"manifest answer is cut": {{Method: "PUT", Path: manifests, Effect: registrytest.CutRequest(10)}},
		"no digest header": {{Path: manifests, Times: -1, Effect: registrytest.Header("Docker-Content-Digest",
			"")}},
	}
	for what, faults := range cases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, b := registrytest.Start(t, registrytest.Options{Faults: faults}), bigBundle(t, layerSize)
			sum := push(t, b, options(s))
			s.ClearFaults()
			checkPulled(t, s, b, sum)
			if want := int64(layerSize); sum.BytesSent < want || sum.BytesSent > want+layerSize/8 {
				t.Errorf("%d bytes sent according to the summary, want a little more than %d", sum.BytesSent, want)
			}
		})
	}
}

// TestPushAbandonsUploads: what a failed attempt left at the registry is dropped.
func TestPushAbandonsUploads(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: regexp.MustCompile(`/blobs/uploads/.`),
		Effect: registrytest.CutRequest(layerSize / 4),
	})
	push(t, b, options(s))
	if n := s.Count("DELETE", "/blobs/uploads/"); n != 1 {
		t.Errorf("%d uploads dropped, want 1", n)
	}
}

func TestPushContinues(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := options(s)
	o.Jobs = 1
	o.Progress = func(e registry.Event) {
		if e.ItemsDone == 2 {
			cancel()
		}
	}
	sum, err := registry.Push(ctx, b.Reader, o)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "2 items are incomplete") {
		t.Fatalf("got %v", err)
	}
	if sum.ItemsPushed != 2 || sum.ItemsFailed != 2 {
		t.Errorf("pushed %d, failed %d; want 2 and 2", sum.ItemsPushed, sum.ItemsFailed)
	}
	o.Progress = nil
	again := push(t, b, o)
	if again.BlobsPresent == 0 || again.ItemsPresent != 2 || again.ItemsPushed != 2 {
		t.Errorf("the second run started over: %+v", again)
	}
	checkPulled(t, s, b, again)
}

func TestPushStalls(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bigBundle(t, layerSize)
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: regexp.MustCompile(`/blobs/uploads/.`),
		Effect: registrytest.Stall(),
	})
	o := options(s)
	o.StallTimeout, o.Retries = time.Second, 10 // a loaded machine may stall by itself
	checkPulled(t, s, b, push(t, b, o))
}

func TestPushManyParallel(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	b := bundletest.NewBuilder(t)
	for i := range 30 {
		// 3 repositories share each
		b.Image(fmt.Sprintf("a.example/app%d:1", i), bundletest.RandomImage(t, int64(i%10), 3, 2000))
	}
	bun := b.Bundle()
	var mu sync.Mutex
	var last registry.Event
	o := options(s)
	o.Jobs = 16
	o.Progress = func(e registry.Event) {
		mu.Lock()
		defer mu.Unlock()
		last = e
	}
	sum := push(t, bun, o)
	if sum.BlobsSent != 40 || sum.BlobsMounted != 80 {
		t.Errorf("%d blobs sent and %d mounted, want 40 and 80", sum.BlobsSent, sum.BlobsMounted)
	}
	if last.Done != last.Total || last.ItemsDone != 30 || last.Items != 30 {
		t.Errorf("last event %+v", last)
	}
	checkPulled(t, s, bun, sum)
}
