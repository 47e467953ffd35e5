package manifest

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Source configures the access to one upstream host, or names a directory to search first. It applies to images, charts
// and files alike.
type Source struct {
	// Host is the host[:port] in references and URLs, or *.DOMAIN for every host below a domain.
	Host string `yaml:"host,omitempty" doc:"host[:port] as in references and URLs, such as docker.io or dl.k8s.io; *.example.com is every host below example.com."`
	// Directory holds existing files by name, and optionally an OCI image layout. Host is empty then.
	Directory string `yaml:"directory,omitempty" local:"machine" doc:"Instead of host: a directory with local files (as HOST/PATH, PATH or by the last part of their name), or an OCI image layout."`
	// Mirrors are tried in order before the host itself.
	Mirrors Mirrors `yaml:"mirror,omitempty" doc:"host[:port][/path] to ask first, or a list; the host itself is asked last."`
	// MirrorOnly excludes the host itself.
	MirrorOnly bool `yaml:"mirrorOnly,omitempty" doc:"Never ask the host itself, only its mirrors."`
	// CA is the path of a PEM file, relative to the manifest, with the certificate authorities of the host and its
	// mirrors.
	CA string `yaml:"ca,omitempty" local:"machine" doc:"PEM file with the certificate authorities of this host and its mirrors."`
	// Cert and Key are paths of PEM files with the client certificate for the host and its mirrors.
	Cert string `yaml:"cert,omitempty" local:"machine" doc:"PEM file with the client certificate for this host and its mirrors."`
	Key  string `yaml:"key,omitempty" local:"machine" doc:"PEM file with the private key of cert."`
	// MaxConcurrent bounds the connections to this host; 0 is the default.
	MaxConcurrent int `yaml:"maxConcurrent,omitempty" doc:"Limit of parallel requests to this host; lowered while the host reports overload. Default 8."`
	// PlainHTTP uses HTTP instead of HTTPS: for the mirrors if there are any, else for the host itself.
	PlainHTTP bool `yaml:"plainHTTP,omitempty" doc:"Use HTTP without TLS for the mirrors, or for the host if it has no mirrors."`
}

// Hint says what to write in the place of an unknown field.
func (*Source) Hint(name string) string {
	switch name {
	case "username", "password", "token", "auth", "identitytoken":
		return "secrets never live in this file; log in with `kkbundle login` or netrc"
	case "insecure", "insecureSkipVerify", "skipTLSVerify":
		return "certificates are always checked; name the authority with ca, or use plainHTTP"
	case "proxy", "httpProxy", "httpsProxy":
		return "proxies are taken from the environment: HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
	case "mirrors":
		return "write mirror: with one mirror or a list of them"
	}
	return ""
}

// Mirrors are host[:port][/path] each, in the order of use. In YAML a single one is written without a list.
type Mirrors []string

// SetShort implements document.Shorthand.
func (m *Mirrors) SetShort(text string) { *m = Mirrors{text} }

// UnmarshalYAML reads both forms in the catalog; manifests have their own decoder.
func (m *Mirrors) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		m.SetShort(n.Value)
		return nil
	}
	return n.Decode((*[]string)(m))
}

// MarshalYAML writes the short form back.
func (m Mirrors) MarshalYAML() (any, error) {
	if len(m) == 1 {
		return m[0], nil
	}
	return []string(m), nil
}

// An Override replaces the address or the checksum of something, without changing its name: references in the bundle
// stay those of upstream. It applies to files, chart archives and Helm repositories, by their whole URL or by host and
// path; the first match counts. Images and OCI charts have mirrors instead (Source).
type Override struct {
	// URL is the whole address, with the same placeholders as that of a file.
	URL string `yaml:"url,omitempty" doc:"The whole address of a file, chart archive or repository; with {os} {arch} {x86arch} as in files."`
	// Host and Path are the beginning of addresses; Path ends at a component boundary.
	Host string `yaml:"host,omitempty" doc:"Instead of url: the host[:port] of addresses."`
	Path string `yaml:"path,omitempty" doc:"With host: beginning of their path, such as /release."`
	// With is the replacing address; the rest after Host and Path is appended.
	With string `yaml:"with,omitempty" doc:"The address that is asked instead; the rest after host and path is appended to it."`
	// SHA256 is the file's expected digest by platform, which overrides upstream's checksums.
	SHA256 Sums `yaml:"sha256,omitempty" doc:"With url: expected sha256 by platform, or one for all; it wins over upstream's checksums."`
}

// Apply returns the replacement for address, which has its placeholders filled in, for a platform.
func (o Override) Apply(address string, platform scalar.Platform) (string, bool) {
	if o.With == "" {
		return "", false
	}
	if o.URL != "" {
		return scalar.Expand(o.With, platform), scalar.Expand(o.URL, platform) == address
	}
	u, err := url.Parse(address)
	if err != nil || !sameHost(o.Host, u.Host, u.Scheme) {
		return "", false
	}
	_, after, _ := strings.Cut(address, "://")
	at := strings.IndexAny(after, "/?")
	if at < 0 {
		at = len(after)
	}
	rest, fits := strings.CutPrefix(after[at:], strings.TrimSuffix(o.Path, "/"))
	if !fits || rest != "" && rest[0] != '/' && rest[0] != '?' {
		return "", false
	}
	return strings.TrimSuffix(o.With, "/") + rest, true
}

// Sum returns the file's expected sha256, 64 hexadecimal digits, or "" if the override has none.
func (o Override) Sum(address string, platform scalar.Platform) string {
	if o.URL == "" || scalar.Expand(o.URL, platform) != address {
		return ""
	}
	return File{SHA256: o.SHA256}.Sum(platform)
}

func sameHost(want, host, scheme string) bool {
	port := map[string]string{"https": ":443", "http": ":80"}[scheme]
	trim := func(s string) string { return strings.TrimSuffix(strings.ToLower(s), port) }
	return trim(want) == trim(host)
}

const maxConcurrent = 256 // connections; servers and this machine's own limit on open files are far above

// sourceChecker checks places that content comes from.
type sourceChecker struct{ *checker }

func (c sourceChecker) sources(at string, list []Source) {
	first := map[string]int{}
	for i, s := range list {
		path := document.Index(at, i)
		if s.Directory != "" {
			c.directorySource(path, s)
			continue
		}
		c.hostSource(path, s)
		host := strings.ToLower(s.Host)
		if before, twice := document.Earlier(first, host, i); twice && host != "" {
			c.Add(path, "%s is there twice, first on %s", document.Shorten(s.Host), c.Place(document.Index(at, before)))
		}
	}
}

func (c sourceChecker) directorySource(path string, s Source) {
	if s.Host != "" || len(s.Mirrors) > 0 || s.MirrorOnly || s.MaxConcurrent != 0 || s.PlainHTTP ||
		s.CA+s.Cert+s.Key != "" {
		c.Add(path, "directory %s stands alone; write another entry for a host", document.Shorten(s.Directory))
	}
	if strings.Contains(s.Directory, "://") {
		c.Add(document.Join(path, "directory"), "%q: want a path of this machine", document.Shorten(s.Directory))
	}
}

func (c sourceChecker) hostSource(path string, s Source) {
	if s.Host == "" {
		c.Add(path, "host is missing; write one, or directory for files that are there already")
	} else if domain, wild := strings.CutPrefix(s.Host, "*."); wild && strings.Contains(domain, ".") {
		c.HostPort(document.Join(path, "host"), domain)
	} else if strings.Contains(s.Host, "*") {
		c.Add(document.Join(path, "host"), "%q: a pattern is *. and a domain, such as *.example.com",
			document.Shorten(s.Host))
	} else {
		c.HostPort(document.Join(path, "host"), s.Host)
	}
	for i, m := range s.Mirrors {
		at := document.Join(path, "mirror")
		if len(s.Mirrors) > 1 {
			at = document.Index(at, i)
		}
		c.mirror(at, m)
		if slices.Index(s.Mirrors, m) < i {
			c.Add(at, "%s is there twice", document.Shorten(m))
		}
	}
	if s.MirrorOnly && len(s.Mirrors) == 0 {
		c.Add(document.Join(path, "mirrorOnly"), "there is no mirror; name one under mirror")
	}
	if s.MaxConcurrent < 0 || s.MaxConcurrent > maxConcurrent {
		c.Add(document.Join(path, "maxConcurrent"), "%d is not between 1 and %d", s.MaxConcurrent, maxConcurrent)
	}
	// With mirrors, ca also applies to the host itself, which still uses TLS.
	if s.PlainHTTP && s.CA != "" && (len(s.Mirrors) == 0 || s.MirrorOnly) {
		c.Add(path, "has plainHTTP and ca; without TLS no certificate is checked, keep one")
	}
	if (s.Cert == "") != (s.Key == "") {
		c.Add(path, "cert and key belong together; write both")
	}
}

func (c sourceChecker) mirror(path, mirror string) {
	host, below := scalar.CutPath(mirror)
	c.HostPort(path, host)
	if strings.ContainsAny(below, "?#{} \\") || strings.Contains("/"+below+"/", "/../") {
		c.Add(path, "%q: want host[:port][/path]", document.Shorten(mirror))
	}
}

func (c sourceChecker) overrides(list []Override) {
	for i := range list {
		o := &list[i]
		path := document.Index("overrides", i)
		switch {
		case o.URL == "" && o.Host == "":
			c.Add(path, "has neither url nor host; write url, or host and perhaps path")
		case o.URL != "" && o.Host+o.Path != "":
			c.Add(path, "has url and host or path; keep one")
		case o.URL != "":
			c.Address(document.Join(path, "url"), o.URL, "https", "http")
		default:
			c.HostPort(document.Join(path, "host"), o.Host)
			if o.Path != "" && (!strings.HasPrefix(o.Path, "/") || strings.ContainsAny(o.Path, "?#{} \\")) {
				c.Add(document.Join(path, "path"), "%q: want the beginning of a path, such as /release",
					document.Shorten(o.Path))
			}
			if strings.Contains(o.With, "{") {
				c.Add(document.Join(path, "with"), "placeholders need the whole address: write url instead of host")
			}
		}
		if o.With != "" {
			c.Address(document.Join(path, "with"), o.With, "https", "http")
		}
		if o.With == "" && len(o.SHA256) == 0 {
			c.Add(path, "has no effect; write with, or sha256")
		}
		if o.URL == "" && len(o.SHA256) > 0 {
			c.Add(document.Join(path, "sha256"), "needs the whole address: write url instead of host")
			continue
		}
		f := File{URL: o.URL, SHA256: o.SHA256}
		c.sums(path, &f)
		o.SHA256 = f.SHA256
	}
}

// IsLoopback reports whether host, with or without a port, is this machine.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}
