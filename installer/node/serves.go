package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// servesTimeout is the time limit for a registry's answer; callers ask every other second.
const servesTimeout = 2 * time.Second

// Serves requests the first page of the API of a registry at HOST:PORT. It fails if the registry does not answer, has
// no certificate of an authority in the file, or answers something other than success or a login challenge. The request
// is written by hand: the helper is copied to every host and has no other use for an HTTP library.
func Serves(ctx context.Context, address, caFile string) error {
	return serves(ctx, address, caFile, servesTimeout)
}

func serves(ctx context.Context, address, caFile string, limit time.Duration) error {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: no certificate in it", caFile)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // only read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if _, err := io.WriteString(conn, "GET /v2/ HTTP/1.1\r\nHost: "+address+
		"\r\nConnection: close\r\n\r\n"); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	const enough = 4 << 10 // for a line with a version, a number and a few words
	line, err := bufio.NewReader(io.LimitReader(conn, enough)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	version, status, _ := strings.Cut(strings.TrimSpace(line), " ")
	code, _, _ := strings.Cut(status, " ")
	if !strings.HasPrefix(version, "HTTP/1.") || code != "200" && code != "401" {
		return fmt.Errorf("%s answers %.80q", address, line)
	}
	return nil
}
