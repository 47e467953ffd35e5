package endpoint

import "testing"

func TestFromLoopback(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"    server: https://127.0.0.1:6443\n  name: a\n": "    server: https://10.0.0.3:6443\n  name: a\n",
		"    server: https://localhost:6443\n":            "    server: https://10.0.0.3:6443\n",
		"    server: https://[::1]:6443\n":                "    server: https://10.0.0.3:6443\n",
		"    server: https://lb.kubesphere.local:6443\n":  "    server: https://lb.kubesphere.local:6443\n",
		"": "",
	} {
		if got := fromLoopback(text, "10.0.0.3:6443"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
