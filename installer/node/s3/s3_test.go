package s3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/s3test"
)

// The signatures of Amazon's own examples, which have the bucket in the host's name: the object is the first part of
// the path. https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
func TestS3Signatures(t *testing.T) {
	t.Parallel()
	s := Storage{
		Region: "us-east-1", AccessKey: "AKIAIOSFODNN7EXAMPLE",
		SecretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Endpoint: "https://examplebucket.s3.amazonaws.com",
	}
	nothing := sha256.Sum256(nil)
	now := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	for want, one := range map[string]struct {
		object string
		Request
	}{
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41": {
			"test.txt", Request{
				Method: "GET", SHA256: hex.EncodeToString(nothing[:]),
				Header: map[string]string{"range": "bytes=0-9"},
			},
		},
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd": {
			"test$file.text", Request{
				Method: "PUT", SHA256: "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
				Header: map[string]string{
					"date":                "Fri, 24 May 2013 00:00:00 GMT",
					"x-amz-storage-class": "REDUCED_REDUNDANCY",
				},
			},
		},
		"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7": {
			"", Request{
				Method: "GET", Query: map[string]string{"prefix": "J", "max-keys": "2"},
				SHA256: hex.EncodeToString(nothing[:]),
			},
		},
	} {
		s.Bucket = one.object
		header, err := s.Sign(one.Request, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, _ := strings.Cut(header["authorization"], "Signature="); got != want {
			t.Errorf("%s %s: signature %s, want %s", one.Method, one.object, got, want)
		}
	}
}

// copies writes files of random bytes with the names of copies, each a minute younger than the one before.
func copies(t *testing.T, sizes ...int) (files []string) {
	t.Helper()
	dir := t.TempDir()
	for i, size := range sizes {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		file := filepath.Join(dir, fmt.Sprintf("etcd-20261123T00%02d00Z.db", i))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// client returns a client that does not wait, and the pauses that it would have made.
func client(t *testing.T, s Storage) (c *Client, pauses *[]time.Duration) {
	t.Helper()
	c, err := NewClient(s)
	if err != nil {
		t.Fatal(err)
	}
	pauses = &[]time.Duration{}
	c.wait = func(_ context.Context, d time.Duration) error { *pauses = append(*pauses, d); return nil }
	return c, pauses
}

const place = "site/node 1"

// sends puts a file of random bytes.
func sends(t *testing.T, s Storage, size int) (file string, data []byte, err error) {
	t.Helper()
	file = copies(t, size)[0]
	data, err = os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := client(t, s)
	_, err = c.putCopies(t.Context(), file, place)
	return file, data, err
}

// A storage that accepts, one that refuses before it has read the body, one that never answers the question for
// consent, and one that is no storage.
func TestS3PutFile(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	var got []byte
	accepts := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err == nil && r.Method == http.MethodPut &&
			r.URL.EscapedPath() == "/bucket/copies/site/node%201/etcd-20261123T000000Z.db" {
			got = data
		}
	}))
	defer accepts.Close()
	s := Storage{
		Endpoint: accepts.URL, Bucket: "bucket", Prefix: "copies", Region: "us-east-1", AccessKey: "a",
		SecretKey: "secret-of-the-site",
	}
	if _, data, err := sends(t, s, size); err != nil || string(data) != string(got) {
		t.Errorf("sent %d bytes, arrived %d: %v", len(data), len(got), err)
	}
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>not yours</Message></Error>")
	}))
	defer refuses.Close()
	s.Endpoint = refuses.URL
	_, _, err := sends(t, s, size)
	if err == nil || !strings.Contains(err.Error(), "403 Forbidden: AccessDenied") ||
		!strings.Contains(err.Error(), "s3:PutObject") || strings.Contains(err.Error(), s.SecretKey) {
		t.Errorf("refused: %v", err)
	}
	for text, want := range map[string]string{"SSH-2.0-OpenSSH_9.9\r\n": "SSH-2.0-OpenSSH_9.9", "": "10 attempts"} {
		s.Endpoint = "http://" + answers(t, text)
		if _, _, err := sends(t, s, size); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no storage: %v", err)
		}
	}
	s.Endpoint = "https://" + strings.TrimPrefix(accepts.URL, "http://")
	if _, _, err := sends(t, s, size); err == nil {
		t.Error("sent over TLS to a server without TLS")
	}
	other := httptest.NewTLSServer(accepts.Config.Handler)
	defer other.Close()
	s.Endpoint = other.URL
	if _, _, err := sends(t, s, size); err == nil || !strings.Contains(err.Error(), "backup.s3.ca") ||
		strings.Contains(err.Error(), "attempts") {
		t.Errorf("sent to a server of another authority: %v", err)
	}
}

// answers accepts connections, writes a text and closes them.
func answers(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1<<10))
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// A real server takes what the helper sends, and refuses another login and another bucket.
func TestS3RealServer(t *testing.T) {
	t.Parallel()
	address, objects := s3test.Start(t, "bucket")
	s := Storage{
		Endpoint: "http://" + address, Bucket: "bucket", Prefix: "copies", Region: "us-east-1",
		AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
	}
	const size = 20 << 20
	file, data, err := sends(t, s, size)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(objects, "copies", "site", "node 1", filepath.Base(file)))
	if err != nil || string(stored) != string(data) {
		t.Errorf("stored %d bytes of %d: %v", len(stored), len(data), err)
	}
	s.SecretKey = "another-secret"
	if _, _, err := sends(t, s, size); err == nil || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
		t.Errorf("with another secret: %v", err)
	}
	s.SecretKey, s.Bucket = s3test.SecretKey, "absent"
	if _, _, err := sends(t, s, size); err == nil || !strings.Contains(fmt.Sprint(err), "NoSuchBucket") {
		t.Errorf("without the bucket: %v", err)
	}
}
