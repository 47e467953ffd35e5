package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/refname"
	"github.com/kkbundle/kkbundle/git/smart"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/web"
)

const (
	gitArtifact = "application/vnd.kkbundle.git.v1"
	gitDocument = "application/vnd.kkbundle.git.document.v1+json"
	gitPack     = "application/vnd.kkbundle.git.pack.v1"
	gitIndex    = "application/vnd.kkbundle.git.index.v1"

	maxGitManifest = 64 << 10
)

// repositories pins and brings Git repositories. A pin has the digest of the manifest, and packs are canonical, so the
// same refs have the same digest, whichever server sent them.
type repositories struct {
	kept    kept
	web     *webFiles
	sender  *upstream.Sender
	cache   *upstream.Cache
	scratch string // directory of received packs
	log     *slog.Logger
}

// resolve pins a repository. Its history is downloaded for that.
func (g *repositories) resolve(ctx context.Context, r manifest.GitRepository) (manifest.Pin, error) {
	if pin, ok := g.kept.git(r); ok {
		return pin, nil
	}
	pin := manifest.Pin{Kind: manifest.ItemGit, Ref: r.Ref(), Name: r.RepositoryName()}
	var err error
	if pin.Verified, err = g.web.vouchesFor(r.Ref()); err != nil {
		return pin, err
	}
	err = g.ask(ctx, r.Ref(), func(ctx context.Context, remote *smart.Remote) error {
		a, err := remote.List(ctx)
		if err != nil {
			return err
		}
		pin.Git, err = choose(r, a)
		if err != nil {
			return err
		}
		if odd := oddRefs(r, a); odd != "" {
			g.log.WarnContext(ctx, "refs are not carried, because of control characters or other text in their names",
				"repository", pin.Ref, "refs", odd)
		}
		spool, received, err := g.receive(ctx, pin, remote, a)
		if err != nil {
			return err
		}
		defer spool.Close()
		if err := g.leaveOut(ctx, r, received, pin.Git); err != nil {
			return err
		}
		desc, err := g.store(ctx, pin, received)
		pin.Digest, pin.Size = desc.Digest, desc.Size
		return err
	})
	return pin, err
}

// oddRefs names the refs that the manifest means and that have names that are not carried.
func oddRefs(r manifest.GitRepository, a *smart.Advertisement) string {
	wanted := slices.DeleteFunc(slices.Clone(a.Odd), func(name string) bool { return !r.Wants(name) })
	return some(wanted)
}

// leaveOut removes the refs that only a pattern means and that lead to no commit, such as a tag of a public key.
func (g *repositories) leaveOut(ctx context.Context, r manifest.GitRepository, received *git.Received,
	l *manifest.LockedGit,
) error {
	var left []string
	var refs []manifest.LockedRef
	for _, ref := range l.Refs {
		id, _ := git.ParseID(ref.ID) // a server's, which was parsed
		t, err := received.LeadsTo(id)
		if err != nil {
			return fmt.Errorf("ref %s: %w", upstream.Printable(ref.Name), err)
		}
		isNamed := slices.ContainsFunc(r.Refs, func(pattern string) bool {
			return !strings.Contains(pattern, "*") && refname.Matches(pattern, ref.Name)
		})
		if t == git.Commit || isNamed {
			refs = append(refs, ref)
			continue
		}
		left = append(left, ref.Name)
	}
	if len(left) == 0 {
		return nil
	}
	if len(refs) == 0 {
		return &gitError{fmt.Errorf("%s leads to no commit; name other branches or tags under refs", some(left))}
	}
	l.Refs = refs
	g.log.WarnContext(ctx, "refs that lead to no commit are not carried", "repository", r.Ref(), "refs", some(left))
	return nil
}

// choose returns the refs that the manifest wants of a server's.
func choose(r manifest.GitRepository, a *smart.Advertisement) (*manifest.LockedGit, error) {
	if len(a.Refs) == 0 {
		return nil, &gitError{errors.New("the repository has no branches and no tags")}
	}
	if len(r.Refs) == 0 {
		if a.Head == "" {
			return nil, &gitError{errors.New("the server names no default branch; name branches and tags under refs")}
		}
		r.Refs = []string{a.Head}
	}
	out := &manifest.LockedGit{Depth: r.Depth}
	for _, pattern := range r.Refs {
		if !slices.ContainsFunc(a.Refs, func(ref git.Ref) bool { return refname.Matches(pattern, ref.Name) }) {
			var names []string
			for _, ref := range a.Refs {
				names = append(names, ref.Name)
			}
			return nil, &gitError{fmt.Errorf("the repository has no branch or tag %s; it has %s", pattern, some(names))}
		}
	}
	for _, ref := range a.Refs {
		if r.Wants(ref.Name) {
			out.Refs = append(out.Refs, manifest.LockedRef{Name: ref.Name, ID: ref.ID.String()})
		}
	}
	has := func(name string) bool {
		return slices.ContainsFunc(out.Refs, func(l manifest.LockedRef) bool { return l.Name == name })
	}
	if has(a.Head) {
		out.Head = a.Head
	} else if i := slices.IndexFunc(out.Refs, func(l manifest.LockedRef) bool {
		return strings.HasPrefix(l.Name, refname.Branches)
	}); i >= 0 {
		out.Head = out.Refs[i].Name
	}
	return out, nil
}

// some returns the first few names of refs.
func some(names []string) string {
	const most = 5
	return upstream.Printable(plain.Few(names, most))
}

// A gitError is one that the server would cause again.
type gitError struct{ error }

func (e *gitError) Unwrap() error { return e.error }

// CanPass implements web.Passing.
func (*gitError) CanPass() bool { return false }

// ask calls f with each place of a repository, with retries, until it succeeds.
func (g *repositories) ask(ctx context.Context, address string,
	f func(ctx context.Context, remote *smart.Remote) error,
) error {
	places, err := g.web.network.Route(address)
	if err != nil {
		return err
	}
	peers := make([]*upstream.Peer, len(places))
	for i, o := range places {
		peers[i] = o.Peer
	}
	return g.sender.InTurn(ctx, peers, func(i int) error {
		o := places[i]
		remote := &smart.Remote{Address: o.URL, Do: func(req *http.Request) (*http.Response, error) {
			if l, ok := g.web.logins.Find(req.URL.Hostname()); ok && req.URL.Host == o.URL.Host {
				req.SetBasicAuth(l.User, l.Password)
			}
			return g.sender.Send(req.Context(), o.Peer, o.Peer.WebClient(), req)
		}}
		err := g.sender.Retry(ctx, o.Peer, o.URL.Redacted(), func() error { return f(ctx, remote) })
		return explainRepository(o.Peer, err)
	})
}

// explainRepository adds cause and remedy to a server's refusal. Servers hide private repositories.
func explainRepository(p *upstream.Peer, err error) error {
	if status := web.Status(err); status != nil && status.Code == http.StatusNotFound {
		return fmt.Errorf("no such repository on %s, or one that needs a login: put user and password or token for it into netrc (~/.netrc or $NETRC): %w", p, err)
	}
	return explainStatus(p, err)
}

// receive fetches the refs of a pin into a file, which the caller closes.
func (g *repositories) receive(ctx context.Context, pin manifest.Pin, remote *smart.Remote,
	a *smart.Advertisement,
) (spool *spoolFile, received *git.Received, err error) {
	var ids []git.ID
	for _, r := range wanted(pin.Git).Refs {
		ids = append(ids, r.ID)
	}
	if spool, err = g.spool(); err != nil {
		return nil, nil, err
	}
	answer, err := remote.Fetch(ctx, a, ids, pin.Git.Depth)
	if err == nil {
		received, err = git.Receive(ctx, io.TeeReader(answer, arriving(g.cache.Count)), spool)
		err = errors.Join(err, answer.Close())
	}
	if err != nil {
		return nil, nil, errors.Join(err, spool.Close())
	}
	return spool, received, nil
}

// store stores the pack of a pin's refs as an artifact. A pin with another digest is an error.
func (g *repositories) store(ctx context.Context, pin manifest.Pin, received *git.Received) (
	desc ocispec.Descriptor, err error,
) {
	want := wanted(pin.Git)
	var summary *git.Summary
	var index *git.Index
	pack, err := g.cache.CopyIn(ctx, "git "+pin.Ref, "", func(w io.Writer) (err error) {
		summary, index, err = received.Canonical(ctx, want, io.MultiWriter(w, totalWriter(g.cache.Count)))
		return err
	})
	if err != nil {
		return desc, &gitError{err}
	}
	return g.artifact(ctx, pin, pack, index, git.NewDocument(want, summary), summary)
}

// wanted returns the refs of a lock.
func wanted(l *manifest.LockedGit) *git.Wanted {
	want := &git.Wanted{Head: l.Head, Depth: l.Depth}
	for _, r := range l.Refs {
		id, _ := git.ParseID(r.ID) // the lock was checked
		want.Refs = append(want.Refs, git.Ref{Name: r.Name, ID: id})
	}
	return want
}

// arriving counts the bytes of a server's answer, whose size is unknown.
type arriving func(total, done, cached int64)

// Write implements io.Writer.
func (a arriving) Write(p []byte) (int, error) {
	a(int64(len(p)), int64(len(p)), 0)
	return len(p), nil
}

// artifact stores the documents of a pack, and compares the digest of its manifest with the pin's, if there is one.
//
//nolint:revive // six arguments: what an artifact consists of
func (g *repositories) artifact(ctx context.Context, pin manifest.Pin, pack ocispec.Descriptor, x *git.Index,
	d git.Document, s *git.Summary,
) (desc ocispec.Descriptor, err error) {
	index, err := g.cache.CopyIn(ctx, "git index "+pin.Ref, "", func(w io.Writer) error {
		_, err := x.WriteTo(io.MultiWriter(w, totalWriter(g.cache.Count)))
		return err
	})
	if err != nil {
		return desc, err
	}
	data, err := json.Marshal(d)
	if err == nil && len(data) > git.MaxDocument {
		err = &gitError{fmt.Errorf("the refs take %d bytes, and at most %d are carried; name fewer", len(data), git.MaxDocument)}
	}
	if err != nil {
		return desc, err
	}
	document := ocispec.Descriptor{MediaType: gitDocument, Digest: upstream.SHA256Of(data), Size: int64(len(data))}
	if err := g.cache.Put(ctx, data, document.Digest); err != nil {
		return desc, err
	}
	pack.MediaType, index.MediaType = gitPack, gitIndex
	desc, err = putManifest(ctx, g.cache, ocispec.Manifest{
		ArtifactType: gitArtifact, Config: document, Layers: []ocispec.Descriptor{pack, index},
	})
	if err != nil {
		return desc, err
	}
	if pin.Digest != "" && desc.Digest != pin.Digest {
		return desc, &gitError{fmt.Errorf("the lock's commits have digest %s and not %s as in the lock: write a new lock with kkbundle lock --update", desc.Digest, pin.Digest)}
	}
	g.tell(ctx, pin, s)
	return desc, nil
}

// tell warns of content that is elsewhere.
func (g *repositories) tell(ctx context.Context, pin manifest.Pin, s *git.Summary) {
	if len(s.Submodules) > 0 {
		g.log.WarnContext(ctx, "a repository has submodules, whose content is not carried; list their repositories under git",
			"repository", pin.Ref, "submodules", strings.Join(s.Submodules, ", "))
	}
	if s.LFS > 0 {
		g.log.WarnContext(ctx, "a repository has files in Git LFS, of which only the pointers are carried; list the files under files",
			"repository", pin.Ref, "pointers", s.LFS)
	}
}

// A spoolFile is a file in the scratch directory. Its errors are those of the disk.
type spoolFile struct{ *os.File }

// Write implements io.Writer.
func (f spoolFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, ofDisk(err)
}

// ReadAt implements io.ReaderAt.
func (f spoolFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(p, at)
	return n, ofDisk(err)
}

func ofDisk(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // files return it as it is
		return err
	}
	return &upstream.StoreError{Cause: spoolError{err}}
}

// A spoolError is that of a file that is gone after the run.
type spoolError struct{ error }

func (e spoolError) Unwrap() error { return e.error }

// FullDisk returns the text of an error of a disk without room.
func (e spoolError) FullDisk() string {
	if errors.Is(e.error, syscall.ENOSPC) || errors.Is(e.error, syscall.EDQUOT) {
		return "the disk of the cache is full: make room, or choose another directory with --cache, and run again; a Git repository is downloaded from its beginning then"
	}
	return "cache: " + e.Error()
}

// spool returns a file without a name.
func (g *repositories) spool() (*spoolFile, error) {
	f, err := os.CreateTemp(g.scratch, "kkbundle-git-")
	if err != nil {
		return nil, &upstream.StoreError{Cause: err}
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, &upstream.StoreError{Cause: errors.Join(err, f.Close())}
	}
	return &spoolFile{f}, nil
}

// plan returns the plan of a pinned repository. It is fetched as a whole if any of its blobs is missing.
func (g *repositories) plan(ctx context.Context, pin manifest.Pin) (*plan, error) {
	root := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: gitArtifact, Digest: pin.Digest, Size: pin.Size,
	}
	p := &plan{finish: func(context.Context) (ocispec.Descriptor, error) { return root, nil }}
	fetch := func(ctx context.Context) error {
		_, err := upstream.Once(&g.cache.Flights, "git "+pin.Digest.String(), func() (struct{}, error) {
			return struct{}{}, g.again(ctx, pin)
		})
		return err
	}
	data, ok, err := g.cache.Stored(ctx, pin.Digest, maxGitManifest)
	if err != nil {
		return nil, err
	}
	p.blobs = append(p.blobs, blob{digest: pin.Digest, size: -1, first: true, fetch: fetch})
	if !ok {
		return p, nil
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil || m.ArtifactType != gitArtifact {
		return nil, errors.New("the lock's digest is not that of a Git repository: write a new lock with kkbundle lock --update")
	}
	for _, d := range append(m.Layers, m.Config) {
		p.blobs = append(p.blobs, blob{
			digest: d.Digest, mediaType: d.MediaType, size: d.Size, first: true,
			fetch: fetch,
		})
	}
	return p, nil
}

// again fetches a pinned repository.
func (g *repositories) again(ctx context.Context, pin manifest.Pin) error {
	return g.ask(ctx, pin.Ref, func(ctx context.Context, remote *smart.Remote) error {
		a, err := remote.List(ctx)
		if err != nil {
			return err
		}
		spool, received, err := g.receive(ctx, pin, remote, a)
		if err == nil {
			_, err = g.store(ctx, pin, received)
			err = errors.Join(err, spool.Close())
		}
		if said, ok := errors.AsType[*smart.RemoteError](err); ok {
			switch gone := rewritten(pin, a); {
			case gone == "":
			case a.OnlyTips():
				return &gitError{fmt.Errorf("%s: the server gives only the commits that its branches and tags name now (%w): write a new lock with kkbundle lock --update, or use a server with version 2 of Git's protocol", gone, said)}
			default:
				return &gitError{fmt.Errorf("%s: the commits of the lock are no longer there (%w): if that is expected, write a new lock with kkbundle lock --update", gone, said)}
			}
		}
		return err
	})
}

// rewritten names the refs of a pin that the server has elsewhere, or not at all.
func rewritten(pin manifest.Pin, a *smart.Advertisement) string {
	now := map[string]git.ID{}
	for _, r := range a.Refs {
		now[r.Name] = r.ID
	}
	var list []string
	for _, r := range pin.Git.Refs {
		switch id := now[r.Name]; {
		case id.IsZero():
			list = append(list, r.Name+" was removed")
		case id.String() != r.ID:
			list = append(list, r.Name+" moved from "+r.ID+" to "+id.String())
		}
	}
	const most = 3
	return plain.Few(list, most)
}

// git returns the pin of a repository whose settings are the same.
func (k kept) git(r manifest.GitRepository) (manifest.Pin, bool) {
	pin, ok := k.pins[keptItem{kind: manifest.ItemGit, ref: r.Ref()}]
	if !ok || !r.Fits(pin) {
		return manifest.Pin{}, false
	}
	pin.Name = r.RepositoryName()
	return pin, true
}

// gitEntries returns the repositories of a manifest.
func (s *session) gitEntries(b *manifest.Bundle) (list []entry) {
	for _, r := range b.Git {
		list = append(list, entry{manifest.ItemGit, r.Ref(), "", func(ctx context.Context) ([]manifest.Pin, error) {
			return alone(s.repositories.resolve(ctx, r))
		}})
	}
	return list
}
