package smart

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/refname"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"

	maxAdvertised = 64 << 20 // bytes of a server's list of refs
	maxListed     = 1 << 20  // refs of a server, and shallow commits of an answer

	maxCapabilities = 1000 // of a server of version 2; those of version 0 are one packet
	zeroID          = "0000000000000000000000000000000000000000"
)

// A Remote is a repository on a server.
type Remote struct {
	// Address is that of the repository, without a slash at its end.
	Address *url.URL
	// Do sends a request; it adds the login where that belongs. A body of the request that is no memory is read once.
	Do func(*http.Request) (*http.Response, error)
}

// An Advertisement is what a server tells about a repository.
type Advertisement struct {
	// Refs are branches and tags, sorted by name.
	Refs []git.Ref
	// Odd are names of branches and tags that refname.Check refuses. They are not carried.
	Odd []string
	// Head is the branch that HEAD stands for, "" if unknown.
	Head         string
	base         *url.URL // after redirects
	version      int
	capabilities map[string]string
}

func (a *Advertisement) can(what string) bool {
	_, ok := a.capabilities[what]
	return ok
}

// OnlyTips reports whether the server gives no other commits than those that its refs name.
func (a *Advertisement) OnlyTips() bool {
	return a.version == 0 && !a.can("allow-reachable-sha1-in-want") && !a.can("allow-any-sha1-in-want")
}

// List returns the refs.
func (r *Remote) List(ctx context.Context) (*Advertisement, error) {
	a, err := r.advertisement(ctx, uploadPack)
	if err != nil {
		return nil, err
	}
	if a.version == 2 {
		err = r.listRefs(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(a.Refs, func(a, b git.Ref) int { return strings.Compare(a.Name, b.Name) })
	return a, nil
}

// advertisement asks for the capabilities of a service, and by version 0 for the refs.
func (r *Remote) advertisement(ctx context.Context, service string) (*Advertisement, error) {
	u := r.Address.JoinPath("info", "refs")
	u.RawQuery = "service=" + service
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if service == uploadPack {
		req.Header.Set("Git-Protocol", "version=2")
	}
	resp, err := r.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(resp)
	}
	if kind := resp.Header.Get("Content-Type"); kind != "application/x-"+service+"-advertisement" {
		return nil, notGit()
	}
	a := &Advertisement{capabilities: map[string]string{}}
	to := *resp.Request.URL
	path, ok := strings.CutSuffix(to.Path, "/info/refs")
	if !ok {
		return nil, notGit()
	}
	to.Path, to.RawPath, to.RawQuery = path, "", ""
	a.base = &to
	return a, a.read(&lineReader{r: bufio.NewReader(io.LimitReader(resp.Body, maxAdvertised))})
}

// refusal returns the status of an answer with the server's reason, if that is a plain text, as it is from Gitea and
// GitLab.
func refusal(resp *http.Response) error {
	const most = 300
	status := web.NewStatusError(resp)
	if kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "text/plain" {
		return status
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4*most))
	said := plain.Clip(strings.TrimSpace(plain.Line(string(text))), most)
	if err == nil && said != http.StatusText(resp.StatusCode) && said != status.Line() {
		status.Detail = said
	}
	return status
}

// notGit is the error of an answer of some other server.
func notGit() error {
	return odd("the server does not answer as a Git server over HTTP does; check the address: it is the one that git clone takes")
}

// read reads the answer to a question for refs.
func (a *Advertisement) read(lines *lineReader) error {
	line, ok, err := lines.text()
	if err == nil && ok && strings.HasPrefix(line, "# service=") {
		if _, _, err = lines.text(); err == nil { // the flush behind it
			line, ok, err = lines.text()
		}
	}
	if err != nil {
		return unexpected(err)
	}
	if line == "version 1" {
		if line, ok, err = lines.text(); err != nil {
			return unexpected(err)
		}
	}
	if line == "version 2" {
		a.version = 2
		for ok {
			if line, ok, err = lines.text(); err != nil {
				return unexpected(err)
			}
			if len(a.capabilities) >= maxCapabilities {
				return odd("the server has more than %d capabilities", maxCapabilities)
			}
			name, value, _ := strings.Cut(line, "=")
			a.capabilities[name] = value
		}
		return a.check()
	}
	for first := true; ok; first = false {
		text := line
		if first {
			var list string
			text, list, _ = strings.Cut(line, "\x00")
			a.take(list)
		}
		if err := a.add(text); err != nil {
			return err
		}
		if line, ok, err = lines.text(); err != nil {
			return unexpected(err)
		}
	}
	return a.check()
}

// take reads the capabilities of version 0.
func (a *Advertisement) take(list string) {
	for one := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(one, "=")
		if head, ok := strings.CutPrefix(value, git.Head+":"); ok && name == "symref" {
			a.Head = head
			continue
		}
		a.capabilities[name] = value
	}
}

func (a *Advertisement) check() error {
	if format := a.capabilities["object-format"]; format != "" && format != "sha1" {
		return odd("the repository names objects by %.20q, and only sha1 is supported", format)
	}
	return nil
}

// add reads a line "ID NAME" of version 0. Names that are no branches or tags are left out, as pull requests and
// capabilities^{} of an empty repository.
func (a *Advertisement) add(line string) error {
	text, name, ok := strings.Cut(line, " ")
	id, valid := git.ParseID(text)
	switch {
	case text == "shallow":
		return nil
	case !ok || !valid:
		return odd("%.80q is not a ref in a list of refs", line)
	case len(a.Refs)+len(a.Odd) >= maxListed:
		return odd("the server lists more than %d refs", maxListed)
	}
	if of, peeled := strings.CutSuffix(name, "^{}"); peeled {
		if n := len(a.Refs); n > 0 && a.Refs[n-1].Name == of {
			a.Refs[n-1].Peeled = id
		}
		return nil
	}
	if name == git.Head {
		return nil
	}
	if refname.Check(name) != nil {
		if strings.HasPrefix(name, refname.Branches) || strings.HasPrefix(name, refname.Tags) {
			a.Odd = append(a.Odd, name)
		}
		return nil
	}
	a.Refs = append(a.Refs, git.Ref{Name: name, ID: id})
	return nil
}

// listRefs asks for the branches and tags by version 2.
func (r *Remote) listRefs(ctx context.Context, a *Advertisement) error {
	var body bytes.Buffer
	out := &lineWriter{w: &body}
	a.command(out, "ls-refs")
	out.line("peel")
	out.line("symrefs")
	out.line("ref-prefix HEAD")
	out.line("ref-prefix refs/heads/")
	out.line("ref-prefix refs/tags/")
	out.flush()
	answer, err := r.post(ctx, a, uploadPack, &body)
	if err != nil {
		return err
	}
	defer answer.Close()
	lines := &lineReader{r: bufio.NewReader(io.LimitReader(answer, maxAdvertised))}
	for {
		line, ok, err := lines.text()
		if err != nil {
			return unexpected(err)
		}
		if !ok {
			return nil
		}
		words := strings.Split(line, " ")
		if words[0] == "unborn" {
			continue
		}
		if len(words) < 2 {
			return odd("%.80q is not a ref in a list of refs", line)
		}
		if err := a.add(words[0] + " " + words[1]); err != nil {
			return err
		}
		for _, word := range words[2:] {
			if head, ok := strings.CutPrefix(word, "symref-target:"); ok && words[1] == git.Head {
				a.Head = head
			}
			if text, ok := strings.CutPrefix(word, "peeled:"); ok && len(a.Refs) > 0 {
				if last := &a.Refs[len(a.Refs)-1]; last.Name == words[1] {
					last.Peeled, _ = git.ParseID(text)
				}
			}
		}
	}
}

// command begins a request of version 2.
func (a *Advertisement) command(out *lineWriter, name string) {
	out.line("command=%s", name)
	if a.can("agent") {
		out.line("agent=%s", web.UserAgent)
	}
	if a.can("object-format") {
		out.line("object-format=sha1")
	}
	out.delimiter()
}

// post sends a request to a service, and returns the body of the answer.
func (r *Remote) post(ctx context.Context, a *Advertisement, service string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base.JoinPath(service).String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-"+service+"-request")
	req.Header.Set("Accept", "application/x-"+service+"-result")
	if a.version == 2 {
		req.Header.Set("Git-Protocol", "version=2")
	}
	resp, err := r.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		err = refusal(resp)
	} else if resp.Header.Get("Content-Type") != "application/x-"+service+"-result" {
		err = notGit()
	}
	if err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp.Body, nil
}

// Fetch returns the pack of commits and tags with what they reach. Depth is the number of commits of each history, 0
// for all.
func (r *Remote) Fetch(ctx context.Context, a *Advertisement, wants []git.ID, depth int) (io.ReadCloser, error) {
	var body bytes.Buffer
	out := &lineWriter{w: &body}
	if a.version == 2 {
		a.command(out, "fetch")
		out.line("ofs-delta")
		out.line("no-progress")
		for _, id := range wants {
			out.line("want %s", id)
		}
		if depth > 0 {
			out.line("deepen %d", depth)
		}
		out.line("done")
		out.flush()
	} else if err := a.fetchLines(out, wants, depth); err != nil {
		return nil, err
	}
	answer, err := r.post(ctx, a, uploadPack, &body)
	if err != nil {
		return nil, err
	}
	lines := &lineReader{r: bufio.NewReaderSize(answer, 128<<10)}
	banded := true
	if a.version == 2 {
		err = toPack(lines)
	} else {
		banded = a.can("side-band-64k")
		err = toPackZero(lines, depth > 0)
	}
	if err != nil {
		return nil, errors.Join(err, answer.Close())
	}
	pack := lines.r
	if banded {
		pack = &bandReader{lines: lines}
	}
	return struct {
		io.Reader
		io.Closer
	}{pack, answer}, nil
}

// fetchLines writes a request of version 0.
func (a *Advertisement) fetchLines(out *lineWriter, wants []git.ID, depth int) error {
	capabilities := ""
	for _, c := range []string{"side-band-64k", "ofs-delta", "no-progress"} {
		if a.can(c) {
			capabilities += " " + c
		}
	}
	if depth > 0 {
		if !a.can("shallow") {
			return odd("the Git server has no histories of a depth; leave depth out")
		}
		capabilities += " shallow"
	}
	for _, id := range wants {
		out.line("want %s%s", id, capabilities)
		capabilities = ""
	}
	if depth > 0 {
		out.line("deepen %d", depth)
	}
	out.flush()
	out.line("done")
	return nil
}

// toPack reads an answer of version 2 as far as the pack.
func toPack(lines *lineReader) error {
	for range maxListed {
		line, ok, err := lines.text()
		if err != nil {
			return unexpected(err)
		}
		if ok && line == "packfile" {
			return nil
		}
		if ok && line != "shallow-info" && !strings.HasPrefix(line, "shallow ") &&
			!strings.HasPrefix(line, "unshallow ") {
			return odd("%.80q is not part of an answer with a pack", line)
		}
	}
	return noPack()
}

func noPack() error { return odd("the Git server sends more than %d packets before a pack", maxListed) }

// toPackZero reads an answer of version 0 as far as the pack.
func toPackZero(lines *lineReader, deepened bool) error {
	for n := 0; deepened; n++ {
		if n > maxListed {
			return noPack()
		}
		line, ok, err := lines.text()
		if err != nil {
			return unexpected(err)
		}
		if !ok {
			break
		}
		if !strings.HasPrefix(line, "shallow ") && !strings.HasPrefix(line, "unshallow ") {
			return odd("%.80q is not part of an answer with a pack", line)
		}
	}
	line, ok, err := lines.text()
	if err != nil {
		return unexpected(err)
	}
	if !ok || line != "NAK" {
		return odd("%.80q is not part of an answer with a pack", line)
	}
	return nil
}

// depthOf reads the number of a line "deepen N".
func depthOf(text string) (int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return 0, odd("%.20q is not a depth", text)
	}
	return int(n), nil
}
