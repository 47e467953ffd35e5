//go:build linux

package kubeadm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// The cluster file overrides the settings of a level.
func TestUserWinsOverSecurity(t *testing.T) {
	t.Parallel()
	for text, limited := range map[string]bool{
		"": true, ", kubeadm: {apiServer: {extraArgs: {oidc-issuer-url: https://a.example}}}": false,
		", kubeadm: {apiServer: {extraArgs: [{name: anonymous-auth, value: 'true'}]}}": false,
	} {
		r := &task.Site{Cluster: tasktest.Cluster(t, "kubernetes: {version: v1.34.3, security: hardened"+text+"}")}
		if _, has := securityPart(r, true).Flags[apiServer]["authentication-config"]; has != limited {
			t.Errorf("%s: authentication-config %v", text, has)
		}
	}
	old := &task.Site{Cluster: tasktest.Cluster(t, "kubernetes: {version: v1.31.1, security: hardened}")}
	if _, has := securityPart(old, true).Flags[apiServer]["authentication-config"]; has {
		t.Error("1.31 is given what it does not know")
	}
}

func TestBoundTo(t *testing.T) {
	for args, want := range map[string]string{
		"kube-scheduler --bind-address=127.0.0.1 --leader-elect=true": "127.0.0.1",
		"kube-scheduler --bind-address=::1":                           "::1",
		"kube-scheduler --bind-address=0.0.0.0":                       "127.0.0.1",
		"kube-scheduler --bind-address=::":                            "::1",
		"kube-scheduler --bind-address=10.0.0.3":                      "10.0.0.3",
		"kube-scheduler --leader-elect=true":                          "127.0.0.1",
	} {
		if got := bindAddress(strings.Fields(args)); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// A component that restarts has no answer for a moment; what breaks a level of security is said at once.
func TestSecurityChecksWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	down := errors.New("kube-scheduler is not running")
	for name, c := range map[string]struct {
		answers []error // of one look after the other; the last one stays
		want    error
		most    time.Duration
	}{
		"a restart": {[]error{down, down, nil}, nil, 2 * time.Second},
		"a breach":  {[]error{errors.Join(down, breachf("the kubelet accepts TLS 1.1"))}, breach{}, 0},
		"gone":      {[]error{down}, down, answerWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, looks := time.Now(), 0
				err := answered(func(context.Context, *task.Host) error {
					looks++
					return c.answers[min(looks, len(c.answers))-1]
				})(t.Context(), nil)
				breaks := errors.As(c.want, new(breach))
				if breaks && !errors.As(err, new(breach)) || !breaks && !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if took := time.Since(begin); took > c.most {
					t.Errorf("it took %s, want at most %s", took, c.most)
				}
			})
		})
	}
}
