//go:build linux

package upgrade

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// leave makes a prepared run leave a host as it is.
func leave(r *engine.Run, names ...string) {
	r.Scope.Without = names
	for _, name := range names {
		t := r.HostNamed(name)
		t.Conn, t.Err = nil, engine.ErrWithout
	}
}

// An upgrade leaves a worker that is not reachable as it is, and the next one brings it to the others' version.
func TestUpgradeWithoutAWorker(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.2", "cp1", "node1", "node2")
	f.nodes["node2"].Status.Conditions[0] = corev1.NodeCondition{
		Type:   corev1.NodeReady,
		Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.",
	}
	u := upgradeTo(s, t, "v1.34.3")
	leave(u.Run, "node2")
	if err := u.checkWithout(); err != nil {
		t.Fatal(err)
	}
	plan, err := u.walkAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.objects["pods --namespace=kube-system"] = `{"items":[{"metadata":{"name":"kube-proxy-1","namespace":"kube-system"},"spec":{"nodeName":"node2"},"status":{"phase":"Pending"}}]}`
	f.objects["pods --all-namespaces"] = `{"items":[{"metadata":{"name":"alone","namespace":"shop"},"spec":{"nodeName":"node2"},"status":{"phase":"Running"}}]}`
	for _, c := range []healthCheck{u.nodesReady, u.systemPods, u.lonePods} {
		if errs := c(t.Context(), u.Hosts[0], plan); len(errs) > 0 {
			t.Errorf("the upgrade is refused: %v", errs)
		}
	}
	f.objects["pods --namespace=kube-system"], f.objects["pods --all-namespaces"] = `{"items":[]}`, `{"items":[]}`
	for _, line := range f.steps() {
		if strings.Contains(line, "node2") {
			t.Errorf("ran %s", line)
		}
	}
	if diff := cmp.Diff(plan.Left(), []string{"node2 (kubelet v1.34.2)"}); diff != "" {
		t.Errorf("left (-got +want):\n%s", diff)
	}
	if f.nodes["node1"].Status.NodeInfo.KubeletVersion != "v1.34.3" ||
		f.nodes["node2"].Status.NodeInfo.KubeletVersion != "v1.34.2" || f.nodes["node2"].Spec.Unschedulable {
		t.Errorf("nodes are %s", f.list())
	}
	again := upgradeTo(s, t, "v1.34.3")
	leave(again.Run, "node2")
	if plan, err := again.walkAll(t.Context()); err != nil || !plan.Empty() || len(f.steps()) > 0 {
		t.Errorf("a rerun plans %+v, %v", plan, err)
	}
	f.node("node2", "v1.34.2")
	if _, err := upgradeTo(s, t, "v1.34.3").walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cp1: drain node2", "node2: kubeadm upgrade node", "node2: systemctl try-restart kubelet.service",
		"cp1: uncordon node2",
	}
	if diff := cmp.Diff(f.steps(), want); diff != "" {
		t.Errorf("when it is back (-got +want):\n%s", diff)
	}
}

// A worker that was lost in the first of two steps returns when the control planes have made both: it goes to the
// last release directly.
func TestUpgradeOfAWorkerLostInAStep(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1", "node1", "node2")
	plan, err := upgradeTo(s, t, "v1.36.3").look(t.Context())
	if err != nil || len(plan.Steps) != 2 {
		t.Fatalf("%+v, %v", plan, err)
	}
	way := plan.Steps
	f.fail = func(_ int, line string) (bool, bool) { return false, strings.HasPrefix(line, "drain node2") }
	if _, err := upgradeTo(s, t, way...).walkAll(t.Context()); err == nil {
		t.Fatal("the drain did not fail")
	}
	f.fail = nil
	u := upgradeTo(s, t, way...)
	leave(u.Run, "node2")
	if _, err := u.walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.steps()
	if plan, err = upgradeTo(s, t, way...).walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Steps, way[1:]); diff != "" {
		t.Errorf("steps (-got +want):\n%s", diff)
	}
	want := []string{
		"cp1: drain node2", "node2: kubeadm upgrade node", "node2: systemctl try-restart kubelet.service",
		"cp1: uncordon node2",
	}
	if diff := cmp.Diff(f.steps(), want); diff != "" {
		t.Errorf("when it is back (-got +want):\n%s", diff)
	}
}

// A node that is left may be three minor releases behind the end of the upgrade.
func TestUpgradeWithoutAnOldWorker(t *testing.T) {
	t.Parallel()
	for kubelet, allowed := range map[string]bool{"v1.31.4": true, "v1.30.4": false} {
		s, f := upgradeSite(t, "v1.33.4", "cp1", "node1")
		f.node("node1", kubelet)
		u := upgradeTo(s, t, "v1.34.3")
		leave(u.Run, "node1")
		_, err := u.look(t.Context())
		var refused *RefusedError
		if allowed != (err == nil) || !allowed && (!errors.As(err, &refused) ||
			!strings.Contains(refused.Hint(), "nodes delete --unreachable node1")) {
			t.Errorf("%s: %v", kubelet, err)
		}
	}
}

// What the other hosts depend on cannot be left out.
func TestWithoutRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leave            []string
		install, upgrade string // what the error says; "" for none
	}{
		"a worker": {[]string{"node2"}, "", ""},
		"one of three members": {
			[]string{"cp1"},
			"",
			"--without cp1: upgrades and rollbacks need all control planes and members of etcd",
		},
		"two of three members": {
			[]string{"cp1", "cp2"},
			"etcd has 3 members, and the remaining 1 are not more than half of them",
			"upgrades and rollbacks need all",
		},
		"the host of the registry": {
			[]string{"node1"},
			"--without node1: the other hosts pull their images from it",
			"pull their images",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sitetest.NewHA(t, "controlPlaneEndpoint: {type: haproxy}")
			r := s.Run(t, nil)
			leave(r, c.leave...)
			for want, err := range map[string]error{"install: " + c.install: begin.CheckWithout(r), "upgrade: " +
				c.upgrade: (&nodeWalk{Run: r}).checkWithout()} {
				_, text, _ := strings.Cut(want, ": ")
				if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %v", want, err)
				}
			}
		})
	}
}

// A host that is left as it is gets no connection and no task. The others keep its name, with the address of its node.
func TestInstallWithout(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1", "node1", "node2")
	for i := range s.Options.Inventory.HostSpecs {
		if h := &s.Options.Inventory.HostSpecs[i]; h.Name == "node2" {
			h.Address = "node2.site.example" // no address that the inventory names
		}
	}
	f.nodes["node2"].Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node2"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.5"},
	}
	s.Options.Without = []string{"node2"}
	s.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
	s.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
		if h.Name == "node2" {
			t.Error("there is a connection to the host")
		}
		return s.Hosts[h.Name], nil
	}
	r, err := begin.New(s.Options, engine.Installing())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), func(ctx context.Context) error {
		return r.Phases(ctx, []task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}})
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := s.States(), []string{"hosts-file@cp1 changed", "hosts-file@node1 changed"}; !slices.Equal(got,
		want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := s.Hosts["node1"].Content("/etc/hosts"); !strings.Contains(got, "10.0.0.5 node2\n") {
		t.Errorf("the name is lost:\n%s", got)
	}
	s.Options.Without = []string{"node9"}
	if r, err = begin.New(s.Options, engine.Installing()); err != nil {
		t.Fatal(err)
	}
	var unknown *engine.LimitError
	if _, err := r.Start(t.Context(), nil); !errors.As(err, &unknown) || unknown.Flag != "--without" {
		t.Errorf("a host that is not in the inventory: %v", err)
	}
}
