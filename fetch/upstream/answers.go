package upstream

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/kkbundle/kkbundle/web"
)

// Get reads a small file. A status other than 200 is a *web.StatusError.
func (d *Download) Get(ctx context.Context, method string, limit int64) (data []byte, header http.Header, err error) {
	err = d.Each(ctx, func(o Origin) error {
		client, err := o.Client(ctx)
		if err != nil {
			return err
		}
		req, err := o.Request(ctx, method)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "identity")
		data, header, err = d.Loader.Sender.Small(ctx, o.Peer, client, req, limit)
		return err
	})
	return data, header, err
}

// Head returns the server's size of the file, 0 if unknown. A missing file is an error already here.
func (d *Download) Head(ctx context.Context) (int64, error) {
	size, _, err := d.version(ctx)
	return size, err
}

// version is head, and returns the validator of the server's version of the file, "" if it has none.
func (d *Download) version(ctx context.Context) (size int64, valid string, err error) {
	_, header, err := d.Get(ctx, http.MethodHead, 0)
	if AnsweredWith(err, http.StatusNotFound, http.StatusGone, http.StatusUnauthorized) {
		err = d.present(ctx) // some servers answer so to every HEAD
	}
	switch {
	case err != nil && (web.Status(err) == nil || AnsweredWith(err, http.StatusNotFound, http.StatusGone,
		http.StatusUnauthorized)):
		return 0, "", err
	case err != nil || header == nil:
		return 0, "", nil // some servers refuse HEAD; GET will tell
	}
	size, err = strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	if err != nil || size < 0 || contentEncoding(header) != "" {
		return 0, "", nil
	}
	return size, validator(header), nil
}

// present returns an error if GET does not find the file either. It reads nothing of it.
func (d *Download) present(ctx context.Context) error {
	return d.Each(ctx, func(o Origin) error {
		return d.Loader.Sender.Retry(ctx, o.Peer, o.URL.Redacted(),
			func() error { return o.Present(ctx, d.Loader.Sender) })
	})
}

// Present asks once with GET whether the place has the file.
func (o Origin) Present(ctx context.Context, s *Sender) error {
	client, err := o.Client(ctx)
	if err != nil {
		return err
	}
	req, err := o.Request(ctx, http.MethodGet)
	if err != nil {
		return err
	}
	resp, err := s.Send(ctx, o.Peer, client, req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.Join(newStatusError(resp), resp.Body.Close())
	}
	return resp.Body.Close()
}

// UnknownSize is the size of a file whose server says none.
const UnknownSize = -1

// Left returns the bytes of a file that are not in the store yet, unknownSize if its server says no size.
func (d *Download) Left(ctx context.Context) (int64, error) {
	size, valid, err := d.version(ctx)
	r, resumes := d.Loader.Cache.Store.(resumer)
	switch {
	case err != nil:
		return 0, err
	case size == 0:
		return UnknownSize, nil
	case !resumes:
		return size, nil
	}
	there := int64(0)
	for _, o := range d.Places {
		n, err := r.Partial(ctx, partKey(o.URL, valid, size))
		if err != nil {
			return 0, &StoreError{Cause: err}
		}
		there = max(there, n)
	}
	return size - min(there, size), nil
}

// Remembered reports whether an earlier run has recorded the file, which is probably unchanged.
func (d *Download) Remembered(ctx context.Context) bool {
	return d.Loader.Records != nil && slices.ContainsFunc(d.Places, func(o Origin) bool {
		return d.Loader.Records.recall(ctx, o.URL.String()) != nil
	})
}
