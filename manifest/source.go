package manifest

import (
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Source says how one upstream host is reached, or names a directory in which to look first. It applies to images, charts
// and files alike.
type Source struct {
	// Host is the host[:port] in references and URLs, or *.DOMAIN for every host below a domain.
	Host string `yaml:"host,omitempty" doc:"host[:port] as in references and URLs, such as docker.io or dl.k8s.io; *.example.com is every host below example.com."`
	// Directory has files that are there already, by name, and perhaps an OCI image layout. Host is empty then.
	Directory string `yaml:"directory,omitempty" doc:"Instead of host: a directory with local files (as HOST/PATH, PATH or by the last part of their name), or an OCI image layout."`
	// Mirrors are asked in their order before the host itself.
	Mirrors Mirrors `yaml:"mirror,omitempty" doc:"host[:port][/path] to ask first, or a list; the host itself is asked last."`
	// MirrorOnly leaves the host itself out.
	MirrorOnly bool `yaml:"mirrorOnly,omitempty" doc:"Never ask the host itself, only its mirrors."`
	// CA is the path of a PEM file, relative to the manifest, with the authorities that the host and its mirrors are trusted by.
	CA string `yaml:"ca,omitempty" doc:"PEM file with the certificate authorities of this host and its mirrors."`
	// Cert and Key are paths of PEM files with the client certificate for the host and its mirrors.
	Cert string `yaml:"cert,omitempty" doc:"PEM file with the client certificate for this host and its mirrors."`
	Key  string `yaml:"key,omitempty" doc:"PEM file with the private key of cert."`
	// MaxConcurrent bounds the connections to this host; 0 is the default.
	MaxConcurrent int `yaml:"maxConcurrent,omitempty" doc:"Limit of parallel requests to this host; lowered while the host reports overload. Default 8."`
	// PlainHTTP talks HTTP instead of HTTPS: to the mirrors if there are any, and to the host itself otherwise.
	PlainHTTP bool `yaml:"plainHTTP,omitempty" doc:"Use HTTP without TLS for the mirrors, or for the host if it has no mirrors."`
}

func (*Source) hint(name string) string {
	switch name {
	case "username", "password", "token", "auth", "identitytoken":
		return "secrets never live in this file; log in with the docker configuration (docker login) or netrc"
	case "insecure", "insecureSkipVerify", "skipTLSVerify":
		return "certificates are always checked; name the authority with ca, or use plainHTTP"
	case "proxy", "httpProxy", "httpsProxy":
		return "proxies are taken from the environment: HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
	case "mirrors":
		return "write mirror: with one mirror or a list of them"
	}
	return ""
}

// Mirrors are host[:port][/path] each, in the order in which they are asked. In YAML one is written without a list.
type Mirrors []string

func (m *Mirrors) setShort(text string) { *m = Mirrors{text} }

// UnmarshalYAML reads both forms where the catalog is read; manifests have a decoder of their own.
func (m *Mirrors) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		m.setShort(n.Value)
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

// An Override says where something is fetched from, or what it has to be, without changing what it is called: references in
// the bundle stay those of upstream. It is for files, chart archives and Helm repositories, by their whole URL or by host
// and path; the first one that fits counts. Images and OCI charts have mirrors (Source).
type Override struct {
	// URL is the whole address, with the same placeholders as that of a file.
	URL string `yaml:"url,omitempty" doc:"The whole address of a file, chart archive or repository; with {os} {arch} {x86arch} as in files."`
	// Host and Path are the beginning of addresses; Path ends where a part of the address does.
	Host string `yaml:"host,omitempty" doc:"Instead of url: the host[:port] of addresses."`
	Path string `yaml:"path,omitempty" doc:"With host: beginning of the path, such as /release."`
	// With is the address that is asked instead; what follows Host and Path is appended.
	With string `yaml:"with,omitempty" doc:"The other address; the part after host and path is appended."`
	// SHA256 is what the file has to be by platform, whatever upstream's checksums say.
	SHA256 Sums `yaml:"sha256,omitempty" doc:"With url: expected sha256 by platform, or one for all; it wins over upstream's checksums."`
}

// Apply returns the address to ask instead of address, which has its placeholders filled in, for a platform.
func (o Override) Apply(address string, platform Platform) (string, bool) {
	if o.With == "" {
		return "", false
	}
	if o.URL != "" {
		return Expand(o.With, platform), Expand(o.URL, platform) == address
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

// Sum returns the sha256 that a file has to have, 64 hexadecimal digits, or "" where the override does not say it.
func (o Override) Sum(address string, platform Platform) string {
	if o.URL == "" || Expand(o.URL, platform) != address {
		return ""
	}
	return File{SHA256: o.SHA256}.Sum(platform)
}

func sameHost(want, host, scheme string) bool {
	port := map[string]string{"https": ":443", "http": ":80"}[scheme]
	trim := func(s string) string { return strings.TrimSuffix(strings.ToLower(s), port) }
	return trim(want) == trim(host)
}

const maxConcurrent = 256 // connections; servers and this machine's own limit on open files end well below

func (c *checker) sources(at string, list []Source) {
	first := map[string]int{}
	for i, s := range list {
		path := index(at, i)
		if s.Directory != "" {
			c.directorySource(path, s)
			continue
		}
		c.hostSource(path, s)
		host := strings.ToLower(s.Host)
		if before, twice := first[host]; twice && host != "" {
			c.add(path, "%s is there twice, first on %s", shorten(s.Host), c.line(index(at, before)))
		} else {
			first[host] = i
		}
	}
}

func (c *checker) directorySource(path string, s Source) {
	if s.Host != "" || len(s.Mirrors) > 0 || s.MirrorOnly || s.MaxConcurrent != 0 || s.PlainHTTP || s.CA+s.Cert+s.Key != "" {
		c.add(path, "directory %s stands alone; write another entry for a host", shorten(s.Directory))
	}
	if strings.Contains(s.Directory, "://") {
		c.add(join(path, "directory"), "%q: want a path of this machine", shorten(s.Directory))
	}
}

func (c *checker) hostSource(path string, s Source) {
	if s.Host == "" {
		c.add(path, "host is missing; write one, or directory for files that are there already")
	} else if domain, wild := strings.CutPrefix(s.Host, "*."); wild && strings.Contains(domain, ".") {
		c.hostPort(join(path, "host"), domain)
	} else if strings.Contains(s.Host, "*") {
		c.add(join(path, "host"), "%q: a pattern is *. and a domain, such as *.example.com", shorten(s.Host))
	} else {
		c.hostPort(join(path, "host"), s.Host)
	}
	for i, m := range s.Mirrors {
		at := join(path, "mirror")
		if len(s.Mirrors) > 1 {
			at = index(at, i)
		}
		c.mirror(at, m)
		if slices.Index(s.Mirrors, m) < i {
			c.add(at, "%s is there twice", shorten(m))
		}
	}
	if s.MirrorOnly && len(s.Mirrors) == 0 {
		c.add(join(path, "mirrorOnly"), "there is no mirror; name one under mirror")
	}
	if s.MaxConcurrent < 0 || s.MaxConcurrent > maxConcurrent {
		c.add(join(path, "maxConcurrent"), "%d is not between 1 and %d", s.MaxConcurrent, maxConcurrent)
	}
	// With mirrors, ca is also for the host itself, which is asked with TLS all the same.
	if s.PlainHTTP && s.CA != "" && (len(s.Mirrors) == 0 || s.MirrorOnly) {
		c.add(path, "has plainHTTP and ca; without TLS no certificate is checked, keep one")
	}
	if (s.Cert == "") != (s.Key == "") {
		c.add(path, "cert and key belong together; write both")
	}
}

func (c *checker) mirror(path, mirror string) {
	host, below := cutPath(mirror)
	c.hostPort(path, host)
	if strings.ContainsAny(below, "?#{} \\") || strings.Contains("/"+below+"/", "/../") {
		c.add(path, "%q: want host[:port][/path]", shorten(mirror))
	}
}

func (c *checker) overrides(list []Override) {
	for i := range list {
		o := &list[i]
		path := index("overrides", i)
		switch {
		case o.URL == "" && o.Host == "":
			c.add(path, "says not of what; write url, or host and perhaps path")
		case o.URL != "" && o.Host+o.Path != "":
			c.add(path, "has url and host or path; keep one")
		case o.URL != "":
			c.address(join(path, "url"), o.URL, "https", "http")
		default:
			c.hostPort(join(path, "host"), o.Host)
			if o.Path != "" && (!strings.HasPrefix(o.Path, "/") || strings.ContainsAny(o.Path, "?#{} \\")) {
				c.add(join(path, "path"), "%q: want the beginning of a path, such as /release", shorten(o.Path))
			}
			if strings.Contains(o.With, "{") {
				c.add(join(path, "with"), "placeholders need the whole address: write url instead of host")
			}
		}
		if o.With != "" {
			c.address(join(path, "with"), o.With, "https", "http")
		}
		if o.With == "" && len(o.SHA256) == 0 {
			c.add(path, "changes nothing; write with, or sha256")
		}
		if o.URL == "" && len(o.SHA256) > 0 {
			c.add(join(path, "sha256"), "needs the whole address: write url instead of host")
			continue
		}
		f := File{URL: o.URL, SHA256: o.SHA256}
		c.sums(path, &f)
		o.SHA256 = f.SHA256
	}
}
