package software

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// A Release is a release of Debian that the lab's hosts run.
type Release string

// The releases. Bookworm is the default: its root file system is made in every build.
const (
	Bullseye Release = "bullseye" // Debian 11: glibc 2.31, systemd 247
	Bookworm Release = "bookworm" // Debian 12: glibc 2.36, systemd 252
	Trixie   Release = "trixie"   // Debian 13: glibc 2.41, systemd 257
	Testing  Release = "testing"  // refused: see CheckRelease
)

// Releases lists the releases of hosts that the lab boots.
func Releases() []Release { return []Release{Bullseye, Bookworm, Trixie} }

// CheckRelease reports why the lab cannot boot hosts of a release.
func CheckRelease(r Release) error {
	switch {
	case slices.Contains(Releases(), r):
		return nil
	case r == Testing:
		return fmt.Errorf("hosts of Debian %s: systemd 258 and later need cgroup v2, and the lab's hosts have cgroup v1; use the lab of virtual machines", r)
	default:
		return fmt.Errorf("hosts of Debian %s: the lab boots %q", r, Releases())
	}
}

// ParseReleases splits a list of releases at its commas. An empty list means Bookworm.
func ParseReleases(list string) ([]Release, error) {
	if list == "" {
		return []Release{Bookworm}, nil
	}
	var releases []Release
	for name := range strings.SplitSeq(list, ",") {
		r := Release(strings.TrimSpace(name))
		if err := CheckRelease(r); err != nil {
			return nil, err
		}
		releases = append(releases, r)
	}
	return releases, nil
}

// rootsVersion changes with the recipe of roots, and is part of its keys.
const rootsVersion = 1

// roots makes the root file systems of releases besides the default, each under a key of its own.
func (b *builder) roots(ctx context.Context, releases []Release) (map[Release]string, error) {
	roots := map[Release]string{}
	for _, r := range releases {
		if _, made := roots[r]; made || r == Bookworm {
			continue
		}
		if err := CheckRelease(r); err != nil {
			return nil, err
		}
		key, err := keyOf("rootfs", r, rootsVersion, rootfsSource, labInit, kernelRelease())
		if err != nil {
			return nil, err
		}
		roots[r], err = b.output("rootfs-"+string(r), key, func(tmp string) error {
			cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+
				strings.Join(packages(), ","), string(r), tmp)
			cmd.Stdout, cmd.Stderr = b.log, b.log
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("mmdebstrap %s: %w", r, err)
			}
			return b.prepare(ctx, tmp)
		})
		if err != nil {
			return nil, err
		}
	}
	return roots, nil
}
