//go:build linux

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fault is what is wrong with a simulated host.
type fault struct {
	name string
	// want is what the report says of the host.
	want string
	// slow faults show after seconds.
	slow bool
	// leaves means that the helper cannot be removed.
	leaves bool
	before func(ctx context.Context, args []string, stderr io.Writer) int
	// address makes the host's address instead of a server.
	address func(t *testing.T) (string, int)
}

func faults() []fault {
	hangAt := func(program string) func(context.Context, []string, io.Writer) int {
		return func(ctx context.Context, args []string, _ io.Writer) int {
			if strings.HasSuffix(strings.Join(args, " "), program) {
				<-ctx.Done()
				return 1
			}
			return 0
		}
	}
	failAt := func(sign string, code int, said string) func(context.Context, []string, io.Writer) int {
		return func(_ context.Context, args []string, stderr io.Writer) int {
			if strings.Contains(strings.Join(args, " "), sign) {
				_, _ = io.WriteString(stderr, said)
				return code
			}
			return 0
		}
	}
	return []fault{
		{name: "refused", want: "connection refused", address: closedPort},
		{name: "killed", want: "exit code 137", before: failAt("kkbundle-node facts", 137, "\x1b[2JKilled")},
		{name: "full", want: "No space left on device", before: failAt("write-file.sh", 1,
			"cat: write error: No space left on device")},
		{name: "filtered", want: "no answer within 5s", slow: true, address: filteredPort},
		{name: "silent", want: "did not finish the SSH handshake", slow: true, address: silentPort},
		{
			name: "hangs at login", want: "login succeeded, but the server refused to run commands", slow: true,
			before: hangAt("id -u"),
		},
		{
			name: "hangs at facts", want: "no result within 20s", slow: true, leaves: true,
			before: hangAt("kkbundle-node facts"),
		},
	}
}

// boundPort takes a port on which nobody listens.
func boundPort(t *testing.T) (fd, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	name, nameErr := syscall.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		t.Fatal(err)
	}
	return fd, name.(*syscall.SockaddrInet4).Port
}

func closedPort(t *testing.T) (string, int) {
	t.Helper()
	_, port := boundPort(t)
	return "127.0.0.1", port
}

func silentPort(t *testing.T) (string, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "127.0.0.1", l.Addr().(*net.TCPAddr).Port
}

// filteredPort is one whose kernel drops what wants to connect, because the queue of those that do is full.
func filteredPort(t *testing.T) (string, int) {
	t.Helper()
	fd, port := boundPort(t)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)) // takes the only place
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return "127.0.0.1", port
}

// A fleet is many simulated hosts.
type fleet struct {
	inventory *manifest.Inventory
	options   map[string]host.SSHOptions
	machines  map[string]*hosttest.Simulated // those that have a server
	faults    map[string]fault               // those that are not well

	open, most atomic.Int64 // connections to hosts
	dials      atomic.Int64
}

// newFleet makes hosts that are well, and as many that are not, in turn of every fault.
func newFleet(t *testing.T, well, ill int, kinds []fault) *fleet {
	t.Helper()
	f := &fleet{
		options: map[string]host.SSHOptions{}, machines: map[string]*hosttest.Simulated{},
		faults: map[string]fault{},
	}
	var text strings.Builder
	text.WriteString("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n")
	var names []string
	for i := range well + ill {
		name := fmt.Sprintf("node%d", i+1)
		address := fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250)
		names = append(names, name)
		m := &hosttest.Simulated{Facts: factsOf(t, name, address)}
		o := host.SSHOptions{Name: name}
		if i >= well {
			kind := kinds[(i-well)%len(kinds)]
			f.faults[name], m.Before = kind, kind.before
			if kind.address != nil {
				o.Address, o.Port = kind.address(t)
			}
		}
		if o.Address == "" {
			s := hosttest.Start(t, hosttest.Options{Address: address, Exec: m.Exec})
			o.Address, o.Port, o.Keys, o.KnownHosts = s.Host, s.Port, []string{s.KeyFile}, []string{s.KnownHosts}
			f.machines[name] = m
		}
		if !f.faults[name].slow {
			o.Patience = time.Hour // a busy machine
		}
		f.options[name] = o
		fmt.Fprintf(&text, "  %s: {address: %s, internalIPv4: 10%s}\n", name, address,
			strings.TrimPrefix(address, "127"))
	}
	fmt.Fprintf(&text, "groups: {kube_control_plane: [node1], image_registry: [node1], kube_worker: [%s]}\n",
		strings.Join(names[1:], ", "))
	var err error
	if f.inventory, err = manifest.ParseInventory("inventory.yaml", []byte(text.String())); err != nil {
		t.Fatal(err)
	}
	return f
}

// factsOf are those of a real machine, with another name.
func factsOf(t *testing.T, name, address string) []byte {
	t.Helper()
	data, err := os.ReadFile("precheck/testdata/facts/debian-12.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts node.Facts
	if err := json.Unmarshal(data, &facts); err != nil {
		t.Fatal(err)
	}
	facts.Hostname, facts.MachineID = name, name+address
	if data, err = json.Marshal(facts); err != nil {
		t.Fatal(err)
	}
	return data
}

func (f *fleet) dial(ctx context.Context, h manifest.Host) (host.Host, error) {
	o := f.options[h.Name]
	o.Net = func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		f.dials.Add(1)
		f.most.Store(max(f.most.Load(), f.open.Add(1)))
		return &countedConn{Conn: c, open: &f.open}, nil
	}
	return host.Dial(ctx, o)
}

type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// mostMemory runs something and returns how much memory there was at most.
func mostMemory(do func()) (memory uint64) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			memory = max(memory, m.HeapInuse+m.StackInuse)
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return memory
}

// precheck looks at the fleet and says how long it took and how much memory there was at most, servers included.
func (f *fleet) precheck(t *testing.T, helper []byte) (report precheck.Report, took time.Duration, memory uint64) {
	t.Helper()
	start := time.Now()
	var err error
	memory = mostMemory(func() {
		report, err = begin.Precheck(t.Context(), engine.Options{
			Cluster:   tasktest.Cluster(t, "kubernetes: {version: v1.34.3, podCIDR: 10.32.0.0/11}"),
			Inventory: f.inventory, WorkDir: filepath.Join(t.TempDir(), "work"),
			Dial: f.dial, Helper: func(string) ([]byte, error) { return helper, nil },
		})
	})
	took = time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	return report, took, memory
}

// check compares the report with what is wrong with the hosts, and looks that nothing was left on them.
func (f *fleet) check(t *testing.T, report precheck.Report) {
	t.Helper()
	lost := map[string]string{}
	seen := map[string]int{}
	for _, r := range report.Results {
		seen[r.Host]++
		if r.ID == "reachable" && !r.OK {
			lost[r.Host] = r.Found
		}
	}
	for name := range f.options {
		kind, ill := f.faults[name]
		if said, unreachable := lost[name]; ill != unreachable || !strings.Contains(said, kind.want) {
			t.Errorf("%s (%s): %q, want %q", name, kind.name, said, kind.want)
		}
		if !ill && seen[name] < 10 {
			t.Errorf("%s is well and has only %d results", name, seen[name])
		}
		if m := f.machines[name]; m != nil && m.HasHelper() != kind.leaves {
			t.Errorf("%s (%s): has the helper: %v", name, kind.name, m.HasHelper())
		}
	}
	if f.open.Load() != 0 {
		t.Errorf("%d connections are left open", f.open.Load())
	}
}

// TestFleet has some hosts, of which some are not well. KKBUNDLE_BIG=1 has 200, of which 100 are down or hang.
func TestFleet(t *testing.T) {
	t.Parallel()
	well, ill := 8, 3
	kinds := slices.DeleteFunc(faults(), func(f fault) bool { return f.slow })
	helper := bytes.Repeat([]byte("helper"), 1<<10)
	if os.Getenv("KKBUNDLE_BIG") == "1" {
		well, ill, kinds = 100, 100, faults()
		helper = bytes.Repeat([]byte("helper"), 1<<20)
	}
	f := newFleet(t, well, ill, kinds)
	report, took, memory := f.precheck(t, helper)
	f.check(t, report)
	t.Logf("%d hosts, %d of them not well: %s, %d MiB at most with the servers, %d connections at most", well+ill, ill,
		took.Round(time.Millisecond), memory>>20, f.most.Load())
}

// TestLargeFleet has more hosts than connections are kept to.
func TestLargeFleet(t *testing.T) {
	if os.Getenv("KKBUNDLE_BIG") != "1" {
		t.Skip("takes a minute: set KKBUNDLE_BIG=1")
	}
	for _, hosts := range []int{250, 1000} {
		f := newFleet(t, hosts, 0, nil)
		report, took, memory := f.precheck(t, []byte("helper"))
		f.check(t, report)
		if most := f.most.Load(); most > engine.MaxConnections {
			t.Errorf("%d connections at the same time, want %d at most", most, engine.MaxConnections)
		}
		t.Logf("%d hosts: %s, %d MiB at most with the servers, %d connections at most, %d in all", hosts,
			took.Round(time.Millisecond), memory>>20, f.most.Load(), f.dials.Load())
	}
}

// TestLazyHost reconnects after CloseWhenIdle, and never after Close.
func TestLazyHost(t *testing.T) {
	t.Parallel()
	dials := make(chan *heldHost, 2)
	h := &engine.LazyHost{Name: "node1", Dial: func(context.Context) (host.Host, error) {
		on := &heldHost{running: make(chan struct{}), end: make(chan struct{})}
		dials <- on
		return on, nil
	}}
	for range 2 {
		done := make(chan error, 1)
		go func() { done <- h.Run(t.Context(), host.Cmd{}) }()
		on := <-dials
		<-on.running
		h.CloseWhenIdle()
		if on.closed.Load() {
			t.Error("the connection was ended under a command")
		}
		close(on.end)
		if err := <-done; err != nil || !on.closed.Load() {
			t.Errorf("%v, closed %v, want the connection ended after the command", err, on.closed.Load())
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	var gone *host.UnreachableError
	if err := h.Run(t.Context(), host.Cmd{}); !errors.As(err, &gone) || gone.Host != "node1" {
		t.Errorf("given up: %v", err)
	}
}

// A heldHost runs a command until it is told to end.
type heldHost struct {
	running, end chan struct{}
	closed       atomic.Bool
}

func (*heldHost) String() string { return "node1" }

func (h *heldHost) Run(context.Context, host.Cmd) error {
	close(h.running)
	<-h.end
	return nil
}

func (h *heldHost) Close() error {
	h.closed.Store(true)
	return nil
}

// A slowHost runs no more than it is let, and counts how many hosts are at work.
type slowHost struct {
	host.Host
	hangs bool
	let   <-chan struct{}
	busy  *atomic.Int64
	most  *atomic.Int64
}

func (h *slowHost) Run(ctx context.Context, cmd host.Cmd) error {
	h.most.Store(max(h.most.Load(), h.busy.Add(1)))
	defer h.busy.Add(-1)
	if h.hangs && slices.Contains(cmd.Args, "restart") {
		<-h.let
	}
	return h.Host.Run(ctx, cmd)
}

// installFleet brings hosts what makes nodes of them. Those that hang begin to work again when all others are done.
func installFleet(t *testing.T, hosts, hanging int, content func(name string) []byte) (memory uint64,
	busyFor time.Duration,
) {
	t.Helper()
	names := []string{"cp1"}
	for i := 1; i < hosts; i++ {
		names = append(names, fmt.Sprintf("node%d", i))
	}
	s := sitetest.NewSite(t, names...)
	let := make(chan struct{})
	var busy, most, left atomic.Int64
	left.Store(int64(hosts - hanging))
	s.Options.Progress = func(e task.Event) {
		if e.Task == "kubelet" && e.State == task.Changed && left.Add(-1) == 0 {
			close(let)
		}
	}
	r := s.Run(t, sitetest.BundleWith(t, s.Options.Cluster, content))
	for i, target := range r.Hosts {
		target.Conn = &slowHost{Host: target.Conn, hangs: i > 0 && i <= hanging, let: let, busy: &busy, most: &most}
	}
	c := s.Options.Cluster
	phases := []task.Phase{
		{Name: "init", Tasks: []task.Task{siteregistry.CertificatesTask(), machine.HostsTask(), machine.SwapTask(c)}},
		{Name: "install", Tasks: []task.Task{cri.ContainerdTask(), kubeadm.KubeletTask(c)}},
	}
	begin, before := time.Now(), processorTime(t)
	var err error
	memory = mostMemory(func() { err = r.Phases(t.Context(), phases) })
	busyFor = processorTime(t) - before
	if err != nil {
		t.Fatal(err)
	}
	if most.Load() > engine.DefaultHosts {
		t.Errorf("%d hosts are worked on at the same time, want %d at most", most.Load(), engine.DefaultHosts)
	}
	for name, h := range s.Hosts {
		if h.Content("/usr/local/bin/kubelet") == "" || h.Content("/etc/containerd/config.toml") == "" {
			t.Errorf("%s has no kubelet or no containerd", name)
		}
	}
	t.Logf("%d hosts, %d of them hang until the others are done: %s, %d MiB at most with the hosts' side, %d hosts at a time", hosts, hanging,
		time.Since(begin).Round(time.Millisecond), memory>>20, most.Load())
	return memory, busyFor
}

// TestInstallFleet holds that hosts that hang keep nobody waiting. KKBUNDLE_BIG=1 has 20 and 200, and programs of 4
// MiB.
func TestInstallFleet(t *testing.T) {
	t.Parallel()
	content := func(name string) []byte { return sitetest.FileContent(t, tasktest.Cluster(t, ""), name) }
	if os.Getenv("KKBUNDLE_BIG") != "1" {
		installFleet(t, 6, 2, content)
		return
	}
	large := func(name string) []byte {
		data := content(name)
		if bytes.HasPrefix(data, []byte("#!")) {
			data = append(data, bytes.Repeat([]byte("0123456789abcde\n"), 1<<18)...)
		}
		return data
	}
	few, _ := installFleet(t, 20, 2, large)
	many, _ := installFleet(t, 200, 10, large)
	// Beside what is worked on there is what is known of each host.
	const known = 64 << 20
	if many > 2*few+known {
		t.Errorf("%d MiB with 20 hosts, %d MiB with 200", few>>20, many>>20)
	}
}

// TestOwnTime measures how much of the processor each host costs, its own side included: as much among 500 as among 10.
func TestOwnTime(t *testing.T) {
	if os.Getenv("KKBUNDLE_BIG") != "1" {
		t.Skip("it only measures, for minutes: KKBUNDLE_BIG=1 runs it")
	}
	var first time.Duration
	for _, hosts := range []int{10, 100, 500} {
		_, busy := installFleet(t, hosts, 0,
			func(name string) []byte { return sitetest.FileContent(t, tasktest.Cluster(t, ""), name) })
		each := busy / time.Duration(hosts)
		t.Logf("%d hosts: %s of processor time for each", hosts, each.Round(time.Millisecond))
		if first == 0 {
			first = each
		}
		if each > first+first/5 {
			t.Errorf("%s for each of %d hosts, %s among 10", each, hosts, first)
		}
	}
}

// processorTime returns the processor time of this process.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
