package transfer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

const (
	// connectTime limits a connection to a registry in the same network.
	connectTime = 5 * time.Second
	// tellStep is how often a pull is told of. kkbundle ends commands that are silent for long.
	tellStep = time.Second
)

// pullAll takes wanted content from the plan's registries, one after the other, and returns the content that none gave.
// What a registry does wrong is told and is no error: the other side has all content.
func (r *receiver) pullAll(ctx context.Context, wanted []want) ([]want, error) {
	for _, one := range r.plan.Registries {
		puller, err := newPuller(one)
		if err != nil {
			return nil, err
		}
		wanted, err = r.pullFrom(ctx, puller, wanted)
		puller.client.CloseIdleConnections()
		if err != nil {
			return nil, err
		}
	}
	return wanted, nil
}

// pullFrom returns the content that the registry did not give. One that fails otherwise than by its answer is not asked
// again.
func (r *receiver) pullFrom(ctx context.Context, p *puller, wanted []want) ([]want, error) {
	var left []want
	for i, w := range wanted {
		repository := r.plan.repository(w.Digest)
		if size, _ := r.plan.size(w.Digest); repository == "" || w.Offset == size {
			left = append(left, w)
			continue
		}
		rest, problem, err := r.pull(ctx, p, repository, w)
		if err != nil {
			return nil, err
		}
		if problem == nil {
			continue
		}
		left = append(left, rest)
		if err := r.tell(p, w.Digest, 0, problem); err != nil {
			return nil, err
		}
		if !answered(problem) {
			return append(left, wanted[i+1:]...), nil
		}
	}
	return left, nil
}

// answered reports whether a problem is an answer of the registry, and not that there was none.
func answered(problem error) bool { return web.Status(problem) != nil || errors.Is(problem, errWrong) }

// errWrong is an answer without the wanted content.
var errWrong = errors.New("wrong content")

// pull takes content from a registry and puts it in its places. With a problem it returns what is still wanted.
func (r *receiver) pull(ctx context.Context, p *puller, repository string, w want) (rest want, problem, err error) {
	size, _ := r.plan.size(w.Digest)
	limited, cancel := context.WithTimeoutCause(ctx, longestPull(size-w.Offset), errSlow)
	defer cancel()
	sum, err := r.take(limited, w, size-w.Offset, func(to io.Writer) error {
		return p.get(limited, repository, w, size, &telling{to: to, every: func(n int64) error {
			return r.tell(p, w.Digest, n, nil)
		}})
	})
	switch {
	case ctx.Err() != nil:
		return w, nil, context.Cause(ctx)
	case errors.As(err, new(*diskError)) || errors.Is(err, errUntold):
		return w, nil, err
	case err != nil:
		w.Offset, problem = 0, err
		if have, err := r.tree.partSize(w.Digest, size); err == nil {
			w.Offset = have
		}
		return w, problem, nil
	case sum != w.Digest:
		if err := r.tree.dropPart(w.Digest); err != nil {
			return w, nil, err
		}
		return want{Digest: w.Digest}, fmt.Errorf("%w: its digest is %s", errWrong, sum), nil
	case r.purpose == toKeep:
		return w, nil, nil
	}
	return w, nil, r.place(ctx, w.Digest)
}

// errSlow means that the other side is likely to be faster.
var errSlow = errors.New("the registry takes too long")

// longestPull returns the longest time for content of a size: a minute, and a second for each MiB. The limit also ends
// a helper whose connection is gone, as it reads nothing from there meanwhile.
func longestPull(size int64) time.Duration {
	const least = 1 << 20
	return web.Idle + time.Duration(size/least)*time.Second
}

// tell tells the other side of bytes, or of a problem.
func (r *receiver) tell(p *puller, digest string, bytes int64, problem error) error {
	told := Pull{Digest: digest, Registry: p.Address, Bytes: bytes}
	if problem != nil {
		const most = 500
		told.Problem, told.Answered = plain.Clip(plain.Line(problem.Error()), most), answered(problem)
	}
	if err := wire.WriteMessage(r.out, answer{Version: ProtocolVersion, Pull: &told}); err != nil {
		return fmt.Errorf("%w: %w", errUntold, err)
	}
	return nil
}

// errUntold means that the other side is gone.
var errUntold = errors.New("answer")

// telling counts written bytes and tells of them from time to time, and at its end.
type telling struct {
	to    io.Writer
	every func(bytes int64) error
	last  time.Time
	bytes int64
}

func (t *telling) Write(data []byte) (int, error) {
	n, err := t.to.Write(data)
	t.bytes += int64(n)
	if now := time.Now(); err == nil && now.Sub(t.last) >= tellStep {
		t.last = now
		err = t.flush()
	}
	return n, err
}

func (t *telling) flush() error {
	bytes := t.bytes
	t.bytes = 0
	return t.every(bytes)
}

// A puller asks one registry.
type puller struct {
	Registry
	client *http.Client
}

func newPuller(r Registry) (*puller, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(r.CA)) {
			return nil, fmt.Errorf("the authority of registry %s: not PEM", r.Address)
		}
	}
	return &puller{r, &http.Client{
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: connectTime}).DialContext,
			TLSClientConfig: config, TLSHandshakeTimeout: connectTime,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// get writes content from an offset on.
func (p *puller) get(ctx context.Context, repository string, w want, size int64, to *telling) error {
	place := url.URL{Scheme: "https", Host: p.Address, Path: "/v2/" + repository + "/blobs/" + w.Digest}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, place.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", web.UserAgent)
	if p.Authorization != "" {
		req.Header.Set("Authorization", p.Authorization)
	}
	status := http.StatusOK
	if w.Offset > 0 {
		status = http.StatusPartialContent
		req.Header.Set("Range", "bytes="+strconv.FormatInt(w.Offset, 10)+"-")
	}
	resp, err := web.Send(p.client, req, web.Idle)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	rest := size - w.Offset
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return web.NewStatusError(resp)
	case resp.StatusCode != status || resp.ContentLength != rest:
		return fmt.Errorf("%w: status %d and %d bytes, where %d are missing", errWrong, resp.StatusCode,
			resp.ContentLength, rest)
	}
	_, err = io.CopyN(to, resp.Body, rest)
	if told := to.flush(); err == nil {
		err = told
	}
	return err
}
