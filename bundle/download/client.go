// Package download brings bundles from a plain web server: whole files, resumed across runs, and ranges of files.
package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

// defaultTries is the number of failures in a row, without a new byte between them, that end a download.
const defaultTries = 8

// A Client sends requests to web servers.
type Client struct {
	// Logger gets the attempts that fail after the first; nil for none.
	Logger *slog.Logger

	http               *http.Client
	username, password string
	tries              int
	idle               time.Duration
	wait               web.Backoff
}

// NewClient returns a client over a transport. With a username, it logs in with HTTP's basic authentication.
func NewClient(t http.RoundTripper, username, password string) *Client {
	return &Client{
		http: &http.Client{Transport: t, CheckRedirect: checkRedirect}, username: username, password: password,
		tries: defaultTries, idle: web.Idle, wait: web.Patience(),
	}
}

// Shown returns an address for people, without its password and its query: both may be a login, as in presigned
// addresses.
func Shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	if u.RawQuery == "" {
		return plain.Line(u.Redacted())
	}
	u.RawQuery = ""
	return plain.Line(u.Redacted()) + "?..."
}

// checkRedirect refuses to leave TLS.
func checkRedirect(to *http.Request, via []*http.Request) error {
	if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
		return unusable(via[0].URL.String(), "the server redirects to %s, which is not HTTPS", Shown(to.URL.String()))
	}
	return web.CheckRedirect(to, via)
}

// A ServerError is an error about a server: it cannot be reached, or its answers cannot be used.
type ServerError struct {
	URL   string
	Err   error
	final bool // trying again does not help
}

// Error names the address and the cause.
func (e *ServerError) Error() string { return e.URL + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ServerError) Unwrap() error { return e.Err }

// unusable returns an error about an answer that would be the same again.
func unusable(address, format string, args ...any) error {
	return &ServerError{Shown(address), fmt.Errorf(format, args...), true}
}

// Hint returns the remedy of a status.
func (e *ServerError) Hint() string {
	status := web.Status(e.Err)
	switch {
	case status == nil && e.final:
		return ""
	case status == nil:
		return "check the address, and that this machine reaches the server (a proxy: HTTPS_PROXY, NO_PROXY); run the command again: it continues where it ended"
	}
	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "log in with --username and --password-stdin"
	case http.StatusNotFound, http.StatusGone:
		return "compare the address with the server's list of files"
	}
	return "run the command again: it continues where it ended"
}

// ofServer names the server in an error that does not yet.
func ofServer(address string, err error) error {
	if _, named := errors.AsType[*ServerError](err); err == nil || named || !transient(err) {
		return err
	}
	return &ServerError{URL: Shown(address), Err: err}
}

// isMissing reports whether the server does not have a file.
func isMissing(err error) bool {
	status := web.Status(err)
	return status != nil && (status.Code == http.StatusNotFound || status.Code == http.StatusGone)
}

// transient reports whether the same request may succeed later.
func transient(err error) bool {
	_, local := errors.AsType[*localError](err)
	_, file := errors.AsType[*fs.PathError](err)
	server, ok := errors.AsType[*ServerError](err)
	return !local && !file && !(ok && server.final) && web.Passing(err)
}

// A localError is about this machine, not about the server.
type localError struct{ error }

// Unwrap returns the cause.
func (e *localError) Unwrap() error { return e.error }

// do sends a request, follows redirects, and returns an answer with one of the statuses. A server that is silent for
// too long fails.
func (c *Client) do(r *http.Request, statuses ...int) (*http.Response, error) {
	if c.username != "" {
		r.SetBasicAuth(c.username, c.password)
	}
	r.Header.Set("Accept-Encoding", "identity") // ranges are of the file's own bytes
	r.Header.Set("User-Agent", web.UserAgent)
	resp, err := web.Send(c.http, r, c.idle)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address may have a password
		}
		var server *ServerError
		if errors.As(err, &server) {
			return nil, err
		}
		return nil, &ServerError{URL: Shown(r.URL.String()), Err: err}
	}
	for _, s := range statuses {
		if resp.StatusCode == s {
			return resp, checkEncoding(resp)
		}
	}
	_ = resp.Body.Close() // the status is the error
	return nil, &ServerError{URL: Shown(r.URL.String()), Err: fmt.Errorf("the server answers %w",
		web.NewStatusError(resp))}
}

// checkEncoding refuses a body that is not the file's own bytes, or whose end cannot be told from a broken connection.
func checkEncoding(resp *http.Response) error {
	var err error
	address := resp.Request.URL.String()
	switch e := resp.Header.Get("Content-Encoding"); {
	case e != "" && e != "identity":
		err = unusable(address, "the server compresses the file (%s)", plain.Line(e))
	case resp.ContentLength < 0 && resp.ProtoMajor < 2 && len(resp.TransferEncoding) == 0:
		err = unusable(address, "the server tells neither the length nor the end of the file")
	default:
		return nil
	}
	return errors.Join(err, resp.Body.Close())
}

// pause waits before another try. One failure may be anything; more are said, since the waits become long.
func (c *Client) pause(ctx context.Context, failures int, cause error) error {
	wait, err := c.wait.After(failures, cause, web.MaxRetryAfter)
	if err != nil {
		return err
	}
	if c.Logger != nil && failures > 1 {
		c.Logger.WarnContext(ctx, "the server does not answer properly, trying again", "next",
			plain.Duration(wait), "error", cause)
	}
	return web.Sleep(ctx, wait)
}

// gaveUp is ofServer with the number of tries.
func gaveUp(address string, err error, tries int) error {
	err = ofServer(address, err)
	server, ok := errors.AsType[*ServerError](err)
	if !ok || !transient(err) || tries < 2 {
		return err
	}
	return &ServerError{server.URL, fmt.Errorf("%w (tried %d times)", server.Err, tries), server.final}
}

// again calls try until it succeeds, or fails for good.
func (c *Client) again(ctx context.Context, address string, try func() error) error {
	for failures := 1; ; failures++ {
		err := try()
		if err == nil || ctx.Err() != nil || !transient(err) || failures >= c.tries {
			return gaveUp(address, err, failures)
		}
		if err := c.pause(ctx, failures, err); err != nil {
			return err
		}
	}
}

// Small returns a file of at most limit bytes, or nil if the server does not have it.
func (c *Client) Small(ctx context.Context, address string, limit int64) (data []byte, err error) {
	err = c.again(ctx, address, func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := c.do(r, http.StatusOK)
		if err != nil {
			return err
		}
		data, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		return errors.Join(err, resp.Body.Close())
	})
	switch {
	case isMissing(err):
		return nil, nil
	case err == nil && int64(len(data)) > limit:
		return nil, unusable(address, "the file has more than %d bytes", limit)
	}
	return data, err
}
