package scalar

import (
	"testing"
	"time"
)

func TestDateOver(t *testing.T) {
	var d Date
	if d.Over(time.Now()) || d.String() != "" {
		t.Error("no date is over, or has a day")
	}
	if err := d.UnmarshalText([]byte("2027-01-31")); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]bool{
		"2027-01-31T23:59:59Z": false, "2027-02-01T00:00:00Z": true,
		"2027-02-01T00:30:00+01:00": false,
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if d.Over(now) != want {
			t.Errorf("at %s: over is %t", at, !want)
		}
	}
}
