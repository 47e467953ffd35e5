package fetch_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestFind wants charts to be in the store when images are looked for in them, to be fetched once, and what is found
// to be pinned unless the manifest has it.
func TestFind(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	helmRepo(t, s, true, "1.0.0")
	store := newStore(t)
	o := options(store, s)
	b := oneChart(manifest.Chart{Name: "app", Repo: "https://" + s.host + "/repo", Version: "1.x"})
	b.Platforms = []string{"linux/amd64"}
	b.Charts = append(b.Charts, manifest.Chart{Path: chartDir(t, "2.0.0"), Name: "app"})
	find := errors.New("not found")
	o.Find = func(ctx context.Context, list []fetch.Chart) ([]fetch.Found, error) {
		var got []string
		for _, c := range list {
			rc, err := store.Open(ctx, c.Archive)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := charts.Load(rc)
			if err != nil || rc.Close() != nil {
				t.Fatal(err)
			}
			got = append(got, loaded.Name()+" "+loaded.Version()+" "+c.Pin.Ref)
		}
		want := []string{"app 1.0.0 https://" + s.host + "/repo/app:1.0.0", "app 2.0.0 local/app:2.0.0"}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Error(diff)
		}
		return nil, find
	}
	if _, err := fetch.Resolve(t.Context(), b, o); !errors.Is(err, find) {
		t.Errorf("got %v", err)
	}
	find = nil
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 2 {
		t.Errorf("the lock has %v", l.Items)
	}
	if _, err := fetch.All(t.Context(), l, options(store, s)); err != nil {
		t.Fatal(err)
	}
	if n := s.count("GET", "/repo/app-1.0.0.tgz"); n != 1 {
		t.Errorf("the chart was fetched %d times: %v", n, s.seen())
	}
}

// TestFindCountsItsCharts wants the charts that are brought for the search in the totals, whether their size was
// known before (in a registry) or not (in a repository).
func TestFindCountsItsCharts(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	helmRepo(t, s, true, "1.0.0")
	o := options(newStore(t), s)
	var last fetch.Event
	o.Jobs, o.Progress = 1, func(e fetch.Event) { last = e }
	searched := errors.New("searched")
	o.Find = func(context.Context, []fetch.Chart) ([]fetch.Found, error) { return nil, searched }
	b := oneChart(manifest.Chart{Name: "app", Repo: "https://" + s.host + "/repo", Version: "1.0.0"})
	if _, err := fetch.Resolve(t.Context(), b, o); !errors.Is(err, searched) {
		t.Fatal(err)
	}
	if want := int64(len(chartArchive(t, "1.0.0"))); last.Done < want || last.Total != last.Done {
		t.Errorf("%d of %d bytes at the end; the chart has %d", last.Done, last.Total, want)
	}
}

// TestFindDespiteFailures wants the charts that are there to be searched, and everything that failed to be told at
// once.
func TestFindDespiteFailures(t *testing.T) {
	t.Parallel()
	o := options(newStore(t))
	b := oneChart(manifest.Chart{Path: chartDir(t, "1.0.0")})
	b.Charts = append(b.Charts, manifest.Chart{Path: "missing"})
	b.Files = []manifest.File{{Name: "f", Path: "gone"}}
	find := errors.New("a template loops")
	searched := 0
	o.Find = func(_ context.Context, list []fetch.Chart) ([]fetch.Found, error) {
		searched = len(list)
		return nil, find
	}
	_, err := fetch.Resolve(t.Context(), b, o)
	var failed *fetch.Errors
	if !errors.As(err, &failed) || !errors.Is(err, find) || searched != 1 {
		t.Fatalf("searched %d charts, got %v", searched, err)
	}
	if len(failed.Failed) != 2 || failed.Items != 3 {
		t.Errorf("got %v of %d", failed.Failed, failed.Items)
	}
	if _, err := fetch.Charts(t.Context(), b, o); !errors.As(err, &failed) || len(failed.Failed) != 1 {
		t.Errorf("got %v", err)
	}
}

// TestFoundImages wants found images to be pinned with their places, and listed ones without.
func TestFoundImages(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	u.pushImage("hub/team/listed:1", platformImage(t, "linux/amd64"))
	u.pushImage("hub/team/found:1", platformImage(t, "linux/amd64"))
	const listed, found = "docker.io/team/listed:1", "docker.io/team/found:1"
	o := u.options(newStore(t))
	o.Find = func(context.Context, []fetch.Chart) ([]fetch.Found, error) {
		return []fetch.Found{
			{Image: manifest.Image{Name: found}, Places: []string{"here"}},
			{Image: manifest.Image{Name: listed}, Places: []string{"here too"}},
			{Image: manifest.Image{Name: found}, Places: []string{"there"}},
		}, nil
	}
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b"}, Platforms: []string{"linux/amd64"},
		Images: []manifest.Image{{Name: listed}},
	}
	l, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, p := range l.Items {
		got[p.Ref] = p.WantedBy
	}
	if diff := cmp.Diff(got, map[string][]string{listed: nil, found: {"here", "there"}}); diff != "" {
		t.Error(diff)
	}
}
