package task

import (
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
)

const UnitDir = "/etc/systemd/system/"

// Remove removes a file, or a directory with all that is in it.
func (t *Host) Remove(ctx context.Context, path string) error {
	if dir, err := t.Test(ctx, "test", "-d", path); err != nil {
		return err
	} else if dir {
		return t.Empty(ctx, path)
	}
	return t.Run(ctx, "rm", "-f", "--", path)
}

// RemoveRules takes the rules with words that are somebody's own out of the packet filter and leaves the others as they are.
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

// WithoutRules removes the chains that are somebody's own, and every rule that mentions one or has another word of theirs, from
// what iptables-save prints.
func WithoutRules(rules string, own func(word string) bool) (kept string, changed bool) {
	var b strings.Builder
	for line := range strings.Lines(rules) {
		theirs := slices.ContainsFunc(strings.Fields(line), func(word string) bool { return own(strings.TrimPrefix(word, ":")) })
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

// AnyOf tells whether one of the paths exists, and says which, as a reason.
func (t *Host) AnyExists(ctx context.Context, paths ...string) (bool, error) {
	out, err := t.Output(ctx, host.Script("list-existing.sh", listExistingScript, paths...)...)
	if err != nil || len(out) == 0 {
		return false, err
	}
	Because(ctx, "%s", strings.Join(strings.Fields(string(out)), ", "))
	return true, nil
}

// RemoveUnit stops a unit that an installation made, and removes it.
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

// Unmount unmounts everything below some paths, what was mounted last first. The kernel tells real paths, and a site may have put a
// large directory on another disk by a link.
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

// mountsBelow returns the mount points with one of the prefixes, the last first.
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

// Empty removes directories with all that is in them. A directory that is a mount point itself stays, Empty, and so does one that a
// link leads to.
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

// DataLeft lists what a reset without WithData has left on a host. When the stamps are gone, nothing else says that it is an
// installation's, and a later reset has to know that it may take it away.
const DataListFile = StateDir + "/data-left"

// LeaveData writes down which of the paths are there.
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
	return t.Write(ctx, File{DataListFile, 0o600, []byte(strings.Join(list, "\n") + "\n")})
}

// DataLeft returns the paths that a reset has written down.
func (t *Host) RecordedData(ctx context.Context) ([]string, error) {
	text, err := t.Read(ctx, DataListFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }), err
}
