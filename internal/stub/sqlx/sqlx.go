// Package sqlx is a stub: see ../README.md.
package sqlx

import "errors"

var errUnsupported = errors.New(
	"releases in a SQL database are not supported: this program is built without a driver; use the driver secret")

// Connect fails, so that no method is ever called.
func Connect(driver, address string) (*DB, error) { return nil, errUnsupported }

// A DB is never made.
type DB struct {
	Tx
	DB any
}

// Beginx fails.
func (*DB) Beginx() (*Tx, error) { return nil, errUnsupported }

// A Tx is never made.
type Tx struct{}

// Exec fails.
func (*Tx) Exec(query string, args ...any) (any, error) { return nil, errUnsupported }

// Get fails.
func (*Tx) Get(to any, query string, args ...any) error { return errUnsupported }

// Select fails.
func (*Tx) Select(to any, query string, args ...any) error { return errUnsupported }

// Commit fails.
func (*Tx) Commit() error { return errUnsupported }

// Rollback fails.
func (*Tx) Rollback() error { return errUnsupported }
