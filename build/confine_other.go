//go:build !linux

package build

import (
	"errors"
	"os/exec"
)

// separateNetwork does nothing: only Linux has network namespaces.
func separateNetwork(*exec.Cmd) {}

// isolate returns the barriers that this system lacks: all of them.
func isolate(string) []string {
	return []string{"network namespace", "resource limits", barrierLandlock, barrierSeccomp}
}

// isolateProgram returns the same.
func isolateProgram(dir string) []string { return isolate(dir) }

// execute fails: kubeadm is a program of Linux.
func execute(string, []string) error { return errors.ErrUnsupported }
