package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// vacant queries the network for the addresses of Probe.Vacant.
func (c networkCollector) vacant(ctx context.Context) {
	if len(c.probe.Vacant) == 0 {
		return
	}
	c.facts.Vacant = make([]Vacancy, len(c.probe.Vacant))
	var all sync.WaitGroup
	for i, a := range c.probe.Vacant {
		all.Go(func() { c.facts.Vacant[i] = lookForOwner(ctx, a.Unmap().WithZone("")) })
	}
	all.Wait()
}

// apiServerPort is the port behind kube-vip's address.
const apiServerPort = "6443"

func lookForOwner(ctx context.Context, a netip.Addr) Vacancy {
	v := Vacancy{Address: a}
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		v.Problem = "not the address of a machine"
		return v
	}
	link, own := linkOf(a)
	if link != nil {
		v.Interface = link.Name
	}
	if v.Own = own; own {
		return v
	}
	var all sync.WaitGroup
	var asked, pinged error
	if link != nil {
		all.Go(func() {
			v.MACs, asked = askLink(ctx, link, a)
			v.Asked = asked == nil
		})
	} else {
		asked = errors.New("no interface is in its network, so that it could not be asked for there")
	}
	all.Go(func() { v.Ping, pinged = ping(ctx, a) })
	all.Go(func() { v.APIServer = dialOnce(ctx, net.JoinHostPort(a.String(), apiServerPort)).OK })
	all.Wait()
	if err := errors.Join(asked, pinged); err != nil {
		v.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return v
}

// linkOf finds the interface whose network contains an address, and reports whether it is the interface's own.
func linkOf(a netip.Addr) (link *net.Interface, own bool) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, false
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, one := range addresses {
			p, err := netip.ParsePrefix(one.String())
			switch {
			case err != nil:
			case p.Addr() == a:
				return &i, true
			case link == nil && p.Contains(a) && i.Flags&net.FlagLoopback == 0 && !p.IsSingleIP():
				link = &i
			}
		}
	}
	return link, false
}

// Timing of address probes, after RFC 5227: the probes carry no sender address and so change no tables. They are sent
// faster than by a booting machine, because no other machine probes at the same moment.
const (
	linkProbes   = 3
	linkInterval = 300 * time.Millisecond
	linkWait     = time.Second // after the last one
)

// askLink returns the hardware addresses of machines on a link that claim an address.
func askLink(ctx context.Context, link *net.Interface, a netip.Addr) (owners []string, err error) {
	const ethernet = 6
	if len(link.HardwareAddr) != ethernet {
		return nil, fmt.Errorf("%s is not Ethernet", link.Name)
	}
	protocol, question, owner := uint16(unix.ETH_P_ARP), arpProbe(link.HardwareAddr, a), arpOwner
	if a.Is6() {
		protocol, question, owner = unix.ETH_P_IPV6, solicitation(link.HardwareAddr, a), advertiser
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian(protocol)))
	if err != nil {
		return nil, os.NewSyscallError("packet socket", err)
	}
	conn := os.NewFile(uintptr(s), "packets of "+link.Name) // non-blocking: deadlines work
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := unix.Bind(s, &unix.SockaddrLinklayer{Protocol: bigEndian(protocol), Ifindex: link.Index}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	frame := make([]byte, 64<<10)
	for i := range linkProbes {
		if _, err := conn.Write(question); err != nil {
			return owners, err
		}
		until := time.Now().Add(linkInterval)
		if i == linkProbes-1 {
			until = time.Now().Add(linkWait)
		}
		if err := conn.SetReadDeadline(until); err != nil {
			return owners, err
		}
		for {
			n, err := conn.Read(frame)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return owners, err
			}
			mac, ok := owner(frame[:n], a)
			if ok && mac.String() != link.HardwareAddr.String() && !slices.Contains(owners, mac.String()) {
				owners = append(owners, mac.String())
			}
		}
		if len(owners) > 0 || ctx.Err() != nil {
			return owners, ctx.Err()
		}
	}
	return owners, nil
}

// bigEndian is htons.
func bigEndian(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}

const etherHeader = 14

func etherFrame(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := slices.Concat([]byte(to), []byte(from))
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, payload...)
}

// Fields of ARP for IPv4 over Ethernet (RFC 826).
const (
	arpSize         = 28
	arpSenderMAC    = 8
	arpSenderIP     = 14
	arpTargetIP     = 24
	arpOperationEnd = 8
)

// arpProbe returns a query for an address without a sender address (RFC 5227, 2.1.1).
func arpProbe(from net.HardwareAddr, a netip.Addr) []byte {
	packet := make([]byte, arpSize)
	copy(packet, []byte{0, 1, 8, 0, 6, 4, 0, 1}) // Ethernet, IPv4, lengths of both addresses, request
	copy(packet[arpSenderMAC:], from)
	copy(packet[arpTargetIP:], a.AsSlice())
	return etherFrame(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from, unix.ETH_P_ARP, packet)
}

// arpOwner returns the sender of an ARP packet that claims an address.
func arpOwner(frame []byte, a netip.Addr) (net.HardwareAddr, bool) {
	if len(frame) < etherHeader+arpSize || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_ARP {
		return nil, false
	}
	packet := frame[etherHeader:]
	sender, ok := netip.AddrFromSlice(packet[arpSenderIP : arpSenderIP+4])
	isIPv4 := slices.Equal(packet[:6], []byte{0, 1, 8, 0, 6, 4})
	return slices.Clone(net.HardwareAddr(packet[arpSenderMAC:arpSenderIP])), ok && isIPv4 && sender == a
}

// Fields of IPv6 and of neighbour discovery (RFC 8200, RFC 4861).
const (
	ipv6Header       = 40
	ndpSize          = 24
	ndpTarget        = 8
	ndpSolicitation  = 135
	ndpAdvertisement = 136
	ndpHopLimit      = 255
	ndpTargetMAC     = 2 // the option
)

// solicitation returns a query for an address, as sent by a machine before it uses it (RFC 4862, 5.4.2).
func solicitation(from net.HardwareAddr, a netip.Addr) []byte {
	target := a.As16()
	to := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]}
	body := make([]byte, ndpSize)
	body[0] = ndpSolicitation
	copy(body[ndpTarget:], target[:])
	binary.BigEndian.PutUint16(body[2:], checksum6([16]byte{}, to, body))
	packet := make([]byte, ipv6Header, ipv6Header+ndpSize)
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], ndpSize)
	packet[6], packet[7] = unix.IPPROTO_ICMPV6, ndpHopLimit
	copy(packet[24:], to[:])
	return etherFrame(net.HardwareAddr{0x33, 0x33, to[12], to[13], to[14], to[15]}, from, unix.ETH_P_IPV6,
		append(packet, body...))
}

// advertiser returns the machine that claims an address, by itself or in an answer.
func advertiser(frame []byte, a netip.Addr) (net.HardwareAddr, bool) {
	if len(frame) < etherHeader+ipv6Header+ndpSize {
		return nil, false
	}
	packet := frame[etherHeader:]
	body := packet[ipv6Header:]
	target, ok := netip.AddrFromSlice(body[ndpTarget:ndpSize])
	if !ok || packet[6] != unix.IPPROTO_ICMPV6 || packet[7] != ndpHopLimit || body[0] != ndpAdvertisement ||
		target != a {
		return nil, false
	}
	if option := body[ndpSize:]; len(option) >= 8 && option[0] == ndpTargetMAC && option[1] == 1 {
		return slices.Clone(net.HardwareAddr(option[2:8])), true
	}
	return slices.Clone(net.HardwareAddr(frame[6:12])), true
}

// checksum6 is the Internet checksum of ICMPv6 with its pseudo header (RFC 8200, 8.1).
func checksum6(from, to [16]byte, body []byte) uint16 {
	data := slices.Concat(from[:], to[:], binary.BigEndian.AppendUint32(nil, uint32(len(body))),
		[]byte{0, 0, 0, unix.IPPROTO_ICMPV6}, body)
	return checksum(data)
}

// checksum is the Internet checksum (RFC 1071).
func checksum(data []byte) uint16 {
	var sum uint32
	for len(data) > 1 {
		sum += uint32(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) > 0 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
