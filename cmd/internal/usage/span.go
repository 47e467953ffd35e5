package usage

import (
	"errors"
	"time"
)

// A Span is the value of a flag for a time above 0; 0 if it is not set.
type Span time.Duration

// String implements pflag.Value.
func (s *Span) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Type implements pflag.Value.
func (*Span) Type() string { return "duration" }

// Set implements pflag.Value.
func (s *Span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("want a time such as 2h or 1h30m")
	}
	*s = Span(d)
	return nil
}
