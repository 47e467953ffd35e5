package task

import (
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/internal/capped"
)

// UnitDir is the directory of systemd units on hosts.
const UnitDir = "/etc/systemd/system/"

// Remove removes a file, or a directory as Empty does.
func (t *Host) Remove(ctx context.Context, path string) error {
	if dir, err := t.Test(ctx, "test", "-d", path); err != nil {
		return err
	} else if dir {
		return t.Empty(ctx, path)
	}
	return t.Run(ctx, "rm", "-f", "--", path)
}

// RemoveEarlier removes programs that earlier releases had in EarlierProgramDir.
func (t *Host) RemoveEarlier(ctx context.Context, names ...string) error {
	args := []string{"rm", "-rf", "--"}
	for _, name := range names {
		args = append(args, path.Join(EarlierProgramDir, name))
	}
	return t.Run(ctx, args...)
}

// RemoveRules removes the packet filter rules that contain a word which own accepts.
func (t *Host) RemoveRules(ctx context.Context, own func(word string) bool) error {
	for _, command := range []string{"iptables", "ip6tables"} {
		out := &capped.Buffer{Most: MaxFile}
		there, err := Succeeded(t.Conn.Run(ctx, host.Cmd{Args: []string{command + "-save"}, Stdout: out}))
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		rules, changed := WithoutRules(out.String(), own)
		if !changed {
			continue
		}
		if err := t.Feed(ctx, []byte(rules), command+"-restore"); err != nil {
			return err
		}
	}
	return nil
}

// WithoutRules removes the chains and rules with a word that own accepts from the output of iptables-save.
func WithoutRules(rules string, own func(word string) bool) (kept string, changed bool) {
	var b strings.Builder
	for line := range strings.Lines(rules) {
		theirs := slices.ContainsFunc(strings.Fields(line),
			func(word string) bool { return own(strings.TrimPrefix(word, ":")) })
		if theirs && !strings.HasPrefix(line, "#") {
			changed = true
			continue
		}
		b.WriteString(line)
	}
	return b.String(), changed
}

//go:embed scripts/list-existing.sh
var listExistingScript string

// AnyExists reports whether one of the paths exists, and gives the existing ones as a reason.
func (t *Host) AnyExists(ctx context.Context, paths ...string) (bool, error) {
	out, err := t.Output(ctx, host.Script("list-existing.sh", listExistingScript, paths...)...)
	if err != nil || len(out) == 0 {
		return false, err
	}
	Because(ctx, "%s", strings.Join(strings.Fields(string(out)), ", "))
	return true, nil
}

// RemoveUnit stops a unit and removes its file from UnitDir.
func (t *Host) RemoveUnit(ctx context.Context, unit string) error {
	file := UnitDir + unit
	there, err := t.Test(ctx, "test", "-e", file)
	if err != nil || !there {
		return err
	}
	if err := t.Systemctl(ctx, "disable", "--now", unit); err != nil {
		return err
	}
	if err := t.Run(ctx, "rm", "-f", file); err != nil {
		return err
	}
	return t.Systemctl(ctx, "daemon-reload")
}

// Unmount unmounts everything below the prefixes, the latest mount first. It also resolves links, because
// /proc/mounts has real paths and a site may have linked a large directory to another disk.
func (t *Host) Unmount(ctx context.Context, prefixes ...string) error {
	for _, p := range slices.Clone(prefixes) {
		real, err := t.Output(ctx, "readlink", "-f", "--", strings.TrimSuffix(p, "/"))
		if _, err := Succeeded(err); err != nil {
			return err
		}
		if at := strings.TrimSpace(string(real)); at != "" && strings.HasSuffix(p, "/") {
			prefixes = append(prefixes, at+"/")
		}
	}
	mounts, err := t.Output(WithoutOutput(ctx), "cat", "/proc/mounts")
	if err != nil {
		return err
	}
	for _, point := range mountsBelow(string(mounts), prefixes) {
		if err := t.Run(ctx, "umount", "--lazy", point); err != nil {
			return err
		}
	}
	return nil
}

// mountsBelow returns the mount points with one of the prefixes, the latest first.
func mountsBelow(mounts string, prefixes []string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		point := unescape.Replace(fields[1])
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(point, p) }) {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return points
}

// Empty removes directories and their content. A mount point stays as an empty directory, and so does the target of a
// link.
func (t *Host) Empty(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		there, err := t.Test(ctx, "test", "-d", dir)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := t.Run(ctx, "find", dir+"/", "-xdev", "-mindepth", "1", "-delete"); err != nil {
			return err
		}
		if _, err := t.Test(ctx, "rmdir", dir); err != nil {
			return err
		}
	}
	return nil
}

// DataListFile lists the data that a reset without WithData kept. The stamps are gone then, so only this file allows
// a later reset to remove the data.
const DataListFile = StateDir + "/data-left"

// RecordData adds the existing paths to DataListFile.
func (t *Host) RecordData(ctx context.Context, paths ...string) error {
	noted, err := t.RecordedData(ctx)
	if err != nil {
		return err
	}
	list := slices.Clone(noted)
	for _, p := range paths {
		there, err := t.Test(ctx, "test", "-e", p)
		if err != nil {
			return err
		}
		if there && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if len(list) == len(noted) {
		return nil
	}
	return t.Write(ctx, File{Path: DataListFile, Mode: 0o600, Data: []byte(strings.Join(list, "\n") + "\n")})
}

// RecordedData returns the paths in DataListFile.
func (t *Host) RecordedData(ctx context.Context) ([]string, error) {
	text, err := t.Read(ctx, DataListFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }), err
}
