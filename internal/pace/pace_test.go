package pace_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kkbundle/kkbundle/internal/pace"
)

// Readers of one limit share it, however many there are, and get all their bytes.
func TestShared(t *testing.T) {
	t.Parallel()
	const bytesEach, readers, perSecond = 1 << 20, 5, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		limit := pace.PerSecond(perSecond)
		begin := time.Now()
		var all sync.WaitGroup
		for range readers {
			all.Go(func() {
				n, err := io.Copy(io.Discard, limit.Reader(t.Context(), bytes.NewReader(make([]byte, bytesEach))))
				if n != bytesEach || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
			})
		}
		all.Wait()
		// A tenth of a second's bytes come at once.
		took := time.Since(begin)
		const little, want = 10 * time.Millisecond, readers*time.Second - time.Second/10
		if took < want-little || took > want+little {
			t.Errorf("it took %s, want %s", took, want)
		}
	})
}

// A wait ends with the context, and no limit costs nothing.
func TestEnds(t *testing.T) {
	t.Parallel()
	var none *pace.Limit
	r := bytes.NewReader(nil)
	if got := none.Reader(t.Context(), r); got != io.Reader(r) || pace.PerSecond(0) != nil {
		t.Error("no limit is one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	content := bytes.NewReader(make([]byte, 1<<20))
	n, err := io.Copy(io.Discard, pace.PerSecond(pace.Least).Reader(ctx, content))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%d bytes, %v", n, err)
	} else if wait := new(pace.WaitError); !errors.As(err, &wait) {
		t.Errorf("%T is no error of the wait", err)
	}
	// An end needs no turn.
	if n, err := pace.PerSecond(pace.Least).Reader(ctx, r).Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
}

// A transport sends the same bytes, and sends them again where a server wants them again.
func TestTransport(t *testing.T) {
	t.Parallel()
	var got []int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, len(data))
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}
	}))
	defer server.Close()
	const size, perSecond = 300 << 10, 1 << 20
	client := http.Client{Transport: pace.PerSecond(perSecond).Transport(http.DefaultTransport)}
	begin := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, bytes.NewReader(make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if len(got) != 2 || got[0] != size || got[1] != size {
		t.Errorf("the server got %v bytes", got)
	}
	if took, least := time.Since(begin), 400*time.Millisecond; took < least { // 600 KiB, of which 100 come at once
		t.Errorf("it took %s, want %s at least", took, least)
	}
}
