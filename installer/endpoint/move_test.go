package endpoint

import (
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

func TestRewritten(t *testing.T) {
	t.Parallel()
	m := Move{
		To:   Address{manifest.EndpointHAProxy, "api.site.internal:6443"},
		From: []Address{{manifest.EndpointLocal, "10.0.0.3:6443"}, {manifest.EndpointLocal, "[fd00::3]:6443"}},
	}
	for text, want := range map[string]string{
		"clusters:\n- cluster:\n    server: https://10.0.0.3:6443\n  name: a\n": "clusters:\n- cluster:\n    server: https://api.site.internal:6443\n  name: a\n",
		"    server: https://[fd00::3]:6443":                                    "    server: https://api.site.internal:6443",
		// another port
		"    server: https://10.0.0.3:64430\n": "    server: https://10.0.0.3:64430\n",
		// the host's own
		"    server: https://10.0.0.4:6443\n":   "    server: https://10.0.0.4:6443\n",
		"    a-server: https://10.0.0.3:6443\n": "    a-server: https://10.0.0.3:6443\n",
	} {
		if got := m.Rewritten(text, ""); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	const own = "    server: https://10.0.0.3:6443\n"
	if got := m.Rewritten(own, "10.0.0.3:6443"); got != own {
		t.Errorf("the host's own address: got %q", got)
	}
}
