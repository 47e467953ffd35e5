package cri

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

const (
	containerdData = "/var/lib/containerd"
	containerdRun  = "/run/containerd"
	containerdEtc  = "/etc/containerd"
)

//go:embed scripts/keep-containerd.sh
var keepContainerdScript string

//go:embed scripts/restore-containerd.sh
var restoreContainerdScript string

//go:embed scripts/remove-kubernetes-containers.sh
var removeContainersScript string

// keepContainerd copies the files of another containerd before ours replace them.
func keepContainerd(ctx context.Context, t *task.Host) error {
	decided, err := t.AnyExists(ctx, string(marks.Setting(containerdRuntime().name)), marks.ContainerdComplete)
	if err != nil || decided {
		return err
	}
	ours, err := isOurContainerd(ctx, t)
	if err != nil {
		return err
	}
	args := []string{marks.ContainerdBefore}
	if !ours {
		args = append(args, containerdUnit, containerdData+"/io.containerd.metadata.v1.bolt")
		args = append(args, replacedPairs()...)
	}
	return t.Run(ctx, host.Script("keep-containerd.sh", keepContainerdScript, args...)...)
}

// isOurContainerd reports whether an interrupted run of kkbundle has configured the host's containerd.
func isOurContainerd(ctx context.Context, t *task.Host) (bool, error) {
	for _, file := range []string{ContainerdConfigFile, task.UnitDir + containerdUnit} {
		data, err := t.Read(ctx, file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if bytes.HasPrefix(data, []byte(hostfile.Mark)) {
			return true, nil
		}
	}
	return false, nil
}

// replacedPaths returns the files and directories of containerd that ours replaces.
func replacedPaths() []string {
	paths := []string{containerdEtc, task.UnitDir + containerdUnit}
	for _, f := range containerdFiles() {
		paths = append(paths, f.Path)
	}
	return paths
}

// replacedPairs returns the replaced paths, each with its name in marks.ContainerdFiles.
func replacedPairs() []string {
	var pairs []string
	for _, p := range replacedPaths() {
		pairs = append(pairs, p, keptName(p))
	}
	return pairs
}

func keptName(p string) string { return strings.ReplaceAll(strings.Trim(p, "/"), "/", "-") }

// KeptPaths returns the paths whose earlier content RestoreContainerd restores.
func KeptPaths(ctx context.Context, t *task.Host) ([]string, error) {
	some, err := t.Test(ctx, "test", "-d", marks.ContainerdFiles)
	if err != nil || !some {
		return nil, err
	}
	var kept []string
	for _, p := range replacedPaths() {
		there, err := t.Test(ctx, "test", "-e", path.Join(marks.ContainerdFiles, keptName(p)))
		if err != nil {
			return nil, err
		}
		if there {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// IsContainerdRestored reports whether the host had no containerd before ours.
func IsContainerdRestored(ctx context.Context, t *task.Host) (bool, error) {
	had, err := t.AnyExists(ctx, marks.ContainerdFiles, marks.ContainerdActive, marks.ContainerdEnabled)
	return !had, err
}

// RestoreContainerd restores the files and the unit of the containerd that ours replaced.
func RestoreContainerd(ctx context.Context, t *task.Host) error {
	args := append([]string{marks.ContainerdBefore}, replacedPairs()...)
	if err := t.Run(ctx, host.Script("restore-containerd.sh", restoreContainerdScript, args...)...); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	for _, one := range []struct{ record, verb string }{
		{marks.ContainerdEnabled, "enable"},
		{marks.ContainerdActive, "restart"},
	} {
		was, err := t.Test(ctx, "test", "-e", one.record)
		if err != nil {
			return err
		}
		if !was {
			continue
		}
		if err := t.Systemctl(ctx, one.verb, containerdUnit); err != nil {
			return t.WithUnitLog(ctx, containerdUnit, err)
		}
	}
	return nil
}

// undoContainerd stops all containers, or only those of Kubernetes if the host had a containerd with data of its own.
func undoContainerd(ctx context.Context, t *task.Host) error {
	others, err := t.Test(ctx, "test", "-e", marks.ContainerdData)
	if err != nil {
		return err
	}
	if _, err := t.Test(ctx, "systemctl", "stop", "kubepods.slice"); err != nil {
		return err
	}
	if !others {
		if err := endContainers(ctx, t); err != nil {
			return err
		}
		return containerdRuntime().Undo(containerdRun+"/", containerdData+"/", "/run/netns/cni-")(ctx, t)
	}
	if err := t.Run(ctx, host.Script("remove-kubernetes-containers.sh", removeContainersScript)...); err != nil {
		return err
	}
	return t.Unmount(ctx, "/run/netns/cni-")
}

//go:embed scripts/end-containers.sh
var endContainersScript string

// endContainers ends the running containers of containerd's namespaces; of all if none is named.
func endContainers(ctx context.Context, t *task.Host, namespaces ...string) error {
	return t.Run(ctx, host.Script("end-containers.sh", endContainersScript, namespaces...)...)
}

// sparedByContainerd returns the directories with other containers.
func sparedByContainerd(ctx context.Context, t *task.Host) ([]string, error) {
	others, err := t.Test(ctx, "test", "-e", marks.ContainerdData)
	if err != nil || !others {
		return nil, err
	}
	return []string{containerdData, containerdRun}, nil
}
