package registry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/web"
)

// TestRedirectToNowhere: a registry's redirect to an address that is not valid is not repeated.
func TestRedirectToNowhere(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://user:s3cret#x@127.0.0.1:1:2/f")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r := &repo{session: &session{}}
	if _, err := r.receive(http.DefaultClient, req, request{}); err == nil || strings.Contains(err.Error(), "s3cret") ||
		web.Passing(err) {
		t.Errorf("got %v", err)
	}
}
