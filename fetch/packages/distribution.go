package packages

import (
	"maps"
	"slices"
	"strings"
)

// A Distribution is a distribution known by name.
type Distribution struct {
	// Debian distinguishes packages in Debian's format from RPM packages.
	Debian  bool
	Sources []Source
	// Keyrings are the paths of its keys on systems that have them, the best first.
	Keyrings []string
	// Keys describes how to get the keys elsewhere.
	Keys string
	// Base names the packages of every system, if packages do not mark themselves.
	Base []string
}

// A Source is a package repository of a distribution.
type Source struct {
	// URL may have the placeholders {arch} and {x86arch}.
	URL        string
	Suite      string // of apt
	Components []string
	// Architecture is the only one available, amd64 or arm64; "" means all.
	Architecture string
}

// Distributions returns the names of the known distributions, sorted.
func Distributions() []string { return slices.Sorted(maps.Keys(distributions())) }

// FindDistribution returns the distribution of a name such as debian/12.
func FindDistribution(name string) (Distribution, bool) {
	d, ok := distributions()[strings.ToLower(name)]
	return d, ok
}

// distributions returns the addresses preset in the distributions' own installers and package managers.
func distributions() map[string]Distribution {
	return map[string]Distribution{
		"debian/11":    debian("bullseye"),
		"debian/12":    debian("bookworm"),
		"debian/13":    debian("trixie"),
		"ubuntu/20.04": ubuntu("focal"),
		"ubuntu/22.04": ubuntu("jammy"),
		"ubuntu/24.04": ubuntu("noble"),
		"rocky/8": redHat("https://dl.rockylinux.org/pub/rocky/8",
			"/etc/pki/rpm-gpg/RPM-GPG-KEY-rockyofficial"),
		"rocky/9":     redHat("https://dl.rockylinux.org/pub/rocky/9", "/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9"),
		"rocky/10":    redHat("https://dl.rockylinux.org/pub/rocky/10", "/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-10"),
		"almalinux/8": redHat("https://repo.almalinux.org/almalinux/8", "/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux"),
		"almalinux/9": redHat("https://repo.almalinux.org/almalinux/9",
			"/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9"),
		"almalinux/10": redHat("https://repo.almalinux.org/almalinux/10",
			"/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-10"),
		"centos-stream/9": redHat("https://mirror.stream.centos.org/9-stream",
			"/etc/pki/rpm-gpg/RPM-GPG-KEY-centosofficial"),
		"openeuler/22.03": openEuler("https://repo.openeuler.org/openEuler-22.03-LTS-SP4"),
		"openeuler/24.03": openEuler("https://repo.openeuler.org/openEuler-24.03-LTS-SP1"),
		"centos-stream/10": redHat("https://mirror.stream.centos.org/10-stream",
			"/etc/pki/rpm-gpg/RPM-GPG-KEY-centosofficial-SHA256"),
	}
}

func debian(codename string) Distribution {
	main := []string{"main"}
	return Distribution{
		Debian: true,
		Sources: []Source{
			{URL: "https://deb.debian.org/debian", Suite: codename, Components: main},
			{URL: "https://deb.debian.org/debian", Suite: codename + "-updates", Components: main},
			{URL: "https://deb.debian.org/debian-security", Suite: codename + "-security", Components: main},
		},
		Keyrings: []string{"/usr/share/keyrings/debian-archive-keyring.gpg"},
		Keys:     "install debian-archive-keyring, or extract debian-archive-keyring.gpg from it",
	}
}

func ubuntu(codename string) Distribution {
	d := Distribution{
		Debian:   true,
		Keyrings: []string{"/usr/share/keyrings/ubuntu-archive-keyring.gpg"},
		Keys:     "install ubuntu-keyring, or extract ubuntu-archive-keyring.gpg from it",
	}
	for _, suite := range []string{codename, codename + "-updates", codename + "-security"} {
		components := []string{"main", "universe"}
		d.Sources = append(d.Sources, // neither host supports TLS
			Source{
				URL: "http://archive.ubuntu.com/ubuntu", Suite: suite, Components: components,
				Architecture: "amd64",
			},
			Source{
				URL: "http://ports.ubuntu.com/ubuntu-ports", Suite: suite, Components: components,
				Architecture: "arm64",
			})
	}
	return d
}

func redHat(base, key string) Distribution {
	return Distribution{
		Sources:  []Source{{URL: base + "/BaseOS/{x86arch}/os"}, {URL: base + "/AppStream/{x86arch}/os"}},
		Keyrings: []string{key},
		Keys:     keyOnHosts(key),
		Base:     rpmBase(),
	}
}

func keyOnHosts(file string) string { return "copy " + file + " from a host with this distribution" }

func openEuler(base string) Distribution {
	const key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-openEuler"
	return Distribution{
		Sources: []Source{
			{URL: base + "/OS/{x86arch}"},
			{URL: base + "/everything/{x86arch}"},
			{URL: base + "/update/{x86arch}"},
		},
		Keyrings: []string{key},
		Keys:     keyOnHosts(key),
		Base:     rpmBase(),
	}
}

// rpmBase returns the packages that every server needs to boot, log in and run dnf.
func rpmBase() []string {
	return []string{
		"basesystem", "bash", "coreutils", "coreutils-common", "coreutils-single", "dbus", "dbus-broker", "dbus-common",
		"dnf", "filesystem", "glibc", "glibc-common",
		"glibc-minimal-langpack", "ncurses-base", "ncurses-libs", "pam", "rpm", "rpm-libs", "setup", "shadow",
		"shadow-utils", "sudo", "systemd", "systemd-libs",
		"systemd-pam", "tzdata", "util-linux", "util-linux-core",
	}
}
