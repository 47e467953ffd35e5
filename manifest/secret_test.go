package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A secret is printed by nothing, wherever it is inside of what is printed.
func TestSecretHidden(t *testing.T) {
	const text = "hunter2"
	h := Host{SSH: SSH{Password: NewSecret(text), PrivateKey: NewSecret(text)}, Sudo: Sudo{Password: NewSecret(text)}}
	private := struct{ host *Host }{&h}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{h, &h, private, h.SSH.Password, &h.SSH.Password, []Secret{h.SSH.Password}} {
			got := fmt.Sprintf(format, v)
			if strings.Contains(got, text) || strings.Contains(got, fmt.Sprintf("%x", text)) {
				t.Errorf("%s of %T: %s", format, v, got)
			}
		}
	}
	asJSON, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(HostSpec{SSH: h.SSH, Sudo: h.Sudo})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(asJSON) + string(asYAML); strings.Contains(got, text) {
		t.Error(got)
	}
	if got := h.SSH.Password.Reveal(); got != text || !h.SSH.Password.IsSet() || (Secret{}).IsSet() ||
		NewSecret("").IsSet() {
		t.Errorf("revealed %q", got)
	}
	if a, b := NewSecret(text), NewSecret(text); !a.Equal(b) || a.Equal(NewSecret("other")) {
		t.Error("Equal does not compare texts")
	}
}
