// Package early keeps the garbage collector from running while the packages of the program are initialized, and in a
// command that is done soon after. Initialization allocates about 10 MB, more than the 4 MB at which Go collects for
// the first time.
//
// Go initializes the packages whose imports are ready in the order of their import paths. This package imports
// little, so that it comes before the large ones.
package early

import (
	"runtime"
	"runtime/debug"
)

const initializing = 400 // percent: the first collection is at 16 MB

var percent = debug.SetGCPercent(initializing) //nolint:gochecknoglobals // a package is initialized by its variables

// Done makes collections as frequent as GOGC says, from the first one on: at once, it would collect what
// initialization allocated. A percentage that a command sets meanwhile stays. Done is the first statement of main.
func Done() {
	if percent < 0 { // GOGC=off: there is no first one
		debug.SetGCPercent(percent)
		return
	}
	type sentinel [4]uintptr // small objects without pointers share memory, and live as long as their neighbours
	runtime.AddCleanup(new(sentinel), restore, percent)
}

func restore(percent int) {
	if now := debug.SetGCPercent(percent); now != initializing {
		debug.SetGCPercent(now)
	}
}
