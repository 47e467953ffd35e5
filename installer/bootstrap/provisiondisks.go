package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
)

// provisionDisk writes a partition table on an empty disk.
func provisionDisk(ctx context.Context, t *task.Host, d provision.Disk) error {
	found, err := t.Output(ctx, "wipefs", "--no-act", "--noheadings", "--", d.Device)
	if err != nil {
		return fmt.Errorf("disk %s: %w", d.Device, err)
	}
	if len(bytes.TrimSpace(found)) > 0 {
		if !d.Overwrite {
			return nil // as in cloud-init: the disk was partitioned before, or is somebody else's
		}
		if err := t.Run(ctx, "wipefs", "--all", "--", d.Device); err != nil {
			return err
		}
	}
	out, err := t.Output(ctx, "blockdev", "--getsize64", d.Device)
	if err != nil {
		return err
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return fmt.Errorf("size of %s: %w", d.Device, err)
	}
	return t.Feed(ctx, []byte(partitionTable(d, size)), "sfdisk", "--quiet", "--", d.Device)
}

// partitionTable returns input for sfdisk(8), for a disk of size bytes.
func partitionTable(d provision.Disk, size int64) string {
	table := d.Table
	if table == "mbr" {
		table = "dos"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "label: %s\n", table)
	for _, p := range d.Parts {
		var fields []string
		if p.StartMiB > 0 {
			fields = append(fields, fmt.Sprintf("start=%dMiB", p.StartMiB))
		}
		const mebi = 1 << 20
		switch {
		case p.SizeMiB > 0:
			fields = append(fields, fmt.Sprintf("size=%dMiB", p.SizeMiB))
		case p.Percent > 0 && p.Percent < 100:
			fields = append(fields, fmt.Sprintf("size=%dMiB", size/100*int64(p.Percent)/mebi))
		}
		if p.Type != "" {
			fields = append(fields, "type="+p.Type)
		}
		if p.Label != "" && table == "gpt" {
			fields = append(fields, "name="+strconv.Quote(p.Label))
		}
		b.WriteString(strings.Join(fields, ", ") + ",\n")
	}
	return b.String()
}

// provisionFilesystem makes a filesystem on an empty device.
func provisionFilesystem(ctx context.Context, t *task.Host, f provision.Filesystem) error {
	kind, err := blkid(ctx, t, f.Device, "TYPE")
	if err != nil {
		return err
	}
	if kind != "" && !f.Overwrite {
		label, err := blkid(ctx, t, f.Device, "LABEL")
		if err != nil {
			return err
		}
		if kind == f.Type && (f.Label == "" || label == f.Label) {
			return nil
		}
		return fmt.Errorf("%s already has a filesystem (%s %q), and overwrite is not set", f.Device, kind, label)
	}
	return t.Run(ctx, mkfs(f)...)
}

// blkid returns the value of a device's tag, "" if blkid finds none.
func blkid(ctx context.Context, t *task.Host, device, tag string) (string, error) {
	out := &capped.Buffer{Most: task.MaxFile}
	ok, err := task.Succeeded(t.Conn.Run(ctx, host.Cmd{Args: []string{
		"blkid", "--probe", "--output", "value",
		"--match-tag", tag, "--", device,
	}, Stdout: out}))
	if err != nil || !ok {
		return "", err // blkid fails on an empty device; mkfs reports real faults of the device
	}
	return strings.TrimSpace(out.String()), nil
}

// mkfs returns the command that creates a filesystem and overwrites the device's content.
func mkfs(f provision.Filesystem) []string {
	label, force, id := "-L", "-f", []string{"-U", f.UUID}
	switch f.Type {
	case "ext3", "ext4":
		force = "-F"
	case "xfs":
		id = []string{"-m", "uuid=" + f.UUID}
	case "vfat":
		label, force, id = "-n", "", []string{"-i", strings.ReplaceAll(f.UUID, "-", "")}
	}
	args := []string{"mkfs." + f.Type}
	if force != "" {
		args = append(args, force)
	}
	if f.Label != "" {
		args = append(args, label, f.Label)
	}
	if f.UUID != "" {
		args = append(args, id...)
	}
	args = append(args, f.Options...)
	return append(args, f.Device)
}

// provisionMount adds a line to /etc/fstab and mounts the filesystem unless the options have noauto, as cloud-init
// does.
func provisionMount(ctx context.Context, t *task.Host, m provision.Mount) error {
	have, err := t.Read(ctx, "/etc/fstab")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	want, err := withMount(have, m)
	if err != nil {
		return err
	}
	if err := t.Run(ctx, "mkdir", "-p", "--", m.Path); err != nil {
		return err
	}
	if !bytes.Equal(have, want) {
		if err := t.Write(ctx, task.File{Path: "/etc/fstab", Mode: 0o644, Data: want}); err != nil {
			return err
		}
		if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
	}
	if m.HasOption("noauto") {
		return nil
	}
	mounted, err := t.Test(ctx, "mountpoint", "-q", "--", m.Path)
	if err != nil || mounted {
		return err
	}
	return t.Run(ctx, "mount", "--", m.Path)
}

// withMount returns an fstab with the mount's line. A different line for the same path is an error.
func withMount(fstab []byte, m provision.Mount) ([]byte, error) {
	line := strings.Join([]string{m.Source, m.Path, m.Type, m.Options, m.Dump, m.Pass}, " ")
	for have := range bytes.Lines(fstab) {
		fields := strings.Fields(string(have))
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") || fields[1] != m.Path {
			continue
		}
		if strings.Join(fields, " ") == line {
			return fstab, nil
		}
		return nil, fmt.Errorf("/etc/fstab has another line for %s: %s", m.Path, bytes.TrimSpace(have))
	}
	if len(fstab) > 0 && !bytes.HasSuffix(fstab, []byte("\n")) {
		fstab = append(bytes.Clone(fstab), '\n')
	}
	return append(bytes.Clone(fstab), line+"\n"...), nil
}
