//go:build linux

package handover_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/installer/handover"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

const config = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: site
kubernetesVersion: v1.36.3
controlPlaneEndpoint: 10.0.0.3:6443
certificatesDir: /etc/kubernetes/pki
encryptionAlgorithm: RSA-2048
imageRepository: registry.k8s.io
networking: {dnsDomain: cluster.local, podSubnet: 10.233.64.0/18, serviceSubnet: 10.233.0.0/18}
dns: {imageTag: v1.14.2}
proxy: {}
scheduler: {}
controllerManager:
  extraArgs: [{name: profiling, value: "false"}]
apiServer:
  extraArgs: [{name: encryption-provider-config, value: /etc/kubernetes/security/encryption.yaml}]
  extraVolumes:
  - {name: kkbundle-security, hostPath: /etc/kubernetes/security, mountPath: /etc/kubernetes/security, pathType: Directory, readOnly: true}
  - {name: kkbundle-audit, hostPath: /var/log/kubernetes/audit, mountPath: /var/log/kubernetes/audit, pathType: DirectoryOrCreate}
etcd: {local: {dataDir: /var/lib/etcd, imageTag: 3.6.8-0}}
`

func target() handover.Target {
	return handover.Target{Namespace: "pool", Bundle: "site", RegistrySecret: "registry", Login: "login"}
}

// running returns a site with a cluster of a control plane and a worker. edit changes what its nodes are, and kubeadm's
// configuration.
func running(t *testing.T, edit func(nodes map[string]kube.Document, config *string)) *sitetest.Site {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"+
		"  cp1: {address: 10.0.0.3, ssh: {user: ops}}\n  node1: {address: 192.0.2.4, internalIPv4: 10.0.0.4, ssh: {user: ops, port: 2222}}\n"+
		"groups: {kube_control_plane: [cp1], kube_worker: [node1]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.36.3}\nimageRegistry: {type: existing, address: registry.site:5000}\ncni: {type: none}\n")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
	s.Dialing("")
	nodes := map[string]kube.Document{}
	for _, name := range []string{"cp1", "node1"} {
		nodes[name] = kube.Document{
			"metadata": kube.Document{"name": name}, "spec": kube.Document{},
			"status": kube.Document{
				"conditions": []any{kube.Document{"type": "Ready", "status": "True"}},
				"nodeInfo":   kube.Document{"architecture": "amd64", "kubeletVersion": "v1.36.3"},
			},
		}
	}
	nodes["cp1"]["spec"] = kube.Document{"taints": []any{kube.Document{"key": kube.ControlPlaneLabel, "effect": "NoSchedule"}}}
	text := config
	if edit != nil {
		edit(nodes, &text)
	}
	record := string(member.File(s.Run(t, nil).Site).Data)
	for name, h := range s.Hosts {
		h.Put(t, member.Path, record)
		h.Put(t, "/etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAA"+name+" root@"+name+"\n")
		h.Answer("uname", func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, "x86_64\n")
			return err
		})
		h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
			switch line := strings.Join(cmd.Args, " "); {
			case strings.Contains(line, "get nodes "):
				var items []any
				for _, name := range []string{"cp1", "node1", "node2"} {
					if nodes[name] != nil {
						items = append(items, nodes[name])
					}
				}
				return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
			case strings.Contains(line, "kubeadm-config"):
				return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"data": kube.Document{"ClusterConfiguration": text}})
			}
			return nil
		})
	}
	cp := s.Hosts["cp1"]
	for _, name := range []string{"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key"} {
		cp.Put(t, kube.PKIDir+"/"+name, "PEM of "+name+"\n")
	}
	cp.Put(t, "/etc/kubernetes/security/encryption.yaml", "the key of Secrets\n")
	cp.Put(t, kubeadm.PatchesDir+"/"+kubeadm.HostPatch, "of this host\n")
	for _, name := range []string{kubeadm.ReservationPatch, "kube-apiserver%kkbundle+strategic.yaml", "etcd%kkbundle+strategic.yaml"} {
		cp.Put(t, kubeadm.PatchesDir+"/"+name, "by the memory of this host\n")
	}
	cp.Put(t, kubeadm.PatchesDir+"/kubeletconfiguration+merge.yaml", "maxPods: 200\n")
	return s
}

// TestObjects: the objects are those of testdata, which the provider's tests give to Cluster API's own code. The hosts
// get their marks and nothing else, and lose them by Undo.
func TestObjects(t *testing.T) {
	t.Parallel()
	s := running(t, nil)
	before := s.Hosts["cp1"].Tree(t) + s.Hosts["node1"].Tree(t)
	_, data, err := handover.Write(t.Context(), s.Options, target())
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "objects.yaml", data)
	for name, h := range s.Hosts {
		if got := h.Content(marks.Owner); got != "pool/site/"+name+"\n" {
			t.Errorf("the mark of %s is %q", name, got)
		}
	}
	if _, again, err := handover.Write(t.Context(), s.Options, target()); err != nil || string(again) != string(data) {
		t.Errorf("again: %v, and other objects", err)
	}
	other := target()
	other.Namespace = "other"
	var owned *begin.OwnedError
	if _, _, err := handover.Write(t.Context(), s.Options, other); !errors.As(err, &owned) {
		t.Errorf("a host of another machine: %v", err)
	}
	if _, err := handover.Undo(t.Context(), s.Options, target()); err != nil {
		t.Fatal(err)
	}
	if after := s.Hosts["cp1"].Tree(t) + s.Hosts["node1"].Tree(t); without(before) != without(after) {
		t.Errorf("hosts are not as they were:\n%s\n%s", before, after)
	}
}

// TestUndoAtWork: a cluster that was unpaused stays the management cluster's.
func TestUndoAtWork(t *testing.T) {
	t.Parallel()
	s := running(t, func(nodes map[string]kube.Document, _ *string) {
		nodes["node1"]["spec"].(kube.Document)["providerID"] = "kk:///pool/node1"
	})
	s.Hosts["cp1"].Put(t, marks.Owner, "pool/site/cp1\n")
	var atWork *handover.AtWorkError
	if _, err := handover.Undo(t.Context(), s.Options, target()); !errors.As(err, &atWork) || !slices.Equal(atWork.Nodes, []string{"node1"}) {
		t.Errorf("undone under a management cluster at work: %v", err)
	}
	if s.Hosts["cp1"].Content(marks.Owner) == "" {
		t.Error("the mark is gone")
	}
}

// TestHandedOver: what changes a cluster refuses one that was handed over, also in part, and says how to go on there.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	snapshot := filepath.Join(t.TempDir(), "etcd.db")
	if err := os.WriteFile(snapshot, sitetest.EtcdCopy("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(s *sitetest.Site) error{
		"install, nodes and upgrade": func(s *sitetest.Site) error {
			return begin.CheckMembers(t.Context(), s.Run(t, nil))
		},
		"certs rotate-ca": func(s *sitetest.Site) error {
			_, err := rotate.Authorities(t.Context(), rotate.AuthorityOptions{Options: s.Options, Agree: sitetest.Yes})
			return err
		},
		"secrets rotate-key": func(s *sitetest.Site) error {
			_, err := rotate.EncryptionKey(t.Context(), s.Options)
			return err
		},
		"endpoint move": func(s *sitetest.Site) error {
			_, err := rotate.MoveEndpoint(t.Context(), s.Options, sitetest.Yes)
			return err
		},
		"registry rotate-login": func(s *sitetest.Site) error {
			s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.36.3}\nimageRegistry: {type: registry}\ncni: {type: none}\n")
			_, err := rotate.Logins(t.Context(), s.Options, siteregistry.Logins{Pull: true})
			return err
		},
		"etcd restore": func(s *sitetest.Site) error {
			_, err := etcdops.Restore(t.Context(), s.Options, etcdops.RestoreOptions{From: snapshot})
			return err
		},
		"etcd defrag": func(s *sitetest.Site) error {
			_, err := etcdops.Defrag(t.Context(), s.Options, true)
			return err
		},
	} {
		for _, marked := range []string{"cp1", "node1"} {
			if marked == "node1" && strings.HasPrefix(name, "etcd ") {
				continue // it asks hosts of etcd alone
			}
			t.Run(name+" "+marked, func(t *testing.T) {
				t.Parallel()
				s := running(t, nil)
				s.Hosts[marked].Put(t, marks.Owner, "pool/site/"+marked+"\n")
				var owned *begin.OwnedError
				if err := do(s); !errors.As(err, &owned) || owned.Host != marked {
					t.Fatalf("a person changes a cluster that was handed over: %v", err)
				}
				if hint := owned.Hint(); !strings.Contains(hint, "handover --undo") || strings.Contains(hint, "delete that Machine") {
					t.Errorf("the remedy: %s", hint)
				}
			})
		}
	}
}

// without leaves out the lock, which every run makes.
func without(tree string) string {
	var kept []string
	for line := range strings.Lines(tree) {
		if strings.HasPrefix(line, "/") && strings.Contains(line, "/etc/") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestRefused: what cannot be handed over is said with its place before a host is marked.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		edit func(nodes map[string]kube.Document, config *string)
		more func(s *sitetest.Site)
		want []string
	}{
		"nodes": {
			edit: func(nodes map[string]kube.Document, config *string) {
				status := nodes["cp1"]["status"].(kube.Document)
				status["nodeInfo"].(kube.Document)["kubeletVersion"] = "v1.35.4"
				nodes["cp1"]["spec"].(kube.Document)["providerID"] = "aws:///a/i-1"
				nodes["node2"] = kube.Document{"metadata": kube.Document{"name": "node2"}}
				delete(nodes, "node1")
				*config += "newPart: 1\ncertificateValidityPeriod: 87600h0m0s\ncaCertificateValidityPeriod: 876000h0m0s\n"
			},
			want: []string{
				"cp1: its kubelet has v1.35.4", "cp1: its node has the providerID aws:///a/i-1",
				"node1: the cluster has no node of this name", "node node2: it is in the cluster and not in the inventory",
				"ClusterConfiguration has newPart",
				"certificateValidityPeriod is 87600h0m0s, and Cluster API has whole days, from 24h to 26280h",
			},
		},
		"an authority is elsewhere": {
			more: func(s *sitetest.Site) { s.Hosts["cp1"].Put(t, kube.PKIDir+"/ca.key", "") },
			want: []string{"/etc/kubernetes/pki/ca.key: it is missing"},
		},
		"the cluster file": {
			more: func(s *sitetest.Site) {
				s.Options.Cluster.Etcd.Type = manifest.EtcdExternal
				s.Options.Cluster.ImageRegistry.Type = manifest.RegistryNone
				s.Options.Cluster.CRI.RuntimeClasses = []manifest.RuntimeClass{{Name: "kata"}}
			},
			want: []string{"etcd.type: external", "imageRegistry: the address of the registry", "cri.runtimeClasses: nodes lose"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := running(t, one.edit)
			if one.more != nil {
				one.more(s)
			}
			err := handover.Fits(t.Context(), s.Options, target())
			if err == nil {
				_, _, err = handover.Write(t.Context(), s.Options, target())
			}
			var refused *handover.RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("%v", err)
			}
			for _, want := range one.want {
				if !slices.ContainsFunc(refused.Causes, func(c string) bool { return strings.Contains(c, want) }) {
					t.Errorf("%q is not among\n%s", want, strings.Join(refused.Causes, "\n"))
				}
			}
			if len(refused.Causes) != len(one.want) {
				t.Errorf("%d causes, want %d:\n%s", len(refused.Causes), len(one.want), strings.Join(refused.Causes, "\n"))
			}
			if mark := s.Hosts["cp1"].Content(marks.Owner); mark != "" {
				t.Errorf("a host is marked: %q", mark)
			}
		})
	}
}
