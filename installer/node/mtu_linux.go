package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A sizer sends unfragmentable packets of a size, and learns which of them arrived.
type sizer interface {
	send(size int) error
	receive(buf []byte, until time.Time) (size int, err error)
}

// dontFragment prevents fragmentation, regardless of the kernel's path MTU: the purpose is to find that out.
func dontFragment(conn syscall.Conn, six bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if six {
			set = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
			return
		}
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
	return errors.Join(err, set)
}

// Parameters of the size search: several sizes at a time for a short search, each sent a few times because packets get
// lost.
const (
	mtuWait   = 300 * time.Millisecond
	mtuRepeat = 3
	mtuAtOnce = 16
	// Every machine accepts packets of these sizes (RFC 791, RFC 8200).
	leastMTU4, leastMTU6 = 576, 1280
)

// pathMTU finds the largest packet up to want that arrives, 0 if not even the smallest does.
func pathMTU(ctx context.Context, s sizer, want int, to netip.Addr) int {
	if want == 0 || largest(ctx, s, []int{want}) == want {
		return want
	}
	low, high := 0, want // low arrived, high did not
	sizes := []int{leastMTU4, leastMTU6}
	if to.Is6() {
		sizes = sizes[1:]
	}
	if sizes = slices.DeleteFunc(sizes, func(size int) bool { return size >= want }); len(sizes) == 0 {
		return 0
	}
	for high-low > 1 && ctx.Err() == nil {
		if low > 0 {
			sizes = between(low, high)
		}
		found := largest(ctx, s, sizes)
		if low = max(low, found); low == 0 {
			return 0
		}
		for i := len(sizes) - 1; i >= 0 && sizes[i] > low; i-- {
			high = min(high, sizes[i])
		}
	}
	return low
}

// between distributes sizes over those larger than low and smaller than high.
func between(low, high int) []int {
	n := min(mtuAtOnce, high-low-1)
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = low + (high-low)*(i+1)/(n+1)
	}
	return sizes
}

// largest returns the largest of the ascending sizes that arrives; 0 if none does.
func largest(ctx context.Context, s sizer, sizes []int) int {
	buf := make([]byte, 64<<10)
	found := 0
	for range mtuRepeat {
		for _, size := range sizes {
			if size > found {
				_ = s.send(size) // too large for the kernel's route counts as lost
			}
		}
		until := time.Now().Add(mtuWait)
		for found < sizes[len(sizes)-1] && ctx.Err() == nil {
			size, err := s.receive(buf, until)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err == nil && size <= sizes[len(sizes)-1] { // an error concerns a packet, reported by a router
				found = max(found, size)
			}
			if time.Now().After(until) {
				break
			}
		}
		if found == sizes[len(sizes)-1] || ctx.Err() != nil {
			break
		}
	}
	return found
}

// wantedMTU returns the MTU of the interface with an address; 0 if there is none, or for the machine itself.
func wantedMTU(local net.Addr) int {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0
	}
	host, _, err := net.SplitHostPort(local.String())
	if err != nil {
		host = local.String()
	}
	mine, err := netip.ParseAddr(host)
	if err != nil {
		return 0
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().WithZone("") == mine.WithZone("") {
				return min(i.MTU, 65535)
			}
		}
	}
	return 0
}

// echoMTU uses ICMP echo, for hosts where no UDP port can be listened on.
func echoMTU(ctx context.Context, a netip.Addr) (mtu, want int) {
	e, err := openEcho(ctx, a)
	if err != nil {
		return 0, 0
	}
	defer func() { _ = e.conn.Close() }() // the result is complete
	if err := dontFragment(e.conn, e.six); err != nil {
		return 0, 0
	}
	const small = 84
	if largest(ctx, e, []int{small}) == 0 {
		return 0, 0 // no answer to ICMP echo at all
	}
	want = wantedMTU(e.conn.LocalAddr())
	return pathMTU(ctx, e, want, a), want
}
