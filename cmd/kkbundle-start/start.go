//go:build linux && (amd64 || arm64)

package main

import "unsafe"

const (
	cwd       = ^uintptr(99) // AT_FDCWD, -100
	readOnly  = 0            // O_RDONLY
	create    = 0x241        // O_WRONLY|O_CREAT|O_TRUNC
	mode      = 0o755
	stderr    = 2
	failed    = 127
	maxErrno  = 4095
	chunkSize = 64 << 10

	usage = "kkbundle-start: usage: kkbundle-start PROGRAM CHUNK... -- NAME ARGUMENT...\n"
)

var buffer [chunkSize]byte //nolint:gochecknoglobals // there is no heap

// entry is where the kernel starts the program. It calls run with the address of argc.
func entry()

var _, _ = entry, run // the linker's -E and assembly refer to them, which no tool sees

// call makes a system call and returns its result, or the negative errno.
func call(number, a, b, c, d uintptr) uintptr

// run makes the file and becomes it, without an environment: the image is borrowed, and its variables could lead our
// programs through a proxy, to other authorities or into another mode of Go's runtime. stack is the process' initial
// stack: argc, the arguments, nil, the environment, nil.
//
//go:nosplit
func run(stack unsafe.Pointer) {
	const out, first = 2, 3 // argument 1 on the stack is this program's own name
	count, i := *word(stack, 0), uintptr(first)
	if count < first {
		die(usage)
	}
	file := call(sysOpen, cwd, *word(stack, out), create, mode)
	if isError(file) {
		die("kkbundle-start: the program's file cannot be created\n")
	}
	for i <= count && !isEnd(*word(stack, i)) {
		appendFile(file, *word(stack, i))
		i++
	}
	if i >= count {
		die(usage)
	}
	if isError(call(sysClose, file, 0, 0, 0)) {
		die("kkbundle-start: the program's file cannot be written\n")
	}
	// the nil after the arguments
	arguments, none := uintptr(unsafe.Pointer(word(stack, i+1))), uintptr(unsafe.Pointer(word(stack, count+1)))
	call(sysExec, *word(stack, out), arguments, none, 0)
	die("kkbundle-start: the program cannot be started\n")
}

// word returns the address of a word of the stack. An index into a slice would link the runtime, for its panic.
//
//go:nosplit
func word(stack unsafe.Pointer, i uintptr) *uintptr {
	return (*uintptr)(unsafe.Add(stack, i*unsafe.Sizeof(i)))
}

// appendFile copies the file at path to the end of an open file.
//
//go:nosplit
func appendFile(to, path uintptr) {
	from := call(sysOpen, cwd, path, readOnly, 0)
	if isError(from) {
		die("kkbundle-start: a chunk of the program cannot be opened\n")
	}
	for {
		n := call(sysRead, from, uintptr(unsafe.Pointer(&buffer)), chunkSize, 0)
		if isError(n) {
			die("kkbundle-start: a chunk of the program cannot be read\n")
		}
		if n == 0 {
			break
		}
		if call(sysWrite, to, uintptr(unsafe.Pointer(&buffer)), n, 0) != n {
			die("kkbundle-start: the program's file cannot be written\n")
		}
	}
	call(sysClose, from, 0, 0, 0)
}

// isEnd reports whether the argument at an address is "--".
//
//go:nosplit
func isEnd(argument uintptr) bool {
	// the kernel's memory: the collector, which never runs, does not know it
	s := *(**[3]byte)(unsafe.Pointer(&argument))
	return s[0] == '-' && s[1] == '-' && s[2] == 0
}

//go:nosplit
func isError(result uintptr) bool { return result > ^uintptr(maxErrno) }

//go:nosplit
func die(message string) {
	call(sysWrite, stderr, uintptr(unsafe.Pointer(unsafe.StringData(message))), uintptr(len(message)), 0)
	call(sysExit, failed, 0, 0, 0)
}
