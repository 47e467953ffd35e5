//go:build linux && !cgo

package sandbox

import "syscall"

// hiding are the namespaces that hide other processes and files.
const hiding = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
