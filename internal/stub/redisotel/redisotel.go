// Package redisotel is a stub: see ../README.md.
package redisotel

import "errors"

// InstrumentMetrics fails. No client of Redis exists that it could be called with.
func InstrumentMetrics(any) error { return errors.New("redis is not supported") }
