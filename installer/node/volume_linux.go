package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A VolumeProof is a text in a file of a volume, seen as the processes of one pod see it. The pod, and what else can
// write to the volume, are not trusted: nothing outside the pod's file system is opened, whatever links they make.
type VolumeProof struct {
	Proc   string // /proc
	PodUID string
	Dir    string // the volume's directory in the pod, absolute
	Text   string
}

const (
	proofFile = "proof"
	mostProof = 1 << 10 // bytes of a text, and of a process's list of control groups that count
)

// Write writes the text to a new file and waits until it is on the disk.
func (p VolumeProof) Write() error {
	return p.inVolume(func(volume *os.Root) (err error) {
		if err := volume.Remove(proofFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // of an attempt that was interrupted
		}
		f, err := volume.OpenFile(proofFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if _, err := f.WriteString(p.Text); err != nil {
			return err
		}
		return f.Sync()
	})
}

// Read compares the file with the text and removes the file.
func (p VolumeProof) Read() error {
	return p.inVolume(func(volume *os.Root) error {
		f, err := volume.OpenFile(proofFile, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // a pipe must not block
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(f, mostProof))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if string(data) != p.Text {
			return errors.New("the volume has other data than the first pod wrote")
		}
		return volume.Remove(proofFile)
	})
}

// inVolume calls use with the volume of a process of the pod.
func (p VolumeProof) inVolume(use func(*os.Root) error) error {
	processes, err := os.ReadDir(p.Proc)
	if err != nil {
		return err
	}
	for _, process := range processes {
		if strings.Trim(process.Name(), "0123456789") != "" {
			continue
		}
		root, err := os.OpenRoot(path.Join(p.Proc, process.Name(), "root"))
		if err != nil {
			continue // it ended
		}
		// After root is open: the number may be another process's by now.
		if !p.isOfPod(path.Join(p.Proc, process.Name(), "cgroup")) {
			_ = root.Close()
			continue
		}
		volume, err := root.OpenRoot(strings.TrimPrefix(p.Dir, "/"))
		_ = root.Close()
		if err != nil {
			continue // the pod's sandbox has no volumes
		}
		return errors.Join(use(volume), volume.Close())
	}
	return fmt.Errorf("no process of pod %s has %s", p.PodUID, p.Dir)
}

// isOfPod reports whether a file lists control groups of the pod. The kubelet names them by the pod's UID; with
// systemd's driver "-" is "_" (kubernetes/pkg/kubelet/cm/cgroup_manager_linux.go).
func (p VolumeProof) isOfPod(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64*mostProof))
	groups := string(data)
	return err == nil && p.PodUID != "" &&
		(strings.Contains(groups, "pod"+p.PodUID) ||
			strings.Contains(groups, "pod"+strings.ReplaceAll(p.PodUID, "-", "_")+".slice"))
}
