package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/wire"
)

// asHelper makes this test program do what kkbundle-node does, for tests that need the helper in another namespace or
// want to kill it.
const asHelper = "KKBUNDLE_TEST_HELPER"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(asHelper) {
	case "":
		os.Exit(m.Run()) //nolint:forbidigo // this is main
	case "listen":
		err = ServeListen(context.Background(), os.Stdin, os.Stdout)
	case "reach":
		err = ServeReach(context.Background(), os.Stdin, os.Stdout)
	case "sets":
		err = destroySets(os.Stdout)
	case "facts":
		var p Probe
		if p, err = ReadProbe(os.Stdin); err == nil {
			var f Facts
			f, err = Collect(context.Background(), p)
			err = firstError(err, json.NewEncoder(os.Stdout).Encode(f))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// A netns is a network namespace that lives as long as a process of the test.
type netns struct{ pid int }

// newNetns makes one; it ends with the test, and also if the test is killed.
func newNetns(t *testing.T) netns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("a network namespace cannot be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	n := netns{cmd.Process.Pid}
	n.run(t, "ip link set lo up")
	return n
}

func (n netns) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(n.pid), "-n", "--"}, args...)...)
}

// run runs commands in the namespace, one a line.
func (n netns) run(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if out, err := n.command(strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// connect makes an Ethernet between two namespaces, and gives its ends their names.
func connect(t *testing.T, a netns, nameA string, b netns, nameB string) {
	t.Helper()
	a.run(t, "ip link add "+nameA+" type veth peer name "+nameB+" netns "+strconv.Itoa(b.pid), "ip link set "+nameA+
		" up")
	b.run(t, "ip link set "+nameB+" up")
}

// helper is the program in a namespace.
func (n netns) helper(mode string) *exec.Cmd {
	cmd := n.command(os.Args[0])
	cmd.Env = append(os.Environ(), asHelper+"="+mode)
	return cmd
}

type streams struct {
	io.Reader
	io.Writer
}

// listen listens there until the test ends.
func (n netns) listen(t *testing.T, l Listen) Listening {
	t.Helper()
	cmd := n.helper("listen")
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := firstError(err, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("listener: %v: %s", err, &said)
		}
	})
	answer, err := AskListen(streams{out, in}, l)
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	for _, p := range answer.Ports {
		if p.Taken || p.Problem != "" {
			t.Errorf("not listening: %+v", p)
		}
	}
	return answer
}

func (n netns) reach(t *testing.T, r Reach) []ReachedTarget {
	t.Helper()
	var question bytes.Buffer
	if err := wire.WriteMessage(&question, r); err != nil {
		t.Fatal(err)
	}
	cmd := n.helper("reach")
	cmd.Stdin = &question
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer Reached
	if err := wire.ReadMessage(bytes.NewReader(out), &answer, wire.MaxAnswer); err != nil {
		t.Fatal(err)
	}
	return answer.Targets
}

func (n netns) facts(t *testing.T, p Probe) Facts {
	t.Helper()
	question, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.helper("facts")
	cmd.Stdin = bytes.NewReader(question)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var f Facts
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func target(address, network string, port int) ReachTarget {
	return ReachTarget{Address: netip.MustParseAddr(address), ListenPort: ListenPort{network, port}, MTU: true}
}

// TestSmallerMTUBetween has a router between two hosts, one of whose links takes smaller packets than the hosts know.
func TestSmallerMTUBetween(t *testing.T) {
	t.Parallel()
	a, router, b := newNetns(t), newNetns(t), newNetns(t)
	connect(t, a, "eth0", router, "to-a")
	connect(t, b, "eth0", router, "to-b")
	router.run(t, "sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv6.conf.all.forwarding=1",
		"ip addr add 10.1.0.254/24 dev to-a", "ip addr add 10.2.0.254/24 dev to-b", "ip link set to-b mtu 1337",
		"ip addr add fd01::fe/64 dev to-a nodad", "ip addr add fd02::fe/64 dev to-b nodad",
		"ip route add blackhole 10.2.0.66/32")
	a.run(t, "ip addr add 10.1.0.1/24 dev eth0", "ip route add default via 10.1.0.254",
		"ip addr add fd01::1/64 dev eth0 nodad", "ip route add default via fd01::fe")
	b.run(t, "ip addr add 10.2.0.1/24 dev eth0", "ip route add default via 10.2.0.254",
		"ip addr add fd02::1/64 dev eth0 nodad", "ip route add default via fd02::fe")

	token := NewToken()
	both := []ListenPort{{"tcp", 6443}, {"udp", 8472}}
	b.listen(t, Listen{Token: token, Address: netip.MustParseAddr("10.2.0.1"), Ports: both})
	b.listen(t, Listen{Token: token, Address: netip.MustParseAddr("fd02::1"), Ports: both})
	got := a.reach(t, Reach{Token: token, Targets: []ReachTarget{
		target("10.2.0.1", "udp", 8472), target("fd02::1", "udp", 8472), target("10.2.0.1", "tcp", 6443),
		target("10.2.0.1", "tcp", 7000), target("10.2.0.1", "udp", 7000), target("10.2.0.66", "tcp", 6443),
		target("10.1.0.254", "tcp", 1),
	}})
	want := []ReachedTarget{
		{OK: true, MTU: 1337, Want: 1500},
		{OK: true, MTU: 1337, Want: 1500},
		{OK: true, MTU: 1337, Want: 1500},
		{Problem: "refused", MTU: 1337, Want: 1500},
		{Problem: "refused"},
		{Problem: "timeout"},
		{Problem: "refused", MTU: 1500, Want: 1500},
	}
	for i, g := range got {
		if g != want[i] {
			t.Errorf("%d: %+v, want %+v", i, g, want[i])
		}
	}
	// Somebody who does not know the token gets no answer, and is not taken for the right one.
	got = a.reach(t, Reach{Token: NewToken(), Targets: []ReachTarget{
		target("10.2.0.1", "udp", 8472),
		target("10.2.0.1", "tcp", 6443),
	}})
	if got[0].Problem != "timeout" || got[1].Problem != errOther.Error() {
		t.Errorf("with another token: %+v", got)
	}
}

// TestVacant asks for addresses on a network where another machine has one.
func TestVacant(t *testing.T) {
	t.Parallel()
	a, b := newNetns(t), newNetns(t)
	connect(t, a, "eth0", b, "eth0")
	a.run(t, "ip addr add 10.1.0.1/24 dev eth0", "ip addr add fd01::1/64 dev eth0 nodad",
		"ip link add old0 type bridge")
	b.run(t, "ip addr add 10.1.0.100/24 dev eth0", "ip addr add fd01::100/64 dev eth0 nodad",
		"ip link set eth0 address 02:00:00:00:00:0b")
	var probe Probe
	for _, address := range []string{
		"10.1.0.100", "fd01::100", "10.1.0.101", "fd01::101", "10.1.0.1", "10.9.0.1",
		"0.0.0.0",
	} {
		probe.Vacant = append(probe.Vacant, netip.MustParseAddr(address))
	}
	f := a.facts(t, probe)
	v := f.Vacant
	for i, used := range []bool{true, true, false, false, false, false, false} {
		if v[i].InUse() != used || v[i].Address != probe.Vacant[i] {
			t.Errorf("%s: %+v", probe.Vacant[i], v[i])
		}
	}
	for _, one := range v[:2] {
		if len(one.MACs) != 1 || one.MACs[0] != "02:00:00:00:00:0b" || !one.Ping || !one.Asked ||
			one.Interface != "eth0" || one.Problem != "" {
			t.Errorf("in use: %+v", one)
		}
	}
	if !v[2].Asked || !v[3].Asked || v[2].Ping || !v[4].Own || v[5].Asked || v[5].Problem == "" || v[6].Problem == "" {
		t.Errorf("not in use: %+v", v[2:])
	}
	kinds := map[string]string{}
	for _, i := range f.Interfaces {
		kinds[i.Name] = i.Kind
	}
	if kinds["eth0"] != "veth" || kinds["old0"] != "bridge" {
		t.Errorf("interfaces: %+v", f.Interfaces)
	}
}

func TestPacketFilter(t *testing.T) {
	t.Parallel()
	n := newNetns(t)
	if out, err := n.command("nft", "add table inet fw").CombinedOutput(); err != nil {
		t.Skipf("nftables cannot be used here: %v: %s", err, out)
	}
	n.run(t, "nft add chain inet fw in { type filter hook input priority 0 ; policy drop ; }",
		"nft add chain inet fw out { type filter hook output priority 0 ; policy accept ; }",
		"nft add chain inet fw KUBE-SERVICES", "nft add chain inet fw cali-INPUT", "nft add chain inet fw mine")
	got := n.facts(t, Probe{}).PacketFilter
	want := `{true [{inet fw in input}] [KUBE-SERVICES cali-INPUT]}`
	if s := fmt.Sprint(got); s != want {
		t.Errorf("packet filter %s, want %s", s, want)
	}
}

// TestNothingRemains kills the helper in the middle of measuring a disk.
func TestNothingRemains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for !killedWriting(t, dir) { // on a fast disk it may be over before it can be killed
		t.Log("once more")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// killedWriting kills the helper as soon as it has a file below a directory, and tells whether that ended it.
func killedWriting(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHelper+"=facts")
	cmd.Stdin = strings.NewReader(`{"sync":"` + dir + `/not/there/yet"}`)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	fds := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)
	writing := func() bool {
		entries, _ := os.ReadDir(fds)
		for _, e := range entries {
			if to, err := os.Readlink(fds + "/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
				return true
			}
		}
		return false
	}
	for !writing() {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return false
		case <-time.After(time.Millisecond):
		}
	}
	_ = cmd.Process.Kill() // it may have ended just now
	return <-ended != nil
}
