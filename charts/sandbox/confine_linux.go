package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// unprivileged is the user and the group that root's children become. It is of a range that no user has
// (https://systemd.io/UIDS-GIDS/), so that no process and no file of the machine belongs to it, as may be with nobody.
const unprivileged = 65533

// separations returns the ways to start a child, best first. Each prepares a command and reports whether the child
// has its own processes and mounts. A container may refuse them to root, and a system to other users.
func separations() []func(*exec.Cmd) bool {
	const namespaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | hiding
	root := func(cmd *exec.Cmd) bool {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaces}
		return hiding != 0
	}
	other := func(cmd *exec.Cmd) bool {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Setsid: true, Cloneflags: namespaces | syscall.CLONE_NEWUSER,
			// Root of the user namespace may mount. To all other systems it is the user itself.
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		return hiding != 0
	}
	without := func(cmd *exec.Cmd) bool {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return false
	}
	if os.Geteuid() == 0 {
		return []func(*exec.Cmd) bool{root, other, without}
	}
	return []func(*exec.Cmd) bool{other, without}
}

// A confinement is what a child may do.
type confinement struct {
	readable   string // a directory; "" is none
	program    string // a program in it, which the child becomes; "" is none
	seconds    uint64 // of processor time of the program
	namespaces bool   // it has its own processes and mounts
	// landlock1 stands for a kernel of the first version of Landlock, in tests.
	landlock1 bool
}

// enter takes everything else from this process, and returns the barriers that this system lacks. The thread stays
// locked: some barriers of a program are those of the thread that becomes it.
func (c confinement) enter() (missing []string) {
	runtime.LockOSThread()
	lacks := func(barrier string, err error) {
		if err != nil {
			missing = append(missing, barrier)
		}
	}
	lacks(BarrierFiles, closeInherited())
	lacks(BarrierNetwork, noInterfaces())
	readable := c.paths()
	if c.namespaces {
		lacks(BarrierMounts, ownRoot(readable, c.readable))
	} else {
		missing = append(missing, BarrierProcesses, BarrierMounts)
	}
	var rules []landlock.Rule
	for _, path := range readable {
		rules = append(rules, readOnly(path))
	}
	// V1 is in Linux 5.13; later versions forbid more, for which the other barriers do not wait.
	if err := landlock.V1.RestrictPaths(rules...); err != nil || c.landlock1 {
		lacks(BarrierLandlock, err)
	} else {
		_ = landlock.V9.BestEffort().Restrict(rules...)
	}
	// A directory of the user's own may be closed to others. It is all that this task sees.
	var kept uint64
	if c.readable != "" && c.program == "" {
		kept = 1 << unix.CAP_DAC_READ_SEARCH
	}
	other, err := dropPrivileges(kept)
	lacks(BarrierPrivileges, err)
	lacks(BarrierLimits, c.limit(other))
	// After the change of the user, which ends it. The parent may have died before.
	lacks(BarrierLimits, unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0))
	endWithoutParent()
	lacks(BarrierSeccomp, c.filterCalls())
	return missing
}

// closeInherited closes the files that the parent was started with, such as those of a shell's redirection: they pass
// exec, and no barrier judges an open file. Go's own files are closed on exec.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 &&
			flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// paths returns what is readable: the directory, and the machine's libraries for a program that is linked with them.
func (c confinement) paths() []string {
	if c.readable == "" {
		return nil
	}
	list := []string{c.readable}
	if c.program == "" || !isDynamic(filepath.Join(c.readable, c.program)) {
		return list
	}
	for _, path := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"} {
		if _, err := os.Stat(path); err == nil {
			list = append(list, path)
		}
	}
	return list
}

// readOnly allows to read and execute a file, or a directory with all below.
func readOnly(path string) landlock.Rule {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return landlock.ROFiles(path)
	}
	return landlock.RODirs(path)
}

// noInterfaces returns an error unless this process has its own network, whose loopback interface is down.
func noInterfaces() error {
	links, err := net.Interfaces()
	if err == nil && (len(links) != 1 || links[0].Flags&net.FlagUp != 0) {
		err = errors.New("there are interfaces")
	}
	return err
}

// ownRoot makes a file system that has nothing but the paths, read-only, and stays in the directory dir. This process
// must have a mount namespace of its own: nothing is ever unmounted in it.
func ownRoot(paths []string, dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	const root = "/proc" // any directory that every system has
	if err := unix.Mount("kkbundle", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("tmpfs: %w", err)
	}
	for _, path := range paths {
		if err := bind(path, filepath.Join(root, path)); err != nil {
			return fmt.Errorf("bind %s: %w", path, err)
		}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, root, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("read-only mounts: %w", err)
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root is mounted over the new one
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir(filepath.Join("/", dir))
}

// bind mounts a file or directory with all that is mounted below it.
func bind(path, on string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(on), 0o755); err != nil { //nolint:gosec // it is empty, and another user goes through it
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(on, 0o755) //nolint:gosec // the same
	} else {
		err = os.WriteFile(on, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.Mount(path, on, "", unix.MS_BIND|unix.MS_REC, "")
}

// dropPrivileges makes this process another user, if it is root, and takes all capabilities from it but those of
// kept, which only root keeps. It reports whether the user is another. Root of a user namespace, which is another
// user outside, can become no other one.
func dropPrivileges(kept uint64) (other bool, err error) {
	root := os.Geteuid() == 0
	if root {
		for c := uintptr(0); ; c++ { // so that no program regains one; every thread has its own
			if _, _, errno := psx.Syscall3(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno != 0 {
				break
			}
		}
		if kept != 0 {
			_, _, _ = psx.Syscall3(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0)
		}
		other = syscall.Setgroups(nil) == nil && syscall.Setresgid(unprivileged, unprivileged, unprivileged) == nil &&
			syscall.Setresuid(unprivileged, unprivileged, unprivileged) == nil
	}
	if !other {
		kept = 0
	}
	return other, setCapabilities(kept)
}

// setCapabilities leaves these capabilities to every thread of this process.
func setCapabilities(kept uint64) error {
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := &[2]unix.CapUserData{}
	if err := unix.Capget(header, &data[0]); err != nil {
		return err
	}
	for i := range data {
		have := data[i].Permitted & uint32(kept>>(32*i)) //nolint:gosec // a half
		data[i] = unix.CapUserData{Effective: have, Permitted: have}
	}
	var pins runtime.Pinner // psx takes addresses
	defer pins.Unpin()
	pins.Pin(header)
	pins.Pin(data)
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(data)), 0) //nolint:gosec // no wrapper is for all threads
	if errno != 0 {
		return errno
	}
	return nil
}

// limit sets the limits of the process. Threads are counted by user: those of a user that others are, too, are not
// limited.
func (c confinement) limit(other bool) error {
	limits := map[int]uint64{
		unix.RLIMIT_DATA: 2 * maxMemory, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_CORE: 0,
		unix.RLIMIT_NOFILE: maxFiles, unix.RLIMIT_MSGQUEUE: 0,
	}
	if other {
		limits[unix.RLIMIT_NPROC] = maxThreads
	}
	if c.program != "" {
		limits[unix.RLIMIT_CPU] = c.seconds
	}
	var errs []error
	for which, most := range limits {
		errs = append(errs, unix.Setrlimit(which, &unix.Rlimit{Cur: most, Max: most}))
	}
	return errors.Join(errs...)
}

// endWithoutParent ends this process if the parent has closed its standard input.
func endWithoutParent() {
	polled := []unix.PollFd{{Fd: 0}}
	if n, err := unix.Poll(polled, 0); err == nil && n > 0 && polled[0].Revents&unix.POLLHUP != 0 {
		os.Exit(exitOrphan) //nolint:forbidigo // this process is the sandbox
	}
}

// execute replaces this process by a program without an environment. A process that another thread of the parent is
// just starting may still hold the program open for writing.
func execute(program string, args []string) error {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		err := syscall.Exec(program, args, nil)
		if !errors.Is(err, syscall.ETXTBSY) || time.Since(began) > time.Second {
			return err
		}
	}
}
