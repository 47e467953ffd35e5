package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Idle is how long a server may send nothing. A registry that stores an upload is silent for longer: push has a limit
// of its own.
const Idle = time.Minute

// A StallError means that a server sent nothing for some time.
type StallError struct{ Idle time.Duration }

// Error returns the time.
func (e *StallError) Error() string { return fmt.Sprintf("the server stopped sending for %s", e.Idle) }

// Send sends a request. It and each read of the answer's body fail with a *StallError if the server sends nothing for
// some time. The body must be closed.
func Send(c *http.Client, req *http.Request, idle time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(idle, func() { cancel(&StallError{idle}) })
	resp, err := c.Do(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, WithoutLocation(err)
	}
	resp.Body = Watch(ctx, cancel, resp.Body, idle)
	return resp, nil
}

// Watch returns the body of an answer whose request has a context with this cancel. Reads fail with a *StallError if
// nothing arrives for some time.
func Watch(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, idle time.Duration) io.ReadCloser {
	timer := time.AfterFunc(idle, func() { cancel(&StallError{idle}) })
	timer.Stop() // until the first read
	return &watchedBody{rc: body, ctx: ctx, cancel: cancel, timer: timer, idle: idle}
}

// A watchedBody is an answer's body whose reads take at most idle.
type watchedBody struct {
	rc     io.ReadCloser
	ctx    context.Context //nolint:containedctx // it is the request's, whose cause says why reading ended
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.idle)
	n, err := b.rc.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	err := b.rc.Close()
	b.cancel(nil)
	return err
}
