// Package mirror writes configuration that makes container runtimes pull images of upstream registries from another
// one, at the places of registry.Push: below the upstream's name. Images keep their names, in pods and in charts.
package mirror

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/registry"
)

// missingPath is the repository for upstreams of which the registry has nothing: the message of a failed pull then
// shows the reason, and the internet is not contacted.
const missingPath = "not-in-the-bundle"

// A Registry is the registry that replaces the upstreams.
type Registry struct {
	Host      string // host[:port]
	Prefix    string // of the repositories' names; "" if there is none
	PlainHTTP bool
	CA        []byte // PEM; none if the system's authorities are trusted
	Username  string // "" if the registry requires no login
	Password  string
	// Replicas have the same images and authority and take the same login: host[:port] each. They are asked before
	// Host, in this order. Only containerd can.
	Replicas []string
	// Peers are asked first for content whose digest is known, in this order; never for the meaning of a tag. Only
	// containerd can.
	Peers []Peer
}

// A Peer serves content of all registries under their own names: the query ns names the registry.
type Peer struct {
	URL      string // http://HOST:PORT
	Username string // "" if it requires no login
	Password string
}

// Parse reads HOST[:PORT][/PREFIX].
func Parse(address string) (Registry, error) {
	if err := registry.CheckTarget(address); err != nil {
		return Registry{}, err
	}
	host, prefix, _ := strings.Cut(strings.TrimSuffix(address, "/"), "/")
	return Registry{Host: host, Prefix: prefix}, nil
}

// CheckUpstream refuses strings that are not a registry's host[:port], since it becomes the name of a directory.
func CheckUpstream(host string) error {
	grammar := regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$`)
	if !grammar.MatchString(host) || strings.Contains(host, "..") {
		return fmt.Errorf("upstream %q: want a registry's HOST[:PORT], as docker.io", host)
	}
	return nil
}

func (r Registry) url() string { return r.at(r.Host) }

// at returns the address of the registry on one of its hosts.
func (r Registry) at(host string) string {
	if r.PlainHTTP {
		return "http://" + host
	}
	return "https://" + host
}

// path returns the path of an upstream's images.
func (r Registry) path(upstream string) string {
	return path.Join(r.Prefix, registry.UpstreamPath(upstream))
}

func (r Registry) missing() string { return path.Join(r.Prefix, missingPath) }

// login returns the login in the form of HTTP's basic authentication and Docker's configuration; "" if there is none.
func (r Registry) login() string { return basic(r.Username, r.Password) }

func basic(username, password string) string {
	if username == "" {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
}

// mode returns the mode of a file that contains the login.
func (r Registry) mode() fs.FileMode {
	if r.Username == "" {
		return public
	}
	return private
}

// secrecy returns the secrecy of a file that contains the login.
func (r Registry) secrecy() hostfile.Secrecy {
	if r.Username == "" {
		return hostfile.Public
	}
	return hostfile.Logins
}

// A Configuration is the configuration of a runtime.
type Configuration struct {
	Files []hostfile.File
	// Notes are limitations of the runtime, and manual steps, a sentence each.
	Notes []string
}

// A Runtime is a container runtime that can be configured.
type Runtime string

// The runtimes.
const (
	RuntimeContainerd Runtime = "containerd"
	RuntimeDocker     Runtime = "docker"
	RuntimeK3s        Runtime = "k3s"
	RuntimeRKE2       Runtime = "rke2"
	RuntimeCRIO       Runtime = "crio"
)

// Runtimes returns all of them.
func Runtimes() []Runtime {
	return []Runtime{RuntimeContainerd, RuntimeDocker, RuntimeK3s, RuntimeRKE2, RuntimeCRIO}
}

// Configure returns the configuration of a runtime for upstream registries, host[:port] each. It depends only on its
// arguments.
func Configure(runtime Runtime, r Registry, upstreams []string) (Configuration, error) {
	upstreams = slices.Compact(slices.Sorted(slices.Values(upstreams)))
	var errs []error
	for _, u := range upstreams {
		errs = append(errs, CheckUpstream(u))
	}
	if err := errors.Join(errs...); err != nil {
		return Configuration{}, err
	}
	switch runtime {
	case RuntimeContainerd:
		return containerd(r, upstreams), nil
	case RuntimeDocker:
		return docker(r, upstreams)
	case RuntimeK3s, RuntimeRKE2:
		return k3s(runtime, r, upstreams)
	case RuntimeCRIO:
		return crio(r, upstreams)
	default:
		return Configuration{}, fmt.Errorf("runtime %q is not one of %s", runtime, join(Runtimes()))
	}
}

func join(runtimes []Runtime) string {
	var names []string
	for _, r := range runtimes {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// caFile returns the authority's certificate after a mark line, which PEM readers ignore.
func caFile(r Registry, name string) hostfile.File {
	return hostfile.File{
		Path: name, Mode: public, Data: append([]byte(hostfile.Mark+"\n"), r.CA...),
		Mark: hostfile.Mark,
	}
}
