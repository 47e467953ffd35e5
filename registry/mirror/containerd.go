package mirror

import (
	"bytes"
	"fmt"
	"path"

	"github.com/kkbundle/kkbundle/hostfile"
)

const certsDir = "/etc/containerd/certs.d"

// containerd makes a directory for each upstream. The authority lies beside them and is named relative to them, so that they
// work wherever they are put. The configuration of containerd that leads there is not ours.
func containerd(r Registry, upstreams []string) Configuration {
	caPath := ""
	var c Configuration
	if len(r.CA) > 0 {
		c.Files = append(c.Files, caFile(r, path.Join(certsDir, "kkbundle-ca.crt")))
		caPath = "../kkbundle-ca.crt"
	}
	for _, h := range Hosts(r, upstreams, caPath) {
		c.Files = append(c.Files, hostfile.File{
			Path: path.Join(certsDir, h.Name, "hosts.toml"), Mode: r.mode(), Data: h.TOML, Mark: hostfile.Mark, Secret: r.Username != "",
		})
	}
	c.Notes = append(c.Notes, "containerd reads "+certsDir+" where config_path of its registry settings (CRI) names it; what changes below it needs no restart")
	return c
}

// A Host is a directory of containerd's certs.d, and the hosts.toml in it.
type Host struct {
	Name string
	TOML []byte
}

// Hosts makes containerd take every upstream's images from the registry. The registry stands as the upstream's own server, not
// as a mirror before it: containerd would go on to the internet for what a mirror lacks. With a login the files have the password
// in them. caPath is where the authority's certificate is, absolute or relative to the directory; "" if there is none.
// https://github.com/containerd/containerd/blob/main/docs/hosts.md
func Hosts(r Registry, upstreams []string, caPath string) []Host {
	hosts := []Host{
		r.host("_default", path.Join("/v2", r.missing()), caPath),
		r.host(r.Host, "/v2", caPath),
	}
	for _, upstream := range upstreams {
		if upstream != r.Host {
			hosts = append(hosts, r.host(upstream, path.Join("/v2", r.path(upstream)), caPath))
		}
	}
	return hosts
}

// host has every setting twice: before 2.0 containerd refuses a file without a host table, and what it falls back to after
// that is the server, which must not be upstream's.
func (r Registry) host(name, apiRoot, caPath string) Host {
	var settings, b bytes.Buffer
	settings.WriteString("capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n")
	if caPath != "" {
		fmt.Fprintf(&settings, "ca = \"%s\"\n", caPath)
	}
	address, login := r.url()+apiRoot, r.login()
	fmt.Fprintf(&b, "%s\nserver = \"%s\"\n%s", hostfile.Mark, address, settings.Bytes())
	header := func(table string) {
		if login != "" {
			fmt.Fprintf(&b, "\n[%s]\n  Authorization = [\"Basic %s\"]\n", table, login)
		}
	}
	header("header")
	table := fmt.Sprintf("host.\"%s\"", address)
	fmt.Fprintf(&b, "\n[%s]\n%s", table, settings.Bytes())
	header(table + ".header")
	return Host{name, b.Bytes()}
}
