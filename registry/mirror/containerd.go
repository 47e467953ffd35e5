package mirror

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/internal/hostfile"
)

const certsDir = "/etc/containerd/certs.d"

// containerd creates a directory for each upstream. The authority lies beside them and is referenced relatively, so
// that they work in any place. containerd's own configuration, which refers to them, is not managed here.
func containerd(r Registry, upstreams []string) Configuration {
	caPath := ""
	var c Configuration
	if len(r.CA) > 0 {
		c.Files = append(c.Files, caFile(r, path.Join(certsDir, "kkbundle-ca.crt")))
		caPath = "../kkbundle-ca.crt"
	}
	for _, h := range Hosts(r, upstreams, caPath) {
		c.Files = append(c.Files, hostfile.File{
			Path: path.Join(certsDir, h.Name, "hosts.toml"), Mode: r.mode(), Data: h.TOML, Mark: hostfile.Mark,
			Secrecy: r.secrecy(),
		})
	}
	c.Notes = append(c.Notes, "containerd reads "+certsDir+
		" in the directory named by config_path of containerd's registry settings (CRI); changes below it need no restart")
	return c
}

// A Host is a directory of containerd's certs.d with its hosts.toml.
type Host struct {
	Name string
	TOML []byte
}

// Hosts makes containerd pull every upstream's images from the registry. The registry replaces the upstream's own
// server instead of being a mirror before it: containerd would query the internet for images that a mirror lacks. With
// a login the files contain the password. caPath is the path of the authority's certificate, absolute or relative to
// the directory; "" if there is none. https://github.com/containerd/containerd/blob/main/docs/hosts.md
//
// A name without a port has a directory with HTTPS's port, too: nerdctl looks there first, and would get _default.
func Hosts(r Registry, upstreams []string, caPath string) []Host {
	hosts := []Host{r.host("_default", path.Join("/v2", r.missing()), caPath)}
	add := func(name, apiRoot string) {
		hosts = append(hosts, r.host(name, apiRoot, caPath))
		if !hasPort(name) && !slices.Contains(upstreams, name+":443") {
			hosts = append(hosts, r.host(name+":443", apiRoot, caPath))
		}
	}
	add(r.Host, "/v2")
	for _, upstream := range upstreams {
		if upstream != r.Host {
			add(upstream, path.Join("/v2", r.path(upstream)))
		}
	}
	return hosts
}

func hasPort(host string) bool { return strings.LastIndex(host, ":") > strings.LastIndex(host, "]") }

// host writes every setting twice: before 2.0 containerd refuses a file without a host table, and it falls back to the
// server, which must not be upstream's.
func (r Registry) host(name, apiRoot, caPath string) Host {
	var settings, b bytes.Buffer
	settings.WriteString("capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n")
	if caPath != "" {
		fmt.Fprintf(&settings, "ca = \"%s\"\n", caPath)
	}
	address := r.url() + apiRoot
	fmt.Fprintf(&b, "%s\nserver = \"%s\"\n%s", hostfile.Mark, address, settings.Bytes())
	header := func(table, login string) {
		if login != "" {
			fmt.Fprintf(&b, "\n[%s]\n  Authorization = [\"Basic %s\"]\n", table, login)
		}
	}
	header("header", r.login())
	// containerd asks in the order of the tables. Releases before 2.1 do not know dial_timeout and wait 30 seconds for
	// a host that is away; the peers' value is that of Spegel's own configuration.
	for _, p := range r.Peers {
		table := fmt.Sprintf("host.\"%s\"", p.URL)
		fmt.Fprintf(&b, "\n[%s]\ncapabilities = [\"pull\"]\ndial_timeout = \"200ms\"\n", table)
		header(table+".header", basic(p.Username, p.Password))
	}
	for _, host := range r.Replicas {
		table := fmt.Sprintf("host.\"%s\"", r.at(host)+apiRoot)
		fmt.Fprintf(&b, "\n[%s]\n%sdial_timeout = \"1s\"\n", table, settings.Bytes())
		header(table+".header", r.login())
	}
	table := fmt.Sprintf("host.\"%s\"", address)
	fmt.Fprintf(&b, "\n[%s]\n%s", table, settings.Bytes())
	header(table+".header", r.login())
	return Host{name, b.Bytes()}
}
