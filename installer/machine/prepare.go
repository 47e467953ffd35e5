package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// WithBlock replaces or appends our marked block in a file; without lines it removes the block. An unterminated block
// extends to the end of the file.
func WithBlock(file []byte, lines []string) []byte {
	var out bytes.Buffer
	inside, open := false, 0
	for line := range bytes.Lines(file) {
		text := string(bytes.TrimSpace(line))
		switch {
		case text == task.BlockBegin:
			inside = true
		case text == task.OpenBegin:
			inside, open = true, out.Len()
		case text == task.BlockEnd && inside:
			inside = false
		case !inside:
			out.Write(line)
		}
	}
	if open > 0 && open == out.Len() { // nothing was appended after the block
		out.Truncate(len(bytes.TrimSuffix(out.Bytes(), []byte("\n"))))
	}
	if len(lines) == 0 {
		return out.Bytes()
	}
	begin := task.BlockBegin
	if out.Len() > 0 && !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
		out.WriteByte('\n')
		begin = task.OpenBegin
	}
	fmt.Fprintf(&out, "%s\n%s\n%s\n", begin, strings.Join(lines, "\n"), task.BlockEnd)
	return out.Bytes()
}

// Files of the kernel's modules and parameters, and the parameters before the installation.
const (
	ModulesPath = "/etc/modules-load.d/kkbundle.conf"
	// SysctlPath comes after 99-sysctl.conf, a link to /etc/sysctl.conf on many hosts: at boot the last file of a
	// parameter wins (sysctl.d(5)). EarlierSysctlPath is the path of releases that lost against it.
	SysctlPath        = "/etc/sysctl.d/99-zz-kkbundle.conf"
	EarlierSysctlPath = "/etc/sysctl.d/99-kkbundle.conf"
)

type parameter struct {
	key   string
	value int
	// required parameters must be set; others are set if the kernel supports them.
	required bool
	// least keeps a larger value.
	least bool
}

// parameters returns the settings for Kubernetes with a bridged pod network, and limits on watched files for nodes with
// many pods. With IPv6, hosts that get addresses by router advertisements also need accept_ra=2: forwarding hosts
// ignore them otherwise.
func parameters(c *manifest.Cluster) []parameter {
	six := task.HasFamily(c, netip.Addr.Is6)
	list := []parameter{
		{key: "net.ipv4.ip_forward", value: 1, required: true},
		{key: "net.bridge.bridge-nf-call-iptables", value: 1, required: true},
		{key: "net.bridge.bridge-nf-call-ip6tables", value: 1, required: six},
		{key: "fs.inotify.max_user_instances", value: 8192, least: true},
		{key: "fs.inotify.max_user_watches", value: 524288, least: true},
	}
	if six {
		// kubeadm checks default; forwarding itself depends on all.
		list = append(list, parameter{key: "net.ipv6.conf.all.forwarding", value: 1, required: true},
			parameter{key: "net.ipv6.conf.default.forwarding", value: 1, required: true})
	}
	return append(list, hardenedParameters(c)...)
}

// modules returns the kernel modules for containers, the pod network and the proxy.
func modules(c *manifest.Cluster) []string {
	list := []string{"overlay", "br_netfilter"}
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		list = append(list, "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack")
	}
	return list
}

// KernelTask loads modules and sets kernel parameters, now and at every boot.
func KernelTask(c *manifest.Cluster) task.Task {
	return task.Settle(task.Task{
		Name: "kernel", Independent: true, Roles: []manifest.Role{manifest.RoleCluster},
		Leaves: ipvsLeaves(c),
	},
		func(ctx context.Context, t *task.Host) (task.Setting, error) {
			before, err := parametersBefore(ctx, t, c)
			if err != nil {
				return task.Setting{}, err
			}
			return task.Setting{
				Files: []task.File{
					{Path: ModulesPath, Mode: 0o644, Data: []byte(hostfile.Mark + "\n" +
						strings.Join(modules(c), "\n") + "\n")},
					{Path: SysctlPath, Mode: 0o644, Data: sysctlFile(c, before)},
				},
				Apply: func(ctx context.Context, t *task.Host) error { return setKernel(ctx, t, c, before) },
				Holds: func(ctx context.Context, t *task.Host) (bool, error) { return requiredAreSet(ctx, t, c) },
			}, nil
		})
}

// parametersBefore returns the values before the first run that changed them.
func parametersBefore(ctx context.Context, t *task.Host, c *manifest.Cluster) (map[string]string, error) {
	data, err := t.Read(ctx, marks.SysctlBefore)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	before := task.ParseSysctl(data)
	args := []string{"sysctl", "--ignore"}
	// kube-proxy sets these; reset restores them too.
	keys := []string{
		"net.ipv4.conf.all.route_localnet", "net.ipv4.conf.all.arp_ignore",
		"net.ipv4.conf.all.arp_announce",
	}
	for _, p := range parameters(c) {
		keys = append(keys, p.key)
	}
	for _, key := range keys {
		if _, known := before[key]; !known {
			args = append(args, key)
		}
	}
	if len(args) > 2 {
		out := &capped.Buffer{Most: task.MaxFile}
		// fails if one is missing
		if _, err = task.Succeeded(t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil {
			return nil, err
		}
		maps.Copy(before, task.ParseSysctl(out.Bytes()))
	}
	return before, nil
}

// wanted returns the value to set, given the value before.
func (p parameter) wanted(before string) string {
	if n, err := strconv.Atoi(before); err == nil && p.least && n > p.value {
		return before
	}
	return strconv.Itoa(p.value)
}

// sysctlFile returns the drop-in for every boot. A minus makes a parameter optional (sysctl.d(5)).
func sysctlFile(c *manifest.Cluster, before map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString(hostfile.Mark + "\n")
	for _, p := range parameters(c) {
		if !p.required {
			b.WriteByte('-')
		}
		fmt.Fprintf(&b, "%s = %s\n", p.key, p.wanted(before[p.key]))
	}
	return b.Bytes()
}

// requiredAreSet reports whether the required parameters have their values now.
func requiredAreSet(ctx context.Context, t *task.Host, c *manifest.Cluster) (bool, error) {
	args, want := []string{"sysctl", "--values"}, ""
	for _, p := range parameters(c) {
		if p.required {
			args, want = append(args, p.key), want+strconv.Itoa(p.value)+"\n"
		}
	}
	out := &capped.Buffer{Most: task.MaxFile}
	ok, err := task.Succeeded(t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out}))
	return ok && out.String() == want, err
}

func setKernel(ctx context.Context, t *task.Host, c *manifest.Cluster, before map[string]string) error {
	for _, m := range modules(c) {
		if err := loadModule(ctx, t, m); err != nil {
			return err
		}
	}
	if err := t.Run(ctx, "rm", "-f", EarlierSysctlPath); err != nil {
		return err
	}
	// parametersBefore ran before br_netfilter was loaded, so its parameters are missing there. The kernel's default
	// for them is 1, the wanted value.
	if err := t.SaveOriginal(ctx, marks.SysctlBefore, before); err != nil {
		return err
	}
	for _, p := range parameters(c) {
		ok, err := t.Test(ctx, "sysctl", "--write", p.key+"="+p.wanted(before[p.key]))
		if err != nil {
			return err
		}
		if !ok && p.required {
			return fmt.Errorf("the kernel rejects %s=%d, which the cluster needs", p.key, p.value)
		}
	}
	return nil
}

// loadModule loads a module. modprobe may not know a module that is built into the kernel, so loadModule checks its
// effect.
func loadModule(ctx context.Context, t *task.Host, name string) error {
	ok, err := t.Test(ctx, "modprobe", name)
	if err != nil || ok {
		return err
	}
	builtIn := []string{"test", "-e", "/sys/module/" + name}
	switch name {
	case "overlay":
		builtIn = []string{"grep", "--quiet", "--word-regexp", "overlay", "/proc/filesystems"}
	case "br_netfilter":
		builtIn = []string{"test", "-e", "/proc/sys/net/bridge/bridge-nf-call-iptables"}
	}
	if ok, err = t.Test(ctx, builtIn...); err != nil || ok {
		return err
	}
	return plain.Advise(fmt.Errorf("the kernel lacks module %s, which Kubernetes needs", name),
		"if a newer kernel was installed since the host started, restart the host; otherwise see the check modules of kkbundle precheck")
}

// RouteUnit is the unit of RouteTask.
const RouteUnit = "kkbundle-service-route.service"

// RouteTask adds a route to the services, for each family without a default route. The kernel needs a route to a
// service's address before the proxy translates it into a pod's; otherwise connections from the host fail with "network
// is unreachable". The same holds for the gateway of pods that a pod network has no host for. The routes lead to the
// loopback interface, so no packets for unused addresses reach the network.
func RouteTask(c *manifest.Cluster) task.Task {
	return task.Settle(task.Task{
		Name: "service-route", Independent: true,
		Roles: []manifest.Role{manifest.RoleCluster},
	},
		func(ctx context.Context, t *task.Host) (task.Setting, error) {
			var begin, end []string
			for i, ip := range t.Addresses() {
				family := task.Family4
				if ip.Is6() {
					family = task.Family6
				}
				routes, err := t.Output(ctx, "ip", family, "route", "show", "default")
				if err != nil {
					return task.Setting{}, err
				}
				if len(bytes.TrimSpace(routes)) > 0 || i >= len(c.Kubernetes.ServiceCIDR) {
					continue
				}
				to := []netip.Prefix{c.Kubernetes.ServiceCIDR[i]}
				if gateway := network.All().Primary(c).Gateway; gateway.IsValid() && ip.Is4() {
					to = append(to, netip.PrefixFrom(gateway, gateway.BitLen()))
				}
				for _, p := range to {
					begin = append(begin, routeCommand(family, p, ip))
					end = append(end, fmt.Sprintf("ExecStop=-/sbin/ip %s route delete %s dev lo", family, p))
				}
			}
			if len(begin) == 0 {
				return task.Setting{}, nil
			}
			unit := fmt.Sprintf(routeUnitText, strings.Join(append(begin, end...), "\n"))
			return task.Setting{
				Files: []task.File{{Path: "/etc/systemd/system/" + RouteUnit, Mode: 0o644, Data: []byte(unit)}},
				Units: []string{RouteUnit},
			}, nil
		})
}

func routeCommand(family string, to netip.Prefix, from netip.Addr) string {
	scope := "scope link " // IPv6 routes have none
	if family == task.Family6 {
		scope = ""
	}
	return fmt.Sprintf("ExecStart=/sbin/ip %s route replace %s dev lo %ssrc %s", family, to, scope, from)
}

const routeUnitText = hostfile.Author + `: this host has no default route.
[Unit]
Description=Route to the cluster's services
After=network-online.target
Wants=network-online.target
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
%s

[Install]
WantedBy=multi-user.target
`

// endpointLine returns the line of /etc/hosts for the endpoint, or "". With HAProxy the endpoint's name has a different
// address on each node: the joined control plane's until the node is a member, then the node's own.
func endpointLine(ctx context.Context, t *task.Host) (string, error) {
	if t.Site.Cluster.ControlPlaneEndpoint.Type != manifest.EndpointHAProxy || !t.Is(manifest.RoleCluster) {
		return "", nil
	}
	name, _, err := net.SplitHostPort(t.Site.Endpoint())
	if err != nil {
		return "", fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	member, err := member.IsMember(ctx, t)
	if err != nil {
		return "", err
	}
	to := t.Site.FirstControlPlane().IP
	if member {
		to = t.Site.Loopback()
	}
	return to.String() + " " + name, nil
}

// EndpointNameTask points the endpoint's name at each node itself, once its proxy runs.
func EndpointNameTask() task.Task {
	hosts := HostsTask()
	return task.Task{
		Name: "endpoint-name", Roles: []manifest.Role{manifest.RoleCluster}, Done: hosts.Done,
		Do: hosts.Do,
	}
}

// hardenedParameters are those that the kubelet checks with protectKernelDefaults, which hardened clusters have.
// https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/component-helpers/node/util/sysctl/sysctl.go
func hardenedParameters(c *manifest.Cluster) []parameter {
	if protects, _ := c.Kubernetes.Kubelet["protectKernelDefaults"].(bool); !protects && !task.IsHardened(c) {
		return nil
	}
	return []parameter{
		{key: "vm.overcommit_memory", value: 1, required: true},
		{key: "vm.panic_on_oom", value: 0, required: true},
		{key: "kernel.panic", value: 10, required: true},
		{key: "kernel.panic_on_oops", value: 1, required: true},
		{key: "kernel.keys.root_maxkeys", value: 1000000, required: true},
		{key: "kernel.keys.root_maxbytes", value: 25000000, required: true},
	}
}
