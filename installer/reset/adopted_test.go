//go:build linux

package reset

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// TestAdoptedIsRefused: a reset leaves a node of another tool alone until kkbundle's programs are on it.
func TestAdoptedIsRefused(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Put(t, string(marks.Member), "test v1.34.3\n")
	h.Put(t, marks.AdoptionOf("v1.34.3").Path("complete"), "")
	h.Put(t, "/var/lib/kubelet/config.yaml", "theirs")
	s.Dialing("")
	before := h.Tree(t)
	var adopted *AdoptedError
	if err := Reset(t.Context(), s.Options); !errors.As(err, &adopted) || adopted.Host != "cp1" {
		t.Fatalf("got %v", err)
	}
	if h.Content("/var/lib/kubelet/config.yaml") != "theirs" || h.Content(string(marks.Member)) == "" {
		t.Error("something was removed:", cmp.Diff(before, h.Tree(t)))
	}
	h.Put(t, string(marks.Setting("kubelet")), "")
	if err := Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	if there := h.Content("/var/lib/kubelet/config.yaml") + h.Content(string(marks.Member)); there != "" {
		t.Error("left:", there)
	}
}
