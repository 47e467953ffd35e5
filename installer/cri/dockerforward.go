package cri

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	forwardKey = "net.ipv4.ip_forward"
	// policyKey follows the command, for the policy of its chain FORWARD.
	policyKey = " --policy FORWARD"
)

// filterCommands returns the packet filters of both families.
func filterCommands() []string { return []string{"iptables", "ip6tables"} }

// RememberForward records, before Docker's first start, whether the host forwards packets, and the policy of its chain
// FORWARD. Docker enables disabled forwarding and then sets the policy to DROP; it leaves both when it ends.
// https://github.com/moby/moby/blob/v28.5.2/daemon/libnetwork/drivers/bridge/setup_ip_forwarding.go
func RememberForward(ctx context.Context, t *task.Host) error {
	if known, err := t.AnyExists(ctx, marks.ForwardBefore); err != nil || known {
		return err
	}
	out, err := t.Output(ctx, "sysctl", "--ignore", forwardKey)
	if err != nil {
		return err
	}
	was := task.ParseSysctl(out)
	for _, command := range filterCommands() {
		policy, err := forwardPolicy(ctx, t, command)
		if err != nil {
			return err
		}
		if policy != "" {
			was[command+policyKey] = policy
		}
	}
	return t.SaveOriginal(ctx, marks.ForwardBefore, was)
}

// forwardPolicy returns the policy of a filter's chain FORWARD, or "" if the host lacks the filter.
func forwardPolicy(ctx context.Context, t *task.Host, command string) (string, error) {
	if there, err := t.HasCommands(ctx, command); err != nil || !there {
		return "", err
	}
	out, err := t.Output(ctx, command, "--list-rules", "FORWARD")
	if ok, err := task.Succeeded(err); err != nil || !ok {
		return "", err // the kernel lacks this family
	}
	for line := range strings.Lines(string(out)) {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "-P FORWARD "); ok {
			return policy, nil
		}
	}
	return "", nil
}

// RestoreForward restores the settings of RememberForward. Forwarding is disabled before the filter is opened.
func RestoreForward(ctx context.Context, t *task.Host) error {
	data, err := t.Read(ctx, marks.ForwardBefore)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	was := task.ParseSysctl(data)
	if was[forwardKey] == "0" {
		if err := t.Run(ctx, "sysctl", "--write", forwardKey+"=0"); err != nil {
			return err
		}
	}
	for _, command := range filterCommands() {
		if was[command+policyKey] != "ACCEPT" {
			continue // Docker only sets DROP
		}
		policy, err := forwardPolicy(ctx, t, command)
		if err != nil {
			return err
		}
		if policy != "DROP" {
			continue
		}
		if err := t.Run(ctx, command, "--policy", "FORWARD", "ACCEPT"); err != nil {
			return err
		}
	}
	return nil
}
