//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

func TestForeignClusters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"nothing":             {nil, ""},
		"a node of kubeadm":   {[]string{"/etc/kubernetes/kubelet.conf"}, "/etc/kubernetes/kubelet.conf"},
		"an agent of k3s":     {[]string{"/var/lib/rancher/k3s/agent/kubelet.kubeconfig"}, "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
		"a server of k3s":     {[]string{"/var/lib/rancher/k3s/server/tls/x", "/etc/systemd/system/k3s.service"}, "/var/lib/rancher/k3s/server/tls"},
		"volumes of k3s":      {[]string{"/var/lib/rancher/k3s/storage/pvc-1/data"}, ""},
		"our node":            {[]string{"/etc/kubernetes/kubelet.conf", member.Path}, ""},
		"ours, half made":     {[]string{"/etc/kubernetes/manifests/etcd.yaml", member.BegunPath}, ""},
		"own authorities":     {[]string{"/etc/kubernetes/pki/ca.crt"}, ""},
		"ours before kubeadm": {[]string{"/etc/kubernetes/kubelet.conf", task.StampDir + "/kernel"}, "/etc/kubernetes/kubelet.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "cp1", "node1")
			s.options.Force = true // which does not help
			for _, file := range c.files {
				s.hosts["node1"].put(t, file, "")
			}
			err := checkForeign(t.Context(), s.run(t, nil))
			var foreign *ForeignError
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
	s := newSite(t, "cp1", "node1", "node2")
	s.dialing("")
	const file = "/etc/kubernetes/kubelet.conf"
	for _, h := range s.hosts {
		h.put(t, file, "")
	}
	s.options.Limit = []string{"node1"}
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	there := func() (names string) {
		for _, name := range []string{"cp1", "node1", "node2"} {
			if strings.Contains(s.hosts[name].tree(t), file) {
				names += " " + name
			}
		}
		return names
	}
	if got := there(); got != " cp1 node1 node2" {
		t.Errorf("without being told to, it left that cluster on%s", got)
	}
	s.options.Foreign = true
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	if got := there(); got != " cp1 node2" {
		t.Errorf("told to take it off node1, it left it on%s", got)
	}
}

// A k3s that we started, in a run that was killed before it could say so, is ours; one of others is not, whatever is installed.
func TestForeignK3s(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]bool{hostfile.Mark + "\n": false, "[Unit]\n": true} {
		s, _ := newK3sSite(t, "")
		h := s.hosts["node1"]
		h.put(t, cri.K3sData+"/agent/kubelet.kubeconfig", "")
		h.put(t, "/etc/systemd/system/k3s-agent.service", mark+"Description=Lightweight Kubernetes\n")
		err := checkForeign(t.Context(), s.run(t, nil))
		if got := errors.As(err, new(*ForeignError)); got != want {
			t.Errorf("with a unit that begins with %q: %v", mark, err)
		}
	}
}
