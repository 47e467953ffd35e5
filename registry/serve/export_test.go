package serve

import "time"

// SetLimits makes all waits for clients end after d. It is to be called before the first request.
func (s *Server) SetLimits(d time.Duration) { s.limits = limits{d, d, d, d, d} }
