package node

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/plain"
)

// An S3 is a bucket of a storage with the S3 API and a login for it. Its JSON is a file on hosts that only root reads.
type S3 struct {
	Endpoint  string `json:"endpoint"` // https://HOST[:PORT] or http://HOST[:PORT]
	Bucket    string `json:"bucket"`
	Prefix    string `json:"prefix"` // of objects' names, without a slash at its end
	Region    string `json:"region"`
	CA        string `json:"ca,omitempty"` // PEM; "" means the machine's own authorities
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
}

// An S3Request is a request to sign.
type S3Request struct {
	Method string
	Object string // "" is the bucket itself
	Query  map[string]string
	Header map[string]string // in lower case
	SHA256 string            // of the body, in hex
}

// Limits of a transfer.
const (
	maxS3Object  = 5 << 30 // of one request to put an object
	s3Patience   = time.Minute
	s3Continue   = 5 * time.Second
	s3AnswerSize = 64 << 10
	s3TimeForm   = "20060102T150405Z"
)

// Path returns the path of a request, as it is sent and signed: the bucket is its first part, as every storage
// understands it.
func (s S3) Path(object string) string {
	return "/" + escapeS3(s.Bucket, true) + strings.TrimSuffix("/"+escapeS3(object, true), "/")
}

// QueryText returns a query as it is sent and signed.
func (r S3Request) QueryText() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(r.Query)) {
		pairs = append(pairs, escapeS3(name, false)+"="+escapeS3(r.Query[name], false))
	}
	return strings.Join(pairs, "&")
}

// Sign returns the headers of a request with its signature, version 4.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
func (s S3) Sign(r S3Request, now time.Time) (map[string]string, error) {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	header := map[string]string{"host": at.Host, "x-amz-content-sha256": r.SHA256, "x-amz-date": now.UTC().Format(s3TimeForm)}
	maps.Copy(header, r.Header)
	names := slices.Sorted(maps.Keys(header))
	var canonical strings.Builder
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", r.Method, s.Path(r.Object), r.QueryText())
	for _, name := range names {
		fmt.Fprintf(&canonical, "%s:%s\n", name, header[name])
	}
	signed := strings.Join(names, ";")
	fmt.Fprintf(&canonical, "\n%s\n%s", signed, r.SHA256)

	day := header["x-amz-date"][:len("20060102")]
	scope := day + "/" + s.Region + "/s3/aws4_request"
	digest := sha256.Sum256([]byte(canonical.String()))
	text := "AWS4-HMAC-SHA256\n" + header["x-amz-date"] + "\n" + scope + "\n" + hex.EncodeToString(digest[:])
	key := []byte("AWS4" + s.SecretKey)
	for _, part := range []string{day, s.Region, "s3", "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		_, _ = io.WriteString(mac, part)
		key = mac.Sum(nil)
	}
	header["authorization"] = fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%x", s.AccessKey, scope, signed, key)
	return header, nil
}

// escapeS3 escapes all bytes but letters, digits, "-_.~" and, in paths, "/".
func escapeS3(text string, isPath bool) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		isPlain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~", c) >= 0
		if isPlain || isPath && c == '/' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// TLS returns the settings of connections to the storage.
func (s S3) TLS() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA == "" {
		return c, nil
	}
	if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM([]byte(s.CA)) {
		return nil, errors.New("authority of the S3 storage: no certificate in it")
	}
	return c, nil
}

// PutFile sends a file to the storage that the file config describes, below PREFIX and the given directory.
func PutFile(ctx context.Context, config, file, dir string) error {
	data, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var s S3
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s: %w", config, err)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	name := path.Join(s.Prefix, dir, path.Base(file))
	if err := s.put(ctx, name, f); err != nil {
		return fmt.Errorf("send %s to %s, bucket %s, as %s: %w", file, s.Endpoint, s.Bucket, name, err)
	}
	return nil
}

// put sends a file as one object, which exists as a whole or not at all. The request is written by hand: the helper is
// copied to every host and has no other use for an HTTP library.
func (s S3) put(ctx context.Context, name string, f *os.File) error {
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	if size > maxS3Object {
		return fmt.Errorf("%d bytes are more than S3 takes in one request (5 GiB)", size)
	}
	digest := sum.Sum(nil)
	header, err := s.Sign(S3Request{Method: "PUT", Object: name, SHA256: hex.EncodeToString(digest), Header: map[string]string{
		// Buckets that lock objects want this header.
		"x-amz-checksum-sha256": base64.StdEncoding.EncodeToString(digest),
	}}, time.Now())
	if err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the answer has arrived
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var head strings.Builder
	fmt.Fprintf(&head, "PUT %s HTTP/1.1\r\nContent-Length: %d\r\nExpect: 100-continue\r\nConnection: close\r\n", s.Path(name), size)
	for _, one := range slices.Sorted(maps.Keys(header)) {
		fmt.Fprintf(&head, "%s: %s\r\n", one, header[one])
	}
	if _, err := io.WriteString(conn, head.String()+"\r\n"); err != nil {
		return err
	}
	answer := bufio.NewReader(io.LimitReader(conn, s3AnswerSize))
	early, err := continues(conn, answer)
	if err != nil {
		return err
	}
	if early {
		return ended(conn, answer)
	}
	if _, err := io.Copy(steady{conn}, f); err != nil {
		// A storage that refuses may close the connection before it has read everything.
		if refused, ok := errors.AsType[*S3Error](ended(conn, answer)); ok {
			return refused
		}
		return err
	}
	return ended(conn, answer)
}

func (s S3) dial(ctx context.Context) (net.Conn, error) {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: s3Patience}
	if at.Scheme == "http" {
		return dialer.DialContext(ctx, "tcp", withPort(at, "80"))
	}
	config, err := s.TLS()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s3Patience)
	defer cancel()
	return (&tls.Dialer{NetDialer: &dialer, Config: config}).DialContext(ctx, "tcp", withPort(at, "443"))
}

func withPort(at *url.URL, port string) string {
	if at.Port() != "" {
		port = at.Port()
	}
	return net.JoinHostPort(at.Hostname(), port)
}

// steady writes to a connection as long as it takes bytes.
type steady struct{ conn net.Conn }

func (p steady) Write(data []byte) (int, error) {
	if err := p.conn.SetDeadline(time.Now().Add(s3Patience)); err != nil {
		return 0, err
	}
	return p.conn.Write(data)
}

// continues waits for the storage's consent to the body. early reports that its final answer is there instead. A storage
// that says nothing gets the body.
func continues(conn net.Conn, answer *bufio.Reader) (early bool, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(s3Continue)); err != nil {
		return false, err
	}
	const consent = "HTTP/1.1 100"
	head, err := answer.Peek(len(consent))
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if string(head) != consent {
		return true, nil
	}
	return false, skipHead(answer)
}

// skipHead reads to the empty line.
func skipHead(answer *bufio.Reader) error {
	for {
		line, err := answer.ReadString('\n')
		if err != nil || strings.TrimSpace(line) == "" {
			return err
		}
	}
}

// ended reads the storage's final answer.
func ended(conn net.Conn, answer *bufio.Reader) error {
	if err := conn.SetReadDeadline(time.Now().Add(s3Patience)); err != nil {
		return err
	}
	for {
		line, err := answer.ReadString('\n')
		if err != nil {
			return fmt.Errorf("answer of the storage: %w", err)
		}
		version, status, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(version, "HTTP/1.") {
			return fmt.Errorf("answer of the storage: %.80q", line)
		}
		if err := skipHead(answer); err != nil {
			return fmt.Errorf("answer of the storage: %w", err)
		}
		switch {
		case strings.HasPrefix(status, "1"):
			continue // the consent, late
		case strings.HasPrefix(status, "2"):
			return nil
		}
		body, _ := io.ReadAll(answer) // the status alone says that it failed
		return NewS3Error(status, string(body))
	}
}

// An S3Error is the refusal of a storage.
type S3Error struct{ Status, Code, Message string }

// Error names the status of HTTP and the storage's reason.
func (e *S3Error) Error() string {
	return fmt.Sprintf("the storage answers %s: %s: %s", e.Status, e.Code, e.Message)
}

// NewS3Error reads an error of a storage, which is XML.
func NewS3Error(status, body string) *S3Error {
	const shown = 300
	within := func(tag string) string {
		_, text, _ := strings.Cut(body, "<"+tag+">")
		text, _, _ = strings.Cut(text, "</"+tag+">")
		return plain.Line(text[:min(len(text), shown)])
	}
	return &S3Error{Status: plain.Line(status[:min(len(status), shown)]), Code: within("Code"), Message: within("Message")}
}
