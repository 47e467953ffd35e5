package deploy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestConnectElsewhere: something that answers and is no API server is named, with what to check.
func TestConnectElsewhere(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(srv.Close)
	_, err := connect(t.Context(), &rest.Config{Host: srv.URL}, slog.New(slog.DiscardHandler))
	gone, ok := errors.AsType[*UnreachableError](err)
	if !ok || !strings.Contains(err.Error(), srv.URL) || !strings.Contains(gone.Hint(), "kubeconfig") {
		t.Errorf("got %v", err)
	}
}
