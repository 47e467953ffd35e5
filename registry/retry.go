package registry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/proxy"
)

// A retrier repeats an operation while its failure may be temporary.
type retrier struct {
	again  int // number of repetitions
	logger *slog.Logger
	words  func(error) error               // explains an error without secrets
	alive  func(ctx context.Context) error // asks the registry itself for an answer; nil is not asked
}

// An outageError means that the registry answers nothing: every other operation would fail the same way.
type outageError struct {
	lasted time.Duration
	err    error
}

func (e *outageError) Error() string { return e.err.Error() }
func (e *outageError) Unwrap() error { return e.err }

// do calls f until it succeeds, fails permanently or too often, or ctx ends. Its error is ctx's cause, or f's last,
// in an *outageError if the registry itself does not answer either. Operations are not nested: attempts would multiply.
func (r retrier) do(ctx context.Context, what string, passing func(error) bool, f func() error) error {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		err := f()
		switch {
		case err == nil || !passing(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case attempt >= r.again:
			return r.final(ctx, err, attempt, time.Since(began))
		}
		wait, final := web.Patience().After(attempt+1, err, web.MaxRetryAfter)
		if final != nil {
			return final
		}
		r.logger.WarnContext(ctx, "request failed; retrying", "request", what, "error", r.words(err), "wait",
			wait.String(), "attempt", attempt+1)
		if err := web.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// final returns the error of an operation that has used up its attempts.
func (r retrier) final(ctx context.Context, err error, attempts int, lasted time.Duration) error {
	if attempts == 0 || r.alive == nil {
		return err
	}
	answer := r.alive(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case answer != nil && passing(answer):
		return &outageError{lasted, err}
	}
	return err
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if te, ok := asRegistryError(err); ok {
		return web.PassingStatus(te.StatusCode) && !isFull(te)
	}
	_, refused := errors.AsType[*proxy.Error](err)
	return !errors.Is(err, bundle.ErrDamaged) && !errors.Is(err, errPlain) && (refused || isNetwork(err)) &&
		web.Passing(err)
}

// passingUpload also includes failures cured by a new upload session: a lost session, or content garbled in transit,
// since the digest of every blob read from the bundle has been checked.
func passingUpload(err error) bool {
	te, ok := asRegistryError(err)
	if !ok {
		return passing(err)
	}
	switch te.StatusCode {
	case http.StatusRequestedRangeNotSatisfiable, http.StatusExpectationFailed:
		return true
	case http.StatusBadRequest, http.StatusNotFound:
		return hasCode(te, transport.DigestInvalidErrorCode, transport.SizeInvalidErrorCode,
			transport.BlobUploadInvalidErrorCode, transport.BlobUploadUnknownErrorCode)
	}
	return passing(err)
}

// passingPut also includes a conflict: the registry still works on the same manifest or tag, for another client or
// for an attempt whose answer was lost.
func passingPut(err error) bool {
	te, ok := asRegistryError(err)
	return ok && te.StatusCode == http.StatusConflict && !isImmutable(te) || passing(err)
}

// isImmutable reports whether a rule of the registry keeps a tag as it is, which a retry does not change.
func isImmutable(te *transport.Error) bool {
	words := strings.ToLower(details(te))
	return strings.Contains(words, "immutable") || strings.Contains(words, "already exists")
}

// isFull reports whether the registry's storage is full, which a retry does not change.
func isFull(te *transport.Error) bool {
	words := details(te)
	return te.StatusCode == http.StatusInsufficientStorage || strings.Contains(words, "no space left on device") ||
		strings.Contains(words, "disk quota exceeded")
}

func hasCode(te *transport.Error, codes ...transport.ErrorCode) bool {
	return slices.ContainsFunc(te.Errors, func(d transport.Diagnostic) bool { return slices.Contains(codes, d.Code) })
}

// isNetwork reports whether the request or its answer was lost in transit.
func isNetwork(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, errStalled) || errors.Is(err, io.ErrUnexpectedEOF)
}
