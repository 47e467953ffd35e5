package scalar

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Words checks values of one word in a file. A method adds a problem at a path for a value that is not what it should
// be; most let an empty one pass, which is about whether it is required.
type Words struct{ *document.Checker }

// Name checks the name in metadata.
func (c *Words) Name(name string) {
	if name != "" && !document.IsName(name, true) {
		c.Add("metadata.name", "%q is not a name; use lower case letters, digits, hyphens and dots",
			document.Shorten(name))
	}
}

// Version checks a version, which becomes part of names.
func (c *Words) Version(path, version string) {
	if version != "" && (!IsToken(version) || len(version) > MaxToken) {
		c.Add(path, "%q is not a version; use letters, digits and . _ + -, at most %d of them",
			document.Shorten(version), MaxToken)
	}
}

// Platforms checks a list of platforms, and writes each in its one spelling.
func (c *Words) Platforms(at string, list []string) {
	for i, written := range list {
		path := document.Index(at, i)
		p, err := PlatformString(written)
		if err != nil {
			c.Add(path, "%v", err)
			continue
		}
		if first := slices.Index(list[:i], p); first >= 0 {
			c.Add(path, "%s is there twice, first on %s", p, c.Place(document.Index(at, first)))
		}
		list[i] = p
	}
}

// Digest reports whether s is a sha256 digest, and adds a problem otherwise.
func (c *Words) Digest(path, s string) bool {
	algorithm, hex, _ := strings.Cut(s, ":")
	switch {
	case algorithm == "sha256" && IsHex(hex, 64):
		return true
	case IsToken(algorithm) && algorithm != "sha256" && hex != "":
		c.Add(path, "%q: only sha256 digests are read", document.Shorten(s))
	default:
		c.Add(path, "%q is not a digest; write sha256: and 64 hexadecimal digits in lower case", document.Shorten(s))
	}
	return false
}

// Address checks a URL that may have the placeholders of a file.
func (c *Words) Address(path, s string, schemes ...string) {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(s))
	switch {
	// A login may also stand before a host without a scheme.
	case strings.IndexByte(s, '@') > 0 && (err != nil || u.User != nil || !slices.Contains(schemes, u.Scheme)):
		c.Add(path, "%s", NoSecrets)
	case err != nil:
		c.Add(path, "%q is not a URL", document.Shorten(s))
	case !slices.Contains(schemes, u.Scheme):
		c.Add(path, "%q: want a URL with %s://", document.Shorten(s), document.Or(schemes))
	case u.Scheme == "file" && u.Host != "":
		c.Add(path, "%q: a file URL has three slashes before its path", document.Shorten(s))
	case u.Scheme != "file" && u.Hostname() == "":
		c.Add(path, "%q has no host", document.Shorten(s))
	case u.Fragment != "":
		c.Add(path, "%q: the part from # on is never sent; leave it out", document.Shorten(s))
	case SecretParameter(u) != "":
		c.Add(path, signedAddress, SecretParameter(u))
	}
	c.Placeholders(path, s)
}

// Placeholders reports braces that Expand does not know.
func (c *Words) Placeholders(path, s string) {
	rest := strings.NewReplacer("{os}", "", "{arch}", "", "{x86arch}", "").Replace(s)
	if at := strings.IndexAny(rest, "{}"); at >= 0 {
		c.Add(path, "%q has a placeholder that is not known; known: {os}, {arch} and {x86arch}",
			document.Shorten(rest[at:]))
	}
}

// HostPort checks host or host:port.
func (c *Words) HostPort(path, s string) {
	if _, _, err := SplitHostPort(s); err != nil {
		c.Add(path, "%v", err)
	}
}

// Release checks a version used in download addresses: v and three numbers.
func (c *Words) Release(path, version string) {
	if version == "" {
		return
	}
	number, hasV := strings.CutPrefix(version, "v")
	_, err := semver.StrictNewVersion(number)
	switch {
	case err != nil:
		c.Add(path, "%q is not a version; write v and three numbers, as in v1.36.3", document.Shorten(version))
	case !hasV:
		c.Add(path, "write v%s", version)
	}
}

// Kernel checks a version of Linux.
func (c *Words) Kernel(at, version string) {
	if strings.Trim(version, "0123456789.") != "" {
		c.Add(at, "%q is not a kernel version; write numbers and dots, as in 4.9.17", document.Shorten(version))
	}
}

// DataDir checks a directory of a host for data of one kind, which a reset empties.
func (c *Words) DataDir(at, dir string) {
	switch {
	case dir == "":
	case !path.IsAbs(dir):
		c.Add(at, "%q: write an absolute path", document.Shorten(dir))
	case path.Clean(dir) != dir || dir == "/" || !document.Only(strings.ToLower(dir), "./-_"):
		// Separators and quotes of units, exports(5) and environment files cannot be in a name.
		c.Add(at, "%q: write a directory below / with letters, digits and . - _ /", document.Shorten(dir))
	case slices.Contains(systemDirs(), dir):
		c.Add(at, "%s belongs to the system, and kkbundle reset empties this directory: write one below it", dir)
	case slices.ContainsFunc(volatileDirs(), func(v string) bool { return strings.HasPrefix(dir, v+"/") }):
		c.Add(at, "%s does not outlive a restart of the host: write a directory on a disk", dir)
	}
}

// systemDirs returns directories with content of several owners (https://refspecs.linuxfoundation.org/FHS_3.0/fhs/) and
// those of Kubernetes and the container runtimes.
func systemDirs() []string {
	return append(volatileDirs(),
		"/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/opt", "/root", "/sbin", "/tmp", "/usr", "/usr/lib",
		"/usr/local", "/usr/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/opt", "/var/spool", "/var/tmp",
		"/etc/kubernetes", "/etc/kubernetes/pki", "/etc/systemd", "/etc/systemd/system", "/var/lib/cni",
		"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kkbundle", "/var/lib/kubelet")
}

// volatileDirs returns the directories that a system makes anew when it starts.
func volatileDirs() []string { return []string{"/dev", "/proc", "/run", "/sys", "/var/run"} }
