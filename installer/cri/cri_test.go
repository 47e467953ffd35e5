package cri

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestContainerdFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*manifest.Cluster{
		"v2": tasktest.Cluster(t, ""),
		"v1": tasktest.Cluster(t, "cri: {version: v1.7.30}"),
	} {
		got, err := containerdConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Golden(t, "containerd-"+name+".toml", got)
	}
	access := task.RegistryAccess{Address: "10.0.0.3:5000", CA: []byte("CA"), Login: task.Login{Username: "kkbundle", Password: "pass"}}
	var b strings.Builder
	for _, f := range HostsFiles(access, []string{"docker.io", "registry.example:5000"}) {
		fmt.Fprintf(&b, "== %s %04o\n%s", f.Path, f.Mode, f.Data)
	}
	tasktest.Golden(t, "hosts.toml.txt", []byte(b.String()))
}

func TestWithoutDocker(t *testing.T) {
	t.Parallel()
	const rules = `*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.18.0.0/16 ! -o br-0123456789ab -j MASQUERADE
-A POSTROUTING -s 10.1.0.0/16 ! -o br-int -j MASQUERADE
COMMIT
*filter
:FORWARD ACCEPT [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
`
	const want = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
-A POSTROUTING -s 10.1.0.0/16 ! -o br-int -j MASQUERADE
COMMIT
*filter
:FORWARD ACCEPT [0:0]
COMMIT
`
	if got, changed := task.WithoutRules(rules, isDocker); got != want || !changed {
		t.Errorf("got changed %v:\n%s", changed, got)
	}
	for name, want := range map[string]bool{"docker0": true, "br-0123456789ab": true, "br-0123456789ag": false, "br-int": false, "br-lan": false, "cni0": false} {
		if isDockerBridge(name) != want {
			t.Errorf("%s is Docker's: %t", name, !want)
		}
	}
}
