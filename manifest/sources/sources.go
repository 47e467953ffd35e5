// Package sources is about the access to upstream hosts and their mirrors: what the files that people write say of it.
package sources

import (
	"net"
	"net/netip"
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

const maxConcurrent = 256 // connections; servers and this machine's own limit on open files are far above

// Check checks places that content comes from, which are at a path of a file.
func Check(c *scalar.Words, at string, list []Source) { sourceChecker{c}.sources(at, list) }

// sourceChecker checks places that content comes from.
type sourceChecker struct{ *scalar.Words }

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
