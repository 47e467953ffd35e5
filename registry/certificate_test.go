package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
	"github.com/kkbundle/kkbundle/web/dial"
)

// clientCertificate writes a certificate and its key, and returns a pool that knows it.
func clientCertificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pusher"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile, pool = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile:  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool.AddCert(cert)
	return certFile, keyFile, pool
}

func TestPushClientCertificate(t *testing.T) {
	t.Parallel()
	backing := registrytest.Start(t, registrytest.Options{RelativeURLs: true})
	to, err := url.Parse(backing.URL)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, pool := clientCertificate(t)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	front.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	defer front.Close()
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	o := registry.PushOptions{Registry: front.Listener.Addr().String(), Retries: -1}
	transport, err := dial.NewTransport(dial.Files{CA: caFile})
	if err != nil {
		t.Fatal(err)
	}
	o.Transport = transport
	b := bundletest.New(t)
	if _, err := registry.Push(t.Context(), b.Reader, o); err == nil || !strings.Contains(err.Error(), "--cert") {
		t.Errorf("without a certificate: %v", err)
	}
	if transport, err = dial.NewTransport(dial.Files{CA: caFile, Cert: certFile, Key: keyFile}); err != nil {
		t.Fatal(err)
	}
	o.Transport = transport
	push(t, b, o)
}
