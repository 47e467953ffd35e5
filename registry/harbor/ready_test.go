package harbor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/registry/harbor"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

func TestHealthy(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	c := client(t, s)
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	s.SetIll(true)
	if err := c.Healthy(t.Context()); err == nil || err.Error() != "Harbor is not healthy: database" {
		t.Errorf("got %v", err)
	}
	if err := c.CheckLogin(t.Context()); err != nil {
		t.Error(err)
	}
	c.Password = "wrong"
	if err := c.CheckLogin(t.Context()); !errors.Is(err, harbor.ErrDenied) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("got %v", err)
	}
}

// TestSetSecret: the secret is what the caller says, and Harbor's rule for it holds.
func TestSetSecret(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{Projects: []harbortest.Project{{Name: "base"}}})
	c := client(t, s)
	if err := c.SetSecret(t.Context(), "nodes", "Secret12345"); err == nil {
		t.Error("there is no such account")
	}
	if _, err := c.GrantPull(t.Context(), "nodes", []string{"base"}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetSecret(t.Context(), "nodes", "secret"); err == nil || !strings.Contains(err.Error(), "8-128") {
		t.Errorf("a bad secret: %v", err)
	}
	if err := c.SetSecret(t.Context(), "nodes", "Secret12345"); err != nil {
		t.Fatal(err)
	}
	robot := &harbor.Client{URL: s.URL(), Username: "robot$nodes", Password: "Secret12345"}
	if err := robot.CheckLogin(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCopyTo(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	c := client(t, s)
	to := harbor.Remote{Name: "reg2", URL: "https://10.0.0.4", Username: "admin", Password: "Secret1", CA: "PEM\n"}
	copies := func(what string, want bool) {
		t.Helper()
		if ok, err := c.Copies(t.Context(), to); ok != want || err != nil {
			t.Errorf("%s: %t, %v", what, ok, err)
		}
	}
	copies("before", false)
	for range 2 {
		if err := c.CopyTo(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		copies("after", true)
		if got := s.Copies(); !slices.Equal(got, []string{"reg2 https://10.0.0.4 admin Secret1"}) {
			t.Errorf("it copies to %q", got)
		}
	}
	to.URL, to.Password = "https://10.0.0.5", "Secret2"
	copies("another address", false)
	if err := c.CopyTo(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	s.DisablePolicies()
	copies("somebody has disabled it", false)
	if err := c.CopyTo(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if got := s.Copies(); !slices.Equal(got, []string{"reg2 https://10.0.0.5 admin Secret2"}) {
		t.Errorf("it copies to %q", got)
	}
	c.Password = "wrong"
	if _, err := c.Copies(t.Context(), to); err == nil {
		t.Error("it answers a wrong password")
	}
}
