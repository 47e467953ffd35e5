package vm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// foreignNeeds are the commands that make an image of another architecture: programs of its packages run while they
// are set up.
func foreignNeeds(arch string) []struct{ command, pkg string } {
	return []struct{ command, pkg string }{
		{"qemu-" + qemuArch(arch) + "-static", "qemu-user-static"},
		{"arch-test", "arch-test"},
	}
}

// qemuArch is QEMU's name of an architecture.
func qemuArch(arch string) string {
	if arch == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

// foreignScript lets the kernel run another architecture's programs by QEMU for a command and its children alone, as
// binfmt_misc belongs to the user namespace. The rule is that of Debian's package.
const foreignScript = `mkdir -p "$REGISTRY" && mount -t binfmt_misc binfmt_misc "$REGISTRY" && cat "$RULE" >"$REGISTRY/register" && exec "$@"`

// foreign runs a command under which programs of the image's architecture run, emulated. The machine itself is not
// changed: the command has namespaces of its own, with the same users.
func (f filling) foreign(ctx context.Context, input, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", foreignScript, "sh", name}, args...)...)
	cmd.Env = append(os.Environ(), "REGISTRY="+filepath.Join(f.dir, "binfmt"), "RULE=/usr/lib/binfmt.d/qemu-"+
		qemuArch(f.arch)+".conf")
	same := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, UidMappings: same,
		GidMappings: same, GidMappingsEnableSetgroups: true,
	}
	return runLogged(cmd, f.log, input)
}
