package precheck

import (
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// linkageID is the check of the bundle's programs.
const linkageID = "bundle-programs"

// A Program is a program of the bundle and its requirements, as its ELF file states them.
type Program struct {
	// Path is the program's path on hosts, and Component its name in the catalog.
	Path, Component string
	// For is the architecture of the hosts that get it, in Go's spelling. Roles are their roles; none means all.
	For   string
	Roles []manifest.Role
	Linkage
}

// A Linkage lists what an ELF file requires of a host. The zero one requires nothing: a script, say.
type Linkage struct {
	// Arch is the architecture in Go's spelling, or the name of the ELF machine; "" if the file is no ELF file.
	Arch string
	// Loader is the path of the dynamic loader; "" for a static program.
	Loader string
	// GLIBC is the newest version of glibc's symbols that the program uses, such as 2.34; "" for none.
	GLIBC string
	// Problem is the reason that the file could not be understood, or "".
	Problem string
}

// linkageChecks check whether the bundle's programs can start.
func linkageChecks() []Check {
	return []Check{{
		ID: linkageID, Groups: []string{GroupOS, GroupKKBundle}, Level: Block,
		Title: "the bundle's programs can start on the host", Rule: canStart,
		Why:    "a program for another architecture, or for a newer glibc, ends before its first line, and its service never starts",
		Fix:    "build the bundle with static programs (for containerd, cri.version 1.7 or newer and kkbundle's own catalog), or use a newer operating system",
		Source: "kkbundle: PT_INTERP and .gnu.version_r of the ELF files; getconf GNU_LIBC_VERSION",
	}, {
		ID: "bundle-images", Groups: []string{GroupOS, GroupKKBundle}, Level: Warn,
		Title: "the bundle's images have the host's architecture", Rule: hasImages, Roles: cluster(),
		Why:    "a pod of such an image that is scheduled on the host cannot start",
		Fix:    "build the bundle with images that have this platform, or keep their pods off the host: nodeSelector kubernetes.io/arch",
		Source: "kkbundle: platforms of the images in the bundle",
	}}
}

// hasImages applies to installations from a bundle that has the host's architecture.
func hasImages(s *Subject) Finding {
	lacking := s.Input.Lacking[s.Facts.Arch]
	switch {
	case !s.Input.Install || !slices.Contains(s.Input.Architectures, s.Facts.Arch):
		return skip()
	case len(lacking) > 0:
		return fail("without " + s.Facts.Arch + ": " + some(lacking))
	default:
		return pass("all of them")
	}
}

// canStart applies to installations from a bundle.
func canStart(s *Subject) Finding {
	if !s.Input.Install || s.Facts.Arch == "" {
		return skip()
	}
	var wrong, unsure []string
	asked := false
	for _, p := range s.Input.Programs {
		if p.For != s.Facts.Arch || len(p.Roles) > 0 && !slices.ContainsFunc(p.Roles, s.Host.Is) {
			continue
		}
		asked = true
		if p.Problem != "" {
			unsure = append(unsure, p.Path+" could not be examined: "+p.Problem)
		}
		if p.Loader != "" && s.Facts.Libc.Name == "" {
			unsure = append(unsure, p.Path+" is dynamic, and the host did not say which libc it has")
		}
		if obstacle := p.obstacle(s.Facts); obstacle != "" {
			wrong = append(wrong, p.Path+" "+obstacle)
		}
	}
	switch {
	case len(wrong) > 0:
		return fail(some(wrong))
	case len(unsure) > 0:
		return unknown(some(unsure))
	case !asked:
		return skip()
	default:
		return pass("all of them")
	}
}

// obstacle returns the reason that a program cannot start on a machine, "" if none is known.
func (l Linkage) obstacle(f *node.Facts) string {
	libc := f.Libc
	switch {
	case l.Arch != "" && l.Arch != f.Arch:
		return fmt.Sprintf("is for %s, the host is %s", l.Arch, f.Arch)
	case l.Loader == "" || libc.Name == "":
		return ""
	case !slices.Contains(libc.Loaders, l.Loader):
		return fmt.Sprintf("needs %s, the host has %s without it", l.Loader, libc)
	case l.GLIBC == "" || libc.Name == node.GLIBC && slices.Compare(numbers(l.GLIBC), numbers(libc.Version)) <= 0:
		return ""
	default:
		return fmt.Sprintf("needs glibc %s, the host has %s", l.GLIBC, libc)
	}
}
