// Package migrate is a stub: see ../README.md.
package migrate

import (
	"errors"
	"time"
)

var errUnsupported = errors.New("migrations of a SQL database are not supported: this program is built without them")

// Exec fails.
func Exec(db any, dialect string, source *MemoryMigrationSource, direction int) (int, error) {
	return 0, errUnsupported
}

// GetMigrationRecords fails.
func GetMigrationRecords(db any, dialect string) ([]*MigrationRecord, error) {
	return nil, errUnsupported
}

// SetDisableCreateTable does nothing.
func SetDisableCreateTable(bool) {}

// Up is the only direction.
const Up = 0

// A MemoryMigrationSource is a list of migrations.
type MemoryMigrationSource struct{ Migrations []*Migration }

// A Migration is a list of statements.
type Migration struct {
	Id       string
	Up, Down []string
}

// A MigrationRecord is a migration of the past.
type MigrationRecord struct {
	Id        string
	AppliedAt time.Time
}
