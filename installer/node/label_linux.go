package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	selinuxEnforce = "/sys/fs/selinux/enforce" // exists where SELinux enforces or is permissive
	labelAttribute = "security.selinux"
	labelProgram   = "matchpathcon"
	noLabel        = "<<none>>" // matchpathcon's answer for paths without a label
)

// learnLabels asks the host's SELinux policy for the labels of all places of a plan. Without SELinux there are none.
// A renamed file keeps the label of its first directory, /var/lib/kkbundle, and systemd runs no program with that one.
func (t *tree) learnLabels(ctx context.Context, p Plan) error {
	s := system{root: t.prefix, run: runProgram}
	if _, err := os.Stat(s.path(selinuxEnforce)); err != nil {
		return nil //nolint:nilerr // SELinux is off
	}
	program := s.find(labelProgram)
	if program == "" {
		return errors.New("SELinux is on, and " + labelProgram +
			" is missing: install the package libselinux-utils (Debian: selinux-utils)")
	}
	var paths []string
	for _, f := range p.Files {
		for _, m := range f.places() {
			paths = append(paths, m.Path)
		}
	}
	t.labels = map[string]string{}
	const most = 500 // paths of one command
	for part := range slices.Chunk(paths, most) {
		out, err := s.run(ctx, slices.Concat([]string{s.path(program), "-n", "-m", "file"}, part)...)
		labels := strings.Fields(string(out))
		if err != nil || len(labels) != len(part) {
			return fmt.Errorf("SELinux labels of files: %s failed: %w: check the policy with sestatus and restorecon -n -v %s",
				labelProgram, errors.Join(err, errors.New(strings.TrimSpace(string(out)))), part[0])
		}
		for i, label := range labels {
			t.labels[part[i]] = label
		}
	}
	return nil
}

// setLabel sets the label of a file for its place, unless the file has its type already. Users and ranges of labels
// are left alone, as restorecon leaves them.
func (t *tree) setLabel(f *os.File, target string) (changed bool, err error) {
	label := t.labels[target]
	if label == "" || label == noLabel {
		return false, nil
	}
	const longest = 4096
	have := make([]byte, longest)
	n, err := unix.Fgetxattr(int(f.Fd()), labelAttribute, have)
	if err == nil && labelType(string(have[:n])) == labelType(label) {
		return false, nil
	}
	if err := unix.Fsetxattr(int(f.Fd()), labelAttribute, append([]byte(label), 0), 0); err != nil {
		return false, &LabelError{Path: target, Label: label, Err: err}
	}
	return true, nil
}

// labelType returns the type of a label, user:role:type:range.
func labelType(label string) string {
	const user, kind = 2, 4
	parts := strings.SplitN(strings.TrimRight(label, "\x00"), ":", kind)
	if len(parts) <= user {
		return ""
	}
	return parts[user]
}

// A LabelError means a file could not get its SELinux label.
type LabelError struct {
	Path, Label string
	Err         error
}

// Error names the file, the label and the remedy.
func (e *LabelError) Error() string {
	return fmt.Sprintf("%s: SELinux label %s cannot be set: %v: %s", e.Path, e.Label, e.Err, e.remedy())
}

// Unwrap returns the cause.
func (e *LabelError) Unwrap() error { return e.Err }

func (e *LabelError) remedy() string {
	switch {
	case errors.Is(e.Err, unix.ENOTSUP):
		return "mount the filesystem of " + filepath.Dir(e.Path) + " without context=, or use one that stores labels"
	case errors.Is(e.Err, unix.EINVAL):
		return "the running policy does not know this label; load the installed policy with semodule -B"
	default:
		return "log in as a user who may relabel files, such as one of unconfined_u"
	}
}
