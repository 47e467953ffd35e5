package controllers

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/client-go/tools/events"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// TestNotes: a long message is cut between characters, so that the API server takes the event.
func TestNotes(t *testing.T) {
	t.Parallel()
	fake := events.NewFakeRecorder(2)
	r := noteRecorder{fake}
	for _, text := range []string{"short", strings.Repeat("\u4e3b", 800)} {
		r.Eventf(&infrav1.KKHost{}, nil, "Warning", "Failed", "run", "host %s: %s", "h", text)
		got := <-fake.Events
		_, note, _ := strings.Cut(got, "host h: ")
		if len(got) >= 1024 || !utf8.ValidString(got) || !strings.HasPrefix(text, strings.TrimSuffix(note, "...")) || note == "" {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}
