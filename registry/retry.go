package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/proxy"
)

const (
	firstDelay    = 250 * time.Millisecond
	maxDelay      = 30 * time.Second
	maxRetryAfter = 5 * time.Minute // the longest pause, even if a registry asks for more
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
		wait := delay(attempt, err)
		r.logger.WarnContext(ctx, "request failed; retrying", "request", what, "error", r.words(err), "wait", wait.String(), "attempt", attempt+1)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
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

// delay returns the pause requested by the registry, or else doubles with each attempt. Jitter keeps workers from
// retrying together.
func delay(attempt int, err error) time.Duration {
	if _, asked := errors.AsType[*retryAfterError](err); asked {
		return retryAfter(err)
	}
	d := min(firstDelay<<min(attempt, 10), maxDelay)
	return d/2 + rand.N(d)
}

// retryAfter returns the pause requested by a registry, 0 for none.
func retryAfter(err error) time.Duration {
	if after, ok := errors.AsType[*retryAfterError](err); ok {
		return min(after.wait, maxRetryAfter)
	}
	return 0
}

// A retryAfterError is an answer with its Retry-After header.
type retryAfterError struct {
	wait time.Duration
	err  error
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

func withRetryAfter(h http.Header, err error) error {
	text := h.Get("Retry-After")
	if seconds, e := strconv.ParseInt(text, 10, 32); e == nil && seconds >= 0 {
		return &retryAfterError{wait: time.Duration(seconds) * time.Second, err: err}
	}
	if at, e := http.ParseTime(text); e == nil {
		return &retryAfterError{wait: max(time.Until(at), 0), err: err}
	}
	return err
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	if te, ok := asRegistryError(err); ok {
		return passingStatus(te.StatusCode) && !isFull(te)
	}
	if refused, ok := errors.AsType[*proxy.Error](err); ok {
		return passingStatus(refused.Code)
	}
	return !errors.Is(err, proxy.ErrAddress) && !errors.Is(err, context.Canceled) && !errors.Is(err, bundle.ErrDamaged) && !errors.Is(err, errPlain) && !isTLS(err) && isNetwork(err)
}

func passingStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
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

// passingPut also includes a conflict: the registry still works on the same manifest or tag, for another client or for an attempt whose
// answer was lost.
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
	return te.StatusCode == http.StatusInsufficientStorage || strings.Contains(words, "no space left on device") || strings.Contains(words, "disk quota exceeded")
}

func hasCode(te *transport.Error, codes ...transport.ErrorCode) bool {
	return slices.ContainsFunc(te.Errors, func(d transport.Diagnostic) bool { return slices.Contains(codes, d.Code) })
}

// isNetwork reports whether the request or its answer was lost in transit.
func isNetwork(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok || errors.Is(err, errStalled) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isTLS reports whether TLS negotiation or trust failed: a retry does not help.
func isTLS(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	return unknown || host || invalid || verify || record || isHTTPAnswer(err)
}
