//go:build linux

package installer

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestRestartControlPlane ends components one after the other, each when the API server is ready again, and does not
// end again what has started anew by itself.
func TestRestartControlPlane(t *testing.T) {
	t.Parallel()
	// etcd's end takes the scheduler with it, and the API server is ready at the third question.
	const away = `echo ask >>"$dir/log"
if grep -q 'end etcd' "$dir/log" && ! [ -e "$dir/back" ]; then
	echo 131 >"$dir/kube-scheduler"; echo >>"$dir/asked"
	[ "$(wc -l <"$dir/asked")" = 3 ] || exit 1
	touch "$dir/back"
fi`
	// Certificates have expired: the API server is not ready before it has new ones.
	const expired = `echo ask >>"$dir/log"; grep -q 'end kube-apiserver' "$dir/log"`
	for name, c := range map[string]struct{ kubectl, cluster, want string }{
		"all go on": {
			`echo ask >>"$dir/log"`, "",
			"end etcd ask end kube-apiserver ask end kube-controller-manager ask end kube-scheduler ask ask",
		},
		"away": {
			away, "",
			"end etcd ask ask ask end kube-apiserver ask end kube-controller-manager ask ask ask",
		},
		"expired": {expired, "", "end etcd " + strings.Repeat("ask ", 4) +
			"end kube-apiserver ask end kube-controller-manager ask end kube-scheduler ask ask"},
		"etcd outside": {
			`echo ask >>"$dir/log"`, "etcd: {type: external}",
			"end kube-apiserver ask end kube-controller-manager ask end kube-scheduler ask ask",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, cp1 := playedControlPlane(t, c.cluster)
			p.Stub(t, "kubectl", c.kubectl)
			if err := cp1.Run(t.Context(), kubeadm.RestartScript(cp1, 3, 5,
				kubeadm.ControlPlaneProcesses(cp1.Site.Cluster)...)...); err != nil {
				t.Fatal(err)
			}
			if got := p.Log(t); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestRestartKills has an API server that waits for those who watch.
func TestRestartKills(t *testing.T) {
	t.Parallel()
	p, cp1 := playedControlPlane(t, "")
	p.Stub(t, "pkill", `echo "end $1 $name" >>"$dir/log"; [ "$name$1" = kube-apiserver--full ] || echo 1 >"$dir/$name"`)
	if err := cp1.Run(t.Context(), kubeadm.RestartScript(cp1, kubeadm.RestartStep, 5,
		kubeadm.ControlPlaneProcesses(cp1.Site.Cluster)...)...); err != nil {
		t.Fatal(err)
	}
	const want = "end --full etcd ask end --full kube-apiserver end -KILL kube-apiserver ask end --full kube-controller-manager ask end --full kube-scheduler ask ask"
	if got := p.Log(t); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestRestartFails has a scheduler that does not come back, and an API server that is not ready.
func TestRestartFails(t *testing.T) {
	t.Parallel()
	for want, stubs := range map[string][2]string{
		"kube-scheduler has not started again": {
			"pkill",
			`if [ "$name" = kube-scheduler ]; then rm -f "$dir/$name"; else echo 1 >"$dir/$name"; fi`,
		},
		"etcd failed: reason withheld": {"kubectl", "echo etcd failed: reason withheld >&2; exit 1"},
	} {
		p, cp1 := playedControlPlane(t, "")
		p.Stub(t, stubs[0], stubs[1])
		err := cp1.Run(t.Context(), kubeadm.RestartScript(cp1, 1, 2,
			kubeadm.ControlPlaneProcesses(cp1.Site.Cluster)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestRestartAsksItself holds that a host asks its own API server, not whichever answers for the cluster.
func TestRestartAsksItself(t *testing.T) {
	t.Parallel()
	p, cp1 := playedControlPlane(t, "")
	p.Stub(t, "kubectl", `echo "$*" >>"$dir/log"`)
	if err := kubeadm.RestartControlPlane(t.Context(), cp1); err != nil {
		t.Fatal(err)
	}
	if got := p.Log(t); !strings.Contains(got, "--server=https://10.0.0.3:6443 get --raw=/readyz") {
		t.Errorf("it asks %s", got)
	}
}

func playedControlPlane(t *testing.T, more string) (*sitetest.Played, *task.Host) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, more).WithDefaults()
	return sitetest.PlayProcesses(t, s.Hosts["cp1"]), s.Run(t, nil).Hosts[0]
}
