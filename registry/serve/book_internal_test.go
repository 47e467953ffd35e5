package serve

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestTwoChecksOfOneBlob has two checks of one blob, as when the file was touched while the first one ran: they do
// not take each other for changes of the file, which would end both without a result. A change of the file does
// count.
func TestTwoChecksOfOneBlob(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	content := []byte("some text of a file")
	b.File("https://files.example/x", "x", nil, content)
	path := b.Bundle().Path
	s, err := New(t.Context(), Options{Bundles: []string{path}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	book, err := s.openBook(path)
	if err != nil {
		t.Fatal(err)
	}
	defer book.release()
	d, before := digest.FromBytes(content), book.changed()
	one, other := &check{done: make(chan struct{})}, &check{done: make(chan struct{})}
	book.checks[d] = other
	if !book.holds(d, one, before) || !book.holds(d, other, before) {
		t.Error("a second check counts as a change of the file")
	}
	past := time.Unix(1000, 0)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
	if err := book.hash(t.Context(), d, int64(len(content))); err != nil { // it looks at the file
		t.Fatal(err)
	}
	if book.holds(d, one, before) {
		t.Error("a change of the file went unnoticed")
	}
}
