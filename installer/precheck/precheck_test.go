package precheck_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/manifest"
)

func facts(t *testing.T, name string) *node.Facts {
	t.Helper()
	data, err := os.ReadFile("testdata/facts/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var f node.Facts
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &f
}

func host(name, address string, roles ...manifest.Role) precheck.Host {
	h := precheck.Host{Host: manifest.Host{Name: name, Roles: append(roles, manifest.RoleCluster)}}
	if address != "" {
		h.InternalIPv4 = netip.MustParseAddr(address)
	}
	return h
}

const gib = 1 << 30

// good is a control plane with a registry and a worker that kkbundle is going to install, on which nothing is to be
// found.
func good(t *testing.T) precheck.Input {
	t.Helper()
	cp := host("cp1", "10.0.0.3", manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleRegistry)
	cp.Facts = facts(t, "ubuntu-24.04")
	cp.Facts.Sync = &node.SyncLatency{
		Dir: "/var/lib/etcd", In: "/var/lib", Type: "ext4", Writes: 2000,
		P99: int64(2 * time.Millisecond),
	}
	cp.Space = []precheck.Space{
		{For: "images", Dir: "/var/lib/containerd", Bytes: 10 * gib},
		{For: "registry", Dir: "/var/lib/registry", Bytes: 20 * gib},
	}
	w := host("w1", "10.0.0.11", manifest.RoleWorker)
	w.Facts = facts(t, "rocky-9")
	w.Facts.SELinux, w.Facts.SELinuxConfig, w.Facts.Firewalls, w.Facts.Proxies, w.Facts.Swaps = "enforcing",
		"enforcing", nil, nil, nil
	setPath(w.Facts, node.Path{Path: containerPolicyFile, Type: "file"})
	in := precheck.Input{
		Cluster: &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}},
		Hosts:   []precheck.Host{cp, w}, Architectures: []string{"amd64"}, Install: true,
	}
	asked(&in)
	return in
}

// asked makes it so that each host was asked for its facts half a second before it took its time.
func asked(in *precheck.Input) {
	for i := range in.Hosts {
		h := &in.Hosts[i]
		h.Sent = time.Unix(0, h.Facts.Clock).Add(-time.Second / 2)
		h.Received = h.Sent.Add(time.Second)
	}
}

// failed lists the failed checks as host/id.
func failed(r precheck.Report) []string {
	var list []string
	for _, one := range r.Results {
		if !one.OK {
			list = append(list, one.Host+"/"+one.ID)
		}
	}
	return list
}

func TestReport(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Hosts[1].Facts, in.Hosts[1].Err = nil, errors.New("w1 (10.0.0.11:22): connection refused\x1b[2J")
	in.Hosts[0].Facts.CPUs = 1
	in.Hosts[0].Facts.Swaps = []node.Swap{{Name: "/dev/evil\x1b]0;title\a", Size: gib}}
	third := host("w2", "10.0.0.12", manifest.RoleWorker)
	third.Facts = facts(t, "rocky-9")
	in.Hosts = append(in.Hosts, third)
	r := precheck.Evaluate(in)

	var table bytes.Buffer
	if err := render.Write(&table, r, "table"); err != nil {
		t.Fatal(err)
	}
	text := table.String()
	if strings.ContainsAny(text, "\x1b\a") {
		t.Errorf("control characters in %q", text)
	}
	var last int
	for _, want := range []string{
		"BLOCKS  reachable:", "w1  w1 (10.0.0.11:22): connection refused", "BLOCKS  cpu:", "cp1  1 CPU",
		"BLOCKS  address:",
		"warning  swap:", "cp1  on: /dev/evil", "w2   on: /dev/dm-1", "3 hosts, ", "NOT ready",
	} {
		i := strings.Index(text[last:], want)
		if i < 0 {
			t.Fatalf("no %q in its place in:\n%s", want, text)
		}
		last += i
	}
	var blocked *precheck.BlockedError
	if err := r.Err(); !errors.As(err, &blocked) ||
		!strings.Contains(err.Error(), "3 of 3 hosts are not ready (cp1: cpu; w1: reachable; w2: address") {
		t.Errorf("error: %v", err)
	}
	var out bytes.Buffer
	if err := render.Write(&out, r, "json"); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out.Bytes()) {
		t.Errorf("no JSON:\n%s", out.String())
	}
}

// TestClockOfFewHosts has as many clocks that are right as clocks that are wrong: this machine's counts.
func TestClockOfFewHosts(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-time.Minute, time.Minute} {
		in := good(t)
		in.Hosts = in.Hosts[:1]
		in.Hosts[0].Facts.Clock += int64(skew)
		if got := failed(precheck.Evaluate(in)); !slices.Contains(got, "cp1/clock") {
			t.Errorf("a single host whose clock is off by %s: found %q", skew, got)
		}
	}
}
