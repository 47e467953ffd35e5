package build

import (
	"net" //nolint:depguard // lists interfaces, and opens no connection
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// separateNetwork makes cmd start in an empty network namespace, for which other users than root need a user namespace. Systems may
// refuse both: then Start fails.
func separateNetwork(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
}

// isolate takes from this process whatever rendering does not need: it reads only below readable ("" is nothing), writes no file,
// and has no network and no other program. It returns the barriers that this kernel lacks.
func isolate(readable string) (missing []string) {
	return confineTo(readable, "execve", "execveat")
}

// isolateProgram does the same before this process becomes a program of a directory that has nothing else.
func isolateProgram(dir string) (missing []string) {
	missing = confineTo(dir)
	_ = unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: programSeconds, Max: programSeconds}) // its parent may be gone
	return missing
}

// programSeconds bounds the processor time of a program.
const programSeconds = 30

// execute replaces this process by a program without an environment.
func execute(program string, args []string) error { return syscall.Exec(program, args, nil) }

// confineTo sets up the barriers, and forbids further system calls.
func confineTo(readable string, forbidden ...string) (missing []string) {
	if links, err := net.Interfaces(); err != nil || len(links) != 1 || links[0].Flags&net.FlagUp != 0 {
		missing = append(missing, "network namespace")
	}
	limits := map[int]uint64{unix.RLIMIT_DATA: 2 * maxMemory, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: maxFiles}
	for which, most := range limits {
		if unix.Setrlimit(which, &unix.Rlimit{Cur: most, Max: most}) != nil {
			missing = append(missing, "resource limits")
			break
		}
	}
	var rules []landlock.Rule
	if readable != "" {
		rules = append(rules, landlock.RODirs(readable))
	}
	// V1 is in Linux 5.13; later versions forbid more.
	if landlock.V1.RestrictPaths(rules...) != nil {
		missing = append(missing, barrierLandlock)
	} else {
		_ = landlock.V6.BestEffort().Restrict(rules...)
	}
	if filterCalls(forbidden) != nil {
		missing = append(missing, barrierSeccomp)
	}
	return missing
}

// filterCalls refuses the system calls of programs that leave their process, for all threads: sockets, other processes,
// namespaces, the kernel's configuration, and more by name. A thread is made by clone, which is refused for anything but threads; clone3
// does not show its flags to a filter.
func filterCalls(more []string) error {
	runtime.LockOSThread() // NoNewPrivs is of the thread, and the filter's installation wants it there
	defer runtime.UnlockOSThread()
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls: []seccomp.SyscallGroup{{
				Action: seccomp.ActionErrno,
				Names: append([]string{
					"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg",
					"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "memfd_create",
					"unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_by_handle_at", "io_uring_setup", "userfaultfd",
					"bpf", "perf_event_open", "keyctl", "add_key", "request_key", "init_module", "finit_module", "kexec_load", "reboot",
				}, more...),
				NamesWithCondtions: []seccomp.NameWithConditions{{
					Name:       "clone",
					Conditions: []seccomp.Condition{{Argument: 0, Operation: seccomp.BitsNotSet, Value: unix.CLONE_THREAD}},
				}},
			}, {
				Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), // the C library then uses clone
				Names:  []string{"clone3"},
			}},
		},
	})
}
