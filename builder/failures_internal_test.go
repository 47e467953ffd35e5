package builder

import (
	"fmt"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
)

// TestAnnounce names the first items that cannot be fetched, and counts the others: a registry that is down has all
// of them.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{
		0: "",
		5: "not available: i1, i2, i3, i4, i5; the other items are fetched",
		7: "not available: i1, i2, i3, i4, i5, and 2 more; the other items are fetched",
	} {
		var items []*fetch.ItemError
		for i := range n {
			items = append(items, &fetch.ItemError{Ref: fmt.Sprintf("i%d", i+1)})
		}
		var said string
		s := newSession(&Project{}, Options{Events: func(e Event) { said += e.Text }})
		if (&failures{}).announce(s, items); said != want {
			t.Errorf("%d items: got %q, want %q", n, said, want)
		}
	}
}
