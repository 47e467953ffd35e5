package scalar

import (
	"net/url"
	"testing"
)

// TestSecretParameter: every name under which servers take a secret, and none under which they take anything else.
func TestSecretParameter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"X-Amz-Signature", "X-Amz-Security-Token", "X-Goog-Signature", "Signature", "sig", "token", "access_token",
		"private_token", "job_token", "api_key", "apikey", "api-key", "auth", "password", "passwd", "secret",
		"client_secret", "access_key", "accessKey", "secretkey", "jwt",
	} {
		if u := (&url.URL{RawQuery: "a=b&" + name + "=s"}); SecretParameter(u) != name {
			t.Errorf("%s is not taken for a secret", name)
		}
	}
	for _, query := range []string{
		"", "raw=true", "path=/a/b", "author=me", "key=stable", "keyid=0x12", "design=2", "Key-Pair-Id=K", "bypass=1",
		"page_token_count=2", "X-Amz-Date=2026", "authority=x",
	} {
		if name := SecretParameter(&url.URL{RawQuery: query}); name != "" {
			t.Errorf("%s of %q is taken for a secret", name, query)
		}
	}
	if SecretParameter(&url.URL{RawQuery: "key=AIzaSyA1234567890abcdefghijklmnopqrstuv"}) != "key" {
		t.Error("a key of Google is not taken for a secret")
	}
}
