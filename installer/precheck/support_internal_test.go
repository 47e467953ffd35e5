package precheck

import (
	"fmt"
	"testing"
)

// TestMissingContentIsOneLine names the first items that the bundle lacks and counts the others.
func TestMissingContentIsOneLine(t *testing.T) {
	t.Parallel()
	var missing []string
	for i := range 7 {
		missing = append(missing, fmt.Sprintf("i%d", i+1))
	}
	for n, want := range map[int]string{5: "i1; i2; i3; i4; i5", 7: "i1; i2; i3; i4; i5; and 2 more"} {
		if got := hasAllContent(&Subject{Input: &Input{Install: true, Missing: missing[:n]}}); got.Text != want {
			t.Errorf("got %q, want %q", got.Text, want)
		}
	}
}
