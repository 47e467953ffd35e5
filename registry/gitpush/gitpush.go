// Package gitpush pushes the Git repositories of a bundle to a Git server: Gitea, GitLab, or any other with Git's smart
// protocol over HTTP. The repositories exist there already.
package gitpush

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/smart"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/logins"
)

// Options configure Push.
type Options struct {
	// Prefix is the address below which the repositories are, such as https://gitea.site/mirror.
	Prefix string
	// Transport connects to the server.
	Transport http.RoundTripper
	// Login is that of the server; the zero value is none.
	Login logins.Login
	// Select, if set, reports whether to push an item.
	Select func(bundle.Item) bool
	// Force changes refs whose history on the server is another one, too.
	Force bool
	// DryRun changes nothing.
	DryRun bool
	Logger *slog.Logger // nil discards
}

// A Pushed is a repository with what became of its refs.
type Pushed struct {
	Name    string         `json:"name"` // the upstream address
	Address string         `json:"address"`
	Refs    []smart.Change `json:"refs"`
}

// stall is how long a server may be silent: it may store a large pack meanwhile.
const stall = 10 * time.Minute

// ParsePrefix reads the address below which repositories are. Logins are not part of it.
func ParsePrefix(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return nil, errors.New("want an address such as https://gitea.site/mirror")
	case u.User != nil:
		return nil, errors.New("want no login in the address; put it into netrc (~/.netrc or $NETRC), or use --username with --password-stdin")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("want an address without ? and #")
	}
	return u, nil
}

// Push pushes the selected repositories of a bundle. The result has those that arrived, the error says of each other
// one why it did not. A repeated push sends what is missing.
func Push(ctx context.Context, r *bundle.Reader, o Options) ([]Pushed, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	prefix, err := ParsePrefix(o.Prefix)
	if err != nil {
		return nil, fmt.Errorf("the address of the Git server: %w", err)
	}
	var items []bundle.Item
	for _, it := range r.Index().Items {
		if it.Kind == bundle.KindGit && (o.Select == nil || o.Select(it)) {
			items = append(items, it)
		}
	}
	if err := collisions(items); err != nil {
		return nil, err
	}
	p := &pusher{Options: o, reader: r, prefix: prefix}
	if len(items) == 0 {
		return nil, errors.New("no Git repository is selected; kkbundle inspect lists those of the bundle")
	}
	var done []Pushed
	var errs []error
	for _, it := range items {
		one, err := p.push(ctx, it)
		if err != nil {
			errs = append(errs, fmt.Errorf("push %s to %s: %w", it.Ref, one.Address, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		done = append(done, one)
	}
	return done, errors.Join(errs...)
}

// collisions fails if two repositories with different content have the same destination. Servers do not tell apart
// names by case.
func collisions(items []bundle.Item) error {
	first := map[string]bundle.Item{}
	for _, it := range items {
		name := strings.ToLower(it.Name)
		if other, ok := first[name]; ok && other.Descriptor.Digest != it.Descriptor.Digest {
			return fmt.Errorf("nothing was pushed: %s and %s would both be %s.git: push one of them with --item to another address",
				other.Ref, it.Ref, it.Name)
		}
		first[name] = it
	}
	return nil
}

type pusher struct {
	Options
	reader *bundle.Reader
	prefix *url.URL
}

// push pushes one repository, with a few attempts.
func (p *pusher) push(ctx context.Context, it bundle.Item) (one Pushed, err error) {
	name, ok := bundle.GitName(it)
	if !ok {
		return one, fmt.Errorf("%q is not the name of a repository", it.Name)
	}
	to := p.prefix.JoinPath(name + ".git")
	one = Pushed{Name: it.Ref, Address: to.String()}
	repo, err := open(ctx, p.reader, it)
	if err != nil {
		return one, err
	}
	remote := &smart.Remote{Address: to, Do: p.do}
	const attempts = 3
	for failures := 0; ; {
		one.Refs, err = p.once(ctx, remote, repo)
		failures++
		if err == nil || failures == attempts || ctx.Err() != nil || !web.Passing(err) {
			return one, p.explain(err)
		}
		pause, final := web.Patience().After(failures, err, web.MaxRetryAfter)
		if final != nil {
			return one, p.explain(final)
		}
		p.Logger.WarnContext(ctx, "a Git server does not answer properly, trying again", "server", p.prefix.Host, "next",
			pause.Round(time.Millisecond), "error", err)
		if err := web.Sleep(ctx, pause); err != nil {
			return one, err
		}
	}
}

func (p *pusher) once(ctx context.Context, remote *smart.Remote, repo *git.Repository) ([]smart.Change, error) {
	plan, err := remote.PlanPush(ctx, repo, p.Force)
	if err != nil {
		return nil, err
	}
	if p.DryRun {
		return plan.Changes, nil
	}
	return plan.Changes, plan.Run(ctx)
}

// open opens a repository in a bundle.
func open(ctx context.Context, r *bundle.Reader, it bundle.Item) (*git.Repository, error) {
	parts, document, err := r.Git(ctx, it, git.MaxDocument)
	if err != nil {
		return nil, err
	}
	pack, size, err := r.BlobAt(ctx, parts.Pack.Digest)
	if err != nil {
		return nil, err
	}
	index, indexSize, err := r.BlobAt(ctx, parts.Index.Digest)
	if err != nil {
		return nil, err
	}
	return git.Open(document, pack, size, index, indexSize)
}

// do sends a request with the login. A body is sent for as long as it moves.
func (p *pusher) do(req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", web.UserAgent)
	if p.Login.User != "" && req.URL.Host == p.prefix.Host && req.URL.Scheme == p.prefix.Scheme {
		req.SetBasicAuth(p.Login.User, p.Login.Password)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(stall, func() { cancel(&web.StallError{Idle: stall}) })
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &movingBody{req.Body, timer}
		req.GetBody = nil
	}
	resp, err := (&http.Client{Transport: p.Transport, CheckRedirect: web.CheckRedirect}).Do(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, web.WithoutLocation(err)
	}
	resp.Body = web.Watch(ctx, cancel, resp.Body, stall)
	return resp, nil
}

// A movingBody is the body of a request that starts the time over with each read.
type movingBody struct {
	io.ReadCloser
	timer *time.Timer
}

// Read implements io.Reader.
func (b *movingBody) Read(p []byte) (int, error) {
	b.timer.Reset(stall)
	return b.ReadCloser.Read(p)
}

// explain adds cause and remedy to a server's refusal, or to the lack of a connection.
func (p *pusher) explain(err error) error {
	status := web.Status(err)
	if status == nil {
		return explainConnection(err)
	}
	// Gitea's text for a repository that is missing, where it does not create one.
	missing := status.Code == http.StatusNotFound || strings.Contains(status.Detail, "Push to create is not enabled")
	switch {
	case missing:
		return plain.Advise(err, "create the repository, and its organization, on the server, without a first commit (Gitea and GitLab can create it at the first push), and check the address, and the login in netrc (~/.netrc or $NETRC)")
	case status.Code == http.StatusUnauthorized:
		return plain.Advise(err, "put user and password or token for "+p.prefix.Hostname()+" into netrc (~/.netrc or $NETRC), or use --username with --password-stdin")
	case status.Code == http.StatusForbidden && status.Detail != "": // a repository that is archived or a mirror, an account that is disabled
		return plain.Advise(err, "the server gives the reason: change the repository or the account there")
	case status.Code == http.StatusForbidden:
		return plain.Advise(err, "the user or the token may not push there: check the rights of both on the server")
	case status.Code == http.StatusBadRequest && p.prefix.Scheme == "http":
		return plain.Advise(err, "the server may speak HTTPS there: use https://")
	}
	return err
}

func explainConnection(err error) error {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, isDNS := errors.AsType[*net.DNSError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case unknown:
		return plain.Advise(err, "give the certificate of the server's authority with --ca FILE")
	case record, web.IsPlainHTTP(err):
		return plain.Advise(err, "the server does not speak TLS there: check the port, or use http:// with --plain-http if you trust the network")
	case isDNS, isOp && op.Op == "dial":
		return plain.Advise(err, "check the address, and that the server runs and is reachable from here")
	}
	return err
}
