package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/installer/node"
)

const labelAttribute = "security.selinux"

// learnLabels asks the host's SELinux policy for the labels of all places of a plan. Without SELinux there are none.
// A renamed file keeps the label of its first directory, /var/lib/kkbundle, and systemd runs no program with that one.
func (t *tree) learnLabels(ctx context.Context, p Plan) (err error) {
	var paths []string
	for _, f := range p.Files {
		for _, m := range f.places() {
			paths = append(paths, m.Path)
		}
	}
	t.labels, err = node.Labels(ctx, t.prefix, paths)
	return err
}

// setLabel sets the label of a file for its place, unless the file has its type already. Users and ranges of labels
// are left alone, as restorecon leaves them.
func (t *tree) setLabel(f *os.File, target string) (changed bool, err error) {
	label := t.labels[target]
	if label == "" || label == node.NoLabel {
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
