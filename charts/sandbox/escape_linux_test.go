package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is also a sandbox, a hostile program, and the parent of one.
const (
	hostileName    = "hostile"     // argument 0 of a program that tries everything
	forked         = "forked"      // an argument of its child
	endlessName    = "endless"     // of one that goes on for ever
	parentCommand  = "parent"      // runs the hostile program behind all barriers
	weakCommand    = "weak"        // becomes it behind those of an old kernel that refuses namespaces
	endlessCommand = "run-endless" // runs the endless program
)

// TestMain makes the test binary these programs.
func TestMain(m *testing.M) {
	var err error
	switch {
	case filepath.Base(os.Args[0]) == hostileName:
		hostile()
		return
	case filepath.Base(os.Args[0]) == endlessName:
		for {
			time.Sleep(time.Millisecond)
		}
	case len(os.Args) < 2:
		os.Exit(m.Run()) //nolint:forbidigo // this is main
	case os.Args[1] == Command:
		err = Tasks{
			"echo": echo, "loop": loop, "allocate": allocate, "read": read, "inherited": inherited, "ask": ask,
			hostileName: leave,
		}.Run(os.Stdin, os.Stdout)
	case os.Args[1] == parentCommand:
		err = attack(os.Args[2])
	case os.Args[1] == endlessCommand:
		_, err = ownProgram(endlessName).Run(context.Background())
	case os.Args[1] == weakCommand:
		c := confinement{readable: os.Args[2], program: hostileName, seconds: 30, landlock1: true}
		if missing := c.enter(); slices.ContainsFunc(missing,
			func(b string) bool { return slices.Contains(Needed(), b) }) {
			log.Fatalf("missing: %q", missing)
		}
		err = execute("./"+hostileName, []string{hostileName})
	default:
		os.Exit(m.Run()) //nolint:forbidigo // this is main
	}
	if err != nil {
		log.Fatal(err)
	}
}

// ownProgram returns the test binary under another name.
func ownProgram(name string) Program {
	f, err := os.Open(os.Args[0])
	if err != nil {
		log.Fatal(err)
	}
	return Program{Name: name, Content: f, Output: 1 << 20}
}

// A target is what the hostile program is after.
type target struct {
	Outside, Private, Removable string // files of the machine; the second is the user's alone
	Victim, Parent              int    // processes
	Address                     string // of a listener
	Abstract                    string // the name of one without a file
}

// attack runs the hostile program both ways, and prints what it could do.
func attack(of string) error {
	p := ownProgram(hostileName)
	p.Files = map[string][]byte{"target.json": []byte(of), "inside": []byte("x")}
	out, err := p.Run(context.Background())
	fmt.Printf("all barriers: %s %v\n", bytes.TrimSpace(out), err) //nolint:forbidigo // a program prints

	dir, err := os.MkdirTemp("", "weak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	dir = filepath.Join(dir, "program")
	p.Content = ownProgram(hostileName).Content
	if err := p.unpack(dir, programSize); err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], weakCommand, dir) //nolint:noctx // it ends by itself
	cmd.Dir, cmd.Env, cmd.Stderr = dir, []string{}, os.Stderr
	cmd.Stdin, _ = os.Open(os.DevNull)
	out, err = cmd.Output()
	fmt.Printf("old kernel: %s %v\n", bytes.TrimSpace(out), err) //nolint:forbidigo // a program prints

	for _, readable := range []string{"", dir} {
		r, err := Job{Task: hostileName, Request: json.RawMessage(of), Readable: readable}.Do(context.Background(),
			time.Minute)
		fmt.Printf("task: %s %v\n", r.Answer, err) //nolint:forbidigo // a program prints
	}
	return nil
}

func call0(number uintptr, args ...uintptr) error {
	args = append(args, make([]uintptr, 6-len(args))...)
	_, _, errno := unix.RawSyscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
	if errno != 0 {
		return errno
	}
	return nil
}

func text(s string) uintptr {
	p, _ := unix.BytePtrFromString(s)
	return uintptr(unsafe.Pointer(p))
}

// attempts returns ways out. A harmless one may be tried without barriers.
func attempts(t target) (harmless, others map[string]func() error) {
	victim := uintptr(t.Victim)
	var limit unix.Rlimit
	var now unix.Timeval
	_ = unix.Gettimeofday(&now)
	var mem [8]byte
	// Those that change the machine change nothing if they succeed.
	var names unix.Utsname
	_ = unix.Uname(&names)
	harmless = map[string]func() error{
		"read a file":   func() error { _, err := os.ReadFile(t.Outside); return err },
		"read a secret": func() error { _, err := os.ReadFile(t.Private); return err },
		"read another process": func() error {
			_,
				err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", t.Victim))
			return err
		},
		"list the root":       func() error { _, err := os.ReadDir("/etc"); return err },
		"chmod":               func() error { return unix.Chmod(t.Outside, 0o777) },
		"fchmodat":            func() error { return unix.Fchmodat(unix.AT_FDCWD, t.Outside, 0o777, 0) },
		"chmod inside":        func() error { return unix.Chmod("inside", 0o4777) },
		"utimes":              func() error { return unix.UtimesNano(t.Outside, []unix.Timespec{{}, {}}) },
		"truncate":            func() error { return unix.Truncate(t.Outside, 1) },
		"append":              func() error { return appendTo(t.Outside) },
		"create":              func() error { return os.WriteFile(t.Outside+".new", nil, 0o600) },
		"create inside":       func() error { return os.WriteFile("new", nil, 0o600) },
		"truncate by opening": func() error { return openWith("inside", unix.O_RDONLY|unix.O_TRUNC) },
		"mkdir":               func() error { return os.Mkdir(t.Outside+".dir", 0o700) },
		"link":                func() error { return os.Link(t.Outside, t.Outside+".link") },
		"symlink":             func() error { return os.Symlink("/etc/passwd", t.Outside+".symlink") },
		"symlink inside":      func() error { return os.Symlink("/etc/passwd", "symlink") },
		"mkfifo":              func() error { return unix.Mkfifo(t.Outside+".fifo", 0o600) },
		"rename":              func() error { return os.Rename(t.Private, t.Private) },
		"remove":              func() error { return os.Remove(t.Removable) },
		"prlimit":             func() error { return unix.Prlimit(t.Victim, unix.RLIMIT_NOFILE, nil, &limit) },
		"kill":                func() error { return unix.Kill(t.Victim, 0) },
		"kill all":            func() error { return unix.Kill(-1, 0) },
		"tgkill":              func() error { return call0(unix.SYS_TGKILL, victim, victim, 0) },
		"tkill":               func() error { return call0(unix.SYS_TKILL, victim, 0) },
		"signal by a file":    func() error { _, err := unix.FcntlInt(0, unix.F_SETOWN, t.Victim); return err },
		"pidfd":               func() error { _, err := unix.PidfdOpen(t.Victim, 0); return err },
		"fork":                func() error { return exec.Command("./"+hostileName, forked).Run() }, //nolint:noctx // it must fail
		"other program":       func() error { return exec.Command("/bin/true").Run() },              //nolint:noctx // it must fail
		"socket":              func() error { return socket(unix.AF_INET) },
		"unix socket":         func() error { return socket(unix.AF_UNIX) },
		"netlink":             func() error { return socket(unix.AF_NETLINK) },
		"socketpair": func() error {
			_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM,
				0)
			return err
		},
		"connect":         func() error { return dial("tcp", t.Address) },
		"abstract socket": func() error { return dial("unix", t.Abstract) },
		"memfd":           func() error { _, err := unix.MemfdCreate("x", 0); return err },
		"keyring": func() error {
			_, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, -3, 1, 0,
				0)
			return err
		},
		"inotify":       func() error { _, err := unix.InotifyInit1(0); return err },
		"shared memory": sharedMemory,
		"setuid":        func() error { return call0(unix.SYS_SETUID, uintptr(os.Geteuid())) },
		"setresgid": func() error {
			return call0(unix.SYS_SETRESGID, ^uintptr(0), ^uintptr(0),
				^uintptr(0))
		},
		"prctl":    func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0) },
		"setsid":   func() error { return call0(unix.SYS_GETSID, victim) },
		"affinity": func() error { var s unix.CPUSet; s.Set(0); return unix.SchedSetaffinity(0, &s) },
		"timer": func() error {
			return call0(unix.SYS_SETITIMER, 0, uintptr(unsafe.Pointer(&mem))*0,
				0)
		},
		"environment": func() error { return enough(len(os.Environ()) > 0) },
		"xattr":       func() error { return unix.Setxattr(t.Outside, "user.x", []byte("1"), 0) },
	}
	others = map[string]func() error{
		"capability": func() error {
			return unix.Setxattr(t.Outside, "security.capability", make([]byte, 20),
				0)
		},
		"capability inside": func() error {
			return unix.Setxattr("inside", "security.capability", make([]byte, 20),
				0)
		},
		"chown":         func() error { return unix.Chown(t.Outside, 1, 1) },
		"chown inside":  func() error { return unix.Lchown("inside", os.Getuid(), os.Getgid()) },
		"become root":   func() error { return call0(unix.SYS_SETUID, 0) },
		"setgroups":     func() error { return call0(unix.SYS_SETGROUPS, 0, 0) },
		"sethostname":   func() error { return unix.Sethostname(bytes.TrimRight(names.Nodename[:], "\x00")) },
		"setdomainname": func() error { return unix.Setdomainname(bytes.TrimRight(names.Domainname[:], "\x00")) },
		"settimeofday":  func() error { return unix.Settimeofday(&now) },
		"clock_settime": func() error {
			return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: now.Sec, Nsec: now.Usec * 1000})
		},
		"adjtimex":         func() error { _, err := unix.Adjtimex(&unix.Timex{}); return err },
		"kill its parent":  func() error { return unix.Kill(os.Getppid(), 0) },
		"ptrace":           func() error { return unix.PtraceAttach(t.Victim) },
		"trace me":         func() error { return call0(unix.SYS_PTRACE, unix.PTRACE_TRACEME) },
		"read memory":      func() error { _, err := unix.ProcessVMReadv(t.Victim, nil, nil, 0); return err },
		"write memory":     func() error { return openWith(fmt.Sprintf("/proc/%d/mem", t.Parent), unix.O_RDWR) },
		"write own memory": func() error { return openWith("/proc/self/mem", unix.O_RDWR) },
		"raw fork":         func() error { return call0(unix.SYS_CLONE, uintptr(unix.SIGCHLD)) },
		"clone3": func() error {
			return call0(unix.SYS_CLONE3,
				uintptr(unsafe.Pointer(&unix.RawSockaddrUnix{})), 88)
		},
		"mount":          func() error { return unix.Mount("none", ".", "tmpfs", 0, "") },
		"umount":         func() error { return reached(unix.Unmount("/nothing", 0)) },
		"unshare":        func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"chroot":         func() error { return unix.Chroot(".") },
		"mknod":          func() error { return unix.Mknod("null", unix.S_IFCHR|0o666, 0x103) },
		"add_key":        func() error { _, err := unix.AddKey("user", "x", []byte("x"), -3); return err },
		"bpf":            func() error { return reached(call0(unix.SYS_BPF, 0, 0, 0)) },
		"io_uring":       func() error { return reached(call0(unix.SYS_IO_URING_SETUP, 1, 0)) },
		"userfaultfd":    func() error { return reached(call0(unix.SYS_USERFAULTFD, 1)) },
		"perf":           func() error { return reached(call0(unix.SYS_PERF_EVENT_OPEN, 0)) },
		"open by handle": func() error { return reached(call0(unix.SYS_OPEN_BY_HANDLE_AT, uintptr(3), 0, 0)) },
		"openat2":        func() error { return reached(call0(unix.SYS_OPENAT2, 0, 0, 0, 0)) },
		"execveat": func() error {
			return reached(call0(unix.SYS_EXECVEAT, 99, text(""), 0, 0,
				unix.AT_EMPTY_PATH))
		},
		"init_module": func() error { return reached(call0(unix.SYS_INIT_MODULE, 0, 0, 0)) },
		"x32":         func() error { return reached(call0(0x40000000 | unix.SYS_GETPID)) },
		"ioctl":       func() error { return reached(call0(unix.SYS_IOCTL, 0, unix.TIOCSTI, text("x"))) },
	}
	return harmless, others
}

// reached returns no error for a system call that the kernel looked at.
func reached(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return err
	}
	return nil
}

func enough(ok bool) error {
	if ok {
		return nil
	}
	return io.EOF
}

func openWith(name string, flags int) error {
	fd, err := unix.Open(name, flags, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func appendTo(name string) error { return openWith(name, unix.O_WRONLY|unix.O_APPEND) }

func sharedMemory() error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
	if err == nil {
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
	return err
}

func socket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func dial(network, address string) error {
	c, err := net.Dial(network, address) //nolint:noctx // it must fail
	if err == nil {
		_ = c.Close()
	}
	return err
}

// hostile tries everything, and prints what it could do. It goes on to be a Go program: it starts threads and reads
// its own files.
func hostile() {
	if len(os.Args) > 1 && os.Args[1] == forked {
		return
	}
	data, err := os.ReadFile("target.json")
	if err != nil {
		log.Fatal(err)
	}
	var t target
	if err := json.Unmarshal(data, &t); err != nil {
		log.Fatal(err)
	}
	harmless, others := attempts(t)
	if len(os.Args) > 1 { // without barriers
		others = nil
	}
	fmt.Println(strings.Join(try(harmless, others), ", ") + ".") //nolint:forbidigo // a program prints
}

// try returns the attempts that succeed.
func try(lists ...map[string]func() error) (done []string) {
	for _, list := range lists {
		for what, attempt := range list {
			if attempt() == nil {
				done = append(done, what)
			}
		}
	}
	slices.Sort(done)
	return done
}

// leave is a task that tries everything. GOTRACEBACK is its environment.
func leave(w Work) (any, error) {
	var t target
	if err := json.Unmarshal(w.Request, &t); err != nil {
		return nil, err
	}
	harmless, others := attempts(t)
	delete(harmless, "environment")
	return try(harmless, others), nil
}

// TestHostileProgram: a program of others, and a task whose libraries have a fault, can do nothing but compute and
// print, as root and as another user, with all barriers, and with what an old kernel that refuses namespaces leaves
// of them.
func TestHostileProgram(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(t.TempDir())
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user reads it
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "sandbox.test")
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, data, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for name, uid := range map[string]int{"self": os.Geteuid(), "nobody": 65534} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if uid != os.Geteuid() && os.Geteuid() != 0 {
				t.Skip("only root can become another user")
			}
			of, as := newTarget(t, dir, uid)
			if missed := tried(t, of, as); len(missed) > 0 {
				t.Errorf("without barriers it could not %q: the attempt is none", missed)
			}
			cmd := as(copied, parentCommand, of)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			if want := "all barriers: . <nil>\nold kernel: . <nil>\ntask: null <nil>\ntask: null <nil>\n"; string(out) != want {
				t.Errorf("it could: %s%s", out, stderr.String())
			}
		})
	}
}

// newTarget makes a target of a user, and returns how to run commands as that user.
func newTarget(t *testing.T, dir string, uid int) (of string, as func(...string) *exec.Cmd) {
	t.Helper()
	home, err := os.MkdirTemp(dir, "home-") //nolint:usetesting // users other than root must get in
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	abstract, err := net.Listen("unix", fmt.Sprintf("@kkbundle-%d-%d", os.Getpid(), uid)) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = abstract.Close() })
	as = func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = []string{"TMPDIR=" + home, "SECRET=1"}
		if uid != os.Geteuid() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		}
		return cmd
	}
	victim := as("/bin/sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	one := target{
		Outside: filepath.Join(home, "outside"), Private: filepath.Join(home, "config.json"),
		Removable: filepath.Join(home, "removable"), Victim: victim.Process.Pid, Parent: os.Getpid(),
		Address: listener.Addr().String(), Abstract: abstract.Addr().String(),
	}
	for name, mode := range map[string]os.FileMode{one.Outside: 0o644, one.Private: 0o600, one.Removable: 0o600} {
		if err := os.WriteFile(name, []byte("secret"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(name, uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, uid, -1); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), as
}

// tried returns the harmless attempts that fail without barriers.
func tried(t *testing.T, of string, as func(...string) *exec.Cmd) (missed []string) {
	t.Helper()
	var one target
	if err := json.Unmarshal([]byte(of), &one); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(filepath.Dir(one.Outside), "free-") //nolint:usetesting // users other than root must get in
	if err != nil {
		t.Fatal(err)
	}
	p := ownProgram(hostileName)
	p.Files = map[string][]byte{"target.json": []byte(of), "inside": []byte("x")}
	dir := filepath.Join(work, "program")
	if err := p.unpack(dir, programSize); err != nil {
		t.Fatal(err)
	}
	if attr := as("x").SysProcAttr; attr != nil {
		for _, name := range []string{work, dir, filepath.Join(dir, "inside")} {
			if err := os.Chown(name, int(attr.Credential.Uid), -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := as(filepath.Join(dir, hostileName), "unconfined")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	done := strings.Split(strings.TrimSuffix(strings.TrimSpace(string(out)), "."), ", ")
	harmless, _ := attempts(one)
	for what := range harmless {
		if !slices.Contains(done, what) {
			missed = append(missed, what)
		}
	}
	for _, left := range []string{".new", ".dir", ".link", ".symlink", ".fifo"} {
		_ = os.Remove(one.Outside + left)
	}
	if err := os.WriteFile(one.Removable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(one.Removable, os.Geteuid(), -1); err != nil {
		t.Fatal(err)
	}
	return missed
}

// running returns the processes with an argument 0.
func running(t *testing.T, name string) (found []int) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range list {
		data, _ := os.ReadFile(file)
		if first, _, _ := bytes.Cut(data, []byte{0}); string(first) == name {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			found = append(found, pid)
		}
	}
	return found
}

// TestEndlessProgram: a program ends with its time, and with its parent.
func TestEndlessProgram(t *testing.T) {
	p := ownProgram(endlessName)
	p.Limit = 500 * time.Millisecond
	if _, err := p.Run(t.Context()); !errors.Is(err, ErrTime) {
		t.Errorf("the limit: %v", err)
	}
	if left := running(t, endlessName); len(left) > 0 {
		t.Errorf("left: %d", left)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], endlessCommand)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "its start", func() bool { return len(running(t, endlessName)) == 1 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, "its end after its parent's", func() bool { return len(running(t, endlessName)) == 0 })
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("no sign of %s", what)
		}
	}
}

// TestProgramOutput: what a program prints is bounded, and one that fails says why.
func TestProgramOutput(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	p := ownProgram("other") // it prints what go test prints
	p.Args, p.Output = []string{"-test.list", "."}, 1<<20
	out, err := p.Run(t.Context())
	if err != nil || !strings.Contains(string(out), "TestProgramOutput") {
		t.Errorf("%q, %v", out, err)
	}
	p.Content, p.Output = ownProgram("other").Content, 10
	if _, err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "printed more than 10 bytes") {
		t.Errorf("too much: %v", err)
	}
	p.Content, p.Args = ownProgram("other").Content, []string{"-test.nothing"}
	var failed *FailedError
	if _, err := p.Run(t.Context()); !errors.As(err, &failed) || !strings.Contains(failed.Stderr, "-test.nothing") {
		t.Errorf("a failure: %v", err)
	}
	for name, content := range map[string]string{
		"bytes": "not a program", "script": "#!/bin/sh\necho x\n",
		"empty": "",
	} {
		if _, err := (Program{Name: name, Content: strings.NewReader(content)}).Run(t.Context()); err == nil {
			t.Errorf("%s ran", name)
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "kkbundle-program-*", "program", "other"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestUnpackedSize: a program that has no end fills no disk.
func TestUnpackedSize(t *testing.T) {
	const most = 1 << 10
	for size, fits := range map[int]bool{most: true, most + 1: false} {
		p := Program{Name: "large", Content: strings.NewReader(strings.Repeat("x", size))}
		if err := p.unpack(filepath.Join(t.TempDir(), "program"), most); (err == nil) != fits {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestSweep: a run removes what a killed one left, and nothing that another one uses or that is not a directory.
func TestSweep(t *testing.T) {
	parent := t.TempDir()
	left := filepath.Join(parent, programDirs+"1")
	if err := os.MkdirAll(filepath.Join(left, "program"), 0o700); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(parent, programDirs+"link")); err != nil {
		t.Fatal(err)
	}
	used, err := makeHeld(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := sweep(parent); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{left: false, used.Name(): true, elsewhere: true} {
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func echo(w Work) (any, error) { return string(w.Request) + string(w.Input), nil }

func loop(Work) (any, error) {
	for { //nolint:staticcheck // it is endless
	}
}

func allocate(Work) (any, error) {
	var all [][]byte
	for {
		all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		if len(all) == 1<<40 {
			return all, nil
		}
	}
}

func read(w Work) (any, error) {
	var names []string
	if err := json.Unmarshal(w.Request, &names); err != nil {
		return nil, err
	}
	var texts []string
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			data = []byte("refused")
		}
		texts = append(texts, string(data))
	}
	return texts, nil
}

func ask(w Work) (any, error) {
	var sum int
	for i := range 3 {
		var n int
		if err := w.Ask(i, &n); err != nil {
			return nil, err
		}
		sum += n
	}
	return sum, nil
}

// TestJobs: a task gets its request and input, its questions are answered, it reads its directory alone, and it is
// bounded. inherited reads from a descriptor that the parent had open.
func inherited(w Work) (any, error) {
	var fd int
	if err := json.Unmarshal(w.Request, &fd); err != nil {
		return nil, err
	}
	text := make([]byte, 16)
	n, err := syscall.Read(fd, text)
	if err != nil {
		return "refused", nil //nolint:nilerr // the answer
	}
	return string(text[:n]), nil
}

// TestInheritedFilesAreClosed opens a file as a shell's redirection does: it stays open in the programs that are
// started.
func TestInheritedFilesAreClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	r, err := Job{Task: "inherited", Request: fd}.Do(t.Context(), time.Minute)
	if err != nil || string(r.Answer) != `"refused"` {
		t.Errorf("%s, %v", r.Answer, err)
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readable := filepath.Join(dir, "readable")
	if err := os.Mkdir(readable, 0o700); err != nil {
		t.Fatal(err)
	}
	inside, outside := filepath.Join(readable, "inside"), filepath.Join(dir, "outside")
	for _, name := range []string{inside, outside} {
		if err := os.WriteFile(name, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(_ context.Context, question json.RawMessage) (any, error) {
		n, err := strconv.Atoi(string(question))
		return n * 10, err
	}
	for want, j := range map[string]Job{
		`"{\"A\":1}input"`: {
			Task: "echo", Request: map[string]int{"A": 1}, Input: strings.NewReader("input"),
			Size: 5,
		},
		`["text","refused"]`:   {Task: "read", Request: []string{inside, outside}, Readable: readable},
		`["refused"]`:          {Task: "read", Request: []string{inside}},
		`30`:                   {Task: "ask", Answer: answer},
		"the time limit":       {Task: "loop"},
		"more than 1.0 GiB of": {Task: "allocate"},
		`no task "x"`:          {Task: "x"},
		"unexpected question":  {Task: "ask"},
		"a broken input":       {Task: "echo", Input: bufio.NewReader(broken{}), Size: 5},
	} {
		limit := 5 * time.Minute // a busy machine takes its time to allocate
		if j.Task == "loop" {
			limit = 300 * time.Millisecond
		}
		r, err := j.Do(t.Context(), limit)
		if got := string(r.Answer) + fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", j.Task, got, want)
		}
		t.Logf("%s: missing %q", j.Task, r.Missing)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("a broken input") }

// TestConverse has a child that ends well while its standard error is still open, as a machine that is too busy to
// see the end of it has: its answer counts. What holds it ends with the child's standard input.
func TestConverse(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 3<&0; cat <&3 >/dev/null & echo found")
	cmd.Stderr, cmd.WaitDelay = &bytes.Buffer{}, time.Millisecond
	var answer []byte
	c := child{receive: func(_ io.Writer, stdout io.Reader) (err error) {
		answer, err = io.ReadAll(stdout)
		return err
	}}
	sent, err := c.converse(cmd)
	if string(answer) != "found\n" || sent != nil || err != nil {
		t.Errorf("%q, %v, %v", answer, sent, err)
	}
}

// TestFailedError explains the outputs of children that met their memory limit. Go's runtime prints the first one.
// cgo prints the second one if there is no memory for the stack of another thread (seen once in six runs of a
// template that repeats without an end), the race detector the third one.
func TestFailedError(t *testing.T) {
	t.Parallel()
	for _, stderr := range []string{
		"fatal error: runtime: out of memory\n",
		"runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n",
		"==15957==ERROR: ThreadSanitizer failed to allocate 0x168000000 (6039797760) bytes at address 218008000000 (errno: 12)\n",
	} {
		if got := (&FailedError{errors.New("exit status 2"), stderr}).Error(); !strings.HasPrefix(got,
			"rendering takes more than 1.0 GiB of memory") {
			t.Errorf("%q is explained as %q", stderr, got)
		}
	}
	if got := (&FailedError{
		errors.New("exit status 2"),
		"panic: x\nmore",
	}).Error(); got != "the sandbox process failed: exit status 2 panic: x" {
		t.Errorf("got %q", got)
	}
}
