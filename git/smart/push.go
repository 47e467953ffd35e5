package smart

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kkbundle/kkbundle/git"
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

// A RewrittenError means that refs on the server do not lead to those of the bundle.
type RewrittenError struct{ Refs []string }

// Error names the refs.
func (e *RewrittenError) Error() string {
	const most = 5
	list := strings.Join(e.Refs[:min(len(e.Refs), most)], ", ")
	if more := len(e.Refs) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list + ": the server has commits that the bundle's history does not continue, and nothing was changed"
}

// Hint returns the remedy.
func (*RewrittenError) Hint() string {
	return "look at both histories; --git-force replaces those of the server"
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
		return nil, errors.New("the Git server is too old to push to: it has no report-status or no ofs-delta")
	}
	p := &Push{remote: r, from: from, to: a}
	has := map[string]git.ID{}
	for _, ref := range a.Refs {
		has[ref.Name] = ref.ID
	}
	var rewritten []string
	for _, ref := range from.Refs {
		c := Change{Ref: ref.Name, New: ref.ID.String(), new: ref.ID, old: has[ref.Name]}
		switch {
		case c.old.IsZero():
			c.State = StateCreated
		case c.old == c.new:
			c.State = StateSame
		default:
			continues, err := false, error(nil)
			if strings.HasPrefix(ref.Name, "refs/heads/") {
				continues, err = from.Reaches(ctx, c.new, c.old)
			}
			if err != nil {
				return nil, err
			}
			if c.State = StateUpdated; !continues {
				c.State = StateForced
				rewritten = append(rewritten, ref.Name)
			}
		}
		if !c.old.IsZero() {
			c.Old = c.old.String()
		}
		p.Changes = append(p.Changes, c)
	}
	if len(rewritten) > 0 && !force {
		return nil, &RewrittenError{rewritten}
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
		return err
	}
	head := p.commands()
	read, write := io.Pipe()
	defer read.Close()
	go func() { _ = write.CloseWithError(p.from.WritePack(ctx, write, selected)) }() // the reader has the error
	body, err := announced(io.MultiReader(head, read))
	if err != nil {
		return err
	}
	answer, err := p.remote.post(ctx, p.to, receivePack, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	return p.report(&lineReader{r: bufio.NewReader(io.LimitReader(answer, maxAdvertised))})
}

// commands returns what the request begins with.
func (p *Push) commands() *bytes.Buffer {
	head := &bytes.Buffer{}
	out := &lineWriter{w: head}
	capabilities := "\x00report-status agent=" + web.UserAgent
	for _, c := range [][2]string{
		{"side-band-64k", "side-band-64k"}, {"atomic", "atomic"}, {"object-format", "object-format=sha1"},
	} {
		if p.to.can(c[0]) {
			capabilities += " " + c[1]
		}
	}
	for _, id := range p.from.Shallow() {
		out.line("shallow %s", id)
	}
	for _, c := range p.Changes {
		if c.State != StateSame {
			out.line("%s %s %s%s", c.old, c.new, c.Ref, capabilities)
			capabilities = ""
		}
	}
	out.flush()
	return head
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
	if p.to.can("side-band-64k") {
		lines = &lineReader{r: bufio.NewReader(&bandReader{lines: lines})}
	}
	var refusals []error
	good := map[string]bool{}
	unpacked := false
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
			if unpacked = rest == "ok"; !unpacked {
				refusals = append(refusals, &RemoteError{"the pack was not taken: " + rest})
			}
		case "ok":
			good[rest] = true
		case "ng":
			refusals = append(refusals, &RemoteError{rest})
		}
	}
	for _, c := range p.Changes {
		if c.State != StateSame && !good[c.Ref] && len(refusals) == 0 {
			refusals = append(refusals, fmt.Errorf("the Git server did not confirm %s; push again", c.Ref))
		}
	}
	return errors.Join(refusals...)
}
