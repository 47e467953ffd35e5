package precheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// spaceChecks check filesystems.
func spaceChecks() []Check {
	return []Check{
		{
			ID: "disk", Groups: []string{GroupHost}, Level: Block,
			Title: "the disks have enough space for the installation", Rule: hasSpace, Essential: true,
			Why:    "an installation that fills the disk leaves a half-installed host, and the kubelet evicts pods",
			Fix:    "free space or make the filesystem larger",
			Source: "sizes in the bundle",
		},
		{
			ID: "filesystems", Groups: []string{GroupHost}, Level: Block, Title: "programs can be written and run",
			Rule:   isWritable,
			Why:    "programs go to /usr/local/bin and /opt; on filesystems mounted ro or noexec they cannot be written or started",
			Fix:    "mount these filesystems with rw,exec",
			Source: "kkbundle",
		},
		{
			ID: "nearly-full", Groups: []string{GroupHost}, Level: Warn, Title: "filesystems are not nearly full",
			Rule:   hasReserve,
			Why:    "the kubelet evicts pods where less than 10% of its filesystem is free, and takes none where files can no longer be made",
			Fix:    "free space or make the filesystem larger; precheck.minFree in the cluster file sets another limit",
			Source: "kubelet evictionHard: nodefs.available<10%, nodefs.inodesFree<5%",
		},
		{
			ID: "read-only", Groups: []string{GroupHost}, Level: Warn, Title: "no disk went read-only",
			Rule:   hasNoReadOnlyDisk,
			Why:    "the kernel makes a filesystem read-only when its disk fails",
			Fix:    "look at dmesg, and repair or replace the disk",
			Source: "kkbundle; ext4 errors=remount-ro",
		},
		{
			ID: "tmp-exec", Groups: []string{GroupHost}, Level: Warn, Title: "programs in /tmp can run",
			Rule:   runsInTmp,
			Why:    "kkbundle does not need it, but many installers put scripts there and fail without saying why",
			Fix:    "mount -o remount,exec /tmp while other installers are at work",
			Source: "reports of KubeKey's and Kubespray's users",
		},
	}
}

// A filesystem is the common filesystem of directories.
type filesystem struct {
	mount             string
	total, free, need int64
	inodes            int64
	what              []string
}

// filesystems adds up the needed space by filesystem, in the order of the facts; missing is a directory without facts.
func (s *Subject) filesystems() (list []*filesystem, missing string) {
	all := map[uint64]*filesystem{}
	for _, d := range s.Facts.Dirs {
		if all[d.Device] == nil {
			all[d.Device] = &filesystem{mount: d.Mount, total: d.Total, free: d.Free, inodes: d.Inodes}
			list = append(list, all[d.Device])
		}
	}
	for _, want := range s.Host.Space {
		d, ok := s.Facts.Dir(want.Dir)
		if !ok {
			missing = want.Dir
			continue
		}
		fs := all[d.Device]
		fs.need += want.Bytes
		fs.what = append(fs.what, fmt.Sprintf("%s in %s", want.For, want.Dir))
	}
	return list, missing
}

func hasSpace(s *Subject) Finding {
	if s.Input.Install && len(s.Input.Missing) > 0 {
		return skip() // the needed space is unknown; reported by bundle
	}
	if len(s.Host.Space) == 0 {
		return pass("nothing will be written")
	}
	list, missing := s.filesystems()
	if missing != "" {
		return unknown("the free space of " + missing + " is not known")
	}
	ok := true
	var found []string
	for _, fs := range list {
		if len(fs.what) == 0 {
			continue
		}
		text := fmt.Sprintf("%s has %s free and needs %s", fs.mount, plain.Size(fs.free), plain.Size(fs.need))
		if fs.free < fs.need {
			ok = false
			text += " for " + strings.Join(fs.what, ", ")
		}
		found = append(found, text)
	}
	if text := strings.Join(found, "; "); !ok {
		return fail(text)
	}
	return pass(strings.Join(found, "; "))
}

func isWritable(s *Subject) Finding {
	if len(s.Facts.Dirs) == 0 {
		return unknown("the host did not say how its filesystems are mounted")
	}
	var wrong []string
	for _, d := range s.Facts.Dirs {
		switch {
		case d.ReadOnly:
			wrong = append(wrong, d.Path+" is read-only")
		case d.NoExec && (strings.HasPrefix(d.Path, "/usr/local") || strings.HasPrefix(d.Path, "/opt")):
			wrong = append(wrong, d.Path+" is mounted noexec")
		}
	}
	return none(wrong, "they can")
}

// hasReserve checks the remaining space of each filesystem after the installation. The disk check reports filesystems
// that are too small.
func hasReserve(s *Subject) Finding {
	list, _ := s.filesystems()
	if len(list) == 0 {
		return unknown("the free space is not known")
	}
	const (
		percent   = 10
		minInodes = 20000 // files of a few large images
	)
	var wrong []string
	for _, fs := range list {
		left := fs.free - fs.need
		least := int64(s.Cluster.Precheck.MinFree)
		least = cmp.Or(least, fs.total/100*percent)
		switch {
		case left < 0:
		case left < least:
			wrong = append(wrong, fmt.Sprintf("%s will have %s of %s free", fs.mount, plain.Size(left),
				plain.Size(fs.total)))
		case fs.inodes >= 0 && fs.inodes < minInodes:
			wrong = append(wrong, fmt.Sprintf("%s has room for %d more files", fs.mount, fs.inodes))
		}
	}
	return none(wrong, "they are not")
}

// hasNoReadOnlyDisk checks filesystems that are normally writable. Those below /run belong to the environment of the
// host, for example systemd-nspawn.
func hasNoReadOnlyDisk(s *Subject) Finding {
	var wrong []string
	for _, m := range s.Facts.Mounts {
		if m.Has("ro") && slices.Contains([]string{"ext3", "ext4", "xfs", "btrfs"}, m.Type) &&
			!strings.HasPrefix(m.Point, "/run/") && !s.isLookedAt(m) {
			wrong = append(wrong, m.Point)
		}
	}
	return none(wrong, "none did")
}

// isLookedAt reports whether another check covers the filesystem.
func (s *Subject) isLookedAt(m node.Mount) bool {
	return slices.ContainsFunc(s.Facts.Dirs, func(d node.Dir) bool { return d.Mount == m.Point })
}

func runsInTmp(s *Subject) Finding {
	for _, m := range slices.Backward(s.Facts.Mounts) { // the last one hides those before it
		if m.Point != "/tmp" {
			continue
		}
		if m.Has("noexec") {
			return fail("/tmp is mounted noexec")
		}
		break
	}
	return pass("they can")
}
