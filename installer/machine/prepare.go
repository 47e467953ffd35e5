package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// hostsTask makes every host know every other by the name that it has in the inventory.
func hostsTask() Task {
	return Task{
		Name:    "hosts-file",
		Apart:   true,
		Follows: true,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			have, want, err := t.hostsFile(ctx)
			if !bytes.Equal(have, want) {
				because(ctx, "/etc/hosts %s", lineDifference(have, want))
			}
			return bytes.Equal(have, want), err
		},
		Do: func(ctx context.Context, t *Target) error {
			_, want, err := t.hostsFile(ctx)
			if err != nil {
				return err
			}
			return t.edit(ctx, "/etc/hosts", want)
		},
	}
}

// hostsFile returns /etc/hosts as it is and as it shall be.
func (t *Target) hostsFile(ctx context.Context) (have, want []byte, err error) {
	have, err = t.read(ctx, "/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	var lines []string
	for _, one := range t.run.targets {
		for _, ip := range one.addresses() {
			lines = append(lines, ip.String()+" "+one.Name)
		}
	}
	line, err := t.endpointLine(ctx)
	if err != nil {
		return nil, nil, err
	}
	if line != "" {
		lines = append(lines, line)
	}
	return have, withBlock(have, lines), nil
}

const (
	blockBegin = "# BEGIN kkbundle"
	blockEnd   = "# END kkbundle"
	// openBegin begins the block in a file whose last line had no end: that line shall have none again.
	openBegin = "# BEGIN kkbundle, after a line without an end"
	// takenOut begins lines of a host's own file that do not count any more; Reset puts them back.
	takenOut = "#kkbundle# "
)

// withBlock returns a file with our marked block replaced, or added at its end; without lines, the block is removed.
// Everything else stays as it is. A block without its end reaches to the end of our lines.
func withBlock(file []byte, lines []string) []byte {
	var out bytes.Buffer
	inside, open := false, 0
	for line := range bytes.Lines(file) {
		text := string(bytes.TrimSpace(line))
		switch {
		case text == blockBegin:
			inside = true
		case text == openBegin:
			inside, open = true, out.Len()
		case text == blockEnd && inside:
			inside = false
		case !inside:
			out.Write(line)
		}
	}
	if open > 0 && open == out.Len() { // nothing was added behind the block
		out.Truncate(len(bytes.TrimSuffix(out.Bytes(), []byte("\n"))))
	}
	if len(lines) == 0 {
		return out.Bytes()
	}
	begin := blockBegin
	if out.Len() > 0 && !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
		out.WriteByte('\n')
		begin = openBegin
	}
	fmt.Fprintf(&out, "%s\n%s\n%s\n", begin, strings.Join(lines, "\n"), blockEnd)
	return out.Bytes()
}

const (
	modulesPath = "/etc/modules-load.d/kkbundle.conf"
	sysctlPath  = "/etc/sysctl.d/99-kkbundle.conf"
	sysctlWas   = beforeDir + "/sysctl.conf"
)

// A parameter is a kernel parameter.
type parameter struct {
	key   string
	value int
	// required parameters must take the value; others are set where the kernel has them and lets us.
	required bool
	// least means that a larger value is left as it is.
	least bool
}

// parameters are what Kubernetes with a bridged pod network needs, and the limits on watched files that nodes with many
// pods run into. Where the cluster has IPv6, hosts that get their addresses from routers need accept_ra=2 as well: a host
// that forwards takes no notice of routers otherwise.
func parameters(c *manifest.Cluster) []parameter {
	six := hasFamily(c, netip.Addr.Is6)
	list := []parameter{
		{key: "net.ipv4.ip_forward", value: 1, required: true},
		{key: "net.bridge.bridge-nf-call-iptables", value: 1, required: true},
		{key: "net.bridge.bridge-nf-call-ip6tables", value: 1, required: six},
		{key: "fs.inotify.max_user_instances", value: 8192, least: true},
		{key: "fs.inotify.max_user_watches", value: 524288, least: true},
	}
	if six {
		// kubeadm looks at default, packets at all.
		list = append(list, parameter{key: "net.ipv6.conf.all.forwarding", value: 1, required: true},
			parameter{key: "net.ipv6.conf.default.forwarding", value: 1, required: true})
	}
	return append(list, hardenedParameters(c)...)
}

// modules are what containerd, the pod network and the proxy need of the kernel.
func modules(c *manifest.Cluster) []string {
	list := []string{"overlay", "br_netfilter"}
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		list = append(list, "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack")
	}
	return list
}

// kernelTask loads modules and sets kernel parameters, now and at every boot.
func kernelTask(c *manifest.Cluster) Task {
	return settle(Task{Name: "kernel", Apart: true, Roles: []manifest.Role{manifest.RoleCluster}, Leaves: ipvsLeaves(c)},
		func(ctx context.Context, t *Target) (setting, error) {
			before, err := t.parametersBefore(ctx, c)
			if err != nil {
				return setting{}, err
			}
			return setting{
				files: []textFile{
					{modulesPath, 0o644, []byte(hostfile.Mark + "\n" + strings.Join(modules(c), "\n") + "\n")},
					{sysctlPath, 0o644, sysctlFile(c, before)},
				},
				apply: func(ctx context.Context, t *Target) error { return t.setKernel(ctx, c, before) },
				holds: func(ctx context.Context, t *Target) (bool, error) { return t.requiredAreSet(ctx, c) },
			}, nil
		})
}

// proxyParameters are what kube-proxy sets by itself; Reset puts them back as well.
func proxyParameters() []string {
	return []string{"net.ipv4.conf.all.route_localnet", "net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"}
}

// parametersBefore returns what the parameters were before the first run that set them.
func (t *Target) parametersBefore(ctx context.Context, c *manifest.Cluster) (map[string]string, error) {
	data, err := t.read(ctx, sysctlWas)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	before := parseSysctl(data)
	args := []string{"sysctl", "--ignore"}
	keys := proxyParameters()
	for _, p := range parameters(c) {
		keys = append(keys, p.key)
	}
	for _, key := range keys {
		if _, known := before[key]; !known {
			args = append(args, key)
		}
	}
	if len(args) > 2 {
		out := &capped.Buffer{Most: maxFile}
		if _, err = succeeded(t.on.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil { // fails if it lacks one of them
			return nil, err
		}
		maps.Copy(before, parseSysctl(out.Bytes()))
	}
	return before, nil
}

// parseSysctl reads "key = value" lines.
func parseSysctl(data []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(line, "=")
		if key = strings.TrimSpace(key); ok && !strings.HasPrefix(key, "#") {
			values[strings.TrimPrefix(key, "-")] = strings.TrimSpace(value)
		}
	}
	return values
}

// wanted returns the value that a parameter shall have on a host where it was this before.
func (p parameter) wanted(before string) string {
	if n, err := strconv.Atoi(before); err == nil && p.least && n > p.value {
		return before
	}
	return strconv.Itoa(p.value)
}

// sysctlFile is the drop-in for every boot. A minus says that a kernel may do without the parameter (sysctl.d(5)).
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

// requiredAreSet tells whether the required parameters have their values now.
func (t *Target) requiredAreSet(ctx context.Context, c *manifest.Cluster) (bool, error) {
	args, want := []string{"sysctl", "--values"}, ""
	for _, p := range parameters(c) {
		if p.required {
			args, want = append(args, p.key), want+strconv.Itoa(p.value)+"\n"
		}
	}
	out := &capped.Buffer{Most: maxFile}
	ok, err := succeeded(t.on.Run(ctx, host.Cmd{Args: args, Stdout: out}))
	return ok && out.String() == want, err
}

func (t *Target) setKernel(ctx context.Context, c *manifest.Cluster, before map[string]string) error {
	for _, m := range modules(c) {
		if err := t.loadModule(ctx, m); err != nil {
			return err
		}
	}
	// br_netfilter is loaded only now, so its parameters were not there when the others were looked at; the kernel
	// begins with 1, which is what they shall be.
	if err := t.remember(ctx, sysctlWas, before); err != nil {
		return err
	}
	for _, p := range parameters(c) {
		ok, err := t.test(ctx, "sysctl", "--write", p.key+"="+p.wanted(before[p.key]))
		if err != nil {
			return err
		}
		if !ok && p.required {
			return fmt.Errorf("the kernel does not take %s=%d, which the cluster needs", p.key, p.value)
		}
	}
	return nil
}

// loadModule loads a module. One that is built into the kernel may be unknown to modprobe; what it does is there.
func (t *Target) loadModule(ctx context.Context, name string) error {
	ok, err := t.test(ctx, "modprobe", name)
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
	if ok, err = t.test(ctx, builtIn...); err != nil || ok {
		return err
	}
	return fmt.Errorf("the kernel has no module %s, which Kubernetes needs", name)
}

// remember writes what Reset puts back. What an earlier run has remembered is among the values: a later one would remember
// what the earlier made.
func (t *Target) remember(ctx context.Context, path string, values map[string]string) error {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s = %s\n", key, values[key])
	}
	return t.write(ctx, textFile{path, 0o600, b.Bytes()})
}

const routeUnit = "kkbundle-service-route.service"

// routeTask gives hosts without a default route one to the services, for each family. The proxy turns a service's address
// into a pod's only after the kernel has found a route to it; without any, connections from the host end with "network is
// unreachable" before that. The route leads to the loopback interface, so that nothing is asked of the network for an
// address that no service has.
func routeTask(c *manifest.Cluster) Task {
	return settle(Task{Name: "service-route", Apart: true, Roles: []manifest.Role{manifest.RoleCluster}},
		func(ctx context.Context, t *Target) (setting, error) {
			var begin, end []string
			for i, ip := range t.addresses() {
				family := family4
				if ip.Is6() {
					family = family6
				}
				routes, err := t.output(ctx, "ip", family, "route", "show", "default")
				if err != nil {
					return setting{}, err
				}
				if len(bytes.TrimSpace(routes)) > 0 || i >= len(c.Kubernetes.ServiceCIDR) {
					continue
				}
				begin = append(begin, routeCommand(family, c.Kubernetes.ServiceCIDR[i], ip))
				end = append(end, fmt.Sprintf("ExecStop=-/sbin/ip %s route delete %s dev lo", family, c.Kubernetes.ServiceCIDR[i]))
			}
			if len(begin) == 0 {
				return setting{}, nil
			}
			unit := fmt.Sprintf(routeUnitText, strings.Join(append(begin, end...), "\n"))
			return setting{
				files: []textFile{{"/etc/systemd/system/" + routeUnit, 0o644, []byte(unit)}},
				units: []string{routeUnit},
			}, nil
		})
}

func routeCommand(family string, to netip.Prefix, from netip.Addr) string {
	scope := "scope link " // which IPv6 routes do not have
	if family == family6 {
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
