//go:build unix

package delta

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestTheProgramEndsWithTheContext cancels when the program and its child run, and does not wait for the child's end.
func TestTheProgramEndsWithTheContext(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	canceled := make(chan time.Time, 1)
	go func() {
		_, _ = os.ReadFile(begun) // until the program has written
		canceled <- time.Now()
		cancel()
	}()
	_, err := packWith(ctx, script(t, "sleep 100 & echo >"+begun+"; wait"), []byte("content"))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(<-canceled); took > time.Minute {
		t.Errorf("it ended after %s", took)
	}
}
