package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/smart"
)

const (
	gitPath = "/git/"
	gitEnd  = ".git"
	// maxPacks bounds the packs that are made at a time: each takes the memory of the objects that it remembers.
	maxPacks = 4
	// maxRequests bounds the requests whose bodies are in memory: up to 2 MiB each, and as much for the names in them.
	maxRequests = 32
	// leastSpeed is that of clients, in bytes per second, while others wait for them.
	leastSpeed = 128 << 10
)

// A repositoryEntry is a Git repository of an open bundle.
type repositoryEntry struct {
	entry
	parts bundle.GitParts
	err   error // the reason that it cannot be served: its documents are damaged
}

// git serves the Git repositories at NAME.git, for git clone and git fetch.
func (s *Server) git(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	err := s.gitRequest(w, r, sh)
	var no *smart.RefusedError
	switch {
	case err == nil:
	case errors.As(err, &no):
		plainError(w, &answer{http.StatusForbidden, codeUnsupported, no.Error()})
	default:
		plainError(w, err)
	}
}

func (s *Server) gitRequest(w http.ResponseWriter, r *http.Request, sh *snapshot) error {
	ctx := context.WithoutCancel(r.Context()) // others wait for the same
	all, err := sh.gitOf.get(func() (map[string]*repositoryEntry, error) { return s.buildGit(ctx, sh.books) })
	if err != nil {
		return err
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, gitPath), "/")
	if rest == "" && r.Method != http.MethodPost {
		http.Redirect(w, r, "/?kind="+bundle.KindGit, http.StatusFound)
		return nil
	}
	e := all[strings.TrimSuffix(name, gitEnd)]
	if e == nil {
		return notFound(codeBlobUnknown, "no such repository; /?kind=git lists all repositories")
	}
	if e.err != nil {
		return e.err
	}
	switch {
	case rest == smart.RefsPath && r.Method == http.MethodGet:
		repo, err := s.openGit(r.Context(), e)
		if err != nil {
			return err
		}
		return smart.Advertise(w, r, repo)
	case rest == smart.UploadPath && r.Method == http.MethodPost:
		return s.upload(w, r, e)
	}
	return notFound(codeBlobUnknown, "this server speaks Git's smart protocol only, and is read-only")
}

// upload answers a request of git fetch. Each of several takes little memory; those that make packs wait for a token.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, e *repositoryEntry) error {
	if err := s.await(r.Context(), s.requests); err != nil {
		return err
	}
	defer func() { <-s.requests }()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.limits.body)) // only test servers lack deadlines
	if err := readRequest(r); err != nil {
		return err
	}
	_ = control.SetReadDeadline(time.Time{})
	repo, err := s.openGit(r.Context(), e)
	if err != nil {
		return err
	}
	making, ctx := false, r.Context()
	defer func() {
		if making {
			<-s.packs
		}
	}()
	return s.sendPack(w, r, e, repo, func() error {
		s.waiting.Add(1)
		defer s.waiting.Add(-1)
		err := s.await(ctx, s.packs)
		making = err == nil
		return err
	})
}

// await takes a token, for which a client waits as long as for a write.
func (s *Server) await(ctx context.Context, tokens chan struct{}) error {
	timer := time.NewTimer(s.limits.Write)
	defer timer.Stop()
	select {
	case tokens <- struct{}{}:
		return nil
	case <-timer.C:
		return &answer{http.StatusServiceUnavailable, codeTooMany, "too many clients fetch from Git repositories; try again"}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readRequest reads the body of a request into memory.
func readRequest(r *http.Request) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, smart.MaxRequest+1))
	if err != nil {
		return &answer{http.StatusBadRequest, codeUnsupported, "the request did not arrive: " + err.Error()}
	}
	if len(body) > smart.MaxRequest {
		return &answer{http.StatusRequestEntityTooLarge, codeUnsupported, "the request is too large"}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// sendPack answers a request for a pack. An error after the first byte cuts the connection.
func (s *Server) sendPack(w http.ResponseWriter, r *http.Request, e *repositoryEntry, repo *git.Repository,
	turn func() error,
) error {
	begun := &begun{ResponseWriter: w, server: s}
	err := smart.Upload(r.Context(), begun, r, repo, turn)
	if err == nil || !begun.yes {
		return err
	}
	_ = http.NewResponseController(w).Flush() // the reason; the client may be gone
	if r.Context().Err() == nil {
		e.book.log.Error("a transfer was cut off", "repository", e.item.Ref, "client", r.RemoteAddr, "error", err)
	}
	panic(http.ErrAbortHandler)
}

// begun remembers whether an answer has begun, and for how long its client was waited for.
type begun struct {
	http.ResponseWriter
	server *Server
	yes    bool
	waited time.Duration
	sent   int64
}

// Write implements io.Writer. A slow client is cut off if others wait.
func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	start := time.Now()
	n, err := b.ResponseWriter.Write(p)
	b.waited, b.sent = b.waited+time.Since(start), b.sent+int64(n)
	slow := b.waited > b.server.limits.Write+time.Duration(b.sent/leastSpeed)*time.Second
	if err == nil && slow && b.server.waiting.Load() > 0 {
		err = fmt.Errorf("%w: others wait, and it takes less than %d bytes a second", errClient, leastSpeed)
	}
	return n, err
}

// buildGit finds the repositories. Of several with one name, the last bundle's is served.
func (s *Server) buildGit(ctx context.Context, books []*book) (map[string]*repositoryEntry, error) {
	all := map[string]*repositoryEntry{}
	for i := len(books) - 1; i >= 0; i-- {
		b := books[i]
		items := b.reader.Index().Items
		for j := range items {
			it := &items[j]
			if it.Kind != bundle.KindGit {
				continue
			}
			e := &repositoryEntry{entry: entry{b, it}}
			m, err := b.manifest(ctx, it.Descriptor)
			if err == nil {
				e.parts, err = bundle.GitPartsOf(m)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if e.err = err; err != nil {
				s.log.Error("a Git repository is not served", "repository", it.Ref, "bundle", b.path, "error", err)
			}
			name, ok := bundle.GitName(*it)
			switch has := all[name]; {
			case !ok:
				s.log.Error("a Git repository is not served: its name is none", "repository", it.Ref, "bundle", b.path)
			case has == nil:
				all[name] = e
			case has.item.Descriptor.Digest != it.Descriptor.Digest:
				s.log.Warn("a Git repository is not served, because a later bundle has its name", "repository", it.Ref,
					"bundle", b.path, "served", has.book.path)
			}
		}
	}
	return all, nil
}

// openGit opens a repository for one request, after the check of its blobs.
func (s *Server) openGit(ctx context.Context, e *repositoryEntry) (*git.Repository, error) {
	document, err := e.book.read(ctx, e.parts.Document.Digest, git.MaxDocument)
	if err != nil {
		return nil, err
	}
	var readers [2]*blobReader
	for i, d := range []ocispec.Descriptor{e.parts.Pack, e.parts.Index} {
		b, ok := e.book.blob(d)
		if !ok {
			return nil, &bundle.DamageError{Blob: d.Digest, Offset: -1, Reason: "the blob is missing"}
		}
		if err := e.book.checked(ctx, b.digest, b.size).wait(ctx); err != nil {
			return nil, err
		}
		readers[i] = &blobReader{ctx: ctx, blob: b}
	}
	return git.Open(document, readers[0], readers[0].size, readers[1], readers[1].size)
}

// A blobReader reads a blob at any place, frame by frame.
type blobReader struct {
	ctx context.Context //nolint:containedctx // of the one request
	blob
}

// ReadAt implements io.ReaderAt.
func (b *blobReader) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, errors.New("a place before the beginning")
	}
	for n < len(p) {
		if at >= b.size {
			return n, io.EOF
		}
		piece, err := b.book.reader.Piece(b.digest, at)
		if err != nil {
			return n, err
		}
		l, err := b.book.frames.lease(b.ctx, b.book, piece)
		if err != nil {
			return n, err
		}
		m := copy(p[n:], l.content[piece.Skip:][:piece.Size][at-piece.At:])
		l.release()
		n, at = n+m, at+int64(m)
	}
	return n, nil
}
