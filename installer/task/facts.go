package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// Facts returns the host's facts, which the helper collects.
func (t *Host) Facts(ctx context.Context, probe node.Probe) (node.Facts, error) {
	ctx, cancel := WithTimeout(ctx, t.factsLimit())
	defer cancel()
	question, err := json.Marshal(probe)
	if err != nil {
		return node.Facts{}, err
	}
	out := &capped.Buffer{Most: MaxFile}
	err = t.Conn.Run(WithoutOutput(ctx), host.Cmd{
		Args:  []string{host.HelperPath, "facts"},
		Stdin: bytes.NewReader(question), Stdout: out,
	})
	if err != nil {
		return node.Facts{}, err
	}
	var facts node.Facts
	if err := capped.JSON(out.Bytes(), capped.MaxValues, &facts); err != nil {
		return node.Facts{}, fmt.Errorf("%s: facts: %w", t.Name, err)
	}
	if facts.Version != node.FactsVersion {
		return node.Facts{}, fmt.Errorf("%s: the helper sent facts in version %d; this kkbundle needs version %d",
			t.Name, facts.Version, node.FactsVersion)
	}
	return facts, nil
}

// ForArch returns a predicate that reports whether a platform belongs to an architecture.
func ForArch(arch string) func(platform string) bool {
	own := "linux/" + arch
	return func(platform string) bool { return platform == own || strings.HasPrefix(platform, own+"/") }
}

const (
	// FactsTimeout bounds the collection of a host's facts.
	FactsTimeout = 20 * time.Second
	// probeTimeout is added for hosts of etcd and the control plane, which also measure the disk and look for
	// addresses in use.
	probeTimeout = 15 * time.Second
	// SpaceTimeout bounds the measurement of directory sizes.
	SpaceTimeout = 2 * time.Minute
	// LookTimeout bounds one question to a component that may hang.
	LookTimeout = 15 * time.Second
)

// WithTimeout returns a context that ends with a host.SlowError.
func WithTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &host.SlowError{Limit: limit})
}

func (t *Host) factsLimit() time.Duration {
	if t.Is(manifest.RoleEtcd) || t.Is(manifest.RoleControlPlane) {
		return FactsTimeout + probeTimeout
	}
	return FactsTimeout
}

// IsUnresponsive reports whether err means that the host does not answer, so that another question would wait in vain.
func IsUnresponsive(err error) bool {
	var unreachable *host.UnreachableError
	var slow *host.SlowError
	return errors.As(err, &unreachable) || errors.As(err, &slow)
}

// Clock returns the host's time.
func (t *Host) Clock(ctx context.Context) (time.Time, error) {
	out, err := t.Output(ctx, "date", "+%s")
	if err != nil {
		return time.Time{}, err
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("clock of %s: %w", t.Name, err)
	}
	return time.Unix(now, 0), nil
}

// InterfaceWith returns the interface whose network contains the address; text is the output of `ip -oneline address`.
func InterfaceWith(text string, a netip.Addr) string {
	for line := range strings.Lines(text) {
		// 2: eth0    inet 10.0.0.3/24 brd 10.0.0.255 scope global eth0\ ...
		const name, address = 1, 3
		fields := strings.Fields(line)
		if len(fields) <= address {
			continue
		}
		p, err := netip.ParsePrefix(fields[address])
		if err == nil && p.Contains(a) && p.Addr() != a {
			return strings.TrimSuffix(fields[name], ":")
		}
	}
	return ""
}

// DropAddress removes a virtual address from the interface that has it.
func (t *Host) DropAddress(ctx context.Context, a netip.Addr) error {
	own := netip.PrefixFrom(a, a.BitLen()).String()
	out, err := t.Output(ctx, "ip", "-oneline", "address", "show", "to", own)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if _, err := t.Test(ctx, "ip", "address", "delete", own, "dev",
			strings.TrimSuffix(fields[1], ":")); err != nil {
			return err
		}
	}
	return nil
}
