package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/capped"
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
func (c networkCollector) ports() {
	for _, port := range c.probe.Ports {
		c.facts.Ports = append(c.facts.Ports, tryPort("tcp", port))
	}
	for _, port := range c.probe.UDPPorts {
		c.facts.Ports = append(c.facts.Ports, tryPort("udp", port))
	}
	for i := range c.facts.Ports {
		if p := &c.facts.Ports[i]; !p.Free && p.Problem == "" {
			p.By = c.listener(p.Network, p.Port)
		}
	}
}

func tryPort(network string, port int) Port {
	p := Port{Network: network, Port: port}
	if port < 1 || port > 65535 {
		p.Problem = "no such port"
		return p
	}
	address := ":" + strconv.Itoa(port)
	var l io.Closer
	var err error
	if network == "udp" {
		l, err = net.ListenPacket(network, address)
	} else {
		l, err = net.Listen(network, address)
	}
	if err == nil {
		err = l.Close()
	}
	switch {
	case err == nil:
		p.Free = true
	case !errors.Is(err, unix.EADDRINUSE):
		p.Problem = err.Error()
	}
	return p
}

// listener returns the name of the program that listens on a port, "" if unknown.
func (c networkCollector) listener(network string, port int) string {
	inodes := map[string]bool{}
	for _, file := range []string{"/proc/net/" + network, "/proc/net/" + network + "6"} {
		c.scan(file, func(line string) {
			f := strings.Fields(line)
			if len(f) < 10 {
				return
			}
			const listening, unconnected = "0A", "07" // include/net/tcp_states.h
			_, digits, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(digits, 16, 16)
			if err == nil && int(n) == port && (f[3] == listening || (network == "udp" && f[3] == unconnected)) {
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

// services queries systemd.
func (c softwareCollector) services(ctx context.Context) {
	s := &c.facts.Systemd
	s.Init = c.line("/proc/1/comm") == "systemd"
	if !s.Init {
		for _, name := range c.probe.Units {
			s.Units = append(s.Units, Unit{Name: name})
		}
		return
	}
	if out, err := c.run(ctx, "systemctl", "--version"); err == nil {
		if f := strings.Fields(string(out)); len(f) > 1 {
			s.Version = f[1]
		}
	}
	s.Units = c.units(ctx, c.probe.Units)
	for _, u := range c.units(ctx, []string{"firewalld.service", "ufw.service", "nftables.service"}) {
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

// units queries the state of units; systemctl answers in the order of the query, with an empty line between.
func (c softwareCollector) units(ctx context.Context, names []string) []Unit {
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
			units[i].Load, units[i].Active, units[i].File = values["LoadState"], values["ActiveState"], values["UnitFileState"]
		}
	}
	return units
}

// programs finds runtimes and parts of Kubernetes and queries their versions.
func (c softwareCollector) programs(ctx context.Context) {
	asked := []string{
		"containerd", "cri-dockerd", "crictl", "crio", "docker", "docker compose", "docker-compose", "etcd", "k3s", "kubeadm", "kubectl",
		"kubelet", "podman", "rke2", "runc",
	}
	special := map[string][]string{ // docker compose is an optional plugin of docker
		"docker compose": {"compose", "version"}, "kubeadm": {"version", "-o", "short"}, "kubectl": {"version", "--client"},
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
