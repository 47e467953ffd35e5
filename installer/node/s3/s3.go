package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A Storage is a bucket of a storage with the S3 API and a login for it. Its JSON is a file on hosts that only root
// reads.
type Storage struct {
	Endpoint  string `json:"endpoint"` // https://HOST[:PORT] or http://HOST[:PORT]
	Bucket    string `json:"bucket"`
	Prefix    string `json:"prefix"` // of objects' names, without a slash at its end
	Region    string `json:"region"`
	CA        string `json:"ca,omitempty"` // PEM; "" means the machine's own authorities
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
}

// An Request is a request to sign.
type Request struct {
	Method string
	Object string // "" is the bucket itself
	Query  map[string]string
	Header map[string]string // in lower case
	SHA256 string            // of the body, in hex
}

const timeForm = "20060102T150405Z"

// Path returns the path of a request, as it is sent and signed: the bucket is its first part, as every storage
// understands it.
func (s Storage) Path(object string) string {
	return "/" + escape(s.Bucket, true) + strings.TrimSuffix("/"+escape(object, true), "/")
}

// QueryText returns a query as it is sent and signed.
func (r Request) QueryText() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(r.Query)) {
		pairs = append(pairs, escape(name, false)+"="+escape(r.Query[name], false))
	}
	return strings.Join(pairs, "&")
}

// Sign returns the headers of a request with its signature, version 4.
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
func (s Storage) Sign(r Request, now time.Time) (map[string]string, error) {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	header := map[string]string{
		"host": at.Host, "x-amz-content-sha256": r.SHA256,
		"x-amz-date": now.UTC().Format(timeForm),
	}
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
	header["authorization"] = fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%x",
		s.AccessKey, scope, signed, key)
	return header, nil
}

// escape escapes all bytes but letters, digits, "-_.~" and, in paths, "/".
func escape(text string, isPath bool) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		isPlain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("-_.~", c) >= 0
		if isPlain || isPath && c == '/' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// TLS returns the settings of connections to the storage.
func (s Storage) TLS() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA == "" {
		return c, nil
	}
	if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM([]byte(s.CA)) {
		return nil, errors.New("authority of the S3 storage: no certificate in it")
	}
	return c, nil
}
