package logins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const maxToken = 1 << 20 // bytes of a token service's answer

// A ServiceError says what a token service answered in place of a token. Asking again does not help.
type ServiceError struct {
	service string // its address, without query
	answer  string
}

// Error names the service and its answer, which is not repeated: it may be a secret.
func (e *ServiceError) Error() string {
	return fmt.Sprintf("the token service %s, which the registry names for logins, %s", e.service, e.answer)
}

// CanPass is false: it would be the same answer.
func (e *ServiceError) CanPass() bool { return false }

// missing is the error of a token service that is not there.
func missing(service *url.URL) error {
	return &ServiceError{plainAddress(service), "does not exist (404 Not Found): ask the registry's administrator"}
}

// plainAddress leaves out the query.
func plainAddress(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// A token is a token service's answer in the form that go-containerregistry reads.
type token struct {
	Token        string `json:"token"`
	RefreshToken string `json:"refresh_token,omitempty"`
	ExpiresIn    int64  `json:"expires_in,omitempty"`
}

// settleToken replaces the body of a token service's answer by one with the same token that every client reads.
// Services also write expires_in as text or with decimals, a token under access_token alone, and a mark before the
// text.
func settleToken(resp *http.Response, service *url.URL) error {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxToken))
	if err != nil {
		return err
	}
	failed := &ServiceError{service: plainAddress(service)}
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	var there map[string]json.RawMessage
	switch {
	case bytes.HasPrefix(data, []byte("<")):
		failed.answer = "sends a web page in place of a token: it, or a proxy before it, may want a sign-in in a browser; " +
			"if there is a mirror, name it under sources"
		return failed
	case json.Unmarshal(data, &there) != nil: // its error may repeat the token
		failed.answer = "sends something else than a token in JSON: ask the registry's administrator"
		return failed
	}
	text := func(key string) (s string) {
		if json.Unmarshal(there[key], &s) != nil {
			return ""
		}
		return strings.TrimSpace(s)
	}
	got := token{Token: text("access_token"), RefreshToken: text("refresh_token")}
	if got.Token == "" {
		got.Token = text("token")
	}
	if got.Token == "" {
		failed.answer = "gives an answer that has no token: ask the registry's administrator"
		return failed
	}
	if seconds, err := strconv.ParseFloat(strings.Trim(string(there["expires_in"]), `"`), 64); err == nil && seconds > 0 {
		got.ExpiresIn = int64(min(seconds, 1<<31))
	}
	if data, err = json.Marshal(got); err != nil {
		return err
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	resp.Header.Del("Content-Encoding")
	resp.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}
