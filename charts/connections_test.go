package charts

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
)

// TestConnectionsEndWithTheCall asks a server that knows no release, over connections that are counted: one is enough
// for all of a call's clients, and none is left after it.
func TestConnectionsEndWithTheCall(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind": "SecretList", "apiVersion": "v1", "items": []}`)
	}))
	server.EnableHTTP2 = true // as API servers have it
	server.StartTLS()
	defer server.Close()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{
		Type:  "CERTIFICATE",
		Bytes: server.Certificate().Raw,
	}))
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
		clusters: [{name: a, cluster: {server: %q, certificate-authority-data: %s}}], users: [{name: a, user: {token: secret}}]}`, server.URL, ca)
	var mu sync.Mutex
	made, open := 0, map[net.Conn]bool{}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		made, open[conn] = made+1, true
		return &counted{Conn: conn, closed: func() { mu.Lock(); delete(open, conn); mu.Unlock() }}, nil
	}
	c := &Chart{helm: &chart.Chart{Metadata: &chart.Metadata{Name: "demo", Version: "1"}}}
	for round := 1; round <= 3; round++ {
		there, err := Installed(t.Context(), c, InstallOptions{
			Kubeconfig: []byte(kubeconfig), Namespace: "a",
			Release: "b", Dial: dial,
		})
		if there || err != nil {
			t.Fatal(there, err)
		}
		mu.Lock()
		if made != round || len(open) != 0 {
			t.Errorf("after %d calls: %d connections were made, %d are left", round, made, len(open))
		}
		mu.Unlock()
	}
}

type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}
