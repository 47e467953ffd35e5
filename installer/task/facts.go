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

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Facts asks the helper.
func (t *Host) Facts(ctx context.Context, probe node.Probe) (node.Facts, error) {
	ctx, cancel := WithTimeout(ctx, t.factsLimit())
	defer cancel()
	question, err := json.Marshal(probe)
	if err != nil {
		return node.Facts{}, err
	}
	out := &capped.Buffer{Most: MaxFile}
	err = t.Conn.Run(WithoutOutput(ctx), host.Cmd{Args: []string{host.HelperPath, "facts"}, Stdin: bytes.NewReader(question), Stdout: out})
	if err != nil {
		return node.Facts{}, err
	}
	var facts node.Facts
	if err := json.Unmarshal(out.Bytes(), &facts); err != nil {
		return node.Facts{}, fmt.Errorf("%s: facts: %w", t.Name, err)
	}
	if facts.Version != node.FactsVersion {
		return node.Facts{}, fmt.Errorf("%s: the helper speaks version %d of facts, this kkbundle %d", t.Name, facts.Version, node.FactsVersion)
	}
	return facts, nil
}

// IsFor accepts the platforms of an architecture.
func ForArch(arch string) func(platform string) bool {
	own := "linux/" + arch
	return func(platform string) bool { return platform == own || strings.HasPrefix(platform, own+"/") }
}

// FactsTimeout is how long a host may take to say what it is like, probeTimeout how much longer for what only etcd
// and control planes are asked for: the speed of the disk, and addresses that nobody may have.
const FactsTimeout = 20 * time.Second

const probeTimeout = 15 * time.Second

// SpaceTimeout is for counting what directories hold.
const SpaceTimeout = 2 * time.Minute

// Bounded gives what a host is asked an end.
func WithTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &host.SlowError{Limit: limit})
}

// factsLimit returns how long the host may take to answer.
func (t *Host) factsLimit() time.Duration {
	if t.Is(manifest.RoleEtcd) || t.Is(manifest.RoleControlPlane) {
		return FactsTimeout + probeTimeout
	}
	return FactsTimeout
}

// IsGone tells whether asking a host again would be to wait again.
func IsUnresponsive(err error) bool {
	var unreachable *host.UnreachableError
	var slow *host.SlowError
	return errors.As(err, &unreachable) || errors.As(err, &slow)
}

// Clock is the host's.
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

// LookTimeout bounds one question to a component that may hang.
const LookTimeout = 15 * time.Second

// InterfaceWith finds, in what `ip -oneline address` prints, the interface whose network has an address in it.
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

// DropAddress takes an address that is announced, and no host's own, off its interface.
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
		if _, err := t.Test(ctx, "ip", "address", "delete", own, "dev", strings.TrimSuffix(fields[1], ":")); err != nil {
			return err
		}
	}
	return nil
}
