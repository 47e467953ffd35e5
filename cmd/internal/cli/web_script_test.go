package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// web DIR serves a directory as a plain web server does, at $WEB. The file web.log gets the requests. With cut.txt in
// the directory, the next answer for the file that it names ends in its middle.
func web(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: web DIR")
	}
	s := httptest.NewServer(&webDir{dir: ts.MkAbs(args[0]), log: ts.MkAbs("web.log")})
	ts.Defer(s.Close)
	ts.Setenv("WEB", s.URL)
}

type webDir struct {
	dir, log string
	mu       sync.Mutex
}

// ServeHTTP implements http.Handler.
func (d *webDir) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := filepath.Join(d.dir, filepath.Clean("/"+r.URL.Path))
	f, err := os.Open(path)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.NotFound(w, r)
		return
	}
	d.note(r)
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size()))
	cut := filepath.Join(d.dir, "cut.txt")
	if name, err := os.ReadFile(cut); err == nil && strings.TrimSpace(string(name)) == filepath.Base(path) {
		_ = os.Remove(cut)
		w.Header().Set("Content-Length", fmt.Sprint(info.Size()))
		half := make([]byte, info.Size()/2)
		_, _ = f.ReadAt(half, 0)
		_, _ = w.Write(half)
		_ = http.NewResponseController(w).Flush() // the connection ends anyway
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, info.Name(), info.ModTime(), f)
}

func (d *webDir) note(r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(f, "%s %s %s\n", r.Method, r.URL.Path, r.Header.Get("Range"))
	_ = f.Close() // a missing line fails the test
}
