// Package harbor prepares a Harbor registry (API v2.0, Harbor 2.9 and later) for a push: projects with their visibility
// and storage quota, and robot accounts with pull permission only. It uses HTTP basic authentication, keeps no cookies
// (with a cookie Harbor requires a CSRF token), and imports nothing of ours.
//
// Harbor's answers are bounded; a refusal becomes a *Error with Harbor's own message. Rules of Harbor that are checked
// here come from github.com/goharbor/harbor.
package harbor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	apiPath   = "/api/v2.0"
	maxAnswer = 4 << 20 // bytes; a page of 100 projects has about 100 KB
	maxWords  = 400     // characters of Harbor's own message
)

// ErrNotHarbor means the address is that of another registry.
var ErrNotHarbor = errors.New("not a Harbor registry")

// A Client talks to one Harbor. It is safe for concurrent use.
type Client struct {
	URL      string            // https://HOST, without path
	HTTP     http.RoundTripper // nil is http.DefaultTransport
	Username string            // "" is anonymous
	Password string
}

// An Error is a refusal by Harbor.
type Error struct {
	Op     string // the request, "create project base"
	Status int    // HTTP status
	Code   string // Harbor's, "FORBIDDEN"
	Words  string // Harbor's message, on one line
}

// Error returns the request and Harbor's message.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: Harbor answered %d %s", e.Op, e.Status, http.StatusText(e.Status))
	if e.Words != "" {
		s += " (" + e.Words + ")"
	}
	return s
}

// Temporary reports whether the same request may succeed later.
func (e *Error) Temporary() bool {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// hasStatus reports whether Harbor answered with one of these.
func hasStatus(err error, statuses ...int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(statuses, e.Status)
}

// Info is Harbor's description of itself, which is shorter for anonymous users.
type Info struct {
	Version  string `json:"harbor_version"`
	AuthMode string `json:"auth_mode"`
	ReadOnly bool   `json:"read_only"`
}

// Info identifies the registry. For another registry the error matches ErrNotHarbor.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var info Info
	err := c.do(ctx, call{
		op: "look for Harbor", method: http.MethodGet, path: "/systeminfo",
		anonymous: c.Username == "",
	}, &info)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, other := errors.AsType[*json.UnmarshalTypeError](err)
	e, answered := errors.AsType[*Error](err)
	switch {
	case syntax, other, answered && e.Status != http.StatusServiceUnavailable && e.Status != http.StatusTooManyRequests,
		err == nil && info.AuthMode == "" && info.Version == "":
		return Info{}, ErrNotHarbor
	}
	return info, err
}

// A call is one request.
type call struct {
	op, method, path string
	query            url.Values
	body             any
	want             int // 0 is 200
	anonymous        bool
}

// do makes a request and decodes the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, q call, out any) error {
	req, err := c.request(ctx, q)
	if err != nil {
		return fmt.Errorf("%s: %w", q.op, err)
	}
	client := http.Client{Transport: c.HTTP, CheckRedirect: func(*http.Request,
		[]*http.Request,
	) error {
		return http.ErrUseLastResponse
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", q.op, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("%s: %w", q.op, err)
	}
	if want := max(q.want, http.StatusOK); resp.StatusCode != want {
		return answerError(q.op, resp.StatusCode, data)
	}
	if len(data) > maxAnswer {
		return fmt.Errorf("%s: Harbor's answer has more than %d bytes", q.op, maxAnswer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: Harbor's answer: %w", q.op, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, q call) (*http.Request, error) {
	address := c.URL + apiPath + q.path
	if len(q.query) > 0 {
		address += "?" + q.query.Encode()
	}
	var body io.Reader = http.NoBody
	if q.body != nil {
		data, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, address, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if strings.HasPrefix(q.path, "/projects/") {
		req.Header.Set("X-Is-Resource-Name", "true") // a project may have the name 42
	}
	if !q.anonymous {
		req.SetBasicAuth(c.Username, c.Password)
	}
	return req, nil
}

func answerError(op string, status int, data []byte) error {
	e := &Error{Op: op, Status: status}
	var doc struct {
		Errors []struct{ Code, Message string } `json:"errors"`
	}
	if json.Unmarshal(data, &doc) == nil && len(doc.Errors) > 0 {
		e.Code, e.Words = clean(doc.Errors[0].Code), clean(doc.Errors[0].Message)
	}
	return e
}

// clean makes Harbor's words fit for an error.
func clean(s string) string { return plain.Clip(plain.Line(s), maxWords) }

// pageSize is Harbor's largest page (swagger.yaml, pageSize).
const pageSize = 100

// maxPages bounds a list that never ends.
const maxPages = 1000

// pages requests pages until one is not full, or each returns false.
func pages[T any](ctx context.Context, c *Client, q call, each func(T) (more bool)) error {
	query := url.Values{}
	maps.Copy(query, q.query)
	q.query = query
	for page := 1; page <= maxPages; page++ {
		query.Set("page", strconv.Itoa(page))
		query.Set("page_size", strconv.Itoa(pageSize))
		var list []T
		if err := c.do(ctx, q, &list); err != nil {
			return err
		}
		for _, item := range list {
			if !each(item) {
				return nil
			}
		}
		if len(list) < pageSize {
			return nil
		}
	}
	return fmt.Errorf("%s: the list has more than %d pages", q.op, maxPages)
}
