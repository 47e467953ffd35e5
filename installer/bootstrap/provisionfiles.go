package bootstrap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
)

func provisionFile(ctx context.Context, t *task.Host, f provision.File, receipt string) error {
	data := f.Data
	switch {
	case f.Append:
		more, err := appended(ctx, t, f, receipt)
		if err != nil {
			return err
		}
		data = more
	case f.Keep:
		have, err := t.Read(ctx, f.Path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !bytes.Equal(have, f.Data) {
			return fmt.Errorf("%s already exists with other content, and overwrite is not set", f.Path)
		}
	}
	if err := t.Write(ctx, task.File{Path: f.Path, Mode: f.Mode, Data: data}); err != nil {
		return err
	}
	return chown(ctx, t, f.Owner, f.Path)
}

// appended returns the file's content with the step's data at its end. The digest of the result is written first, so
// that a run that was interrupted between file and receipt does not append twice.
func appended(ctx context.Context, t *task.Host, f provision.File, receipt string) ([]byte, error) {
	have, err := t.Read(ctx, f.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	begun := task.File{Path: receipt + ".begun", Mode: 0o600}
	was, err := t.Read(ctx, begun.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if string(was) == hexSum(have) {
		return have, nil
	}
	data := slices.Concat(have, f.Data)
	begun.Data = []byte(hexSum(data))
	return data, t.Write(ctx, begun)
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func chown(ctx context.Context, t *task.Host, o provision.Owner, path string) error {
	if o.Chown() == "" {
		return nil
	}
	return t.Run(ctx, "chown", "--no-dereference", "--", o.Chown(), path)
}

func provisionDirectory(ctx context.Context, t *task.Host, d provision.Directory) error {
	if err := t.Run(ctx, "mkdir", "-p", "--", d.Path); err != nil {
		return err
	}
	if err := t.Run(ctx, "chmod", fmt.Sprintf("%04o", d.Mode), "--", d.Path); err != nil {
		return err
	}
	return chown(ctx, t, d.Owner, d.Path)
}

func provisionLink(ctx context.Context, t *task.Host, l provision.Link) error {
	args := []string{"ln", "-T"}
	if !l.Hard {
		args = append(args, "-s")
		to, err := t.Output(ctx, "readlink", "-n", "--", l.Path)
		if is, err := task.Succeeded(err); err != nil || is && string(to) == l.Target {
			return err
		}
	}
	if l.Replace {
		args = append(args, "-f")
	}
	if err := t.Run(ctx, "mkdir", "-p", "--", path.Dir(l.Path)); err != nil {
		return err
	}
	return t.Run(ctx, append(args, "--", l.Target, l.Path)...)
}

// provisionCommand runs a command. A script is written to a file while it runs: it may contain secrets, and every user
// of the host can read the arguments of processes.
func provisionCommand(ctx context.Context, t *task.Host, c provision.Command, receipt string) (err error) {
	if len(c.Args) != 3 || c.Args[0] != "/bin/sh" || c.Args[1] != "-c" {
		return t.Run(ctx, c.Args...)
	}
	script := receipt + ".sh"
	if err := t.Write(ctx, task.File{Path: script, Mode: 0o600, Data: []byte(c.Args[2] + "\n")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", "--", script)) }()
	return t.Run(ctx, "sh", script)
}

func provisionUnit(ctx context.Context, t *task.Host, u provision.Unit) error {
	const dir = "/etc/systemd/system"
	var files []task.File
	if len(u.Contents) > 0 {
		files = append(files, task.File{Path: path.Join(dir, u.Name), Mode: 0o644, Data: u.Contents})
	}
	for _, d := range u.Dropins {
		files = append(files, task.File{Path: path.Join(dir, u.Name+".d", d.Name), Mode: 0o644, Data: d.Contents})
	}
	if err := t.Write(ctx, files...); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	switch {
	case u.Mask:
		return t.Systemctl(ctx, "mask", "--now", "--", u.Name)
	case u.Disable:
		return t.Systemctl(ctx, "disable", "--now", "--", u.Name)
	case !u.Enable:
		return nil
	}
	if err := t.Systemctl(ctx, "enable", "--", u.Name); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "restart", "--", u.Name); err != nil {
		return t.WithUnitLog(ctx, u.Name, err)
	}
	return nil
}

func provisionTimezone(ctx context.Context, t *task.Host, z provision.Timezone) error {
	file := "/usr/share/zoneinfo/" + z.Name
	known, err := t.Test(ctx, "test", "-f", file)
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("time zone %s is unknown on the host: %s is missing (package tzdata)", z.Name, file)
	}
	return t.Run(ctx, "ln", "-sfT", "--", file, "/etc/localtime")
}

// provisionTime configures the host's time service with the document's servers and pools.
func provisionTime(ctx context.Context, t *task.Host, want provision.Time) error {
	if want.Off {
		return nil
	}
	c, err := machine.TimeConfig(ctx, t, machine.TimeSources{Servers: want.Servers, Pools: want.Pools})
	if err != nil {
		return err
	}
	return machine.SetTime(ctx, t, c)
}
