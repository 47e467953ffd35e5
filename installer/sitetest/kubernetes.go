//go:build linux

package sitetest

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
)

// A fakeCluster plays kubectl and kubeadm on a site.
type fakeCluster struct {
	mu      sync.Mutex
	Applied []string // what kubectl was given to apply
	Configs []string // what kubeadm was configured with
	Fail    error
}

// NewFakeCluster makes kubeadm and kubectl of the site answer.
func NewFakeCluster(t *testing.T, s *Site) *fakeCluster {
	t.Helper()
	ca := CA()
	f := &fakeCluster{}
	for _, h := range s.Hosts {
		h.Put(t, kube.ClusterCA, string(ca))
		h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if cmd.Stdin != nil {
				data, _ := io.ReadAll(cmd.Stdin)
				f.Applied = append(f.Applied, string(data))
			}
			return nil
		})
		h.Answer("etcdctl", NoMembers)
		h.Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if cmd.Args[1] != "reset" {
				f.Configs = append(f.Configs, h.Content(marks.KubeadmConfig))
			}
			return f.Fail
		})
	}
	return f
}

// NoMembers is etcdctl, asked for members.
func NoMembers(_ context.Context, cmd host.Cmd) error {
	_, err := io.WriteString(cmd.Stdout, `{"members":[]}`)
	return err
}
