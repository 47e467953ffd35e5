package logins_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/web/logins"
)

// tokenFrom asks a token service with this answer through a Trip, as go-containerregistry does.
func tokenFrom(t *testing.T, method string, status int, answer string) (string, error) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	trip := logins.NewTrip(http.DefaultTransport, "http", strings.TrimPrefix(srv.URL, "http://"))
	ask := func(method, address string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return trip.RoundTrip(req)
	}
	ping, err := ask(http.MethodGet, srv.URL+"/v2/")
	if err != nil {
		t.Fatal(err)
	}
	defer ping.Body.Close()
	_, realm, _ := strings.Cut(ping.Header.Get("WWW-Authenticate"), `realm="`)
	realm, _, _ = strings.Cut(realm, `"`)
	if _, err := url.Parse(realm); err != nil {
		t.Fatal(err)
	}
	resp, err := ask(method, realm)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), nil
}

// TestTokenAnswers: token services write the same token in many ways.
func TestTokenAnswers(t *testing.T) {
	t.Parallel()
	const plain = `{"token":"T"}`
	for answer, want := range map[string]string{
		`{"token": "T", "expires_in": "300"}`:                    `{"token":"T","expires_in":300}`,
		`{"token": "T", "expires_in": 299.9}`:                    `{"token":"T","expires_in":299}`,
		`{"token": "T", "expires_in": null, "issued_at": 12}`:    plain,
		`{"token": "", "access_token": "T"}`:                     plain,
		"\xef\xbb\xbf" + `{"token": "T\n"}`:                      plain,
		`{"access_token": "T", "refresh_token": "R", "scope":1}`: `{"token":"T","refresh_token":"R"}`,
	} {
		if got, err := tokenFrom(t, http.MethodGet, http.StatusOK, answer); err != nil || got != want {
			t.Errorf("%q became %q, want %q (%v)", answer, got, want, err)
		}
	}
}

// TestNoToken: the service is named, its answer is not repeated, and it is not asked again.
func TestNoToken(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"<html><p>secret</p></html>": "web page",
		`"secret"`:                   "something else",
		"":                           "something else",
		`{"secret": "x"}`:            "no token",
	} {
		_, err := tokenFrom(t, http.MethodGet, http.StatusOK, answer)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/token") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q and the service's address", answer, err, want)
		}
		if final, ok := errors.AsType[*logins.ServiceError](err); !ok || final.CanPass() {
			t.Errorf("%q is asked for again", answer)
		}
	}
	if _, err := tokenFrom(t, http.MethodGet, http.StatusNotFound, ""); err == nil ||
		!strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a missing service: %v", err)
	}
	if _, err := tokenFrom(t, http.MethodPost, http.StatusNotFound, ""); err != nil {
		t.Errorf("a client that can ask otherwise must see this answer: %v", err)
	}
}
