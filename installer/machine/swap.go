package installer

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// swapTask turns swap off, now and at the next boot: the kubelet refuses to run with it.
func swapTask(c *manifest.Cluster) Task {
	return Task{
		Name:  "swap",
		Apart: true,
		Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if v, ok := c.Kubernetes.Kubelet["failSwapOn"].(bool); ok && !v {
				return true, nil // the operator wants to keep it
			}
			active, err := t.output(ctx, "cat", "/proc/swaps")
			if err != nil || bytes.Count(active, []byte("\n")) > 1 {
				because(ctx, "swap is on")
				return false, err
			}
			have, want, err := t.fstab(ctx)
			if err != nil || !bytes.Equal(have, want) {
				because(ctx, "/etc/fstab turns swap on at the next boot")
				return false, err
			}
			units, err := t.wakes(ctx)
			if len(units) > 0 {
				because(ctx, "systemd turns swap on at the next boot: %s", strings.Join(units, ", "))
			}
			return err == nil && len(units) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			have, want, err := t.fstab(ctx)
			if err != nil {
				return err
			}
			if !bytes.Equal(have, want) {
				if err := t.edit(ctx, "/etc/fstab", want); err != nil {
					return err
				}
				if err := t.systemctl(ctx, "daemon-reload"); err != nil {
					return err
				}
			}
			if err := t.maskSwap(ctx); err != nil {
				return err
			}
			return t.command(ctx, "swapoff", "--all")
		},
	}
}

// fstab returns /etc/fstab as it is and without swap.
func (t *Target) fstab(ctx context.Context) (have, want []byte, err error) {
	have, err = t.read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	return have, withoutSwap(have), err
}

// withoutSwap comments the swap lines of an fstab out.
func withoutSwap(fstab []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(fstab) {
		fields := strings.Fields(string(line))
		const typeField = 2
		if len(fields) > typeField && fields[typeField] == "swap" && !strings.HasPrefix(fields[0], "#") {
			out.WriteString(takenOut)
		}
		out.Write(line)
	}
	return out.Bytes()
}

// withSwap undoes withoutSwap.
func withSwap(fstab []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(fstab) {
		out.Write(bytes.TrimPrefix(line, []byte(takenOut)))
	}
	return out.Bytes()
}

const (
	swapTarget = "swap.target"
	// swapMasked says that swap.target was masked by an installation.
	swapMasked = beforeDir + "/swap-target"
)

// wakes tells whether systemd will turn swap on at the next boot: by units that are not fstab's, such as those of compressed
// memory (zram), of a partition that it finds by its type, or of an operator's own, unless their target is masked.
// https://www.freedesktop.org/software/systemd/man/latest/systemd-gpt-auto-generator.html
func (t *Target) wakes(ctx context.Context) (units []string, err error) {
	out := &capped.Buffer{Most: maxFile}
	args := []string{"systemctl", "list-unit-files", "--type=swap", "--no-legend", "--no-pager"}
	if _, err := succeeded(t.on.Run(ctx, host.Cmd{Args: args, Stdout: out})); err != nil { // it fails where it has nothing to list
		return nil, err
	}
	if units = activeSwap(out.String()); len(units) == 0 {
		return nil, nil
	}
	state, err := t.output(ctx, "systemctl", "is-enabled", swapTarget)
	if _, err := succeeded(err); err != nil || strings.TrimSpace(string(state)) == "masked" { // for which it fails
		return nil, err
	}
	return units, nil
}

// activeSwap reads what systemctl list-unit-files prints, name and state and more, for units of swap that something starts.
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

// maskSwap keeps such units from being started at the next boot.
func (t *Target) maskSwap(ctx context.Context) error {
	units, err := t.wakes(ctx)
	if err != nil || len(units) == 0 {
		return err
	}
	if err := t.write(ctx, textFile{swapMasked, 0o600, nil}); err != nil {
		return err
	}
	return t.systemctl(ctx, "mask", swapTarget)
}

// unmaskSwap undoes maskSwap, and turns swap on.
func (t *Target) unmaskSwap(ctx context.Context) error {
	masked, err := t.test(ctx, "test", "-e", swapMasked)
	if err != nil || !masked {
		return err
	}
	if err := t.systemctl(ctx, "unmask", swapTarget); err != nil {
		return err
	}
	if _, err := t.test(ctx, "systemctl", "start", swapTarget); err != nil { // a device may be gone
		return err
	}
	return t.command(ctx, "rm", "-f", swapMasked)
}

// restoreSwap turns swap on as it was before.
func (t *Target) restoreSwap(ctx context.Context) error {
	if err := t.unmaskSwap(ctx); err != nil {
		return err
	}
	fstab, err := t.read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(fstab, withSwap(fstab)) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.edit(ctx, "/etc/fstab", withSwap(fstab)); err != nil {
		return err
	}
	if err := t.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	return t.command(ctx, "swapon", "--all")
}
