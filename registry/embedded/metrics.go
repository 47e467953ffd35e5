package embedded

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// metrics counts requests.
type metrics struct {
	inFlight atomic.Int64

	mu       sync.Mutex
	requests map[request]int64
	total    traffic
}

// A request is the key of the request counter.
type request struct {
	method string
	code   int
}

// traffic is the bytes moved by requests, and their duration.
type traffic struct {
	received, sent int64
	took           time.Duration
}

func newMetrics() *metrics { return &metrics{requests: make(map[request]int64)} }

func (m *metrics) count(method string, code int, t traffic) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default: // clients may send anything, and labels must be few
		method = "other"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[request{method, code}]++
	m.total.received += t.received
	m.total.sent += t.sent
	m.total.took += t.took
}

// exposition serves /metrics, in Prometheus's text format 0.0.4. No label value comes from clients.
func (r *Registry) exposition(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	family := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP kkbundle_registry_%s %s\n# TYPE kkbundle_registry_%[1]s %[3]s\n", name, help, kind)
	}
	one := func(name, kind, help string, v any) {
		family(name, kind, help)
		fmt.Fprintf(&b, "kkbundle_registry_%s %v\n", name, v)
	}
	family("requests_total", "counter", "Requests that were answered, by method and status code.")
	requests, total := r.metrics.snapshot()
	for _, c := range requests {
		fmt.Fprintf(&b, "kkbundle_registry_requests_total{method=%q,code=\"%d\"} %d\n", c.method, c.code, c.count)
	}
	one("request_seconds_total", "counter", "Time that requests took, all together.", total.took.Seconds())
	one("received_bytes_total", "counter", "Bytes of bodies that were received.", total.received)
	one("sent_bytes_total", "counter", "Bytes of bodies that were sent.", total.sent)
	one("requests_in_flight", "gauge", "Requests that are being answered.", r.metrics.inFlight.Load())
	one("logins_refused_total", "counter", "Requests without a right user and password.",
		r.users.Refused()+r.pullers.Refused())
	var disk unix.Statfs_t
	if err := unix.Statfs(r.dir, &disk); err == nil {
		one("storage_free_bytes", "gauge", "Space that is left in the file system of the registry's directory.",
			uint64(disk.Bavail)*uint64(disk.Bsize))
		one("storage_size_bytes", "gauge", "Size of that file system.", uint64(disk.Blocks)*uint64(disk.Bsize))
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(b.String())) // the client may be gone
}

type counted struct {
	request
	count int64
}

func (m *metrics) snapshot() ([]counted, traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]counted, 0, len(m.requests))
	for r, n := range m.requests {
		all = append(all, counted{r, n})
	}
	slices.SortFunc(all, func(x,
		y counted,
	) int {
		return cmp.Or(cmp.Compare(x.method, y.method), cmp.Compare(x.code, y.code))
	})
	return all, m.total
}
