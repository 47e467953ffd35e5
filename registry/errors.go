package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/proxy"
)

// Classes of Push's errors, for errors.Is.
var (
	ErrLogin       = errors.New("login refused")        // the registry requires a login, or another one
	ErrUnreachable = errors.New("registry unreachable") // no connection, or no trusted one
)

const (
	maxErrorBody = 64 << 10 // bytes of an answer searched for its reason
	maxReason    = 400      // characters of the registry's own message
)

var errStalled = errors.New("no data moved for too long")

// errOtherContent is about a tag that has other content after a push.
var errOtherContent = errors.New("other content under a tag")

// A plainError explains cause and remedy. errors.Is and errors.As find the underlying error, but its text, which may
// contain addresses with session tokens, is not shown.
type plainError struct {
	text  string
	class error // nil, ErrLogin or ErrUnreachable
	cause error
	fatal bool // every other item would fail the same way
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() []error {
	if e.class == nil {
		return []error{e.cause}
	}
	return []error{e.class, e.cause}
}

// An answerError is about an answer of the registry that has no error of its own. It names the registry and the remedy.
type answerError string

func (e answerError) Error() string { return string(e) }

func isFatal(err error) bool {
	p, ok := errors.AsType[*plainError](err)
	return ok && p.fatal
}

// explain adds cause and remedy to an error of a request about repo ("" if about the registry itself). An error already
// explained, or about the bundle or the context, is returned unchanged.
func (s *session) explain(repo string, err error) error {
	_, done := errors.AsType[*plainError](err)
	_, refused := errors.AsType[indexError](err)
	if done || refused || err == nil || errors.Is(err, bundle.ErrDamaged) || errors.Is(err, context.Canceled) {
		return err
	}
	var e *plainError
	if te, ok := asRegistryError(err); ok {
		e = s.explainAnswer(repo, te)
	} else {
		e = s.explainNetwork(err)
	}
	if status := web.Status(err); status != nil && status.After > web.MaxRetryAfter {
		e.fatal, e.text = true, fmt.Sprintf("%s; it demands a pause of %s", e.text, status.After.Round(time.Second))
	}
	if out, ok := errors.AsType[*outageError](err); ok {
		e.fatal, e.text = true, fmt.Sprintf("%s; the registry has answered nothing for %s", e.text,
			out.lasted.Round(time.Second))
	}
	return e
}

func (s *session) explainAnswer(repo string, te *transport.Error) *plainError {
	where := s.host
	if repo != "" {
		where += "/" + repo
	}
	e := &plainError{cause: te}
	project := projectOf(repo)
	if e.text, e.fatal = s.refusalText(repo, te); e.text != "" {
		return e
	}
	switch {
	case te.StatusCode == http.StatusUnauthorized && !(repo != "" && s.account.Username != "" && s.loggedIn.Load()):
		e.text, e.class, e.fatal = s.loginText(te), ErrLogin, true
	case te.StatusCode == http.StatusForbidden && repo != "" && reason(te) == "" && s.repo(repo).opened.Load():
		e.text = fmt.Sprintf("%s opened an upload and then refused the content without a reason (403): a limit of size or number may be exceeded (in Gitea: LIMIT_SIZE_CONTAINER and LIMIT_TOTAL_OWNER_* under [packages]); raise it or delete unneeded content, and push again", where)
	// with tokens, 401 may be about permissions, too
	case te.StatusCode == http.StatusForbidden || te.StatusCode == http.StatusUnauthorized:
		e.text = fmt.Sprintf("%s may not push to %s%s: request push permission there", s.who(), where, reason(te))
		if project != "" {
			e.text += fmt.Sprintf("; where projects must be created first (Harbor), %q must exist", project)
		}
	case te.StatusCode == http.StatusMethodNotAllowed || te.StatusCode == http.StatusNotImplemented ||
		hasCode(te, transport.UnsupportedErrorCode):
		e.text, e.fatal = fmt.Sprintf(
			"registry %s does not accept pushes%s: it is read-only, a mirror or under maintenance", s.host, reason(te)),
			true
	case hasCode(te, transport.NameInvalidErrorCode):
		e.text = fmt.Sprintf("%s refuses the name %s%s: some registries take only a few levels of names; --rename FROM=TO shortens them, as in --rename docker.io/library=base",
			s.host, repo, reason(te))
	case te.StatusCode == http.StatusNotFound && repo == "":
		e.text, e.class, e.fatal = fmt.Sprintf("%s is no registry: it answers %s with 404 Not Found%s: check the address and the port",
			s.host, pingPath, reason(te)), ErrUnreachable, true
	case te.StatusCode == http.StatusConflict:
		e.text = fmt.Sprintf("%s answered 409 Conflict%s: the tag may be one that nobody may replace (immutable), or another push is at work there", where, reason(te))
	case te.StatusCode == http.StatusNotFound && !hasCode(te, transport.ManifestUnknownErrorCode,
		transport.BlobUnknownErrorCode):
		e.text = fmt.Sprintf("%s does not exist and the registry does not create it%s: create the project or namespace %q first (on Amazon ECR, this repository), or push under another prefix", where, reason(te), project)
	case te.StatusCode == http.StatusRequestEntityTooLarge:
		e.text = fmt.Sprintf("%s refuses content of this size%s: raise the limit of the registry or of its proxy (nginx: client_max_body_size 0)", s.host, reason(te))
	case te.StatusCode == http.StatusProxyAuthRequired:
		e.text, e.class, e.fatal = proxy.LoginText(s.host), ErrUnreachable, true
	case te.StatusCode == http.StatusTooManyRequests:
		e.text = fmt.Sprintf("%s limits requests even after several retries%s: use fewer --jobs, or try later", s.host,
			reason(te))
	case te.StatusCode == http.StatusBadRequest && s.plain && len(te.Errors) == 0 && !s.greeted.Load():
		e.text, e.class, e.fatal = fmt.Sprintf("%s does not speak plain HTTP: omit --plain-http", s.host),
			ErrUnreachable, true
	default:
		e.text = fmt.Sprintf("%s answered %d %s%s", where, te.StatusCode, http.StatusText(te.StatusCode), reason(te))
	}
	return e
}

// refusalText recognises refusals by their text: Harbor uses one status for several reasons, and a full disk is an
// internal error. The texts are from src/server/middleware of goharbor/harbor, and from Go's ENOSPC and EDQUOT.
func (s *session) refusalText(repo string, te *transport.Error) (text string, fatal bool) {
	words, project := strings.ToLower(details(te)), projectOf(repo)
	says := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(words, t) })
	}
	switch {
	case says("read only mode", "read-only mode"):
		return fmt.Sprintf("registry %s is in read-only mode%s: in Harbor an administrator turns it off under Configuration > System Settings", s.host, reason(te)), true
	case says("proxy project"):
		return fmt.Sprintf("project %s at %s is a proxy cache of another registry and does not accept pushes: use another project (--rename, or --registry %s/PROJECT)", project, s.host, s.host), false
	case says("configured as immutable"):
		return fmt.Sprintf("a rule of project %s makes this tag of %s immutable, and it has other content%s: change the rule, delete the tag, or push to another path (--rename)", project, repo, reason(te)), false
	case !isFull(te) && says("quota exceeded", "configured upper limit"):
		return fmt.Sprintf("the storage quota of project %s at %s is exhausted%s: raise it (in Harbor under Administration > Project Quotas) or delete unneeded content, and push again", project, s.host, reason(te)), false
	case isFull(te):
		return fmt.Sprintf("the storage of registry %s is full%s: free or add space, and push again; pushed content is kept", s.host, reason(te)), true
	case te.StatusCode < http.StatusInternalServerError && says("project "+project+" not found", "project not found"):
		if s.harbor != nil && s.harbor.refused[project] != nil {
			return s.mayNotCreate(project, s.harbor.refused[project]), false
		}
		return fmt.Sprintf("project %s does not exist at %s%s: create it, or push as a user who may create projects",
			project, s.host, reason(te)), false
	}
	return "", false
}

// details returns all text of an answer.
func details(te *transport.Error) string {
	var b strings.Builder
	for _, d := range te.Errors {
		fmt.Fprintln(&b, d.Code, d.Message, d.Detail)
	}
	return b.String()
}

func (s *session) loginText(te *transport.Error) string {
	at := s.host
	if service := s.tokenService(); service != s.host {
		at += " (through " + service + ")"
	}
	if s.unread != nil {
		return fmt.Sprintf("registry %s requires a login%s, and %s", at, reason(te), s.unread)
	}
	if s.account.Username == "" {
		return fmt.Sprintf("registry %s requires a login and there is none%s: use --username and --password-stdin, or run kkbundle login %s", at, reason(te), s.host)
	}
	return fmt.Sprintf("registry %s rejects user %q%s: check user and password (--username, --password-stdin) or log in again with kkbundle login %s", at, s.account.Username, reason(te), s.host)
}

func (s *session) who() string {
	if s.account.Username == "" {
		return "the anonymous user"
	}
	return fmt.Sprintf("user %q", s.account.Username)
}

func (s *session) explainNetwork(err error) *plainError {
	inner := err
	if ue, ok := errors.AsType[*url.Error](err); ok {
		inner = ue.Err // without the address, which contains the session's state
	}
	e := &plainError{class: ErrUnreachable, cause: err, fatal: true}
	host, wrongHost := errors.AsType[x509.HostnameError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	dns, isDNS := errors.AsType[*net.DNSError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	odd, isOdd := errors.AsType[answerError](err)
	switch {
	case isOdd:
		e.text, e.fatal = clean(string(odd)), false
	case s.proxyText(err) != "":
		e.text = s.proxyText(err)
	case unknown:
		e.text = fmt.Sprintf("the certificate of %s is signed by a CA unknown to this machine: give the CA's certificate with --ca FILE", s.host)
	case wrongHost:
		e.text = fmt.Sprintf("the certificate of %s is for another name (%s): use the certificate's name", s.host,
			clean(host.Error()))
	case isInvalid && invalid.Reason == x509.Expired:
		e.text = fmt.Sprintf("the certificate of %s is expired or not yet valid: check this machine's clock and renew the certificate", s.host)
	case isInvalid:
		e.text = fmt.Sprintf("the certificate of %s is invalid: %s", s.host, clean(invalid.Error()))
	case web.IsPlainHTTP(err):
		e.text = fmt.Sprintf("%s speaks plain HTTP, not HTTPS: allow it with --plain-http if you trust the network",
			s.host)
	case errors.As(err, new(tls.RecordHeaderError)):
		e.text = fmt.Sprintf("%s does not answer in TLS: check the port, or allow plain HTTP with --plain-http if you trust the network", s.host)
	case errors.Is(err, errPlain):
		e.text = fmt.Sprintf("%s: %s", s.host, clean(inner.Error()))
	case isDNS:
		e.text = fmt.Sprintf("the name %s has no address: check the registry's name and this machine's DNS or /etc/hosts", dns.Name)
	case strings.HasPrefix(inner.Error(), "no token in bearer response"): // followed by the actual answer
		e.text = fmt.Sprintf("the token service %s answers without a token", s.tokenService())
	case strings.Contains(inner.Error(), "tls: certificate required"),
		strings.Contains(inner.Error(), "remote error: tls: bad certificate"):
		e.text = fmt.Sprintf("%s requires a client certificate: give one with --cert FILE and --key FILE", s.host)
	case web.IsUntrusted(err):
		e.text = fmt.Sprintf("no trusted connection to %s: %s", s.host, clean(inner.Error()))
	default:
		e.text = fmt.Sprintf("connection to %s failed: %s: check that the registry runs and is reachable from here",
			s.host, clean(inner.Error()))
		e.fatal = isOp && op.Op == "dial" // a broken connection may concern a single blob
	}
	return e
}

// proxyText explains an error of the proxy before the registry; "" for any other error.
func (s *session) proxyText(err error) string {
	if refused, ok := errors.AsType[*proxy.Error](err); ok {
		return fmt.Sprintf("%s cannot be reached: %s", s.host, refused)
	}
	if errors.Is(err, proxy.ErrAddress) {
		return proxy.ErrAddress.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		return fmt.Sprintf("%s cannot be reached: no connection to the proxy: %s: check HTTPS_PROXY and HTTP_PROXY, or name hosts that need no proxy in NO_PROXY",
			s.host, clean(op.Err.Error()))
	}
	return ""
}

// reason returns the registry's own message, in brackets.
func reason(te *transport.Error) string {
	var texts []string
	for _, d := range te.Errors {
		text := strings.TrimSuffix(string(d.Code)+": "+once(d.Message), ": ")
		if len(texts) < 3 && text != "" {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + clean(strings.Join(texts, "; ")) + ")"
}

// once returns a message without its repetition: Harbor answers "project a not found: project a not found".
func once(message string) string {
	if n := (len(message) - 2) / 2; n > 0 && message == message[:n]+": "+message[:n] {
		return message[:n]
	}
	return message
}

// clean makes the registry's words fit for an error.
func clean(s string) string { return plain.Clip(plain.Line(s), maxReason) }
