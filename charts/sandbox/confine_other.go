//go:build !linux

package sandbox

import (
	"errors"
	"os/exec"
)

// A confinement is what a child may do.
type confinement struct {
	readable, program string
	seconds           uint64
	namespaces        bool
}

// separations has one way to start a child: only Linux has namespaces.
func separations() []func(*exec.Cmd) bool {
	return []func(*exec.Cmd) bool{func(*exec.Cmd) bool { return false }}
}

// enter returns the barriers that this system lacks: all of them.
func (confinement) enter() []string {
	return []string{
		BarrierFiles, BarrierNetwork, BarrierProcesses, BarrierMounts, BarrierPrivileges, BarrierLandlock,
		BarrierSeccomp, BarrierLimits,
	}
}

// execute fails: the programs are those of Linux.
func execute(string, []string) error { return errors.ErrUnsupported }
