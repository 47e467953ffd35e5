package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

const (
	selinuxEnforce = "/sys/fs/selinux/enforce" // exists where SELinux enforces or is permissive
	labelProgram   = "matchpathcon"
)

// NoLabel is the label of paths that the policy gives none, as matchpathcon says it.
const NoLabel = "<<none>>"

// Labels asks the SELinux policy of the machine below root for the labels of files at these paths. Without SELinux the
// result is nil.
func Labels(ctx context.Context, root string, paths []string) (map[string]string, error) {
	s := system{root: root, run: runProgram}
	if _, err := os.Stat(s.path(selinuxEnforce)); err != nil {
		return nil, nil //nolint:nilerr,nilnil // SELinux is off
	}
	program := s.find(labelProgram)
	if program == "" {
		return nil, errors.New("SELinux is on, and " + labelProgram +
			" is missing: install the package libselinux-utils (Debian: selinux-utils)")
	}
	labels := map[string]string{}
	const most = 500 // paths of one command
	for part := range slices.Chunk(paths, most) {
		out, err := s.run(ctx, slices.Concat([]string{s.path(program), "-n", "-m", "file"}, part)...)
		answers := strings.Fields(string(out))
		if err != nil || len(answers) != len(part) {
			return nil, fmt.Errorf("SELinux labels of files: %s failed: %w: check the policy with sestatus and restorecon -n -v %s",
				labelProgram, errors.Join(err, errors.New(strings.TrimSpace(string(out)))), part[0])
		}
		for i, label := range answers {
			labels[part[i]] = label
		}
	}
	return labels, nil
}
