//go:build linux && cgo

package sandbox

// hiding are no namespaces: a program with cgo finds its own threads in /proc, which shows neither there.
const hiding = 0
