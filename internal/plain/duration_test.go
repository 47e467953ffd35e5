package plain_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// TestDuration writes durations as text with units, and reads these and the nanoseconds of earlier versions.
func TestDuration(t *testing.T) {
	t.Parallel()
	type doc struct {
		Duration plain.Duration `json:"duration,omitempty"`
	}
	data, err := json.Marshal(doc{plain.Duration(62500 * time.Millisecond)})
	if err != nil || string(data) != `{"duration":"1m2.5s"}` {
		t.Errorf("%s, %v", data, err)
	}
	if data, err := json.Marshal(doc{}); err != nil || string(data) != `{}` {
		t.Errorf("%s, %v", data, err)
	}
	for _, text := range []string{`{"duration":"1m2.5s"}`, `{"duration":62500000000}`} {
		var d doc
		if err := json.Unmarshal([]byte(text), &d); err != nil || d.Duration != plain.Duration(62500*time.Millisecond) {
			t.Errorf("%s: %v, %v", text, time.Duration(d.Duration), err)
		}
	}
	for _, text := range []string{`{"duration":"soon"}`, `{"duration":{}}`} {
		if err := json.Unmarshal([]byte(text), &doc{}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
