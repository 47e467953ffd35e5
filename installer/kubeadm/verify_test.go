//go:build linux

package kubeadm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"testing"
)

func TestSignedBy(t *testing.T) {
	t.Parallel()
	const token, config = "abcdef.0123456789abcdef", "apiVersion: v1\n"
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","kid":"abcdef"}`))
	mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
	mac.Write([]byte(header + "." + base64.RawURLEncoding.EncodeToString([]byte(config))))
	signature := header + ".." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	info := map[string]string{"kubeconfig": config, "jws-kubeconfig-abcdef": signature}
	if err := signedBy(token, info); err != nil {
		t.Error(err)
	}
	for what, bad := range map[string]map[string]string{
		"no signature":   {"kubeconfig": config},
		"another config": {"kubeconfig": config + "x", "jws-kubeconfig-abcdef": signature},
		"another token":  {"kubeconfig": config, "jws-kubeconfig-abcdef": header + "..AAAA"},
	} {
		if err := signedBy(token, bad); err == nil {
			t.Errorf("%s is believed", what)
		}
	}
}
