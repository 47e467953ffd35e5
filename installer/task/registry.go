package task

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// Eventually tries until there is no error. After the time most it returns the last error.
func Eventually(ctx context.Context, most time.Duration, try func(ctx context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	const pause = 500 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for {
		err := try(limit)
		if err == nil || ctx.Err() != nil || errors.As(err, new(*host.UnreachableError)) {
			return err // a lost connection does not come back
		}
		if last == nil || limit.Err() == nil { // the error of an interrupted try says nothing
			last = err
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("%w (waited %s)", last, most)
		}
	}
}

// Upstreams returns the registries that the bundle's images come from, sorted.
func (s *Site) Upstreams() []string {
	var hosts []string
	for _, it := range s.Items {
		if it.Kind != bundle.KindImage {
			continue
		}
		if host, _, ok := strings.Cut(it.Ref, "/"); ok {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// RegistryHosts returns the hosts with the role registry.
func (s *Site) RegistryHosts() []*Host { return s.WithRole(manifest.RoleRegistry) }

// IsRegistry reports whether the registry runs on a host: on the first with the role, or on all that share an address.
func (s *Site) IsRegistry(t *Host) bool {
	return t == FirstOf(s.RegistryHosts()) || s.HasRegistryVIP() && slices.Contains(s.RegistryHosts(), t)
}

// HasRegistryVIP reports whether registry hosts share an address.
func (s *Site) HasRegistryVIP() bool { return HasRegistryVIP(s.Cluster) }

// HasRegistryVIP reports whether registry hosts of the cluster share an address.
func HasRegistryVIP(c *manifest.Cluster) bool { return c.ImageRegistry.VIP != "" }

// A RegistryAccess holds the address, authority and login by which hosts use a registry.
type RegistryAccess struct {
	Address string // host[:port]
	Prefix  string // of the repositories' names; "" if there is none
	CA      []byte // PEM; none if the system's authorities are trusted
	Login
}

// Replicas returns the address of each of the registry's hosts, in the order in which a node asks them. Orders differ,
// so that about as many nodes begin with one host as with another, and a host that comes or goes changes the first one
// of few nodes: each host's rank is a digest of both names (rendezvous hashing).
func (r RegistryAccess) Replicas(node string, hosts []*Host) []string {
	rank := func(t *Host) string {
		sum := sha256.Sum256([]byte(node + "/" + t.Name)) // names have no slash
		return string(sum[:])
	}
	list := slices.SortedFunc(slices.Values(hosts), func(a, b *Host) int { return strings.Compare(rank(a), rank(b)) })
	var addresses []string
	for _, t := range list {
		addresses = append(addresses, r.on(t.IP))
	}
	return addresses
}

// on returns the registry's address with that of one host in its place.
func (r RegistryAccess) on(a netip.Addr) string {
	if _, port, err := net.SplitHostPort(r.Address); err == nil {
		return net.JoinHostPort(a.String(), port)
	}
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// Authorization returns the HTTP header for the login, or "" without one.
func (r RegistryAccess) Authorization() string {
	if r.Username == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.Username+":"+r.Password))
}
