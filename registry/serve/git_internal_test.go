package serve

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"
)

// TestSlowClient: a client that takes little in a long time keeps its transfer until others wait for one.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	s := &Server{}
	s.limits.Write = time.Minute
	b := &begun{ResponseWriter: httptest.NewRecorder(), server: s, waited: time.Hour}
	if _, err := b.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	s.waiting.Add(1)
	if _, err := b.Write([]byte("x")); !errors.Is(err, errClient) {
		t.Errorf("a slow client, while others wait: %v", err)
	}
	b.sent = 3600 * leastSpeed
	if _, err := b.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}
