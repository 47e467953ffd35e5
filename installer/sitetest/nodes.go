//go:build linux

package sitetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A livingCluster plays the API server and etcd behind the kubectl of a site's control planes: which nodes and members
// there are, and what was asked of it. It stands for what cannot run here; the lab has the real ones.
type livingCluster struct {
	Mu      sync.Mutex
	Nodes   []string
	Members []string // of etcd
	Ill     []string // members that do not answer
	Ready   []string // nodes whose kubelets report
	// addresses are those of nodes, if they matter.
	Addresses map[string]string
	Asked     []string
	Fail      string // the command that fails
}

// NewLivingSite makes a site of three control planes and two workers, of which those named are nodes already.
func NewLivingSite(t *testing.T, nodes ...string) (*Site, *livingCluster) {
	t.Helper()
	s := NewSite(t, "reg", "cp1", "cp2", "cp3", "node1", "node2")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  reg: {address: 10.0.0.9}
  cp1: {address: 10.0.0.11}
  cp2: {address: 10.0.0.12}
  cp3: {address: 10.0.0.13}
  node1: {address: 10.0.0.21}
  node2: {address: 10.0.0.22}
groups: {image_registry: [reg], kube_control_plane: [cp1, cp2, cp3], kube_worker: [node1, node2]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t, "controlPlaneEndpoint: {type: external, address: api.example}\n")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
	s.Dialing("")
	ca := CA()
	l := &livingCluster{Nodes: nodes}
	r := s.Run(t, nil)
	for _, name := range nodes {
		h := s.Hosts[name]
		h.Put(t, kube.ClusterCA, string(ca))
		h.Put(t, member.Path, string(member.File(r.Site).Data))
		if strings.HasPrefix(name, "cp") {
			l.Members = append(l.Members, name)
		}
	}
	for _, h := range s.Hosts {
		h.Answer("kubectl", l.Kubectl)
		h.Answer("etcdctl", l.Kubectl)
		h.Answer("uname", func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, "x86_64\n")
			return err
		})
	}
	return s, l
}

// Kubectl answers what deleting and adding nodes ask.
func (l *livingCluster) Kubectl(_ context.Context, cmd host.Cmd) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	args := slices.DeleteFunc(slices.Clone(cmd.Args[1:]), func(a string) bool {
		return strings.HasPrefix(a, "--kubeconfig") || strings.HasPrefix(a, "--server")
	})
	line := strings.Join(args, " ")
	if cmd.Args[0] == "etcdctl" {
		flag := func(a string) bool { return strings.HasPrefix(a, "--") }
		line = strings.Join(slices.DeleteFunc(slices.Clone(cmd.Args), flag), " ")
	}
	if !strings.HasPrefix(line, "get ") && !strings.HasSuffix(line, "list") && !strings.Contains(line, "health") {
		l.Asked = append(l.Asked, line)
	}
	if l.Fail != "" && strings.HasPrefix(line, l.Fail) {
		return &host.ExitError{Host: "cp", Args: args, Code: 1, Stderr: "it does not want to"}
	}
	words := strings.Fields(line)
	last := words[len(words)-1]
	switch {
	case line == "get nodes --output=json":
		var items []any
		for _, name := range l.Nodes {
			state := map[bool]string{true: "True", false: "Unknown"}[slices.Contains(l.Ready, name)]
			labels := kube.Document{}
			if strings.HasPrefix(name, "cp") {
				labels["node-role.kubernetes.io/etcd"] = "true" // with k3s
			}
			items = append(items, kube.Document{
				"metadata": kube.Document{"name": name, "labels": labels},
				"status": kube.Document{
					"conditions": []any{kube.Document{"type": "Ready", "status": state}},
					"addresses":  []any{kube.Document{"type": "InternalIP", "address": l.Addresses[name]}},
				},
			})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
	case strings.HasPrefix(line, "get node "):
		if slices.Contains(l.Nodes, words[2]) {
			fmt.Fprintln(cmd.Stdout, "node/"+words[2])
		}
	case strings.HasPrefix(line, "delete node "):
		l.Nodes = slices.DeleteFunc(l.Nodes, func(n string) bool { return n == words[2] })
	case line == "etcdctl member list":
		var items []any
		for i, name := range l.Members {
			if strings.HasPrefix(name, "10.") { // a member that was never started has its address only
				items = append(items, kube.Document{
					"ID": 0xfedcba9876543210 + uint64(i), "name": "",
					"peerURLs": []string{"https://" + name + ":2380"}, "isLearner": true,
				})
				continue
			}
			items = append(items, kube.Document{
				"ID": 0xfedcba9876543210 + uint64(i), "name": name,
				"clientURLs": []string{"https://" + name}, "peerURLs": []string{"https://" + name + ":2380"},
			})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"members": items})
	case strings.HasPrefix(line, "etcdctl endpoint health"):
		var items []any
		for _, name := range l.Members {
			items = append(items, kube.Document{"endpoint": "https://" + name, "health": !slices.Contains(l.Ill, name)})
		}
		return errors.Join(json.NewEncoder(cmd.Stdout).Encode(items), l.illness())
	case strings.HasPrefix(line, "etcdctl member remove "):
		for i := range l.Members {
			if last == fmt.Sprintf("%x", 0xfedcba9876543210+uint64(i)) {
				l.Members = slices.Delete(l.Members, i, i+1)
				break
			}
		}
	}
	return nil
}

// illness is how etcdctl ends where a member is ill.
func (l *livingCluster) illness() error {
	if len(l.Ill) == 0 {
		return nil
	}
	return &host.ExitError{Host: "cp", Args: []string{"etcdctl"}, Code: 1, Stderr: "unhealthy cluster"}
}

// Yes agrees to all changes.
func Yes([]string) error { return nil }
