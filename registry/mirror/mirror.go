// Package mirror writes the configuration that makes container runtimes take images of upstream registries from another one,
// where registry.Push puts them: below the upstream's name. Images keep their names, in pods and in charts.
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

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/registry"
)

// missingPath is the repository below which images are looked for whose upstream the registry has nothing of: so the
// message of a failed pull says what is wrong, and nothing is asked of the internet.
const missingPath = "not-in-the-bundle"

// A Registry is what the upstreams' images are taken from.
type Registry struct {
	Host      string // host[:port]
	Prefix    string // of the repositories' names; "" if there is none
	PlainHTTP bool
	CA        []byte // PEM; none if the system's authorities are trusted
	Username  string // "" if the registry wants no login
	Password  string
}

// Parse reads HOST[:PORT][/PREFIX].
func Parse(address string) (Registry, error) {
	if err := registry.CheckTarget(address); err != nil {
		return Registry{}, err
	}
	host, prefix, _ := strings.Cut(strings.TrimSuffix(address, "/"), "/")
	return Registry{Host: host, Prefix: prefix}, nil
}

// CheckUpstream refuses what is no registry's host[:port]. It becomes the name of a directory.
func CheckUpstream(host string) error {
	grammar := regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$`)
	if !grammar.MatchString(host) || strings.Contains(host, "..") {
		return fmt.Errorf("upstream %q: want a registry's HOST[:PORT], as docker.io", host)
	}
	return nil
}

func (r Registry) url() string {
	if r.PlainHTTP {
		return "http://" + r.Host
	}
	return "https://" + r.Host
}

// path is where images of an upstream are.
func (r Registry) path(upstream string) string {
	return path.Join(r.Prefix, registry.UpstreamPath(upstream))
}

func (r Registry) missing() string { return path.Join(r.Prefix, missingPath) }

// login is a login as HTTP's basic authentication and Docker's configuration have it; "" if there is none.
func (r Registry) login() string {
	if r.Username == "" {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(r.Username + ":" + r.Password))
}

// mode is that of a file which has the login in it.
func (r Registry) mode() fs.FileMode {
	if r.Username == "" {
		return public
	}
	return private
}

// A Configuration is what a runtime has to be given.
type Configuration struct {
	Files []hostfile.File
	// Notes are what the runtime cannot do, and what has to be done by hand, a sentence each.
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

// Configure returns the configuration of a runtime for upstream registries, host[:port] each. It depends on its arguments alone.
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

// caFile is the authority's certificate, after a line that says whose file it is, which readers of PEM pass over.
func caFile(r Registry, name string) hostfile.File {
	return hostfile.File{Path: name, Mode: public, Data: append([]byte(hostfile.Mark+"\n"), r.CA...), Mark: hostfile.Mark}
}
