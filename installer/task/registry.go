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

// Eventually tries until there is no error or the time is over; then it returns the last error.
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
			return err // a host that was lost is not connected to again
		}
		if last == nil || limit.Err() == nil { // one that was cut short says nothing
			last = err
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("%w (waited %s)", last, most)
		}
	}
}

// Upstreams are the registries that the bundle's images come from, sorted.
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

// RegistryHosts are where the registry is installed.
func (s *Site) RegistryHosts() []*Host { return s.WithRole(manifest.RoleRegistry) }

// IsRegistry tells whether the registry is installed on a host.
func (s *Site) IsRegistry(t *Host) bool {
	return t == FirstOf(s.RegistryHosts()) || s.IsPair() && slices.Contains(s.RegistryHosts(), t)
}

// IsPair tells whether two registry hosts share an address.
func (s *Site) IsPair() bool { return IsPaired(s.Cluster) }

func IsPaired(c *manifest.Cluster) bool { return c.ImageRegistry.VIP != "" }

// A RegistryAccess is how hosts reach the registry.
type RegistryAccess struct {
	Address string // host[:port]
	Prefix  string // of the repositories' names; "" if there is none
	CA      []byte // PEM; none if the system's authorities are trusted
	Login
}

func (r RegistryAccess) Authorization() string {
	if r.Username == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.Username+":"+r.Password))
}
