package node

import (
	"context"
	"encoding/binary"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (c networkCollector) network() {
	interfaces, err := net.Interfaces()
	c.problem("interfaces", err)
	kinds, err := interfaceKinds()
	c.problem("kinds of interfaces", err)
	for _, i := range interfaces {
		one := Interface{
			Name: i.Name, MAC: i.HardwareAddr.String(), MTU: i.MTU, Up: i.Flags&net.FlagUp != 0,
			Kind: kinds[i.Index],
		}
		addresses, err := i.Addrs()
		c.problem(i.Name, err)
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.Addresses = append(one.Addresses, p)
			}
		}
		if i.Flags&net.FlagLoopback != 0 {
			one.Kind = LoopbackKind
			one.Addresses = slices.DeleteFunc(one.Addresses, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
			if len(one.Addresses) == 0 {
				continue
			}
		}
		// The kernel refuses to read both while the interface is down.
		one.Carrier = c.quiet("/sys/class/net/"+i.Name+"/carrier") == "1"
		one.Speed = int(max(0, number(c.quiet("/sys/class/net/"+i.Name+"/speed"))))
		c.facts.Interfaces = append(c.facts.Interfaces, one)
	}
	const most = 1000
	routes := append(routes4(c.text("/proc/net/route")), routes6(c.text("/proc/net/ipv6_route"))...)
	for _, r := range routes {
		if r.To.Bits() == 0 {
			gateway := r.Gateway
			if !gateway.IsValid() {
				gateway = r.To.Addr() // a point-to-point link
			}
			c.facts.Routes = append(c.facts.Routes, DefaultRoute{Interface: r.Interface, Gateway: gateway})
		}
	}
	c.facts.AllRoutes = routes[:min(len(routes), most)]
	c.facts.Namespaces = c.list("/run/netns")
}

// interfaceKinds reads each interface's kind from the kernel, by its index; hardware has no entry.
func interfaceKinds() (map[int]string, error) {
	data, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return nil, err
	}
	kinds := map[int]string{}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		index := int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) // ifinfomsg.ifi_index
		for _, a := range attributes {
			if a.Attr.Type&^unix.NLA_F_NESTED == unix.IFLA_LINKINFO {
				kinds[index] = cString(attribute(a.Value, unix.IFLA_INFO_KIND))
			}
		}
	}
	return kinds, nil
}

// attribute finds a netlink attribute (struct nlattr); nil if it is missing.
func attribute(data []byte, kind uint16) []byte {
	for len(data) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofNlAttr || size > len(data) {
			return nil
		}
		if binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return data[unix.SizeofNlAttr:size]
		}
		data = data[min(len(data), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

func cString(data []byte) string { return strings.ToValidUTF8(unix.ByteSliceToString(data), "\uFFFD") }

// Flags of routes (linux/route.h, linux/ipv6_route.h).
const (
	routeUp      = 0x1
	routeReject  = 0x200
	routeAnycast = 0x00100000
	routeCache   = 0x01000000
	routeLocal   = 0x80000000
)

// routes4 reads /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask …
func routes4(text string) []Route {
	var list []Route
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		to, toOK := address4(f[1])
		gateway, gatewayOK := address4(f[2])
		mask, maskOK := address4(f[7])
		flags, err := strconv.ParseUint(f[3], 16, 32)
		if !toOK || !gatewayOK || !maskOK || err != nil || flags&routeUp == 0 || flags&routeReject != 0 {
			continue
		}
		m := mask.As4()
		r := Route{
			To: netip.PrefixFrom(to, bits.OnesCount32(binary.BigEndian.Uint32(m[:]))), Interface: f[0],
			Metric: int(number(f[6])),
		}
		if !gateway.IsUnspecified() {
			r.Gateway = gateway
		}
		list = append(list, r)
	}
	return list
}

// address4 parses four bytes that the kernel prints as a number in native byte order; both our architectures are little
// endian.
func address4(digits string) (netip.Addr, bool) {
	n, err := strconv.ParseUint(digits, 16, 32)
	return netip.AddrFrom4([4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}), err == nil
}

// routes6 reads /proc/net/ipv6_route: dest prefix source prefix next-hop metric refcnt use flags device.
func routes6(text string) []Route {
	var list []Route
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 10 || f[9] == "lo" {
			continue
		}
		to, toOK := address6(f[0])
		length, lengthErr := strconv.ParseUint(f[1], 16, 8)
		gateway, gatewayOK := address6(f[4])
		metric, metricErr := strconv.ParseUint(f[5], 16, 32)
		flags, flagsErr := strconv.ParseUint(f[8], 16, 32)
		if !toOK || !gatewayOK || lengthErr != nil || metricErr != nil || flagsErr != nil || length > 128 ||
			flags&routeUp == 0 || flags&(routeReject|routeAnycast|routeCache|routeLocal) != 0 || to.IsMulticast() {
			continue
		}
		r := Route{To: netip.PrefixFrom(to, int(length)), Interface: f[9], Metric: int(metric)}
		if !gateway.IsUnspecified() {
			r.Gateway = gateway
		}
		list = append(list, r)
	}
	return list
}

func address6(digits string) (netip.Addr, bool) {
	if len(digits) != 32 {
		return netip.Addr{}, false
	}
	var text []string
	for i := 0; i < len(digits); i += 4 {
		text = append(text, digits[i:i+4])
	}
	a, err := netip.ParseAddr(strings.Join(text, ":"))
	return a, err == nil
}

// names reads the name resolution settings.
func (c networkCollector) names() {
	c.facts.DNS = resolvConf(c.text("/etc/resolv.conf"))
	d := &c.facts.DNS
	if link, err := os.Readlink(c.path("/etc/resolv.conf")); err == nil {
		d.Link = link
	}
	d.Upstream = resolvConf(c.text("/run/systemd/resolve/resolv.conf")).Nameservers
	const most = 1000
	for line := range strings.Lines(c.text("/etc/hosts")) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 && len(c.facts.Hosts) < most {
			c.facts.Hosts = append(c.facts.Hosts, HostsLine{Address: f[0], Names: f[1:]})
		}
	}
}

// resolvConf reads resolv.conf(5).
func resolvConf(text string) DNS {
	const most = 100
	d := DNS{Ndots: 1}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(d.Nameservers) < most {
				d.Nameservers = append(d.Nameservers, f[1])
			}
		case "search", "domain":
			d.Search = f[1:]
		case "options":
			d.Options = append(d.Options, f[1:min(len(f), most)]...)
		}
	}
	for _, o := range d.Options {
		if n, ok := strings.CutPrefix(o, "ndots:"); ok {
			const cap = 15 // RES_MAXNDOTS of glibc
			d.Ndots = int(min(max(number(n), 0), cap))
		}
	}
	stub := func(server string) bool { return server == "127.0.0.53" || server == "127.0.0.54" }
	d.Stub = len(d.Nameservers) > 0 && !slices.ContainsFunc(d.Nameservers, func(s string) bool { return !stub(s) })
	return d
}

// resolveTimeout bounds the machine's resolver, which takes long without a responding nameserver.
const resolveTimeout = 2 * time.Second

// resolve resolves the machine's own name.
func (c networkCollector) resolve(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	c.facts.HostnameAddresses = c.hostAddresses(c.facts.Hostname)
	if len(c.facts.HostnameAddresses) == 0 && c.root == "/" {
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", c.facts.Hostname)
		if err == nil { // a name that does not resolve is a valid result
			for _, a := range found {
				c.facts.HostnameAddresses = append(c.facts.HostnameAddresses, a.Unmap())
			}
		}
	}
	if c.find("hostname") == "" {
		return
	}
	if out, err := c.run(ctx, "hostname", "-f"); err == nil {
		c.facts.FQDN = strings.TrimSpace(string(out))
	}
}

// hostAddresses returns a name's addresses in /etc/hosts.
func (c networkCollector) hostAddresses(name string) []netip.Addr {
	var list []netip.Addr
	for _, h := range c.facts.Hosts {
		a, err := netip.ParseAddr(h.Address)
		if err == nil && slices.Contains(h.Names, name) && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// Limits on dialled addresses.
const (
	maxDialled  = 20
	dialPatient = 3 * time.Second
)

// internet tries whether addresses can be reached. No data is sent.
func (c networkCollector) internet(ctx context.Context) {
	answers := make([]Dialled, len(c.probe.Internet))
	var all sync.WaitGroup
	for i, address := range c.probe.Internet {
		all.Go(func() { answers[i] = dialOnce(ctx, address) })
	}
	all.Wait()
	if len(answers) > 0 {
		c.facts.Internet = answers
	}
}

func dialOnce(ctx context.Context, address string) Dialled {
	d := net.Dialer{Timeout: dialPatient}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return Dialled{Address: address, Problem: reason(err)}
	}
	_ = conn.Close() // no data was sent
	return Dialled{Address: address, OK: true}
}
