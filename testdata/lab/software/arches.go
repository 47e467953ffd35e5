package software

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// debianFiles returns an archive with the files of Debian packages and of all that they depend on. Nothing of them
// runs here, so they may be of another architecture.
func (b *builder) debianFiles(ctx context.Context, arch, name, packages string) (string, error) {
	inputs, as := []any{name, packages, 1}, name
	args := []string{"--quiet", "--variant=extract", "--include=" + packages}
	if arch != runtime.GOARCH {
		inputs, as, args = append(inputs, arch), name+"-"+arch, append(args, "--architectures="+arch)
	}
	key, err := keyOf(inputs...)
	if err != nil {
		return "", err
	}
	dir, err := b.output(as, key, func(tmp string) error {
		cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, "bookworm", filepath.Join(tmp, name+".tar"))...)
		cmd.Stdout, cmd.Stderr = b.log, b.log
		return cmd.Run()
	})
	return filepath.Join(dir, name+".tar"), err
}

// debianParts unpacks those files of Debian packages whose names match patterns of tar, and returns their directory.
func (b *builder) debianParts(ctx context.Context, arch, name, packages string, patterns ...string) (string, error) {
	files, err := b.debianFiles(ctx, arch, name, packages)
	if err != nil {
		return "", err
	}
	key, err := keyOf(filepath.Base(filepath.Dir(files)), patterns)
	if err != nil {
		return "", err
	}
	return b.output(name+"-parts-"+arch, key, func(tmp string) error {
		cmd := exec.CommandContext(ctx, "tar", append([]string{"-x", "-f", files, "-C", tmp, "--wildcards"},
			patterns...)...)
		cmd.Stdout, cmd.Stderr = b.log, b.log
		return cmd.Run()
	})
}

// busybox returns the static program: this machine's, or that of Debian's package for another architecture.
func (b *builder) busybox(ctx context.Context, arch string) (string, error) {
	if arch == runtime.GOARCH {
		return exec.LookPath("busybox")
	}
	dir, err := b.debianParts(ctx, arch, "busybox", "busybox-static", "*bin/busybox")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"usr/bin/busybox", "bin/busybox"} {
		file := filepath.Join(dir, name)
		if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("busybox-static for %s has no program", arch)
}

// cTools returns the environment that makes cgo compile for an architecture and find libseccomp: that of Debian's
// package, whatever the machine has installed of its own.
func (b *builder) cTools(ctx context.Context, arch string) ([]string, error) {
	if arch == runtime.GOARCH {
		return nil, nil
	}
	triplet := machine(arch) + "-linux-gnu"
	gcc := triplet + "-gcc"
	if _, err := exec.LookPath(gcc); err != nil {
		pkg := strings.ReplaceAll(triplet, "_", "-")
		return nil, fmt.Errorf("programs with C for %[1]s need the Debian packages gcc-%[2]s and libc6-dev-%[1]s-cross: %[3]w", arch, pkg, err)
	}
	root, err := b.debianParts(ctx, arch, "libseccomp", "libseccomp-dev", "*/include/seccomp*.h", "*/libseccomp.a",
		"*/libseccomp.pc")
	if err != nil {
		return nil, err
	}
	return []string{
		"CC=" + gcc, "PKG_CONFIG_SYSROOT_DIR=" + root, "PKG_CONFIG_LIBDIR=" +
			filepath.Join(root, "usr/lib", triplet, "pkgconfig"), "PKG_CONFIG_PATH=",
	}, nil
}
