package task

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestHostsError gives a cause of many hosts one line and one remedy, and other causes their own lines.
func TestHostsError(t *testing.T) {
	t.Parallel()
	var hosts []*Host
	var errs []error
	for i := range 12 {
		name, address := fmt.Sprintf("node%d", i+1), fmt.Sprintf("10.0.0.%d", i+1)
		hosts = append(hosts, &Host{
			Host: manifest.Host{Name: name, Address: address},
			IP:   netip.MustParseAddr(address),
		})
		errs = append(errs, plain.Advise(fmt.Errorf("%s (%s:22): connect: connection refused by %s", name, address,
			address), "start sshd"))
	}
	errs[3] = nil
	errs[5] = errors.New("node6: install kubelet: no space left on device")
	err := JoinHosts(hosts, errs)
	want := "10 hosts (node1, node2, node3, node5, node7, node8, node9, node10 and 2 more): connect: connection refused by its address\n" +
		"node6: install kubelet: no space left on device"
	if have := err.Error(); have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	if hinted, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); !ok || hinted.Hint() != "start sshd" {
		t.Errorf("remedy: %v", hinted)
	}
	whole := Whole(fmt.Errorf("stopped: %w", err))
	if strings.Count(whole, "\n") != 10 ||
		!strings.Contains(whole, "\nnode12 (10.0.0.12:22): connect: connection refused by 10.0.0.12") {
		t.Errorf("whole: %s", whole)
	}
	if have := JoinHosts(hosts[:2],
		errs[:2]).Error(); have != "node1, node2: connect: connection refused by its address" {
		t.Error(have)
	}
	if err := JoinHosts(hosts[:1],
		errs[:1]); err.Error() != "node1 (10.0.0.1:22): connect: connection refused by 10.0.0.1" {
		t.Error(err)
	}
	if err := JoinHosts(hosts, make([]error, len(hosts))); err != nil {
		t.Error(err)
	}
}

// TestHostsErrorNames does not take a name for a part of a longer one.
func TestHostsErrorNames(t *testing.T) {
	t.Parallel()
	a, b := &Host{Host: manifest.Host{Name: "cp1"}}, &Host{Host: manifest.Host{Name: "cp"}}
	err := JoinHosts([]*Host{a, b}, []error{
		errors.New("cp1: cp1 cannot reach cp10"),
		errors.New("cp: cp cannot reach cp10"),
	})
	if have := err.Error(); have != "cp1, cp: the host cannot reach cp10" {
		t.Error(have)
	}
}
