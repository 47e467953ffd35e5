package registry

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/web"
)

// CheckLogin checks that a registry accepts a login: Registry, Auth, Transport and PlainHTTP of the options count. It
// shows nothing about permissions.
func CheckLogin(ctx context.Context, o PushOptions) error {
	o = o.withDefaults()
	t, err := parseTarget(o.Registry)
	if err != nil {
		return err
	}
	if t.prefix != "" {
		return fmt.Errorf("registry %s: a login is for a whole registry: write HOST[:PORT]", o.Registry)
	}
	s, err := newSession(ctx, t, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.stall, errStalled)
	defer cancel()
	rt, err := transport.NewWithContext(ctx, s.registry, s.auth, s.rt, nil)
	if err != nil {
		return s.explain("", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(pingPath), nil)
	if err != nil {
		return err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return s.explain("", err)
	}
	defer resp.Body.Close()
	return s.explain("", transport.CheckError(resp, http.StatusOK))
}

// SpeaksPlainHTTP reports whether the server at host[:port] answers HTTPS with plain HTTP. Servers that do not answer
// do not.
func SpeaksPlainHTTP(ctx context.Context, host string, t http.RoundTripper) bool {
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+pingPath, nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return web.IsPlainHTTP(err)
}
