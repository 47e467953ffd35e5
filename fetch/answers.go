package fetch

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/kkbundle/kkbundle/web"
)

// get reads a small file. A status other than 200 is a *web.StatusError.
func (d *download) get(ctx context.Context, method string, limit int64) (data []byte, header http.Header, err error) {
	err = d.each(ctx, func(o origin) error {
		client, err := o.client(ctx)
		if err != nil {
			return err
		}
		req, err := o.request(ctx, method)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "identity")
		data, header, err = d.loader.sender.small(ctx, o.peer, client, req, limit)
		return err
	})
	return data, header, err
}

// head returns the server's size of the file, 0 if unknown. A missing file is an error already here.
func (d *download) head(ctx context.Context) (int64, error) {
	size, _, err := d.version(ctx)
	return size, err
}

// version is head, and returns the validator of the server's version of the file, "" if it has none.
func (d *download) version(ctx context.Context) (size int64, valid string, err error) {
	_, header, err := d.get(ctx, http.MethodHead, 0)
	if answeredWith(err, http.StatusNotFound, http.StatusGone, http.StatusUnauthorized) {
		err = d.present(ctx) // some servers answer so to every HEAD
	}
	switch {
	case err != nil && (web.Status(err) == nil || answeredWith(err, http.StatusNotFound, http.StatusGone,
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
func (d *download) present(ctx context.Context) error {
	return d.each(ctx, func(o origin) error {
		return d.loader.sender.retry(ctx, o.peer, o.url.Redacted(),
			func() error { return o.present(ctx, d.loader.sender) })
	})
}

// present asks once with GET whether the place has the file.
func (o origin) present(ctx context.Context, s *sender) error {
	client, err := o.client(ctx)
	if err != nil {
		return err
	}
	req, err := o.request(ctx, http.MethodGet)
	if err != nil {
		return err
	}
	resp, err := s.send(ctx, o.peer, client, req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.Join(newStatusError(resp), resp.Body.Close())
	}
	return resp.Body.Close()
}

// unknownSize is the size of a file whose server says none.
const unknownSize = -1

// left returns the bytes of a file that are not in the store yet, unknownSize if its server says no size.
func (d *download) left(ctx context.Context) (int64, error) {
	size, valid, err := d.version(ctx)
	r, resumes := d.loader.cache.store.(resumer)
	switch {
	case err != nil:
		return 0, err
	case size == 0:
		return unknownSize, nil
	case !resumes:
		return size, nil
	}
	there := int64(0)
	for _, o := range d.places {
		n, err := r.Partial(ctx, partKey(o.url, valid, size))
		if err != nil {
			return 0, &storeError{err: err}
		}
		there = max(there, n)
	}
	return size - min(there, size), nil
}

// remembered reports whether an earlier run has recorded the file, which is probably unchanged.
func (d *download) remembered(ctx context.Context) bool {
	return d.loader.records != nil && slices.ContainsFunc(d.places, func(o origin) bool {
		return d.loader.records.recall(ctx, o.url.String()) != nil
	})
}
