//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

func TestForeignClusters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"nothing":           {nil, ""},
		"a node of kubeadm": {[]string{"/etc/kubernetes/kubelet.conf"}, "/etc/kubernetes/kubelet.conf"},
		"an agent of k3s": {
			[]string{"/var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
			"/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
		},
		"a server of k3s": {
			[]string{"/var/lib/rancher/k3s/server/tls/x", "/etc/systemd/system/k3s.service"},
			"/var/lib/rancher/k3s/server/tls",
		},
		"volumes of k3s":  {[]string{"/var/lib/rancher/k3s/storage/pvc-1/data"}, ""},
		"our node":        {[]string{"/etc/kubernetes/kubelet.conf", member.Path}, ""},
		"ours, half made": {[]string{"/etc/kubernetes/manifests/etcd.yaml", member.BegunPath}, ""},
		"own authorities": {[]string{"/etc/kubernetes/pki/ca.crt"}, ""},
		"ours before kubeadm": {
			[]string{"/etc/kubernetes/kubelet.conf", task.StampDir + "/kernel"},
			"/etc/kubernetes/kubelet.conf",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1")
			s.Options.Force = true // which does not help
			for _, file := range c.files {
				s.Hosts["node1"].Put(t, file, "")
			}
			err := begin.CheckForeign(t.Context(), s.Run(t, nil))
			var foreign *begin.ForeignError
			if got := errors.As(err, &foreign); got != (c.want != "") {
				t.Fatalf("got %v", err)
			}
			if c.want != "" && (foreign.Host != "node1" || strings.Join(foreign.Found, " ") != c.want) {
				t.Errorf("got %v, want %s on node1", err, c.want)
			}
		})
	}
}

// TestResetForeign takes away somebody else's cluster where it was told to, and nowhere else.
func TestResetForeign(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	s.Dialing("")
	const file = "/etc/kubernetes/kubelet.conf"
	for _, h := range s.Hosts {
		h.Put(t, file, "")
	}
	s.Options.Limit = []string{"node1"}
	if err := reset.Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	there := func() (names string) {
		for _, name := range []string{"cp1", "node1", "node2"} {
			if strings.Contains(s.Hosts[name].Tree(t), file) {
				names += " " + name
			}
		}
		return names
	}
	if got := there(); got != " cp1 node1 node2" {
		t.Errorf("without being told to, it left that cluster on%s", got)
	}
	s.Options.Foreign = true
	if err := reset.Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	if got := there(); got != " cp1 node2" {
		t.Errorf("told to take it off node1, it left it on%s", got)
	}
}

// A k3s that we started, in a run that was killed before it could say so, is ours; one of others is not, whatever is
// installed.
func TestForeignK3s(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]bool{hostfile.Mark + "\n": false, "[Unit]\n": true} {
		s, _ := newK3sSite(t, "")
		h := s.Hosts["node1"]
		h.Put(t, cri.K3sData+"/agent/kubelet.kubeconfig", "")
		h.Put(t, "/etc/systemd/system/k3s-agent.service", mark+"Description=Lightweight Kubernetes\n")
		err := begin.CheckForeign(t.Context(), s.Run(t, nil))
		if got := errors.As(err, new(*begin.ForeignError)); got != want {
			t.Errorf("with a unit that begins with %q: %v", mark, err)
		}
	}
}
