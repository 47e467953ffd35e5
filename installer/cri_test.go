//go:build linux

package installer

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// TestContainerdServesCRI has a containerd that starts and whose plugin for the kubelet has not loaded.
func TestContainerdServesCRI(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	target := s.Run(t, nil).Hosts[0]
	const failed = "echo 'io.containerd.grpc.v1                     cri                      -              error     '"
	h.Stub(t, "ctr", failed)
	if ok, err := cri.ServesCRI(t.Context(), target); ok || err != nil {
		t.Errorf("a plugin that has not loaded: %v, %v", ok, err)
	}
	// It has not loaded when it is looked at first, and has then.
	h.Stub(t, "ctr", `[ -e "$0.asked" ] || { : >"$0.asked"; `+failed+`; exit; }
echo 'io.containerd.grpc.v1                     cri                      linux/amd64    ok        '`)
	if err := cri.AwaitCRI(t.Context(), target); err != nil {
		t.Error(err)
	}
	if ok, err := cri.ServesCRI(t.Context(), target); !ok || err != nil {
		t.Errorf("a plugin that has loaded: %v, %v", ok, err)
	}
	if asked := strings.Count(strings.Join(h.Said("ctr"), "\n"), "ctr plugins ls"); asked < 4 {
		t.Errorf("ctr was asked %d times", asked)
	}
}
