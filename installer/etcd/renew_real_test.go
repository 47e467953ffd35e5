//go:build linux

package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/pki"
)

// TestEtcdTakesNewCertificates holds that a running etcd answers with renewed certificates at once: that is why a
// renewal restarts no member.
func TestEtcdTakesNewCertificates(t *testing.T) {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "etcd-amd64-*", "etcd"))
	if err != nil || len(found) == 0 {
		t.Skip("the lab has not built etcd")
	}
	dir, now := t.TempDir(), time.Now()
	ca, caPair, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, pair pki.Pair) node.CertificatePair {
		p := node.CertificatePair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
		for file, data := range map[string][]byte{p.Cert: pair.Cert, p.Key: pair.Key} {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	pair, err := ca.IssueFor(pki.Peer, pki.ParseNames([]string{"127.0.0.1"}), now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	authority, server := put("ca", caPair), put("server", pair)
	free := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := free(), free() // held until both are known, so that they differ
	address, peer := first.Addr().String(), second.Addr().String()
	_, _ = first.Close(), second.Close()
	ctx, stop := context.WithCancel(t.Context())
	command := exec.CommandContext(ctx, found[0], "--data-dir="+dir+"/data", "--unsafe-no-fsync",
		"--listen-client-urls=https://"+address,
		"--advertise-client-urls=https://"+address, "--listen-peer-urls=http://"+peer, "--cert-file="+server.Cert,
		"--key-file="+server.Key,
		"--trusted-ca-file="+authority.Cert, "--client-cert-auth")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stop(); _ = command.Wait() }()
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	ends := func() time.Time {
		own, err := tls.LoadX509KeyPair(server.Cert, server.Key)
		if err != nil {
			t.Fatal(err)
		}
		var conn *tls.Conn
		for range 3000 { // five minutes: a busy machine
			if conn, err = tls.Dial("tcp", address, &tls.Config{
				RootCAs:      roots,
				Certificates: []tls.Certificate{own},
			}); err == nil {
				defer conn.Close()
				return conn.ConnectionState().PeerCertificates[0].NotAfter
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatal(err)
		return time.Time{}
	}
	if left := ends().Sub(now); left > 25*time.Hour {
		t.Fatalf("the first certificate is valid for %s", left)
	}
	if got, err := node.Renew(authority, now, now.AddDate(0, 0, 60), server); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if left := ends().Sub(now); left < 300*24*time.Hour {
		t.Errorf("after the renewal, etcd answers with a certificate that is valid for %s", left)
	}
}
