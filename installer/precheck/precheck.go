// Package precheck says what would make an installation fail, before anything is changed.
//
// A Check is data: what is required, why, and what to do about it. Evaluate applies all checks to the facts of all hosts
// and returns one report. It asks nobody and changes nothing; a test of a rule needs no host.
package precheck

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Level says what a failed check means.
type Level string

// The levels.
const (
	// Block is a failure that the installation would run into.
	Block Level = "block"
	// Warn is something to look at; the installation can go on.
	Warn Level = "warn"
)

// A Host is one host of the inventory and what is known about it.
type Host struct {
	manifest.Host
	// Facts are what the host said, nil if it could not be asked; Err says why then.
	Facts *node.Facts
	Err   error
	// SSH is what the connection to the host is protected with, nil if it is not by SSH or there is none.
	SSH *host.Algorithms
	// Sent and Received are between which times the facts' clock was read, by this machine's clock. Clocks of hosts are not
	// compared if they are zero.
	Sent, Received time.Time
	// Space is how much is still to be written on the host.
	Space []Space
}

// Space is what a directory will have to hold in addition to what it has.
type Space struct {
	// For says what takes it, such as "images" or "registry".
	For   string
	Dir   string
	Bytes int64
}

// Input is everything that checks look at.
type Input struct {
	Cluster *manifest.Cluster
	Hosts   []Host
	// Architectures are those that the bundle has content for, in Go's spelling; nil if there is no bundle to ask.
	Architectures []string
	// Links are the ways between hosts that were tried; nil if they were not.
	Links []Link
}

// A Check is one requirement.
type Check struct {
	// ID is the check's name; it never changes its meaning.
	ID    string
	Title string // what is required
	Why   string // what goes wrong otherwise
	Fix   string // what to do
	Level Level
	// Roles are those that it is required for; nil is every host.
	Roles []manifest.Role
	// Source says where the rule or its number comes from.
	Source string
	// OK says what was found, and whether that is enough. It is pure, and it is called only for hosts with facts.
	OK func(s *Subject) (found string, ok bool)
}

// A Subject is what one check looks at: a host among the others.
type Subject struct {
	Host  Host
	Facts *node.Facts
	// Cluster has its defaults filled in.
	Cluster *manifest.Cluster
	Input   *Input
}

// MarkerDir is where an installation by kkbundle leaves its marks. A host with some has a cluster of ours, or the part
// of one that an interrupted run made: what that holds is no obstacle to the next run.
const MarkerDir = "/var/lib/kkbundle/applied"

// Ours tells whether kkbundle has installed something on the host.
func (s *Subject) Ours() bool { return len(s.Facts.Path(MarkerDir).Entries) > 0 }

// A Result is a check's verdict on a host.
type Result struct {
	Host  string `json:"host"`
	ID    string `json:"id"`
	Level Level  `json:"level"`
	OK    bool   `json:"ok"`
	// Title, Found, Why and Fix are for people.
	Title  string `json:"title"`
	Found  string `json:"found"`
	Why    string `json:"why,omitempty"`
	Fix    string `json:"fix,omitempty"`
	Source string `json:"source,omitempty"`
}

// Report has the results of all checks on all hosts, in the order of the inventory and, for each host, of Checks.
type Report struct {
	Version int      `json:"version"` // 1
	Hosts   []string `json:"hosts"`
	Blocked int      `json:"blocked"` // how many results block
	Warned  int      `json:"warned"`  // how many results warn
	Results []Result `json:"results"`
}

// Evaluate applies all checks to all hosts.
func Evaluate(in Input) Report {
	cluster := in.Cluster
	if cluster == nil {
		cluster = &manifest.Cluster{}
	}
	cluster = cluster.WithDefaults()
	r := Report{Version: 1}
	checks := Checks()
	for _, h := range in.Hosts {
		r.Hosts = append(r.Hosts, h.Name)
		if h.Facts == nil {
			r.add(unreachable(h))
			continue
		}
		s := &Subject{Host: h, Facts: h.Facts, Cluster: cluster, Input: &in}
		for _, c := range checks {
			if c.appliesTo(h.Host) {
				r.add(c.result(s))
			}
		}
	}
	return r
}

func (r *Report) add(one Result) {
	r.Results = append(r.Results, one)
	switch {
	case one.OK:
	case one.Level == Block:
		r.Blocked++
	default:
		r.Warned++
	}
}

func (c Check) appliesTo(h manifest.Host) bool {
	return len(c.Roles) == 0 || slices.ContainsFunc(c.Roles, h.Is)
}

func (c Check) result(s *Subject) Result {
	found, ok := c.OK(s)
	return Result{
		Host: s.Host.Name, ID: c.ID, Level: c.Level, OK: ok,
		Title: c.Title, Found: found, Why: c.Why, Fix: c.Fix, Source: c.Source,
	}
}

// unreachable is the result of a host that could not be asked: it blocks, and takes the place of all others.
func unreachable(h Host) Result {
	r := Result{
		Host: h.Name, ID: "reachable", Level: Block, Title: "the host can be reached and asked",
		Found: "it was not asked", Why: "nothing is known about it",
		Fix: "make sure that it is up and that the inventory says how to log in as root or with sudo",
	}
	if h.Err != nil {
		r.Found = h.Err.Error()
		var hinted interface{ Hint() string }
		if errors.As(h.Err, &hinted) && hinted.Hint() != "" {
			r.Fix = hinted.Hint()
		}
	}
	return r
}

// A BlockedError is a report in which something blocks.
type BlockedError struct{ Report Report }

// Error says what blocks where.
func (e *BlockedError) Error() string {
	ids := map[string][]string{}
	var hosts []string
	for _, r := range e.Report.Results {
		if r.OK || r.Level != Block {
			continue
		}
		if len(ids[r.Host]) == 0 {
			hosts = append(hosts, r.Host)
		}
		ids[r.Host] = append(ids[r.Host], r.ID)
	}
	parts := make([]string, 0, len(hosts))
	for _, h := range hosts {
		parts = append(parts, h+": "+strings.Join(ids[h], ", "))
	}
	const most = 10
	if more := len(parts) - most; more > 0 {
		parts = append(parts[:most], fmt.Sprintf("and %d more hosts", more))
	}
	return fmt.Sprintf("precheck: %d of %d hosts are not ready (%s)", len(hosts), len(e.Report.Hosts), strings.Join(parts, "; "))
}

// Err returns a *BlockedError if something blocks.
func (r Report) Err() error {
	if r.Blocked == 0 {
		return nil
	}
	return &BlockedError{Report: r}
}

// ProbeFor returns what has to be looked at on a host for all checks. Directories are those of the host's Space.
func ProbeFor(c *manifest.Cluster, h Host) node.Probe {
	c = c.WithDefaults()
	p := node.Probe{
		Units: []string{
			"kubelet.service", "containerd.service", "docker.service", "crio.service", "etcd.service",
			"k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
		},
		Executables:  executables(),
		Paths:        append(leftoverPaths(), MarkerDir, cniDir),
		Modules:      modules(c),
		KernelConfig: kernelOptions(),
	}
	for _, port := range portsOf(c, h.Host) {
		if port.network == "udp" {
			p.UDPPorts = append(p.UDPPorts, port.number)
		} else {
			p.Ports = append(p.Ports, port.number)
		}
	}
	for _, s := range h.Space {
		if !slices.Contains(p.Dirs, s.Dir) {
			p.Dirs = append(p.Dirs, s.Dir)
		}
	}
	for _, dir := range []string{"/usr/local/bin", "/opt", "/etc", "/var/lib/kubelet"} {
		if !slices.Contains(p.Dirs, dir) {
			p.Dirs = append(p.Dirs, dir)
		}
	}
	return p
}

// Address returns the host's address in the cluster: the one of the inventory or, if it gives none, the IPv4 address of
// the interface that has the default route. It is invalid if there is neither.
func Address(h manifest.Host, f *node.Facts) netip.Addr {
	if h.InternalIPv4.IsValid() || f == nil {
		return h.InternalIPv4
	}
	for _, route := range f.Routes {
		for _, i := range f.Interfaces {
			if i.Name != route.Interface || !route.Gateway.Is4() {
				continue
			}
			for _, p := range i.Addresses {
				if p.Addr().Is4() {
					return p.Addr()
				}
			}
		}
	}
	return netip.Addr{}
}
