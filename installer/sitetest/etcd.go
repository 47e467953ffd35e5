//go:build linux

package sitetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fakeEtcd stands for etcd on rooted hosts, which have no network: it keeps who is a member and whose unit runs,
// and answers etcdctl as etcd 3.6 does in what these tests look at.
type fakeEtcd struct {
	mu      sync.Mutex
	Members []etcd.Member
	Runs    map[string]bool // unit of a host
	asked   []string        // what changed something
	next    uint64
}

// EtcdSite is three hosts with etcd, the first of which is also the control plane.
func EtcdSite(t *testing.T, kind string) (*Site, *engine.Run, *fakeEtcd) {
	t.Helper()
	s := NewSite(t, "cp1", "node1", "node2")
	etcd := "[cp1, node1, node2]"
	if kind == "internal" {
		etcd = "[cp1]"
	}
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  cp1: {address: 10.0.0.3, internalIPv4: 10.0.0.3}
  node1: {address: 10.0.0.4, internalIPv4: 10.0.0.4}
  node2: {address: 10.0.0.5, internalIPv4: 10.0.0.5}
groups: {kube_control_plane: [cp1], image_registry: [cp1], kube_worker: [node1, node2], etcd: `+etcd+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t, "etcd: {type: "+kind+"}")
	f := &fakeEtcd{Runs: map[string]bool{}, next: 0xa1}
	for name, h := range s.Hosts {
		h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error { return f.unit(h, name, cmd) })
		h.Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return f.Control(cmd) })
	}
	return s, s.Run(t, nil), f
}

// Exits is the end of a command with an exit code.
func Exits(cmd host.Cmd, code int, why string) error {
	return &host.ExitError{Host: "test", Args: cmd.Args, Code: code, Stderr: why}
}

// unit is systemctl. A member that is started without data makes them, and is a member from then on if the others
// know it.
func (f *fakeEtcd) unit(h *Rooted, name string, cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch cmd.Args[1] {
	case "is-active":
		if !f.Runs[name] {
			return Exits(cmd, 3, "")
		}
	case "stop":
		f.Runs[name] = false
	case "restart":
		f.asked = append(f.asked, "start "+name)
		f.Runs[name] = true
		if err := os.MkdirAll(filepath.Join(h.Root, etcd.DefaultDataDir, "member"), 0o700); err != nil {
			return err
		}
		url := "https://" + map[string]string{"cp1": "10.0.0.3", "node1": "10.0.0.4", "node2": "10.0.0.5"}[name]
		if strings.Contains(h.Content(etcd.InitialEnv), "STATE=new") && len(f.Members) == 0 {
			for i, one := range []string{"cp1", "node1", "node2"} {
				at := fmt.Sprintf("https://10.0.0.%d", 3+i)
				f.next++
				f.Members = append(f.Members, etcd.Member{
					ID: f.next, Name: one, PeerURLs: []string{at + ":2380"},
					ClientURLs: []string{at + ":2379"},
				})
			}
		}
		for i, m := range f.Members {
			if m.PeerURLs[0] == url+":2380" {
				f.Members[i].Name, f.Members[i].ClientURLs = name, []string{url + ":2379"}
			}
		}
	}
	return nil
}

// Control answers etcdctl.
func (f *fakeEtcd) Control(cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	works := func(m etcd.Member) bool { return m.Name != "" && f.Runs[m.Name] && !m.Learner }
	voters := 0
	up := 0
	for _, m := range f.Members {
		if !m.Learner {
			voters++
		}
		if works(m) {
			up++
		}
	}
	var words []string
	flags := map[string]string{}
	for _, a := range cmd.Args[1:] {
		if name, value, ok := strings.Cut(a, "="); ok || strings.HasPrefix(a, "--") {
			flags[name] = value
			continue
		}
		words = append(words, a)
	}
	reached := slices.ContainsFunc(f.Members, func(m etcd.Member) bool {
		return works(m) && slices.ContainsFunc(strings.Split(flags["--endpoints"], ","),
			func(e string) bool { return slices.Contains(m.ClientURLs, e) })
	})
	if !reached || up < voters/2+1 {
		return Exits(cmd, 1, "context deadline exceeded")
	}
	switch strings.Join(words[:2], " ") {
	case "endpoint health":
		return nil
	case "member list":
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"members": f.Members})
	case "member remove":
		f.Members = slices.DeleteFunc(f.Members, func(m etcd.Member) bool { return m.HexID() == words[2] })
	case "member add":
		if up < voters {
			return Exits(cmd, 1, "etcdserver: unhealthy cluster")
		}
		_, learner := flags["--learner"]
		f.next++
		f.Members = append(f.Members, etcd.Member{
			ID: f.next, PeerURLs: []string{flags["--peer-urls"]},
			Learner: learner,
		})
		words = []string{"member", "add", words[2]}
	case "member promote":
		for i, m := range f.Members {
			if m.HexID() == words[2] {
				f.Members[i].Learner = false
			}
		}
	default:
		return fmt.Errorf("etcdctl %v is not known to this test", words)
	}
	f.asked = append(f.asked, strings.Join(words, " "))
	return nil
}

// Said returns the requests, and forgets them.
func (f *fakeEtcd) Said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.asked
	f.asked = nil
	return list
}
