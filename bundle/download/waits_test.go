package download

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// TestUnreachableServer wants a server that cannot be reached to be said while it is tried, and a remedy at the end.
func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String() + "/x.kkb"
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := client()
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	_, err = c.Small(t.Context(), address, 10)
	if err == nil || !strings.HasPrefix(err.Error(), address+": ") || !strings.HasSuffix(err.Error(), "(tried 8 times)") {
		t.Errorf("error %v", err)
	}
	hinted, ok := err.(interface{ Hint() string })
	if !ok || !strings.Contains(hinted.Hint(), "check the address") {
		t.Errorf("no remedy: %v", err)
	}
	if got := strings.Count(log.String(), "the server does not answer properly, trying again"); got != defaultTries-2 {
		t.Errorf("%d warnings:\n%s", got, log.String())
	}
}
