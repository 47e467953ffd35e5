package smart

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/refname"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

// A State says what a push does to a ref.
type State string

// The states.
const (
	StateSame    State = "same"
	StateCreated State = "created"
	StateUpdated State = "updated"
	// StateForced is a ref that does not continue the server's history.
	StateForced State = "forced"
)

// A Change is a ref of a push.
type Change struct {
	Ref   string `json:"ref"`
	State State  `json:"state"`
	Old   string `json:"old,omitempty"`
	New   string `json:"new"`
	old   git.ID
	new   git.ID
}

// A RewrittenError means that refs on the server do not lead to those of the bundle, or not to be seen in it.
type RewrittenError struct {
	Refs []string
	// Shallow means that the bundle has the newest commits only, and not those of the server.
	Shallow bool
}

// Error names the refs.
func (e *RewrittenError) Error() string {
	const most = 5
	list := plain.Few(e.Refs, most)
	if e.Shallow {
		return list + ": the bundle has the newest commits only (depth), and not the server's, so it cannot tell whether they continue those; the repository was not changed"
	}
	return list + ": the server has commits that the bundle's history does not continue; the repository was not changed"
}

// Hint returns the remedy.
func (e *RewrittenError) Hint() string {
	if e.Shallow {
		return "if nobody else commits to that server, --git-force moves them on; otherwise carry more commits, without depth"
	}
	return "look at both histories; --git-force replaces those of the server"
}

// CanPass reports that the same push gets the same answer.
func (*RewrittenError) CanPass() bool { return false }

// A localError is one of the bundle, which another attempt does not mend.
type localError struct{ error }

func (e *localError) Unwrap() error { return e.error }

// CanPass implements web.Passing.
func (*localError) CanPass() bool { return false }

// local marks an error of the bundle.
func local(err error) error {
	if err == nil {
		return nil
	}
	return &localError{err}
}

// A Push brings a repository's refs to a server.
type Push struct {
	remote  *Remote
	from    *git.Repository
	to      *Advertisement
	Changes []Change
}

// PlanPush asks the server for its refs and compares. With force, refs that do not continue the server's are changed,
// too; otherwise they are a *RewrittenError.
func (r *Remote) PlanPush(ctx context.Context, from *git.Repository, force bool) (*Push, error) {
	a, err := r.advertisement(ctx, receivePack)
	if err != nil {
		return nil, err
	}
	if !a.can("report-status") || !a.can("ofs-delta") {
		return nil, odd("the Git server is too old to push to: it has no report-status or no ofs-delta")
	}
	p := &Push{remote: r, from: from, to: a}
	has := map[string]git.ID{}
	for _, ref := range a.Refs {
		has[ref.Name] = ref.ID
	}
	var rewritten RewrittenError
	for _, ref := range from.Refs {
		c := Change{Ref: ref.Name, New: ref.ID.String(), new: ref.ID, old: has[ref.Name]}
		switch {
		case c.old.IsZero():
			c.State = StateCreated
		case c.old == c.new:
			c.State = StateSame
		default:
			continues, err := false, error(nil)
			branch := strings.HasPrefix(ref.Name, refname.Branches)
			if branch {
				continues, err = from.Reaches(ctx, c.new, c.old)
			}
			if err != nil {
				return nil, local(err)
			}
			if c.State = StateUpdated; !continues {
				c.State = StateForced
				rewritten.Refs = append(rewritten.Refs, ref.Name)
				has, err := from.Has(c.old)
				if err != nil {
					return nil, local(err)
				}
				rewritten.Shallow = rewritten.Shallow || branch && !has && len(from.Shallow()) > 0
			}
		}
		if !c.old.IsZero() {
			c.Old = c.old.String()
		}
		p.Changes = append(p.Changes, c)
	}
	if len(rewritten.Refs) > 0 && !force {
		return nil, &rewritten
	}
	return p, nil
}

// Run sends what the server lacks, and changes its refs.
func (p *Push) Run(ctx context.Context) error {
	q := git.Request{}
	for _, ref := range p.to.Refs {
		q.Haves = append(q.Haves, ref.ID)
	}
	for _, c := range p.Changes {
		if c.State != StateSame {
			q.Wants = append(q.Wants, c.new)
		}
	}
	if len(q.Wants) == 0 {
		return nil
	}
	selected, err := p.from.Select(ctx, q)
	if err != nil {
		return local(err)
	}
	head := p.commands()
	read, write := io.Pipe()
	defer read.Close()
	go func() { _ = write.CloseWithError(local(p.from.WritePack(ctx, write, selected))) }() // the reader has the error
	body, err := announced(io.MultiReader(head, read))
	if err != nil {
		return err
	}
	answer, err := p.remote.post(ctx, p.to, receivePack, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	limited := io.LimitReader(answer, maxAdvertised)
	if err := p.report(&lineReader{r: bufio.NewReader(limited)}); err != nil {
		return err
	}
	// The server's hooks run after its report, and servers end them when the client leaves.
	_, err = io.Copy(io.Discard, limited)
	return unexpected(err)
}

// commands returns what the request begins with.
func (p *Push) commands() *bytes.Buffer {
	head := &bytes.Buffer{}
	out := &lineWriter{w: head}
	capabilities := "\x00report-status agent=" + web.UserAgent
	for _, c := range [][2]string{
		{"side-band-64k", "side-band-64k"}, {"atomic", "atomic"}, {"quiet", "quiet"}, {"object-format", "object-format=sha1"},
	} {
		if p.to.can(c[0]) {
			capabilities += " " + c[1]
		}
	}
	for _, id := range p.from.Shallow() {
		out.line("shallow %s", id)
	}
	for _, c := range p.asked() {
		out.line("%s %s %s%s", c.old, c.new, c.Ref, capabilities)
		capabilities = ""
	}
	out.flush()
	return head
}

// asked returns the changes that the server is asked for, that of the default branch first: a repository without
// branches gets the first one as its default branch on Gitea and others.
func (p *Push) asked() []Change {
	var list []Change
	for _, c := range p.Changes {
		switch {
		case c.State == StateSame:
		case c.Ref == p.from.Head:
			list = slices.Insert(list, 0, c)
		default:
			list = append(list, c)
		}
	}
	return list
}

// announced returns a reader whose size a request announces, if the content is small, as git does: not every server
// takes a body of unknown size.
func announced(r io.Reader) (io.Reader, error) {
	const small = 1 << 20
	data, err := io.ReadAll(io.LimitReader(r, small))
	if err != nil || len(data) < small {
		return bytes.NewReader(data), err
	}
	return io.MultiReader(bytes.NewReader(data), r), nil
}

// report reads what became of the refs.
func (p *Push) report(lines *lineReader) error {
	band := &bandReader{lines: lines}
	if p.to.can("side-band-64k") {
		lines = &lineReader{r: bufio.NewReader(band)}
	}
	var refused refusals
	good := map[string]bool{}
	for {
		line, ok, err := lines.text()
		if errors.Is(err, io.EOF) || err == nil && !ok {
			break
		}
		if err != nil {
			return err
		}
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "unpack":
			if rest != "ok" {
				refused.add("the pack was not taken", rest)
			}
		case "ok":
			good[rest] = true
		case "ng":
			ref, reason, _ := strings.Cut(rest, " ")
			refused.add(ref, reason)
		}
	}
	if len(refused.reasons) > 0 {
		return refused.err(band.said())
	}
	var silent []string
	for _, c := range p.Changes {
		if c.State != StateSame && !good[c.Ref] {
			silent = append(silent, c.Ref)
		}
	}
	if refs := plain.Few(silent, fewRefs); refs != "" {
		return fmt.Errorf("the Git server did not confirm %s; push again", refs)
	}
	return nil
}

const fewRefs = 3 // that an error names

// refusals are the refs that a server refused, by its reasons: a hook that declines a push declines all its refs.
type refusals struct {
	reasons []string // in their order
	what    map[string][]string
}

func (r *refusals) add(what, reason string) {
	if r.what == nil {
		r.what = map[string][]string{}
	}
	if r.what[reason] == nil {
		r.reasons = append(r.reasons, reason)
	}
	r.what[reason] = append(r.what[reason], what)
}

// err returns the error. Notes are the text that the server sent beside its report, where a hook gives its reason.
func (r *refusals) err(notes string) error {
	var parts []string
	for _, reason := range r.reasons {
		parts = append(parts, plain.Few(r.what[reason], fewRefs)+": "+reason)
	}
	text := plain.Few(parts, fewRefs)
	if notes != "" {
		text += ": " + notes
	}
	return &RemoteError{text}
}
