package usage

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseAge parses a duration of weeks, days, hours, minutes and seconds, each a whole number and at most once: 30d,
// 1d12h.
func ParseAge(s string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a time span: want a number with w, d, h, m or s, such as 30d", s)
	units := []struct {
		name string
		is   time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	rest, total := s, time.Duration(0)
	for _, u := range units {
		number, after, ok := strings.Cut(rest, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 31)
		if err != nil || time.Duration(n) > (math.MaxInt64-total)/u.is {
			return 0, wrong
		}
		total, rest = total+time.Duration(n)*u.is, after
	}
	if rest != "" || s == "" {
		return 0, wrong
	}
	return total, nil
}

// FormatAge returns d in whole seconds, minutes, hours or days.
func FormatAge(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 2*day:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d/day))
}
