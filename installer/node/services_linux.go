package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// Limits on programs run for facts.
const (
	programTimeout = 10 * time.Second
	programOutput  = 256 << 10
)

// runProgram returns the beginning of a program's output, on both streams.
func runProgram(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	cmd.WaitDelay = programTimeout // for children that keep its streams open
	out := capped.Head{Most: programOutput}
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself has succeeded, and its output has been read
	}
	return out.Bytes(), err
}

// ports tries each port by listening on it, like the program that needs it.
func (c networkCollector) ports(ctx context.Context) {
	for _, port := range c.probe.Ports {
		c.tryPort(ctx, Port{Network: "tcp", Port: port})
	}
	for _, port := range c.probe.UDPPorts {
		c.tryPort(ctx, Port{Network: "udp", Port: port})
	}
	for _, at := range c.probe.Addresses {
		c.tryPort(ctx, Port{Network: "tcp", Port: int(at.Port()), Address: at.Addr()})
		c.tryPort(ctx, Port{Network: "udp", Port: int(at.Port()), Address: at.Addr()})
	}
}

// tryPort adds the state of a port.
func (c networkCollector) tryPort(ctx context.Context, p Port) {
	if p.Port < 1 || p.Port > 65535 {
		p.Problem = "no such port"
	} else {
		err := listenFor(ctx, p)
		switch {
		case err == nil:
			p.Free = true
		case errors.Is(err, unix.EADDRINUSE):
			p.By = c.listener(p)
		default:
			p.Problem = err.Error()
		}
	}
	c.facts.Ports = append(c.facts.Ports, p)
}

// listenFor listens on a port for a moment. The machine need not have the port's address (ip(7), IP_FREEBIND).
func listenFor(ctx context.Context, p Port) error {
	address := ":" + strconv.Itoa(p.Port)
	var config net.ListenConfig
	if p.Address.IsValid() {
		address = netip.AddrPortFrom(p.Address, uint16(p.Port)).String()
		config.Control = func(_, _ string, conn syscall.RawConn) error {
			var err error
			return errors.Join(conn.Control(func(fd uintptr) { err = freeBind(int(fd), p.Address) }), err)
		}
	}
	if p.Network == "udp" {
		conn, err := config.ListenPacket(ctx, p.Network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	l, err := config.Listen(ctx, p.Network, address)
	if err != nil {
		return err
	}
	return l.Close()
}

func freeBind(fd int, address netip.Addr) error {
	if address.Is6() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
}

// listener returns the name of the program that keeps others from a port, "" if unknown.
func (c networkCollector) listener(p Port) string {
	inodes := map[string]bool{}
	for _, file := range []string{"/proc/net/" + p.Network, "/proc/net/" + p.Network + "6"} {
		c.scan(file, func(line string) {
			f := strings.Fields(line)
			if len(f) < 10 {
				return
			}
			const listening, unconnected = "0A", "07" // include/net/tcp_states.h
			address, digits, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(digits, 16, 16)
			open := f[3] == listening || (p.Network == "udp" && f[3] == unconnected)
			if err == nil && int(n) == p.Port && open && p.meets(address) {
				inodes["socket:["+f[9]+"]"] = true
			}
		})
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, err := filepath.Glob(c.path("/proc/[0-9]*/fd/*"))
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && inodes[target] {
			comm, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(fd)), "comm"))
			if err == nil {
				return strings.TrimSpace(string(comm))
			}
		}
	}
	return ""
}

// meets reports whether a socket of /proc/net/tcp or its like is in the way of the port's address: on that one, or on
// all.
func (p Port) meets(digits string) bool {
	return !p.Address.IsValid() || strings.Trim(digits, "0") == "" || digits == procAddress(p.Address)
}

// procAddress writes an address as /proc/net/tcp does: words of 32 bits in the machine's order of bytes.
func procAddress(a netip.Addr) string {
	const word = 4
	var b strings.Builder
	for part := range slices.Chunk(a.AsSlice(), word) {
		fmt.Fprintf(&b, "%08X", binary.NativeEndian.Uint32(part))
	}
	return b.String()
}

// units queries systemd for the units of the probe.
func (c softwareCollector) units(ctx context.Context) {
	s := &c.facts.Systemd
	s.Init = c.line("/proc/1/comm") == "systemd"
	if s.Init {
		s.Units = c.statesOf(ctx, c.probe.Units)
		return
	}
	for _, name := range c.probe.Units {
		s.Units = append(s.Units, Unit{Name: name})
	}
}

// services queries systemd.
func (c softwareCollector) services(ctx context.Context) {
	c.units(ctx)
	s := &c.facts.Systemd
	if !s.Init {
		return
	}
	if out, err := c.run(ctx, "systemctl", "--version"); err == nil {
		if f := strings.Fields(string(out)); len(f) > 1 {
			s.Version = f[1]
		}
	}
	for _, u := range c.statesOf(ctx, []string{"firewalld.service", "ufw.service", "nftables.service"}) {
		if u.Active != "active" {
			continue
		}
		// ufw's unit is active even if ufw is disabled.
		if u.Name == "ufw.service" && !strings.EqualFold(shellValues(c.text("/etc/ufw/ufw.conf"))["ENABLED"], "yes") {
			continue
		}
		c.facts.Firewalls = append(c.facts.Firewalls, strings.TrimSuffix(u.Name, ".service"))
		switch u.Name {
		case "firewalld.service":
			c.firewalld(ctx)
		case "ufw.service":
			c.ufw(ctx)
		}
	}
	if out, err := c.run(ctx, "timedatectl", "show", "--property=NTPSynchronized", "--value"); err == nil {
		c.facts.TimeSync = strings.TrimSpace(string(out))
	}
}

// statesOf queries the state of units; systemctl answers in the order of the query, with an empty line between.
func (c softwareCollector) statesOf(ctx context.Context, names []string) []Unit {
	if len(names) == 0 {
		return nil
	}
	args := append([]string{"systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", "--"}, names...)
	out, err := c.run(ctx, args...)
	blocks := strings.Split(strings.TrimSpace(string(out)), "\n\n")
	if err == nil && len(blocks) != len(names) {
		err = fmt.Errorf("%d answers about %d units", len(blocks), len(names))
	}
	if err != nil {
		c.problem("systemctl show", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))))
		blocks = nil
	}
	units := make([]Unit, len(names))
	for i, name := range names {
		units[i].Name = name
		if i < len(blocks) {
			values := shellValues(blocks[i])
			units[i].Load, units[i].Active, units[i].File = values["LoadState"], values["ActiveState"],
				values["UnitFileState"]
		}
	}
	return units
}

// programs finds runtimes and parts of Kubernetes and queries their versions.
func (c softwareCollector) programs(ctx context.Context) {
	asked := []string{
		"containerd", "cri-dockerd", "crictl", "crio", "docker", "docker compose", "docker-compose", "etcd", "k3s",
		"kubeadm", "kubectl",
		"kubelet", "podman", "rke2", "runc",
	}
	special := map[string][]string{ // docker compose is an optional plugin of docker
		"docker compose": {"compose", "version"}, "kubeadm": {"version", "-o", "short"},
		"kubectl": {"version", "--client"},
	}
	version := regexp.MustCompile(`\bv?[0-9]+\.[0-9]+\.[0-9]+[-+.0-9A-Za-z]*`)
	found := make([]Program, len(asked))
	var all sync.WaitGroup
	for i, name := range asked {
		program, _, isPlugin := strings.Cut(name, " ")
		path := c.find(program)
		if path == "" {
			continue
		}
		all.Go(func() {
			args := special[name]
			if args == nil {
				args = []string{"--version"}
			}
			out, err := c.run(ctx, append([]string{path}, args...)...)
			if err != nil && isPlugin {
				return // the plugin is missing
			}
			found[i] = Program{Name: name, Path: path}
			if err == nil {
				found[i].Version = version.FindString(string(out))
			}
		})
	}
	all.Wait()
	for _, p := range found {
		if p.Name != "" {
			c.facts.Programs = append(c.facts.Programs, p)
		}
	}
}

// docker asks a running Docker for its storage driver.
func (c softwareCollector) docker(ctx context.Context) {
	program := c.find("docker")
	if program == "" || c.look("/run/docker.sock").Type == "" {
		return
	}
	out, err := c.run(ctx, program, "info", "--format", "{{.Driver}}")
	if err != nil {
		return // it does not answer, which the check of its unit shows
	}
	line, _, _ := strings.Cut(string(out), "\n")
	c.facts.DockerDriver = strings.TrimSpace(line)
}
