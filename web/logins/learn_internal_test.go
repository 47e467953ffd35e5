package logins

import (
	"net/http"
	"net/url"
	"testing"
)

// TestLearn: a service that is named late is taken, but where the registry itself asked for the password it does not go
// to another host: that may be the upstream's of a cache.
func TestLearn(t *testing.T) {
	t.Parallel()
	root := &url.URL{Scheme: "https", Host: "registry.site:5000"}
	for _, c := range []struct {
		ping  int
		realm string
		want  bool
	}{
		{http.StatusOK, "https://tokens.site/token", true},
		{http.StatusUnauthorized, "https://registry.site/token", true},
		{http.StatusUnauthorized, "https://auth.docker.io/token", false},
	} {
		trip := &Trip{root: root, ping: &http.Response{StatusCode: c.ping}}
		got := trip.Learn(&http.Response{
			StatusCode: http.StatusUnauthorized,
			Header:     http.Header{"Www-Authenticate": {`Bearer realm="` + c.realm + `",service="x"`}},
		})
		if got != c.want || (trip.Service() != nil) != c.want {
			t.Errorf("%d, then %s: %v, %v", c.ping, c.realm, got, trip.Service())
		}
	}
}
