package serve

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// metrics counts requests.
type metrics struct {
	inFlight atomic.Int64

	mu       sync.Mutex
	requests map[request]int64
	sent     map[string]int64 // bytes, by area
}

// A request is the key of the request counter.
type request struct {
	area string
	code int
}

func newMetrics() *metrics {
	return &metrics{requests: make(map[request]int64), sent: make(map[string]int64)}
}

func (m *metrics) count(area string, code int, sent int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[request{area, code}]++
	m.sent[area] += sent
}

// exposition serves /metrics, in Prometheus's text format 0.0.4. No label value comes from clients.
func (s *Server) exposition(w http.ResponseWriter, _ *http.Request, sh *snapshot) {
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	one := func(name, kind, help string, v int64) {
		family(name, kind, help)
		fmt.Fprintf(&b, "%s %d\n", name, v)
	}
	s.metrics.write(&b, family)
	one("kkbundle_serve_requests_in_flight", "gauge", "Requests that are being answered.", s.metrics.inFlight.Load())
	one("kkbundle_serve_decode_slots", "gauge", "Frames that may be decoded at a time.", int64(cap(s.frames.decodes)))
	one("kkbundle_serve_decode_slots_used", "gauge", "Frames that are being decoded.",
		int64(cap(s.frames.decodes)-len(s.frames.decodes)))
	one("kkbundle_serve_frames_decoded_total", "counter", "Frames that were read and decoded.", s.frames.decoded.Load())
	one("kkbundle_serve_frames_shared_total", "counter", "Uses of frames that were decoded already.",
		s.frames.shared.Load())
	var blobs, good, bad int
	for _, book := range sh.books {
		blobs += len(book.reader.Blobs())
		g, d := book.progress()
		good, bad = good+g, bad+d
	}
	one("kkbundle_serve_bundles", "gauge", "Bundles that are served.", int64(len(sh.books)))
	one("kkbundle_serve_blobs", "gauge", "Blobs of all bundles.", int64(blobs))
	one("kkbundle_serve_blobs_verified", "gauge", "Blobs that were compared with their digest and are right.",
		int64(good))
	one("kkbundle_serve_blobs_damaged", "gauge", "Blobs that were compared with their digest and are damaged.",
		int64(bad))
	one("kkbundle_serve_logins_refused_total", "counter", "Requests without a right user and password.",
		s.users.Refused())
	one("kkbundle_serve_reloads_total", "counter", "Times that bundles were looked at again.", s.reloads.Load())
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(b.String())) // the client may be gone
}

func (m *metrics) write(b *strings.Builder, family func(name, kind, help string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests := make([]request, 0, len(m.requests))
	for r := range m.requests {
		requests = append(requests, r)
	}
	slices.SortFunc(requests,
		func(x, y request) int { return cmp.Or(cmp.Compare(x.area, y.area), cmp.Compare(x.code, y.code)) })
	family("kkbundle_serve_requests_total", "counter", "Requests that were answered, by area and status code.")
	for _, r := range requests {
		fmt.Fprintf(b, "kkbundle_serve_requests_total{area=%q,code=\"%d\"} %d\n", r.area, r.code, m.requests[r])
	}
	areas := make([]string, 0, len(m.sent))
	for a := range m.sent {
		areas = append(areas, a)
	}
	slices.Sort(areas)
	family("kkbundle_serve_sent_bytes_total", "counter", "Bytes of bodies that were sent, by area.")
	for _, a := range areas {
		fmt.Fprintf(b, "kkbundle_serve_sent_bytes_total{area=%q} %d\n", a, m.sent[a])
	}
}
