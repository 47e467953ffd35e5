package task

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
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

// IsRegistry reports whether the registry runs on a host: on the first with the role, or on both of a pair.
func (s *Site) IsRegistry(t *Host) bool {
	return t == FirstOf(s.RegistryHosts()) || s.IsPair() && slices.Contains(s.RegistryHosts(), t)
}

// IsPair reports whether two registry hosts share an address.
func (s *Site) IsPair() bool { return IsPaired(s.Cluster) }

// IsPaired reports whether two registry hosts of the cluster share an address.
func IsPaired(c *manifest.Cluster) bool { return c.ImageRegistry.VIP != "" }

// A RegistryAccess holds the address, authority and login by which hosts use a registry.
type RegistryAccess struct {
	Address string // host[:port]
	Prefix  string // of the repositories' names; "" if there is none
	CA      []byte // PEM; none if the system's authorities are trusted
	Login
}

// Authorization returns the HTTP header for the login, or "" without one.
func (r RegistryAccess) Authorization() string {
	if r.Username == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.Username+":"+r.Password))
}
