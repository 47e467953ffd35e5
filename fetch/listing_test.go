package fetch_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// listed returns what a registry has as REPOSITORY:TAG, with "chart " before charts.
func listed(t *testing.T, at string, keep func(repository, tag string) bool, o fetch.Options) []string {
	t.Helper()
	repositories, err := fetch.Repositories(t.Context(), at, o)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := fetch.Tags(t.Context(), repositories, keep, o)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, l := range tags {
		text := l.Repository + ":" + l.Tag
		if l.Chart {
			text = "chart " + text
		}
		list = append(list, text)
	}
	return list
}

func TestListRegistry(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{Auth: registrytest.AuthToken})
	img := platformImage(t, "linux/amd64")
	for _, ref := range []string{"team/app:1", "team/app:2-rc1", "team/app/side:1", "teamwork:1"} {
		p.pushImage(ref, img)
	}
	o := p.options(newStore(t))
	o.Sources = nil
	for at, want := range map[string][]string{
		p.Host:                    {"team/app/side:1", "team/app:1", "team/app:2-rc1", "teamwork:1"},
		p.Host + "/team":          {"team/app/side:1", "team/app:1", "team/app:2-rc1"},
		p.Host + "/team/app/side": {"team/app/side:1"},
	} {
		got := listed(t, at, nil, o)
		slices.Sort(got)
		for i := range want {
			want[i] = p.Host + "/" + want[i]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
	got := listed(t, p.Host+"/team", func(_, tag string) bool { return !strings.Contains(tag, "-rc") }, o)
	if slices.Contains(got, p.Host+"/team/app:2-rc1") || len(got) != 2 {
		t.Errorf("without candidates: %q", got)
	}
	if _, err := fetch.Repositories(t.Context(), p.Host+"/none", o); err == nil ||
		!strings.Contains(err.Error(), `no repository at "none"`) {
		t.Errorf("an absent repository: %v", err)
	}
}

// TestListWithoutCatalog: public registries do not list their repositories.
func TestListWithoutCatalog(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, registrytest.Options{})
	img := platformImage(t, "linux/amd64")
	p.pushImage("team/app:1", img)
	d := digestString(t, img)
	p.pushImage("team/app:"+strings.Replace(d.String(), ":", "-", 1)+".sig", img)
	p.AddFaults(registrytest.Fault{
		Method: http.MethodGet, Path: regexp.MustCompile("/_catalog"), Times: -1,
		Effect: registrytest.Fail(404, ""),
	})
	o := p.options(newStore(t))
	o.Sources = nil
	if got := listed(t, p.Host+"/team/app", nil, o); !slices.Equal(got, []string{p.Host + "/team/app:1"}) {
		t.Errorf("tags %q", got)
	}
	_, err := fetch.Repositories(t.Context(), p.Host, o)
	wantError(t, err, fetch.ErrNoList.Error()+": name one, "+p.Host+"/REPOSITORY")
}

// TestListWithoutUsefulCatalog: a registry can list nothing, or without an end, as quay.io does. The repository that
// was named has its tags all the same, and an absent one is an error as before.
func TestListWithoutUsefulCatalog(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"empty": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"repositories":[]}`)) },
		"foreign": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"repositories":["team/application"]}`))
		},
		"endless": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", `</v2/_catalog?last=`+r.URL.Query().Get("last")+`x>; rel="next"`)
			_, _ = w.Write([]byte(`{"repositories":["other/app"]}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, registrytest.Options{})
			p.pushImage("team/app:1", platformImage(t, "linux/amd64"))
			p.AddFaults(registrytest.Fault{
				Method: http.MethodGet, Path: regexp.MustCompile("/_catalog"), Times: -1,
				Effect: func(http.Handler) http.Handler { return answer },
			})
			o := p.options(newStore(t))
			o.Sources = nil
			if got := listed(t, p.Host+"/team/app", nil, o); !slices.Equal(got, []string{p.Host + "/team/app:1"}) {
				t.Errorf("tags %q", got)
			}
			if got, err := fetch.Repositories(t.Context(), p.Host+"/team/none", o); err == nil {
				t.Errorf("an absent repository: %q", got)
			}
		})
	}
}
