package machine

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// SwapTask disables swap, now and at the next boot: the kubelet refuses to run with it.
func SwapTask(c *manifest.Cluster) task.Task {
	return task.Task{
		Name:        "swap",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if v, ok := c.Kubernetes.Kubelet["failSwapOn"].(bool); ok && !v {
				return true, nil // the operator keeps swap
			}
			active, err := t.Output(ctx, "cat", "/proc/swaps")
			if err != nil || bytes.Count(active, []byte("\n")) > 1 {
				task.Because(ctx, "swap is on")
				return false, err
			}
			have, want, err := fstab(ctx, t)
			if err != nil || !bytes.Equal(have, want) {
				task.Because(ctx, "/etc/fstab turns swap on at the next boot")
				return false, err
			}
			units, err := swapUnits(ctx, t)
			if len(units) > 0 {
				task.Because(ctx, "systemd turns swap on at the next boot: %s", strings.Join(units, ", "))
			}
			return err == nil && len(units) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			have, want, err := fstab(ctx, t)
			if err != nil {
				return err
			}
			if !bytes.Equal(have, want) {
				if err := t.Edit(ctx, "/etc/fstab", want); err != nil {
					return err
				}
				if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
					return err
				}
			}
			if err := maskSwap(ctx, t); err != nil {
				return err
			}
			return t.Run(ctx, "swapoff", "--all")
		},
	}
}

// fstab returns the current /etc/fstab, and the wanted one without swap.
func fstab(ctx context.Context, t *task.Host) (have, want []byte, err error) {
	have, err = t.Read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	return have, withoutSwap(have), err
}

// withoutSwap comments out the swap lines of an fstab.
func withoutSwap(fstab []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(fstab) {
		fields := strings.Fields(string(line))
		const typeField = 2
		if len(fields) > typeField && fields[typeField] == "swap" && !strings.HasPrefix(fields[0], "#") {
			out.WriteString(task.CommentedOut)
		}
		out.Write(line)
	}
	return out.Bytes()
}

// WithSwap undoes withoutSwap.
func WithSwap(fstab []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(fstab) {
		out.Write(bytes.TrimPrefix(line, []byte(task.CommentedOut)))
	}
	return out.Bytes()
}

// SwapTarget starts all swap units.
const SwapTarget = "swap.target"

// swapUnits returns units that enable swap at the next boot, unless swap.target is masked. They are not from fstab:
// compressed memory (zram), partitions discovered by type, or an operator's own.
// https://www.freedesktop.org/software/systemd/man/latest/systemd-gpt-auto-generator.html
func swapUnits(ctx context.Context, t *task.Host) (units []string, err error) {
	out := &capped.Buffer{Most: task.MaxFile}
	args := []string{"systemctl", "list-unit-files", "--type=swap", "--no-legend", "--no-pager"}
	// fails if the list is empty
	if _, err := task.Succeeded(t.Conn.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil {
		return nil, err
	}
	if units = activeSwap(out.String()); len(units) == 0 {
		return nil, nil
	}
	state, err := t.Output(ctx, "systemctl", "is-enabled", SwapTarget)
	// is-enabled fails for masked units
	if _, err := task.Succeeded(err); err != nil || strings.TrimSpace(string(state)) == "masked" {
		return nil, err
	}
	return units, nil
}

// activeSwap returns the enabled units from the output of systemctl list-unit-files: name, state and more.
func activeSwap(list string) []string {
	var units []string
	for line := range strings.Lines(list) {
		const name, state = 0, 1
		fields := strings.Fields(line)
		if len(fields) <= state || !strings.HasSuffix(fields[name], ".swap") {
			continue
		}
		if !strings.HasPrefix(fields[state], "masked") && fields[state] != "disabled" {
			units = append(units, fields[name])
		}
	}
	return units
}

// maskSwap masks swap.target if a unit would enable swap at the next boot.
func maskSwap(ctx context.Context, t *task.Host) error {
	units, err := swapUnits(ctx, t)
	if err != nil || len(units) == 0 {
		return err
	}
	if err := t.Write(ctx, task.File{Path: marks.SwapMasked, Mode: 0o600, Data: nil}); err != nil {
		return err
	}
	return t.Systemctl(ctx, "mask", SwapTarget)
}

// unmaskSwap undoes maskSwap, and enables swap.
func unmaskSwap(ctx context.Context, t *task.Host) error {
	masked, err := t.Test(ctx, "test", "-e", marks.SwapMasked)
	if err != nil || !masked {
		return err
	}
	if err := t.Systemctl(ctx, "unmask", SwapTarget); err != nil {
		return err
	}
	if _, err := t.Test(ctx, "systemctl", "start", SwapTarget); err != nil { // a device may be missing
		return err
	}
	return t.Run(ctx, "rm", "-f", marks.SwapMasked)
}

// RestoreSwap enables swap as it was before.
func RestoreSwap(ctx context.Context, t *task.Host) error {
	if err := unmaskSwap(ctx, t); err != nil {
		return err
	}
	fstab, err := t.Read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(fstab, WithSwap(fstab)) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.Edit(ctx, "/etc/fstab", WithSwap(fstab)); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	return t.Run(ctx, "swapon", "--all")
}
