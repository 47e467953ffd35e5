package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/web"
)

const (
	maxManifest = 8 << 20          // bytes; registries take 4 MiB
	goodbye     = 10 * time.Second // time to cancel an unfinished upload at the registry
)

// Media types of Docker's own formats.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func (r *repo) path(format string, args ...any) string {
	return r.url("/v2/" + r.name + fmt.Sprintf(format, args...))
}

// hasBlob is lookUp, with retries.
func (r *repo) hasBlob(ctx context.Context, d ocispec.Descriptor) (have bool, err error) {
	err = r.retry.do(ctx, "HEAD "+r.name, passing, func() error {
		have, err = r.lookUp(ctx, d)
		return err
	})
	return have, err
}

// lookUp queries once whether the repository has the blob. Unclear answers count as no: an attempt to send it gives an
// answer with a reason, which a HEAD cannot have.
func (r *repo) lookUp(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	q := request{method: http.MethodHead, url: r.path("/blobs/%s", d.Digest), want: []int{http.StatusOK}}
	a, err := r.call(ctx, q)
	if err == nil {
		return a.length < 0 || a.length == d.Size, nil
	}
	if te, ok := asRegistryError(err); ok && !web.PassingStatus(te.StatusCode) {
		return false, nil
	}
	return false, err
}

// ask sends a request that can be repeated.
func (r *repo) ask(ctx context.Context, q request) (answer, error) {
	var a answer
	err := r.retry.do(ctx, q.method+" "+r.name, passing, func() error {
		var err error
		a, err = r.call(ctx, q)
		return err
	})
	return a, err
}

// manifest returns the registry's digest under a tag or digest; "" if there is none.
func (r *repo) manifest(ctx context.Context, reference, mediaType string) (digest.Digest, error) {
	q := r.manifestQuery(reference, mediaType)
	a, err := r.ask(ctx, q)
	te, answered := asRegistryError(err)
	switch {
	case answered && te.StatusCode == http.StatusNotFound && r.session.headless.Load():
		return r.manifestByGet(ctx, q)
	case answered && te.StatusCode == http.StatusNotFound:
		return "", nil
	case answered && !web.PassingStatus(te.StatusCode): // of HEAD alone, or GET gives the reason
		return r.manifestByGet(ctx, q)
	case err != nil:
		return "", err
	}
	if d := digest.Digest(a.header.Get("Docker-Content-Digest")); d.Validate() == nil {
		return d, nil
	}
	return r.manifestByGet(ctx, q) // the header is only recommended
}

// manifestQuery asks for a manifest under a tag or digest with HEAD.
func (r *repo) manifestQuery(reference, mediaType string) request {
	accept := []string{mediaType}
	for _, t := range []string{
		ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, dockerList,
		dockerManifest,
	} {
		if t != mediaType {
			accept = append(accept, t)
		}
	}
	return request{
		method: http.MethodHead, url: r.path("/manifests/%s", reference), want: []int{http.StatusOK},
		header: http.Header{"Accept": {strings.Join(accept, ", ")}},
	}
}

// manifestByGet serves registries that answer a HEAD without a digest, or not at all.
func (r *repo) manifestByGet(ctx context.Context, q request) (digest.Digest, error) {
	q.method = http.MethodGet
	a, err := r.ask(ctx, q)
	if te, ok := asRegistryError(err); ok && te.StatusCode == http.StatusNotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return digest.FromBytes(a.body), nil
}

// An unseenError means that a registry does not show a manifest that it has just taken.
type unseenError struct{ error }

func (e unseenError) Unwrap() error { return e.error }

// seen makes sure that a reference has the digest that was put under it. Some registries show it only some reads
// later, and meanwhile what was there before; some answer every HEAD with 404.
func (r *repo) seen(ctx context.Context, reference string, want, before digest.Digest, mediaType string) error {
	late := func(err error) bool { _, ok := errors.AsType[unseenError](err); return ok }
	return r.retry.do(ctx, "look for "+reference+" of "+r.name, late, func() error {
		have, err := r.manifest(ctx, reference, mediaType)
		if err == nil && have == "" && !r.session.headless.Load() {
			if have, err = r.manifestByGet(ctx, r.manifestQuery(reference, mediaType)); have != "" {
				r.session.headless.Store(true)
			}
		}
		switch {
		case err != nil:
			return err
		case have == want:
			return nil
		}
		err = &plainError{
			text: fmt.Sprintf("%s/%s:%s has digest %q after the push, want %s: another client writes to it, or the registry changes content",
				r.host, r.name, reference, have, want),
			cause: errOtherContent,
		}
		if have == "" || have == before {
			return unseenError{err}
		}
		return err
	})
}

// putManifest stores a manifest under a tag or digest. listed reports whether the registry maintains the list of its
// subject's referrers.
func (r *repo) putManifest(ctx context.Context, reference, mediaType string, content []byte) (listed bool, err error) {
	q := request{
		method: http.MethodPut, url: r.path("/manifests/%s", reference), size: int64(len(content)),
		body:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		header: http.Header{"Content-Type": {mediaType}},
		want:   []int{http.StatusCreated, http.StatusOK, http.StatusAccepted, http.StatusNoContent},
	}
	var a answer
	err = r.retry.do(ctx, q.method+" "+r.name, passingPut, func() (err error) {
		a, err = r.call(ctx, q)
		return err
	})
	if err != nil {
		return false, err
	}
	want := digest.FromBytes(content).String()
	if got := a.header.Get("Docker-Content-Digest"); got != "" && got != want {
		return false, fmt.Errorf("the registry stored %s as %s", want, clean(got))
	}
	return a.header.Get("OCI-Subject") != "", nil
}

func isIndex(mediaType string) bool {
	return slices.Contains([]string{ocispec.MediaTypeImageIndex, dockerList}, mediaType)
}
