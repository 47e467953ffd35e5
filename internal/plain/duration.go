package plain

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a length of time in JSON: text with units, such as "1m2.5s". Numbers, which earlier versions wrote, are
// nanoseconds.
type Duration time.Duration

// MarshalJSON returns the text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads text or a number.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var number int64
	if json.Unmarshal(data, &number) == nil {
		*d = Duration(number)
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("want a duration such as \"1m2.5s\", have %s", data)
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// Round returns the nearest multiple of unit.
func (d Duration) Round(unit time.Duration) time.Duration { return time.Duration(d).Round(unit) }
