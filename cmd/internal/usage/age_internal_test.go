package usage

import (
	"testing"
	"time"
)

func TestParseAge(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for in, want := range map[string]time.Duration{
		"30d": 30 * day, "2w": 14 * day, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0s": 0,
		"1w1d1h1m1s": 8*day + time.Hour + time.Minute + time.Second,
	} {
		if got, err := ParseAge(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{
		"", "30", "-1d", "1h1d", "1d1d", "1.5d", "d", "1y", " 1d", "1d ", "+1d", "99999999999d",
		"2000000000w",
	} {
		if got, err := ParseAge(in); err == nil {
			t.Errorf("%q was read as %s", in, got)
		}
	}
}
