package manifest

import (
	"net/url"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

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

func (c bundleChecker) overrides(list []Override) {
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
