//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// inNetns runs a host's commands in a network namespace.
type inNetns struct {
	host.Host
	pid string
}

func (h inNetns) Run(ctx context.Context, cmd host.Cmd) error {
	cmd.Args = append([]string{"nsenter", "-t", h.pid, "-n", "--"}, cmd.Args...)
	return h.Host.Run(ctx, cmd)
}

// startNetns makes a network namespace that ends with the test, and returns a process in it.
func startNetns(t *testing.T) string {
	t.Helper()
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
	return strconv.Itoa(cmd.Process.Pid)
}

func inside(t *testing.T, pid string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		cmd := exec.Command("nsenter", append([]string{"-t", pid, "-n", "--"}, strings.Fields(line)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// TestPrecheckOverSSH looks at three hosts, and they at each other, through sshd and sudo with the real helper. Each
// host is an sshd of this machine whose commands run in a network namespace; a switch is between them.
func TestPrecheckOverSSH(t *testing.T) {
	t.Parallel()
	binary := build(t)
	servers, places := map[string]*hosttest.SSHD{}, map[string]string{}
	text := "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"
	bridge := startNetns(t)
	inside(t, bridge, "ip link add lan type bridge", "ip link set lan up")
	for i, name := range []string{"cp1", "node1", "node2"} {
		servers[name], places[name] = hosttest.StartSSHD(t,
			hosttest.SSHDOptions{Private: []string{"/var/lib", "/opt"}}), startNetns(t)
		inside(t, bridge, "ip link add to-"+name+" type veth peer name eth0 netns "+places[name], "ip link set to-"+
			name+" master lan up")
		inside(t, places[name], "ip link set lo up", fmt.Sprintf("ip addr add 10.86.0.%d/24 dev eth0", i+1),
			"ip link set eth0 up")
		text += fmt.Sprintf("  %s: {address: 10.86.0.%d}\n", name, i+1)
	}
	text += "groups:\n  kube_control_plane: [cp1]\n  image_registry: [cp1]\n  kube_worker: [node1, node2]\n"
	inventory, err := manifest.ParseInventory("inventory.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	report, err := begin.Precheck(t.Context(), engine.Options{
		Cluster: &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}}, Inventory: inventory,
		WorkDir: filepath.Join(t.TempDir(), "work"),
		Helper:  func(string) ([]byte, error) { return binary, nil },
		Dial: func(ctx context.Context, h manifest.Host) (host.Host, error) {
			s := servers[h.Name]
			conn, err := host.Dial(ctx, host.SSHOptions{
				Address: s.Host, Port: s.Port, User: hosttest.UserSudoPassword, Keys: []string{s.KeyFile},
				KnownHosts:   []string{s.KnownHosts},
				SudoPassword: func(context.Context) (string, error) { return hosttest.Password, nil },
				Patience:     time.Hour,
			})
			return inNetns{conn, places[h.Name]}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("three hosts took %v", time.Since(began).Round(time.Millisecond))
	if len(report.Hosts) != 3 {
		t.Errorf("hosts: %v", report.Hosts)
	}
	// A busy machine takes a moment to end a helper whose session has ended; by itself one would end after
	// node.ListenTime.
	end := time.Now().Add(node.ListenTime / 2)
	for name, pid := range places {
		tables := listeners(t, pid)
		for ; tables != "" && time.Now().Before(end); tables = listeners(t, pid) {
			time.Sleep(50 * time.Millisecond)
		}
		if tables != "" {
			t.Errorf("%s still listens:\n%s", name, tables)
		}
	}
	for _, r := range report.Results {
		if !r.OK && (r.ID == "reachable" || r.ID == "address") {
			t.Errorf("%+v", r)
		}
	}
}

// listeners are the sockets of a network namespace that wait for somebody.
func listeners(t *testing.T, pid string) string {
	t.Helper()
	tables, err := exec.Command("nsenter", "-t", pid, "-n", "--", "cat", "/proc/net/tcp", "/proc/net/tcp6",
		"/proc/net/udp", "/proc/net/udp6").Output()
	if err != nil {
		t.Fatal(err)
	}
	const listening, unconnected = " 0A ", " 07 "
	if text := string(tables); strings.Contains(text, listening) || strings.Contains(text, unconnected) {
		return text
	}
	return ""
}

// TestBareHost has nothing of what hosts have: no /proc, no programs, no files.
func TestBareHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	root := t.TempDir()
	buildIn(t, root)
	cmd := exec.Command("/kkbundle-node", "facts")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(
		`{"modules":["overlay"],"units":["x.service"],"dirs":["/var/lib"],"packages":["x"],"sync":"/var/lib/etcd","certificates":["/etc"]}`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var f node.Facts
	err = json.Unmarshal(out, &f)
	if err != nil || f.Kernel == "" || f.Clock == 0 || len(f.Dirs) != 1 || f.Modules["overlay"] != node.ModuleMissing ||
		f.Packages != nil {
		t.Errorf("%v: %s", err, out)
	}
}
