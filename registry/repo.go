package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxManifest = 8 << 20          // bytes; registries take 4 MiB
	goodbye     = 10 * time.Second // for telling the registry that an upload will not be finished
)

// Media types of Docker's own formats.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func (r *repo) path(format string, args ...any) string {
	return r.url("/v2/" + r.name + fmt.Sprintf(format, args...))
}

// hasBlob asks whether the repository has the blob. Answers that are neither yes nor no count as no: trying to send it
// brings an answer with a reason, which a HEAD can't have.
func (r *repo) hasBlob(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	q := request{method: http.MethodHead, url: r.path("/blobs/%s", d.Digest), want: []int{http.StatusOK}}
	a, err := r.ask(ctx, q)
	if err == nil {
		return a.length < 0 || a.length == d.Size, nil
	}
	if te, ok := asRegistryError(err); ok && te.StatusCode < http.StatusInternalServerError && te.StatusCode != http.StatusTooManyRequests {
		return false, nil
	}
	return false, err
}

// ask sends a request that can be sent again.
func (r *repo) ask(ctx context.Context, q request) (answer, error) {
	var a answer
	err := r.retry.do(ctx, q.method+" "+r.name, passing, func() error {
		var err error
		a, err = r.call(ctx, q)
		return err
	})
	return a, err
}

// sendBlob uploads a blob, or has the registry take it over from another of its repositories (from, "" for none), which
// it says by mounted. A failed upload starts over.
func (r *repo) sendBlob(ctx context.Context, d ocispec.Descriptor, from string, open func() (io.ReadCloser, error)) (mounted bool, err error) {
	err = r.retry.do(ctx, "upload of "+d.Digest.String()+" to "+r.name, passingUpload, func() error {
		session, err := r.startUpload(ctx, d, from)
		if err != nil || session == "" {
			mounted = err == nil
			return err
		}
		if err := r.finishUpload(ctx, session, d, open); err != nil {
			r.abandon(ctx, session)
			return err
		}
		return nil
	})
	return mounted, err
}

// startUpload returns the address of a new upload session, or "" if the blob was mounted.
func (r *repo) startUpload(ctx context.Context, d ocispec.Descriptor, from string) (string, error) {
	q := request{method: http.MethodPost, url: r.path("/blobs/uploads/"), want: []int{http.StatusAccepted}}
	if from == "" {
		a, err := r.call(ctx, q)
		if err != nil {
			return "", err
		}
		return location(a)
	}
	mount := q
	mount.url += "?" + url.Values{"mount": {d.Digest.String()}, "from": {from}}.Encode()
	mount.want = []int{http.StatusCreated, http.StatusAccepted}
	a, err := r.call(ctx, mount)
	if te, ok := asRegistryError(err); ok && !passingStatus(te.StatusCode) {
		return r.startUpload(ctx, d, "") // some registries refuse to mount instead of opening a session
	}
	if err != nil {
		return "", err
	}
	if a.status == http.StatusCreated {
		return "", nil
	}
	return location(a)
}

// location resolves where an upload goes, against the address that it was asked for at.
func location(a answer) (string, error) {
	text := a.header.Get("Location")
	u, err := a.url.Parse(text)
	if err != nil || text == "" || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return "", errors.New("the registry opened an upload without saying where it goes (no usable Location header)")
	}
	return u.String(), nil
}

func (r *repo) finishUpload(ctx context.Context, session string, d ocispec.Descriptor, open func() (io.ReadCloser, error)) error {
	u, err := url.Parse(session)
	if err != nil {
		return fmt.Errorf("the registry's address for the upload is not one: %w", err)
	}
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&digest="+url.QueryEscape(d.Digest.String()), "&") // what is there stays as it is: it may be signed
	a, err := r.call(ctx, request{
		method: http.MethodPut, url: u.String(), size: d.Size, body: open,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		want:   []int{http.StatusCreated, http.StatusOK, http.StatusNoContent},
	})
	if err != nil {
		return err
	}
	if got := a.header.Get("Docker-Content-Digest"); got != "" && got != d.Digest.String() {
		return fmt.Errorf("the registry stored it as %s", clean(got))
	}
	return nil
}

// abandon lets the registry free what it received of an upload: a large blob that fails several times would fill its disk.
func (r *repo) abandon(ctx context.Context, session string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	_, err := r.call(ctx, request{method: http.MethodDelete, url: session, want: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted}})
	if err != nil {
		r.logger.DebugContext(ctx, "the registry did not drop an unfinished upload", "repository", r.name, "error", r.explain(r.name, err))
	}
}

// manifest returns the digest that the registry has under a tag or digest; "" if there is none.
func (r *repo) manifest(ctx context.Context, reference, mediaType string) (digest.Digest, error) {
	accept := []string{mediaType}
	for _, t := range []string{ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, dockerList, dockerManifest} {
		if t != mediaType {
			accept = append(accept, t)
		}
	}
	q := request{
		method: http.MethodHead, url: r.path("/manifests/%s", reference), want: []int{http.StatusOK},
		header: http.Header{"Accept": {strings.Join(accept, ", ")}},
	}
	a, err := r.ask(ctx, q)
	if te, ok := asRegistryError(err); ok && te.StatusCode == http.StatusNotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if d := digest.Digest(a.header.Get("Docker-Content-Digest")); d.Validate() == nil {
		return d, nil
	}
	q.method = http.MethodGet // the header is only recommended
	if a, err = r.ask(ctx, q); err != nil {
		return "", err
	}
	return digest.FromBytes(a.body), nil
}

// putManifest stores a manifest under a tag or digest.
func (r *repo) putManifest(ctx context.Context, reference, mediaType string, content []byte) error {
	a, err := r.ask(ctx, request{
		method: http.MethodPut, url: r.path("/manifests/%s", reference), size: int64(len(content)),
		body:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		header: http.Header{"Content-Type": {mediaType}},
		want:   []int{http.StatusCreated, http.StatusOK, http.StatusAccepted, http.StatusNoContent},
	})
	if err != nil {
		return err
	}
	want := digest.FromBytes(content).String()
	if got := a.header.Get("Docker-Content-Digest"); got != "" && got != want {
		return fmt.Errorf("the registry stored %s as %s", want, clean(got))
	}
	return nil
}

func isIndex(mediaType string) bool {
	return slices.Contains([]string{ocispec.MediaTypeImageIndex, dockerList}, mediaType)
}
