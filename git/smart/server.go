package smart

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/web"
)

const (
	maxNamed    = 1 << 15 // objects that a client names
	maxPrefixes = 256     // of refs; a client that has more gets all refs
)

// MaxRequest bounds the bytes of a client's request.
const MaxRequest = 2 << 20

// The ends of a repository's paths.
const (
	RefsPath   = "info/refs"
	UploadPath = uploadPack
)

// A RefusedError is a request that the server does not serve, with the reason for its client.
type RefusedError struct{ text string }

// Error returns the reason.
func (e *RefusedError) Error() string { return e.text }

func refused(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// second reports whether a client asks for version 2.
func second(r *http.Request) bool {
	return slices.Contains(strings.Split(r.Header.Get("Git-Protocol"), ":"), "version=2")
}

// Advertise answers the question for refs. The error is a *RefusedError before anything is written.
func Advertise(w http.ResponseWriter, r *http.Request, repo *git.Repository) error {
	switch r.URL.Query().Get("service") {
	case uploadPack:
	case receivePack:
		return refused("this server is read-only: use kkbundle push --git to fill a Git server")
	default:
		return refused("this server speaks Git's smart protocol only: use git 1.6.6 or later")
	}
	w.Header().Set("Content-Type", "application/x-"+uploadPack+"-advertisement")
	w.Header().Set("Cache-Control", "no-cache")
	out := &lineWriter{w: bufio.NewWriter(w)}
	if second(r) {
		out.line("version 2")
		out.line("agent=%s", web.UserAgent)
		out.line("ls-refs=unborn")
		out.line("fetch=shallow")
		out.line("object-format=sha1")
		out.flush()
	} else {
		out.line("# service=%s", uploadPack)
		out.flush()
		advertiseZero(out, repo)
	}
	return errors.Join(out.err, out.w.(*bufio.Writer).Flush())
}

// advertiseZero writes the refs and capabilities of version 0.
func advertiseZero(out *lineWriter, repo *git.Repository) {
	capabilities := "\x00side-band-64k ofs-delta shallow no-progress include-tag allow-tip-sha1-in-want " +
		"allow-reachable-sha1-in-want object-format=sha1 agent=" + web.UserAgent
	if repo.Head != "" {
		capabilities += " symref=" + git.Head + ":" + repo.Head
	}
	one := func(id git.ID, name string) {
		out.line("%s %s%s", id, name, capabilities)
		capabilities = ""
	}
	for _, r := range repo.Refs {
		if r.Name == repo.Head {
			one(r.ID, git.Head)
		}
	}
	for _, r := range repo.Refs {
		one(r.ID, r.Name)
		if !r.Peeled.IsZero() {
			one(r.Peeled, r.Name+"^{}")
		}
	}
	for _, id := range repo.Shallow() {
		out.line("shallow %s", id)
	}
	out.flush()
}

// Upload answers a request for refs (version 2) or a pack. The error is a *RefusedError before anything is written.
// Before objects are selected, which takes time and memory, it calls turn, and returns its error.
func Upload(ctx context.Context, w http.ResponseWriter, r *http.Request, repo *git.Repository,
	turn func() error,
) error {
	body := io.Reader(io.LimitReader(r.Body, MaxRequest))
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return refused("the request is not valid gzip")
		}
		body = io.LimitReader(unpacked, MaxRequest)
	}
	u := &upload{ctx: ctx, repo: repo, turn: turn, in: &lineReader{r: bufio.NewReader(body)}}
	answer := u.zero
	if second(r) {
		answer = u.second
	}
	out := bufio.NewWriter(w)
	u.out = &lineWriter{w: out}
	u.begin = func() {
		w.Header().Set("Content-Type", "application/x-"+uploadPack+"-result")
		w.Header().Set("Cache-Control", "no-cache")
	}
	err := answer()
	return errors.Join(err, u.out.err, out.Flush()) // what fail says, too
}

// An upload is one request.
type upload struct {
	ctx    context.Context //nolint:containedctx // of the one request
	repo   *git.Repository
	turn   func() error
	in     *lineReader
	out    *lineWriter
	begin  func() // sets the headers, once the request is known to be good
	asked  git.Request
	done   bool
	plain  bool // version 0 without bands
	shared []git.ID
}

// next returns the next line, or which packet without content there is.
func (u *upload) next() (line string, kind int, err error) {
	data, kind, err := u.in.next()
	if err != nil {
		return "", 0, refused("the request is not one of Git's protocol: %v", err)
	}
	return strings.TrimSuffix(string(data), "\n"), kind, nil
}

// second answers a request of version 2.
func (u *upload) second() error {
	line, kind, err := u.next()
	if err != nil {
		return err
	}
	command, ok := strings.CutPrefix(line, "command=")
	if !ok {
		return refused("the request has no command")
	}
	for kind == packData {
		if line, kind, err = u.next(); err != nil {
			return err
		}
		if format, ok := strings.CutPrefix(line, "object-format="); ok && format != "sha1" {
			return refused("the repository names objects by sha1")
		}
	}
	arguments := kind == packDelimiter
	switch command {
	case "ls-refs":
		return u.listRefs(arguments)
	case "fetch":
		return u.fetch(arguments)
	}
	return refused("the command %.40q is not served", command)
}

// listRefs answers with the refs.
func (u *upload) listRefs(arguments bool) error {
	var prefixes []string
	var peel, symrefs bool
	for arguments {
		line, kind, err := u.next()
		if err != nil {
			return err
		}
		if kind != packData {
			break
		}
		prefix, isPrefix := strings.CutPrefix(line, "ref-prefix ")
		switch {
		case isPrefix && len(prefixes) <= maxPrefixes:
			prefixes = append(prefixes, prefix)
		case line == "peel":
			peel = true
		case line == "symrefs":
			symrefs = true
		}
	}
	wanted := func(name string) bool {
		has := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		return len(prefixes) == 0 || len(prefixes) > maxPrefixes || slices.ContainsFunc(prefixes, has)
	}
	u.begin()
	for _, r := range u.repo.Refs {
		if r.Name == u.repo.Head && wanted(git.Head) {
			target := ""
			if symrefs {
				target = " symref-target:" + r.Name
			}
			u.out.line("%s %s%s", r.ID, git.Head, target)
		}
	}
	for _, r := range u.repo.Refs {
		if !wanted(r.Name) {
			continue
		}
		peeled := ""
		if peel && !r.Peeled.IsZero() {
			peeled = " peeled:" + r.Peeled.String()
		}
		u.out.line("%s %s%s", r.ID, r.Name, peeled)
	}
	u.out.flush()
	return nil
}

// argument reads a line that both versions have. Lines about what a client could take are passed over.
func (u *upload) argument(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "want", "have", "shallow":
		id, ok := git.ParseID(rest)
		if !ok {
			return refused("%.80q does not name an object", line)
		}
		if len(u.asked.Wants)+len(u.asked.Haves)+len(u.asked.Shallow) >= maxNamed {
			return refused("the request names more than %d objects", maxNamed)
		}
		switch word {
		case "want":
			has, err := u.repo.Has(id)
			if err != nil {
				return err
			}
			if !has {
				return refused("the bundle's repository has no commit or tag %s", id)
			}
			u.asked.Wants = append(u.asked.Wants, id)
		case "have":
			has, err := u.repo.Has(id)
			if err != nil {
				return err
			}
			if u.asked.Haves = append(u.asked.Haves, id); has {
				u.shared = append(u.shared, id)
			}
		default:
			u.asked.Shallow = append(u.asked.Shallow, id)
		}
	case "deepen":
		n, err := depthOf(rest)
		if err != nil {
			return refused("%v", err)
		}
		u.asked.Depth = n
	case "done":
		u.done = true
	case "deepen-since", "deepen-not", "deepen-relative", "filter", "want-ref":
		return refused("this server does not serve %s: use --depth, or fetch everything", word)
	}
	return nil
}

// fetch answers with a pack, or before that with the commits that both have.
func (u *upload) fetch(arguments bool) error {
	for arguments {
		line, kind, err := u.next()
		if err != nil {
			return err
		}
		if kind != packData {
			break
		}
		if err := u.argument(line); err != nil {
			return err
		}
	}
	if len(u.asked.Wants) == 0 {
		return refused("the request wants nothing")
	}
	if !u.done {
		u.begin()
		u.out.line("acknowledgments")
		for _, id := range u.shared {
			u.out.line("ACK %s", id)
		}
		if len(u.shared) == 0 {
			u.out.line("NAK")
		}
		u.out.flush()
		return nil
	}
	s, err := u.choose()
	if err != nil {
		return err
	}
	u.begin()
	if edge, filled := u.edges(s); len(edge)+len(filled) > 0 {
		u.out.line("shallow-info")
		u.writeEdges(edge, filled)
		u.out.delimiter()
	}
	u.out.line("packfile")
	return u.pack(s)
}

// choose selects the objects, when it is this request's turn.
func (u *upload) choose() (*git.Selection, error) {
	if err := u.turn(); err != nil {
		return nil, err
	}
	return u.repo.Select(u.ctx, u.asked)
}

// edges returns the commits whose parents the client will lack, and those whose parents it lacked and now has.
func (u *upload) edges(s *git.Selection) (edge, filled []git.ID) {
	return slices.Concat(s.Edge(), u.repo.Shallow()), s.Filled()
}

func (u *upload) writeEdges(edge, filled []git.ID) {
	for _, id := range edge {
		u.out.line("shallow %s", id)
	}
	for _, id := range filled {
		u.out.line("unshallow %s", id)
	}
}

// pack writes the pack and the end.
func (u *upload) pack(s *git.Selection) error {
	if u.plain {
		return errors.Join(u.out.err, u.repo.WritePack(u.ctx, u.out.w, s))
	}
	band := bandWriter{u.out}
	if err := u.repo.WritePack(u.ctx, band, s); err != nil {
		if u.out.err == nil {
			band.fail("the bundle cannot be read any further")
		}
		return err
	}
	u.out.flush()
	return nil
}

// zero answers a request of version 0, in which each request repeats what the ones before it said.
func (u *upload) zero() error {
	banded := false
	for first := true; ; first = false {
		line, kind, err := u.next()
		if err != nil {
			return err
		}
		if kind != packData {
			break
		}
		if first {
			words := strings.Fields(line)
			banded = slices.Contains(words, "side-band-64k")
			line = strings.Join(words[:min(len(words), 2)], " ")
		}
		if err := u.argument(line); err != nil {
			return err
		}
	}
	if len(u.asked.Wants) == 0 {
		return refused("the request wants nothing")
	}
	asks := false // for what both have
	for !u.done {
		line, kind, err := u.next()
		if err != nil {
			break // the end of the request
		}
		if kind != packData {
			asks = true
			continue
		}
		if err := u.argument(line); err != nil {
			return err
		}
	}
	u.plain = !banded
	var s *git.Selection
	if u.done || u.asked.Depth > 0 {
		var err error
		if s, err = u.choose(); err != nil {
			return err
		}
	}
	u.begin()
	if u.asked.Depth > 0 {
		u.writeEdges(u.edges(s))
		u.out.flush()
	}
	switch {
	case !u.done && !asks:
		return nil
	case len(u.shared) == 0:
		u.out.line("NAK")
	default:
		u.out.line("ACK %s", u.shared[len(u.shared)-1])
	}
	if !u.done {
		return nil
	}
	return u.pack(s)
}
