package serve

import (
	"time"

	"github.com/kkbundle/kkbundle/registry/httpd"
)

// SetLimits makes all waits for clients end after d. It is to be called before the first request.
func (s *Server) SetLimits(d time.Duration) {
	s.limits = limits{httpd.Limits{Write: d, Idle: d, Grace: d, MaxHeader: 32 << 10}, d}
}

// TakePacks takes all tokens for packs.
func (s *Server) TakePacks() {
	for range maxPacks {
		s.packs <- struct{}{}
	}
}
