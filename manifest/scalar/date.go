package scalar

import (
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Date is a day, in YAML as 2027-01-31.
type Date struct{ day time.Time }

// UnmarshalText reads year, month and day.
func (d *Date) UnmarshalText(text []byte) error {
	day, err := time.Parse(time.DateOnly, string(text))
	if err != nil {
		return fmt.Errorf("want a day such as 2027-01-31, have %q", document.Shorten(string(text)))
	}
	d.day = day
	return nil
}

// MarshalText is String.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns year, month and day, or "" if there is no date.
func (d Date) String() string {
	if d.IsZero() {
		return ""
	}
	return d.day.Format(time.DateOnly)
}

// IsZero reports whether there is no date.
func (d Date) IsZero() bool { return d.day.IsZero() }

// Over reports whether the day has ended, by the calendar of UTC. No date is never over.
func (d Date) Over(now time.Time) bool { return !d.IsZero() && !now.Before(d.day.AddDate(0, 0, 1)) }
