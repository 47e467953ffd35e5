package agefile

import (
	"io"
	"sync"
)

// The memory between an aheadWriter's two goroutines.
const (
	aheadBuffers = 4
	aheadBuffer  = 256 << 10
)

// An aheadWriter writes to another writer in a goroutine of its own, so that encryption runs beside reading and
// hashing. Its memory is fixed. stop must be called, and waits for the last write.
type aheadWriter struct {
	to     io.WriteCloser
	full   chan []byte
	free   chan []byte
	failed chan struct{} // closed after err is set
	ended  chan struct{} // closed when the goroutine is done
	err    error         // of to
	end    func()        // waits for the goroutine
}

func newAheadWriter(to io.WriteCloser) *aheadWriter {
	w := &aheadWriter{
		to: to, full: make(chan []byte, aheadBuffers), free: make(chan []byte, aheadBuffers),
		failed: make(chan struct{}), ended: make(chan struct{}),
	}
	for range aheadBuffers {
		w.free <- make([]byte, aheadBuffer)
	}
	w.end = sync.OnceFunc(func() {
		close(w.full)
		<-w.ended
	})
	go w.run()
	return w
}

// run writes the full buffers until full is closed or a write fails.
func (w *aheadWriter) run() {
	defer close(w.ended)
	for b := range w.full {
		if _, err := w.to.Write(b); err != nil {
			w.err = err
			close(w.failed)
			return
		}
		w.free <- b[:cap(b)]
	}
}

// Write implements io.Writer. It returns the error of an earlier write.
func (w *aheadWriter) Write(b []byte) (total int, err error) {
	for len(b) > 0 {
		select {
		case <-w.failed:
			return total, w.err
		case buf := <-w.free:
			n := copy(buf, b)
			w.full <- buf[:n] // never blocks: there is a place for every buffer
			total, b = total+n, b[n:]
		}
	}
	return total, nil
}

// finish writes the rest and closes the other writer, which ends the age file.
func (w *aheadWriter) finish() error {
	w.end()
	if w.err != nil {
		return w.err
	}
	return w.to.Close()
}

// stop ends the goroutine. Without finish the other writer stays open, so that an incomplete age file has no valid end.
func (w *aheadWriter) stop() { w.end() }
