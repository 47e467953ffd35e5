package sandbox

import (
	"os"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// harmless returns the system calls that a confined process may make with any arguments: those of Go's runtime and of
// the C library that reach nothing but the process itself, its open files, and names that Landlock judges. Some exist
// on one architecture only.
func harmless() []string {
	return []string{
		// memory
		"brk", "mmap", "mprotect", "mremap", "munmap", "madvise",
		// threads and signals of its own
		"arch_prctl", "exit", "exit_group", "futex", "get_robust_list", "gettid", "restart_syscall", "rseq",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
		"sched_getaffinity", "sched_yield", "set_robust_list", "set_tid_address", "sigaltstack",
		// time
		"clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time",
		// open files
		"close", "dup", "dup2", "dup3", "fstat", "getdents64", "lseek", "pread64", "read", "readv", "write", "writev",
		"epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2", "pipe",
		"pipe2", "poll", "ppoll", "pselect6", "select",
		// names
		"access", "faccessat", "faccessat2", "fstatat", "getcwd", "lstat", "newfstatat", "readlink", "readlinkat",
		"stat", "statx",
		// what it is
		"getegid", "geteuid", "getgid", "getgroups", "getpid", "getppid", "getrandom", "getrlimit", "getrusage",
		"getuid", "sysinfo", "uname",
	}
}

// guarded returns the calls that are allowed with some arguments.
func guarded() []seccomp.NameWithConditions {
	is := func(argument uint32, value uint64) seccomp.Condition {
		return seccomp.Condition{Argument: argument, Operation: seccomp.Equal, Value: value}
	}
	own := uint64(os.Getpid()) //nolint:gosec // a positive number
	// A file is opened for reading. The first version of Landlock lets open truncate.
	reading := func(argument uint32) seccomp.Condition {
		const writing = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
		return seccomp.Condition{Argument: argument, Operation: seccomp.BitsNotSet, Value: writing}
	}
	list := []seccomp.NameWithConditions{
		// A thread, and no process. clone3 does not show its flags to a filter.
		{Name: "clone", Conditions: []seccomp.Condition{{
			Argument: 0, Operation: seccomp.BitsSet,
			Value: unix.CLONE_THREAD,
		}}},
		{Name: "open", Conditions: []seccomp.Condition{reading(1)}},
		{Name: "openat", Conditions: []seccomp.Condition{reading(2)}},
		{Name: "kill", Conditions: []seccomp.Condition{is(0, own)}},
		{Name: "tgkill", Conditions: []seccomp.Condition{is(0, own)}},
		{Name: "prlimit64", Conditions: []seccomp.Condition{is(0, 0)}}, // of this process
	}
	// No F_SETOWN: it sends signals to other processes.
	for _, command := range []uint64{
		unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL,
		unix.F_SETFL,
	} {
		list = append(list, seccomp.NameWithConditions{Name: "fcntl", Conditions: []seccomp.Condition{is(1, command)}})
	}
	return list
}

// filterCalls refuses all system calls but those that the Go runtime and the C library need, for all threads. The
// calls of another architecture (32 bits, x32) are refused, too.
func (c confinement) filterCalls() error {
	machine, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	unknown := func(name string) bool { _, ok := machine.SyscallNames[name]; return !ok }
	names := harmless()
	if c.program != "" {
		names = append(names, "execve") // once; Landlock leaves it no other program
	}
	conditions := slices.DeleteFunc(guarded(), func(n seccomp.NameWithConditions) bool { return unknown(n.Name) })
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionErrno,
			Syscalls: []seccomp.SyscallGroup{
				{Action: seccomp.ActionAllow, Names: slices.DeleteFunc(names, unknown)},
				{Action: seccomp.ActionAllow, NamesWithCondtions: conditions},
				// The C library then uses clone and openat.
				{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: []string{"clone3", "openat2"}},
			},
		},
	})
}
