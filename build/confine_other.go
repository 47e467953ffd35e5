//go:build !linux

package build

import "os/exec"

// separateNetwork does nothing: only Linux has network namespaces.
func separateNetwork(*exec.Cmd) {}

// isolate returns the barriers that this system lacks: all of them.
func isolate(string) []string {
	return []string{"network namespace", "resource limits", "Landlock", "seccomp"}
}
