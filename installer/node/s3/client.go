package s3

import (
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/web"
)

// Limits of a request.
const (
	patience    = web.Idle         // for a connection, and for each piece of data
	answerTime  = 2 * time.Minute  // for the answer; a storage joins the parts of an object before it
	consentTime = 5 * time.Second  // for the storage's consent to a body
	attempts    = 10               // of one request
	firstPause  = time.Second      // after the first attempt; it doubles
	longPause   = 30 * time.Second // the longest pause that the storage has not asked for
	answerSize  = 64 << 10
)

// A Client sends requests to a storage. It repeats requests that fail for a reason that can pass: a broken
// connection, and an answer that says that the storage is overloaded or failed.
type Client struct {
	Storage
	http *http.Client
	now  func() time.Time
	wait func(ctx context.Context, pause time.Duration) error
	part int64 // the size of a part
}

// NewClient returns a client of the storage.
func NewClient(s Storage) (*Client, error) {
	config, err := s.TLS()
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: patience}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return steadyConn{conn}, nil
		},
		TLSClientConfig: config, TLSHandshakeTimeout: patience, ResponseHeaderTimeout: answerTime,
		ExpectContinueTimeout: consentTime,
		// A connection for each request: none is closed by the other side just before it is used again.
		DisableKeepAlives: true,
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{
		Storage: s, http: &http.Client{Transport: transport, CheckRedirect: refuse}, now: time.Now,
		wait: web.Sleep, part: usualPart,
	}, nil
}

// A steadyConn fails if the other side takes no bytes for some time.
type steadyConn struct{ net.Conn }

// Write writes within the time for a piece of data.
func (c steadyConn) Write(data []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(data)
}

// send sends a request once. The caller closes the answer's body. An answer other than 200 and 206 is an *Error.
func (c *Client) send(ctx context.Context, r Request, body *io.SectionReader) (*http.Response, error) {
	header, err := c.Sign(r, c.now())
	if err != nil {
		return nil, err
	}
	address := strings.TrimSuffix(c.Endpoint, "/") + c.Path(r.Object)
	if text := r.QueryText(); text != "" {
		address += "?" + text
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, address, nil)
	if err != nil {
		return nil, err
	}
	for name, value := range header {
		if name != "host" { // it is in the address
			request.Header.Set(name, value)
		}
	}
	if body != nil {
		// A reader of its own: an earlier attempt may still read.
		request.Body, request.ContentLength = io.NopCloser(io.NewSectionReader(body, 0, body.Size())), body.Size()
		request.Header.Set("Expect", "100-continue")
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, c.explained(err)
	}
	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusPartialContent ||
		answer.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, answerSize)) // the status alone says that it failed
	return nil, c.refusal(answer, text)
}

// explained adds the remedy to errors of TLS.
func (c *Client) explained(err error) error {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return plain.Advise(err,
			"name the authority of the storage's certificate in backup.s3.ca of the cluster file, and in backup.s3.endpoint a name that the certificate has")
	}
	return err
}

// ask sends a request until the storage answers it, and returns the answer.
func (c *Client) ask(ctx context.Context, r Request,
	body *io.SectionReader,
) (header http.Header, data []byte, err error) {
	err = c.persist(ctx, func() error {
		answer, err := c.send(ctx, r, body)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		header = answer.Header
		if data, err = io.ReadAll(io.LimitReader(answer.Body, answerSize)); err != nil {
			return err
		}
		var root struct{ XMLName xml.Name }
		// a storage that joins parts begins to answer before it knows
		if xml.Unmarshal(data, &root) == nil && root.XMLName.Local == "Error" {
			return c.refusal(answer, data)
		}
		return nil
	})
	return header, data, err
}

// persist repeats a request that fails for a reason that can pass, with growing pauses.
func (c *Client) persist(ctx context.Context, request func() error) error {
	for attempt := 1; ; attempt++ {
		err := request()
		if err == nil || ctx.Err() != nil || !canPass(err) {
			return err
		}
		if attempt == attempts {
			return fmt.Errorf("%d attempts: %w", attempt, err)
		}
		pause, final := web.Backoff{First: firstPause, Longest: longPause}.After(attempt, err, web.MaxRetryAfter)
		if final != nil {
			return final
		}
		if c.wait(ctx, pause) != nil {
			return err
		}
	}
}

// canPass reports whether the same request may succeed later.
func canPass(err error) bool {
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused.canPass()
	}
	if web.IsUntrusted(err) {
		return false
	}
	_, stalled := errors.AsType[*web.StallError](err)
	_, isNet := errors.AsType[*net.OpError](err)
	timeout, ok := errors.AsType[net.Error](err)
	return stalled || isNet || ok && timeout.Timeout() || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Page returns a page of the list of the bucket's objects, of at most so many bytes.
func (c *Client) Page(ctx context.Context, query map[string]string, most int64) (data []byte, err error) {
	err = c.persist(ctx, func() error {
		answer, err := c.send(ctx, Request{Method: http.MethodGet, Query: query, SHA256: nothingSHA256}, nil)
		if err != nil {
			return err
		}
		data, err = io.ReadAll(io.LimitReader(answer.Body, most))
		return errors.Join(err, answer.Body.Close())
	})
	return data, err
}

// Download writes an object to w. After a broken connection it continues with the first missing byte.
func (c *Client) Download(ctx context.Context, object string, w io.Writer) error {
	var have int64
	tag := ""
	return c.persist(ctx, func() error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		r := Request{Method: http.MethodGet, Object: object, SHA256: nothingSHA256}
		if have > 0 {
			r.Header = map[string]string{"range": fmt.Sprintf("bytes=%d-", have)}
		}
		if have > 0 && tag != "" {
			r.Header["if-match"] = tag
		}
		answer, err := c.send(ctx, r, nil)
		if err != nil {
			return err
		}
		answer.Body = web.Watch(ctx, cancel, answer.Body, patience)
		defer func() { _ = answer.Body.Close() }()
		if have > 0 && !strings.HasPrefix(answer.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)) {
			return fmt.Errorf("the connection broke after %d bytes, and the storage does not continue a download; run the command again", have)
		}
		tag = answer.Header.Get("ETag")
		n, err := io.Copy(w, answer.Body)
		have += n
		return err
	})
}

// An Error is the refusal of a storage.
type Error struct {
	Status, Code, Message string

	status *web.StatusError
	remedy string
}

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.status }

// Error names the status of HTTP and the storage's reason.
func (e *Error) Error() string {
	return fmt.Sprintf("the storage answers %s: %s: %s", e.Status, e.Code, e.Message)
}

// Hint returns the remedy.
func (e *Error) Hint() string { return e.remedy }

// canPass reports whether the same request may succeed later.
func (e *Error) canPass() bool {
	switch e.Code {
	case "RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling", "OperationAborted",
		"IncompleteBody", "BadDigest":
		return true
	}
	return web.PassingStatus(e.status.Code)
}

// refusal reads an error of the storage, which is XML.
func (c *Client) refusal(answer *http.Response, body []byte) *Error {
	var said struct {
		Code    string `xml:"Code"`
		Message string `xml:"Message"`
		Region  string `xml:"Region"`
	}
	_ = xml.Unmarshal(body, &said) // the status alone says that it failed
	line := func(text string) string {
		const shown = 300
		return plain.Line(text[:min(len(text), shown)])
	}
	e := &Error{
		Status: line(answer.Status), Code: line(said.Code), Message: line(said.Message),
		status: web.NewStatusError(answer),
	}
	if region := line(said.Region); region != "" {
		e.remedy = "write backup.s3.region: " + region + " into the cluster file, and run kkbundle install"
		return e
	}
	e.remedy = c.remedyOf(e, answer.Header.Get("Date"))
	return e
}

// remedyOf returns what to do about a refusal. date is the storage's time.
func (c *Client) remedyOf(e *Error, date string) string {
	switch e.Code {
	case "RequestTimeTooSkewed":
		here := c.now().UTC().Truncate(time.Second)
		text := "the clock of this machine differs too much from the storage's: it is " + here.Format(time.RFC3339) +
			" here"
		if there, err := http.ParseTime(date); err == nil {
			text += " and " + there.UTC().Format(time.RFC3339) + " there (" + here.Sub(there).String() + ")"
		}
		return text + "; set the clock that is wrong, and check the time service (chronyc tracking)"
	case "AccessDenied":
		return "give the user of backup.s3.accessKey the missing right: etcd hosts need s3:PutObject and s3:AbortMultipartUpload, " +
			"etcd copies needs s3:ListBucket, etcd fetch s3:GetObject"
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound": // the last is versitygw's
		return "correct backup.s3.accessKey of the cluster file, or the secret in the file that backup.s3.secretKeyFile names, and run kkbundle install, which brings both to the hosts"
	case "NoSuchBucket":
		return "create the bucket, or correct backup.s3.bucket of the cluster file and run kkbundle install"
	case "NoSuchKey":
		return "kkbundle etcd copies lists the copies"
	case "QuotaExceeded", "XMinioStorageFull", "InsufficientStorage":
		return "make room in the storage, or set a lifecycle rule that removes old copies from the bucket"
	}
	switch {
	case e.status.Code == http.StatusInsufficientStorage:
		return "make room in the storage, or set a lifecycle rule that removes old copies from the bucket"
	case e.status.Code/100 == 3:
		return "correct backup.s3.endpoint and backup.s3.region of the cluster file: the bucket is at another address"
	case e.canPass():
		return "the storage is overloaded or failing: see its own logs"
	}
	return ""
}
