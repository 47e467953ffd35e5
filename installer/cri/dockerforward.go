package cri

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	// forwardWas is what the host did with packets for others before Docker first ran.
	forwardWas = task.BeforeDir + "/docker-forward.conf"

	forwardKey = "net.ipv4.ip_forward"
	// policyKey follows the command that the policy of the chain FORWARD belongs to.
	policyKey = " --policy FORWARD"
)

// filterCommands are the packet filters of both families.
func filterCommands() []string { return []string{"iptables", "ip6tables"} }

// RememberForward writes down, before Docker first runs, whether the host forwards packets and what its filter does with those that
// no rule is for. Docker turns forwarding on where it is off, and drops these packets then; it leaves both when it ends.
// https://github.com/moby/moby/blob/v28.5.2/daemon/libnetwork/drivers/bridge/setup_ip_forwarding.go
func RememberForward(ctx context.Context, t *task.Host) error {
	if known, err := t.AnyExists(ctx, forwardWas); err != nil || known {
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
	return t.SaveOriginal(ctx, forwardWas, was)
}

// forwardPolicy returns what a filter does with forwarded packets that no rule is for, "" if the host has no such filter.
func forwardPolicy(ctx context.Context, t *task.Host, command string) (string, error) {
	if there, err := t.HasCommands(ctx, command); err != nil || !there {
		return "", err
	}
	out, err := t.Output(ctx, command, "--list-rules", "FORWARD")
	if ok, err := task.Succeeded(err); err != nil || !ok {
		return "", err // a kernel without this family
	}
	for line := range strings.Lines(string(out)) {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "-P FORWARD "); ok {
			return policy, nil
		}
	}
	return "", nil
}

// RestoreForward makes the host treat packets for others as before Docker ran. Forwarding comes first: a host that did not forward
// must not do it without a filter.
func RestoreForward(ctx context.Context, t *task.Host) error {
	data, err := t.Read(ctx, forwardWas)
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
			continue // Docker only ever makes it drop
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
