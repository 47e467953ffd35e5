package delta

import (
	"runtime"
	"sync"
)

// jobs returns how many blobs or entries are worked on at a time.
func jobs() int { return min(runtime.GOMAXPROCS(0), 8) }

// A tally adds up bytes from several goroutines.
type tally struct {
	mu     sync.Mutex
	n      int64
	report func(int64)
}

func newTally(report func(int64)) *tally { return &tally{report: report} }

func (t *tally) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	t.report(t.n)
}
