package cli

import (
	"strings"
	"testing"
)

// TestPullSecretOfOneRegistry holds that nodes get no other login of a person's docker configuration.
func TestPullSecretOfOneRegistry(t *testing.T) {
	t.Parallel()
	const file = `{"auths": {"https://harbor.site/v2/": {"auth": "cm9ib3Q6eA=="}, "ghcr.io": {"auth": "bWluZTpteS1zZWNyZXQ="}}, "credsStore": "pass"}`
	got, err := pullSecret([]byte(file), "harbor.site")
	if err != nil || string(got) != `{"auths":{"harbor.site":{"auth":"cm9ib3Q6eA=="}}}` {
		t.Errorf("got %s, %v", got, err)
	}
	for text, host := range map[string]string{file: "quay.io", `{"auths": {"quay.io": {}}}`: "quay.io", "secret-word": "quay.io"} {
		if _, err := pullSecret([]byte(text), host); err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSiteValues(t *testing.T) {
	t.Parallel()
	for _, o := range []deployOptions{{sets: []string{"web=password"}}, {sets: []string{"=a=b"}}, {values: []string{"web"}}, {values: []string{"=f"}}} {
		if _, err := o.siteValues(); exitCode(err) != 64 {
			t.Errorf("%v %v: %v", o.sets, o.values, err)
		}
	}
	list, err := (&deployOptions{sets: []string{"shop/web=a.b=c=d"}}).siteValues()
	if err != nil || len(list) != 1 || list[0].Release != "shop/web" || list[0].Set != "a.b=c=d" {
		t.Errorf("got %v, %v", list, err)
	}
}
