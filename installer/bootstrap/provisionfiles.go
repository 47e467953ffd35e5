package installer

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

	"github.com/kkbundle/kkbundle/provision"
)

// How a host gets files, commands and units that a program asks for.

func (t *Target) provisionFile(ctx context.Context, f provision.File, receipt string) error {
	data := f.Data
	switch {
	case f.Append:
		added, err := t.added(ctx, f, receipt)
		if err != nil {
			return err
		}
		data = added
	case f.Keep:
		have, err := t.read(ctx, f.Path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !bytes.Equal(have, f.Data) {
			return fmt.Errorf("%s is there with another content, and overwrite is not set", f.Path)
		}
	}
	if err := t.write(ctx, textFile{f.Path, f.Mode, data}); err != nil {
		return err
	}
	return t.chown(ctx, f.Owner, f.Path)
}

// added returns a file with more at its end. What it will be is noted first, so that a run that was interrupted between
// the file and the receipt does not add twice.
func (t *Target) added(ctx context.Context, f provision.File, receipt string) ([]byte, error) {
	have, err := t.read(ctx, f.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	begun := textFile{path: receipt + ".begun", mode: 0o600}
	was, err := t.read(ctx, begun.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if string(was) == hexSum(have) {
		return have, nil
	}
	data := slices.Concat(have, f.Data)
	begun.data = []byte(hexSum(data))
	return data, t.write(ctx, begun)
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (t *Target) chown(ctx context.Context, o provision.Owner, path string) error {
	if o.Chown() == "" {
		return nil
	}
	return t.command(ctx, "chown", "--no-dereference", "--", o.Chown(), path)
}

func (t *Target) provisionDirectory(ctx context.Context, d provision.Directory) error {
	if err := t.command(ctx, "mkdir", "-p", "--", d.Path); err != nil {
		return err
	}
	if err := t.command(ctx, "chmod", fmt.Sprintf("%04o", d.Mode), "--", d.Path); err != nil {
		return err
	}
	return t.chown(ctx, d.Owner, d.Path)
}

func (t *Target) provisionLink(ctx context.Context, l provision.Link) error {
	args := []string{"ln", "-T"}
	if !l.Hard {
		args = append(args, "-s")
		to, err := t.output(ctx, "readlink", "-n", "--", l.Path)
		if is, err := succeeded(err); err != nil || is && string(to) == l.Target {
			return err
		}
	}
	if l.Replace {
		args = append(args, "-f")
	}
	if err := t.command(ctx, "mkdir", "-p", "--", path.Dir(l.Path)); err != nil {
		return err
	}
	return t.command(ctx, append(args, "--", l.Target, l.Path)...)
}

// provisionCommand runs a command. A script is a file as long as it runs: it may have secrets in it, and every user of
// the host can read the arguments of processes.
func (t *Target) provisionCommand(ctx context.Context, c provision.Command, receipt string) (err error) {
	if len(c.Args) != 3 || c.Args[0] != "/bin/sh" || c.Args[1] != "-c" {
		return t.command(ctx, c.Args...)
	}
	script := receipt + ".sh"
	if err := t.write(ctx, textFile{script, 0o600, []byte(c.Args[2] + "\n")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.command(context.WithoutCancel(ctx), "rm", "-f", "--", script)) }()
	return t.command(ctx, "sh", script)
}

func (t *Target) provisionUnit(ctx context.Context, u provision.Unit) error {
	const dir = "/etc/systemd/system"
	var files []textFile
	if len(u.Contents) > 0 {
		files = append(files, textFile{path.Join(dir, u.Name), 0o644, u.Contents})
	}
	for _, d := range u.Dropins {
		files = append(files, textFile{path.Join(dir, u.Name+".d", d.Name), 0o644, d.Contents})
	}
	if err := t.write(ctx, files...); err != nil {
		return err
	}
	if err := t.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	switch {
	case u.Mask:
		return t.systemctl(ctx, "mask", "--now", "--", u.Name)
	case u.Disable:
		return t.systemctl(ctx, "disable", "--now", "--", u.Name)
	case !u.Enable:
		return nil
	}
	if err := t.systemctl(ctx, "enable", "--", u.Name); err != nil {
		return err
	}
	if err := t.systemctl(ctx, "restart", "--", u.Name); err != nil {
		return t.withUnitLog(ctx, u.Name, err)
	}
	return nil
}

func (t *Target) provisionTimezone(ctx context.Context, z provision.Timezone) error {
	file := "/usr/share/zoneinfo/" + z.Name
	known, err := t.test(ctx, "test", "-f", file)
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("the host knows no time zone %s: there is no %s (package tzdata)", z.Name, file)
	}
	return t.command(ctx, "ln", "-sfT", "--", file, "/etc/localtime")
}

// provisionTime has the host's time service take the time from where the document says.
func (t *Target) provisionTime(ctx context.Context, want provision.Time) error {
	if want.Off {
		return nil
	}
	c, err := t.timeConfig(ctx, timeSources{servers: want.Servers, pools: want.Pools})
	if err != nil {
		return err
	}
	return t.setTime(ctx, c)
}
