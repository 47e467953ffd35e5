// Package dial connects to web servers and registries: with the system's authorities and those of a file, with a
// client certificate, and through the proxies of the environment.
package dial

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/kkbundle/kkbundle/web/proxy"
)

const (
	maxFile        = 4 << 20 // bytes of a PEM file; a system's whole trust store is a few hundred KB
	maxHeaders     = 1 << 20
	maxIdle        = 128 // connections kept to a host
	dialTimeout    = 15 * time.Second
	tlsTimeout     = 30 * time.Second
	consentTimeout = 5 * time.Second // for a server's consent to a body (Expect)
)

// Files are the PEM files of connections with TLS; each may be "".
type Files struct {
	CA        string // authorities in addition to the system's
	Cert, Key string // the client certificate, for servers that request one
}

// NewTransport returns a transport with the files, and with proxies from the environment. It speaks HTTP/1.1, so that
// each of the concurrent transfers has a connection, and a window, of its own.
func NewTransport(f Files) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		roots, err := authorities(f.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}
	if f.Cert != "" {
		pair, err := f.pair()
		if err != nil {
			return nil, fmt.Errorf("client certificate %s with key %s: %w", f.Cert, f.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Transport{
		Proxy:                  proxy.FromEnvironment(),
		OnProxyConnectResponse: proxy.Answered,
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    tlsTimeout,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		ExpectContinueTimeout:  consentTimeout,
		DisableCompression:     true, // bytes as published: digests and ranges refer to these
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
	}, nil
}

// authorities returns the system's and those of a file.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without system authorities: the file is enough
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %s: no certificate found: want PEM (-----BEGIN CERTIFICATE-----)", file)
	}
	return pool, nil
}

func (f Files) pair() (tls.Certificate, error) {
	cert, err := readFile(f.Cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(f.Key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}
