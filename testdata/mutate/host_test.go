//go:build linux

package mutate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/look"
	"github.com/kkbundle/kkbundle/installer/nodes"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	helperBinary = "the helper"
	// verbLimit ends a verb that waits for a host to change: mutated hosts never do. The time in which it waits costs
	// no processor.
	verbLimit = 5 * time.Second
	// endlessAnswer is what a command prints that does not end by itself.
	endlessAnswer = 256 * mib
)

// answers are what commands print on a healthy control plane, by the words that their line has; the first that fits.
func answers(t *testing.T) [][2]string {
	t.Helper()
	ca, err := os.ReadFile("../../installer/sitetest/testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	list := func(items ...string) string {
		return `{"apiVersion":"v1","kind":"List","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
	}
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"cp1","labels":{"node-role.kubernetes.io/control-plane":""},"annotations":{"a":"b"}},"spec":{"podCIDR":"10.233.64.0/24","taints":[{"key":"node-role.kubernetes.io/control-plane","effect":"NoSchedule"}]},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"}],"capacity":{"cpu":"2","memory":"4Gi"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-22T10:00:00Z"}],"nodeInfo":{"kubeletVersion":"v1.34.3"},"images":[{"names":["a@sha256:0","a:1"],"sizeBytes":5}]}}`
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"coredns-x","namespace":"kube-system","ownerReferences":[{"kind":"ReplicaSet","name":"x","controller":true}]},"spec":{"nodeName":"cp1","containers":[{"name":"c","image":"i:1","env":[{"name":"PASSWORD","value":"x"}]}]},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"c","ready":true,"restartCount":3,"state":{"running":{"startedAt":"2026-11-22T10:00:00Z"}}}]}}`
	lease := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"kube-scheduler"},"spec":{"holderIdentity":"cp1","renewTime":"2026-11-22T10:00:00.000000Z"}}`
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kubeadm-config"},"data":{"ClusterConfiguration":"kubernetesVersion: v1.34.3\nnetworking: {podSubnet: 10.233.64.0/18}\n"}}`
	dns := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"coredns"},"spec":{"replicas":2},"status":{"readyReplicas":2}}`
	return [][2]string{
		{"etcdctl", `{"header":{"cluster_id":1,"member_id":2,"revision":5,"raft_term":2},"members":[{"ID":10276657743932975437,"name":"cp1","peerURLs":["https://10.0.0.3:2380"],"clientURLs":["https://10.0.0.3:2379"],"isLearner":false}]}`},
		{"get --raw", "[+]ping ok\n[-]etcd failed: reason withheld\nhealthz check failed\n"},
		{"nodes", list(node)},
		{"pods", list(pod)},
		{"ConfigMap", list(config, lease, dns)},
		{"secrets", "bootstrap-token-abcdef MjAyNi0xMS0yMlQxMDowMDowMFo=\n"},
		{"kubectl", list(node, pod, config, lease, dns)},
		{"uname", "x86_64\n"},
		{"id -u", "0\n"},
		{"/member", "site v1.34.3\nkubernetes.podCIDR 10.233.64.0/18\ncontrolPlaneEndpoint.address 10.0.0.3:6443\n"},
		{"ca.crt", string(ca)},
		{"admin.conf", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://10.0.0.3:6443\"}}]\nusers: [{name: u, user: {}}]\n"},
		{"instance-config", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"},
		{"ip -oneline", "2: eth0    inet 10.0.0.3/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever preferred_lft forever\n3: eth1    inet6 fe80::1/64 scope link \\ x\n"},
		{"ip ", "default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.3 metric 100\n"},
		{"ss ", "tcp LISTEN 0 4096 *:6443 *:* users:((\"kube-apiserver\",pid=1,fd=3))\n"},
		{"nft", "table ip nat {\n\tchain KUBE-SERVICES {\n\t}\n}\n"},
		{"iptables", "*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -j ACCEPT\nCOMMIT\n"},
		{"sysctl", "net.ipv4.ip_forward = 1\nvm.swappiness = 0\n"},
		{"systemctl", "ActiveState=active\nSubState=running\nLoadState=loaded\nUnitFileState=enabled\n"},
		{"ctr", "io.containerd.grpc.v1                     cri                      -              ok        \n"},
		{"crictl", `{"images":[{"id":"sha256:0","repoTags":["a:1"],"repoDigests":["a@sha256:0"],"size":"5"}],"containers":[],"items":[]}`},
		{"journalctl", "2026-11-22T04:59:56.020937+0000 cp1 containerd[839]: time=\"2026-11-22T04:59:56.020337878Z\" level=info msg=\"Pulled image \\\"registry.k8s.io/pause:3.10\\\" with image id \\\"sha256:48\\\", size \\\"31730407\\\" in 4.48s\"\n"},
		{"date", "1795186380.123456789\n"},
		{"df", "Filesystem 1B-blocks Used Available Use% Mounted on\n/dev/vda 1000000000 5 999999995 1% /\n"},
		{"fstab", "/dev/sda2 none swap sw 0 0\n"},
		{"mounts", "tmpfs /var/lib/kubelet/pods/x/volumes/y tmpfs rw 0 0\n"},
		{"swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 100 0 -2\n"},
		{"", "ok\n"},
	}
}

// A machine answers commands with mutations of what a control plane says.
type machine struct {
	answers [][2]string
	facts   [][]byte

	mu    sync.Mutex
	seed  uint64
	asked map[string]uint64 // how often, by the command's line
	rate  int               // one answer of so many is mutated
	did   string
}

// random returns the chance of a command's next answer. It depends on the seed and the command, and not on what is
// asked at the same time.
func (m *machine) random(line string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, line) // a hash: no error
	m.asked[line]++
	return rand.New(rand.NewPCG(m.seed, h.Sum64()+m.asked[line]))
}

// String implements host.Host.
func (m *machine) String() string { return "cp1" }

// Close implements host.Host.
func (m *machine) Close() error { return nil }

// Run implements host.Host.
func (m *machine) Run(ctx context.Context, cmd host.Cmd) error {
	if input, ok := cmd.Stdin.(host.ClosableReader); ok {
		defer func() { _ = input.CloseWithError(io.ErrClosedPipe) }()
		defer context.AfterFunc(ctx, func() { _ = input.CloseWithError(context.Cause(ctx)) })()
		go func() { _, _ = io.Copy(io.Discard, input) }() // a helper reads while it writes
	}
	args := host.WithoutText(cmd.Args)
	line := strings.Join(args, " ")
	if path.Base(args[0]) == "write-file.sh" || strings.HasPrefix(args[0], "put") { // files that the installer writes
		_, _ = io.Copy(io.Discard, orEmpty(cmd.Stdin))
		return m.print(ctx, cmd, args, []byte("changed\n"))
	}
	switch {
	case args[0] == "helper-sum.sh":
		sum := sha256.Sum256([]byte(helperBinary))
		return m.print(ctx, cmd, args, []byte(hex.EncodeToString(sum[:])+"\n"))
	case args[0] == host.HelperPath && args[1] == "facts":
		m.mu.Lock()
		facts := pick(m.random(line), m.facts...)
		m.mu.Unlock()
		return m.print(ctx, cmd, args, facts)
	case args[0] == host.HelperPath:
		return m.print(ctx, cmd, args, frame([]byte(`{"local":"10.0.0.3:40000","remote":"10.0.0.3:2381"}`),
			[]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+
				"etcd_server_has_leader 1\netcd_server_is_leader 1\netcd_server_version{server_version=\"3.5.1\"} 1\netcd_mvcc_db_total_size_in_bytes 1e+06\n{\"health\":\"true\"}"), nil))
	}
	for _, a := range m.answers {
		if strings.Contains(line, a[0]) {
			return m.print(ctx, cmd, args, []byte(a[1]))
		}
	}
	return nil
}

func orEmpty(r io.Reader) io.Reader {
	if r == nil {
		return bytes.NewReader(nil)
	}
	return r
}

// frame writes frames as the helper does.
func frame(list ...[]byte) []byte {
	var out []byte
	for _, data := range list {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(data))), data...)
	}
	return out
}

// print answers, with or without a mutation.
func (m *machine) print(ctx context.Context, cmd host.Cmd, args []string, answer []byte) error {
	m.mu.Lock()
	r := m.random(strings.Join(args, " "))
	name, status, endless := "", 0, []byte(nil)
	if r.IntN(m.rate) == 0 {
		switch r.IntN(16) {
		case 0:
			name, status = "exit code", pick(r, 1, 2, 66, 126, 127, 137, 255, -1)
		case 1:
			name, endless = "endless", []byte(strings.Repeat(pick(r, "x", "\n", "[", `{"a":`, "a b\n", "\x00", "{} "),
				16<<10))
		case 2: // few bytes of text, and large values of Go
			unit, list := pick(r, "{}", "null", "[]"), pick(r, `{"items":[`,
				`{"items":[{"kind":"Pod","spec":{"containers":[`, `{"items":[{"status":{"images":[`, `{"members":[`,
				`{"mounts":[`, `[`)
			name, answer = "many elements",
				[]byte(list+strings.Repeat(unit+",", 1<<(10+r.IntN(11)))+unit+strings.Repeat("]}",
					strings.Count(list, "[")-1)+pick(r, "]}", "}]}}]}"))
		case 3:
			other := pick(r, m.answers...)
			name, answer = "another command's answer", []byte(other[1])
		case 4:
			name, answer = "frame", append(binary.BigEndian.AppendUint32(nil, r.Uint32()>>r.IntN(32)), answer...)
		default:
			name, answer = mutateJSON(r, answer)
		}
		m.did = path.Base(args[0]) + ": " + name
	}
	m.mu.Unlock()
	if cmd.Stdout != nil {
		if _, err := cmd.Stdout.Write(answer); err != nil {
			return err
		}
		for sent := 0; len(endless) > 0 && sent < endlessAnswer && ctx.Err() == nil; sent += len(endless) {
			if _, err := cmd.Stdout.Write(endless); err != nil {
				return err
			}
		}
	}
	if cmd.Stderr != nil && status != 0 {
		_, _ = cmd.Stderr.Write(answer)
	}
	if status != 0 {
		return &host.ExitError{Host: "cp1", Args: args, Code: status, Stderr: string(answer[:min(len(answer), 4096)])}
	}
	return context.Cause(ctx)
}

func prepareHost(t *testing.T) func(context.Context, *rand.Rand, func()) string {
	inv, err := manifest.ParseInventory("inventory.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  cp1: {address: 10.0.0.3}\n  node1: {address: 10.0.0.4}\ngroups: {kube_control_plane: [cp1], kube_worker: [node1], image_registry: [cp1]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../installer/precheck/testdata/facts/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded facts: %v", err)
	}
	m := &machine{answers: answers(t), rate: 1 << 30}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m.facts = append(m.facts, data)
	}
	o := engine.Options{
		Cluster: tasktest.Cluster(t, ""), Inventory: inv,
		Dial:   func(context.Context, manifest.Host) (host.Host, error) { return m, nil },
		Helper: func(string) ([]byte, error) { return []byte(helperBinary), nil },
	}
	verbs := hostVerbs()
	whole := func() error {
		m.seed, m.asked = 1, map[string]uint64{}
		o := o
		o.WorkDir = filepath.Join(t.TempDir(), "work")
		status, err := look.Status(t.Context(), look.StatusOptions{Options: o, AnyCluster: true})
		if err == nil && len(status.Nodes) == 0 {
			err = fmt.Errorf("no node is found: %+v", status.Findings)
		}
		return err
	}
	if err := whole(); err != nil {
		t.Fatalf("without a mutation: %v", err)
	}
	return func(ctx context.Context, r *rand.Rand, ready func()) string {
		dir, err := os.MkdirTemp("", "host") //nolint:usetesting // removed after each mutation
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		o := o
		o.WorkDir = filepath.Join(dir, "work")
		v := pick(r, verbs...)
		m.mu.Lock()
		m.seed, m.asked, m.rate, m.did = r.Uint64(), map[string]uint64{}, 1<<r.IntN(6), "nothing"
		m.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, verbLimit)
		defer cancel()
		ready()          // answers are mutated when they are asked for
		_ = v.do(ctx, o) // an error is the right answer
		parseDocuments(m)
		m.mu.Lock()
		defer m.mu.Unlock()
		return v.name + ", " + m.did
	}
}

// A hostVerb is a command that asks hosts.
type hostVerb struct {
	name string
	do   func(ctx context.Context, o engine.Options) error
}

func hostVerbs() []hostVerb {
	return []hostVerb{
		{"status", func(ctx context.Context, o engine.Options) error {
			_, err := look.Status(ctx, look.StatusOptions{Options: o, AnyCluster: true})
			return err
		}},
		{"precheck", func(ctx context.Context, o engine.Options) error {
			_, err := begin.Precheck(ctx, o)
			return err
		}},
		{"certs", func(ctx context.Context, o engine.Options) error {
			_, err := rotate.Certificates(ctx, o)
			return err
		}},
		{"certs backup", func(ctx context.Context, o engine.Options) error {
			_, err := rotate.Keys(ctx, o)
			return err
		}},
		{"support-bundle", func(ctx context.Context, o engine.Options) error {
			_, err := look.WriteSupportBundle(ctx, look.SupportOptions{StatusOptions: look.StatusOptions{
				Options:    o,
				AnyCluster: true,
			}, Values: true}, io.Discard)
			return err
		}},
		{"reset --dry-run", func(ctx context.Context, o engine.Options) error {
			o.DryRun = true
			return reset.Reset(ctx, o)
		}},
		{"nodes delete", func(ctx context.Context, o engine.Options) error {
			_, err := nodes.Delete(ctx, o, nodes.Deletion{Hosts: []string{"node1"}},
				func([]string) error { return nil })
			return err
		}},
		{"reset", reset.Reset},
	}
}

// parseDocuments calls the parsers of answers that only an installation meets.
func parseDocuments(m *machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.random("documents")
	_, data := mutateBytes(r, []byte(pick(r, m.answers...)[1]))
	engine.ParsePulls("cp1", string(data))
	task.ParseSysctl(data)
	_, _ = kube.ParseManifest(data)
}
