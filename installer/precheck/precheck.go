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
	// Off is what an exception has made of another level: it is mentioned and counts for nothing.
	Off Level = "off"
)

// The groups of checks. A check may be in several.
const (
	GroupOS         = "os"
	GroupKubernetes = "kubernetes"
	GroupNetwork    = "network"
	GroupEtcd       = "etcd"
	GroupCRI        = "cri"
	GroupNFS        = "nfs"
	GroupRegistry   = "image_registry"
	GroupHost       = "host"     // the machine itself, whatever it will be used for
	GroupKKBundle   = "kkbundle" // what this version of kkbundle and this bundle can do
)

// Groups lists all groups.
func Groups() []string {
	return []string{GroupOS, GroupKubernetes, GroupNetwork, GroupEtcd, GroupCRI, GroupNFS, GroupRegistry, GroupHost, GroupKKBundle}
}

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
	For   string `json:"for"`
	Dir   string `json:"dir"`
	Bytes int64  `json:"bytes"`
}

// Input is everything that checks look at.
type Input struct {
	Cluster *manifest.Cluster
	Hosts   []Host
	// Install tells that kkbundle is going to install the cluster from a bundle. What the installation does by itself,
	// such as switching swap off, is no obstacle then; what this version cannot install is one.
	Install bool
	// Upgrade tells that nodes of the cluster are brought to another version.
	Upgrade bool
	// Architectures are those that the bundle has content for, in Go's spelling; nil if there is no bundle to ask.
	Architectures []string
	// Links are the ways between hosts that were tried; nil if they were not.
	Links []Link
	// Missing says what the bundle lacks for this cluster and these hosts, one sentence each.
	Missing []string
	// Inventory is the file that the hosts come from, which may have settings of the cluster for some of them; nil if what
	// it asks for is not to be checked.
	Inventory *manifest.Inventory
	// Packages are the distributions that the bundle has packages for, such as "debian/12"; nil if it has none.
	Packages []string
	// PackagesOf returns the names of the packages that hosts with these roles need on a distribution, an error for one
	// that nobody knows; nil if that is not to be checked. Facts have to be asked for them.
	PackagesOf func(roles []manifest.Role, distribution string) ([]string, error)
	// Etcd is what is known about an etcd of the user's (etcd.type: provided); nil if nobody has looked.
	Etcd *ProvidedEtcd
}

// A Check is one requirement.
type Check struct {
	// ID is the check's name; it never changes its meaning.
	ID    string
	Title string // what is required
	Why   string // what goes wrong otherwise
	Fix   string // what to do
	// Level is what a failure means. If that depends on the cluster or the host, LevelOf says so, Level is the worst
	// that it returns, and Varies says on what it depends.
	Level   Level
	LevelOf func(s *Subject) Level
	Varies  string
	// Groups are those that the check belongs to, at least one.
	Groups []string
	// Kubeadm are kubeadm's names for what the check looks at, such as NumCPU. A check may stand for several, and some
	// are names of checks that kubeadm had once.
	Kubeadm []string
	// Roles are those that it is required for; nil is every host.
	Roles []manifest.Role
	// OfCluster tells that it is about the cluster: it has one result, which names no host.
	OfCluster bool
	// Essential tells that not knowing is as bad as a failure. Otherwise what could not be looked at is a warning.
	Essential bool
	// Source says where the rule or its number comes from.
	Source string
	// Rule looks. It is pure. Unless the check is of the cluster, it is called only for hosts with facts.
	Rule func(s *Subject) Finding
}

// A Finding is what a rule has found.
type Finding struct {
	State State
	// Text is for people: what is there, not what should be.
	Text string
}

// State is what a rule says.
type State int

// The states. The zero one has no result: the check does not concern this host or this cluster.
const (
	Skipped State = iota
	Passed
	Failed
	Unknown // it could not be looked at
)

func skip() Finding { return Finding{} }

func pass(text string) Finding { return Finding{Passed, text} }

func fail(text string) Finding { return Finding{Failed, text} }

func failf(format string, args ...any) Finding { return fail(fmt.Sprintf(format, args...)) }

func unknown(text string) Finding { return Finding{Unknown, text} }

// none passes if nothing wrong was found.
func none(wrong []string, good string) Finding {
	if len(wrong) > 0 {
		return fail(strings.Join(wrong, ", "))
	}
	return pass(good)
}

// noneMissing passes if nothing is missing.
func noneMissing(missing []string, good string) Finding {
	if len(missing) > 0 {
		return fail("missing: " + strings.Join(missing, ", "))
	}
	return pass(good)
}

// A Subject is what one check looks at: a host among the others, or the cluster.
type Subject struct {
	// Host and Facts are empty where the check is of the cluster.
	Host  Host
	Facts *node.Facts
	// Cluster is the cluster as it is on the host, with its defaults filled in. Where the inventory's settings for the
	// host do not fit it, Misfit says why, and Cluster is without them.
	Cluster *manifest.Cluster
	Misfit  error
	Input   *Input
	fleet   *fleet
	address netip.Addr // the host's, see Address
}

// MarkerDir is where an installation by kkbundle leaves its marks. A host with some has a cluster of ours, or the part
// of one that an interrupted run made: what that holds is no obstacle to the next run.
const MarkerDir = "/var/lib/kkbundle/applied"

// Ours tells whether kkbundle has installed something on the host.
func (s *Subject) Ours() bool { return len(s.Facts.Path(MarkerDir).Entries) > 0 }

// A Result is a check's verdict on a host, or on the cluster.
type Result struct {
	// Host is the host's name, "" for what is about the cluster and not about one host.
	Host   string   `json:"host"`
	ID     string   `json:"id"`
	Groups []string `json:"groups,omitempty"`
	Level  Level    `json:"level" enum:"block,warn,off"`
	OK     bool     `json:"ok"`
	// Unknown tells that it could not be looked at; Found says why. OK is false then.
	Unknown bool `json:"unknown,omitempty"`
	// Title, Found, Why and Fix are for people.
	Title  string `json:"title,omitempty"`
	Found  string `json:"found"`
	Why    string `json:"why,omitempty"`
	Fix    string `json:"fix,omitempty"`
	Source string `json:"source,omitempty"`
	// Exception is why Level is not the check's own, nil if it is.
	Exception *Exception `json:"exception,omitempty"`
}

// Report has the results of all checks on all hosts, in the order of the inventory and, for each host, of Checks.
type Report struct {
	Version int // 1
	// Time is when it was made, Cluster and Bundle the names of what it was made for; they may be left empty.
	Time            time.Time
	Cluster, Bundle string
	Hosts           []string
	Blocked         int // how many results block
	Warned          int // how many results warn
	Ignored         int // how many results would, but for an exception
	// Notes say what was not looked at.
	Notes   []string
	Results []Result
}

// Evaluate applies all checks to all hosts and to the cluster. Its time grows with the number of hosts, not its square.
func Evaluate(in Input) Report {
	if in.Cluster == nil {
		in.Cluster = &manifest.Cluster{}
	}
	on := in.Cluster.ForHosts(in.Inventory)
	cluster, _ := on(manifest.Host{}) // which has no settings that could not fit
	all := newFleet(&in, cluster)
	ofCluster, ofHost := split(Checks())
	r := Report{Version: 1}
	r.Results = make([]Result, 0, len(ofCluster)+len(in.Hosts)*len(ofHost))
	r.evaluate(ofCluster, &Subject{Cluster: cluster, Input: &in, fleet: all})
	for i, h := range in.Hosts {
		r.Hosts = append(r.Hosts, h.Name)
		if h.Facts == nil {
			r.add(unreachable(h))
			continue
		}
		s := &Subject{Host: h, Facts: h.Facts, Input: &in, fleet: all, address: all.addresses[i]}
		if s.Cluster, s.Misfit = on(h.Host); s.Misfit != nil {
			s.Cluster = cluster
		}
		r.evaluate(ofHost, s)
	}
	return r
}

// split parts the checks of the cluster from those of each host.
func split(checks []Check) (ofCluster, ofHost []Check) {
	for _, c := range checks {
		if c.OfCluster {
			ofCluster = append(ofCluster, c)
		} else {
			ofHost = append(ofHost, c)
		}
	}
	return ofCluster, ofHost
}

func (r *Report) evaluate(checks []Check, s *Subject) {
	for i := range checks {
		if c := &checks[i]; c.appliesTo(s.Host.Host) {
			if found := c.Rule(s); found.State != Skipped {
				r.add(c.result(s, found))
			}
		}
	}
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

func (c *Check) appliesTo(h manifest.Host) bool {
	return len(c.Roles) == 0 || slices.ContainsFunc(c.Roles, h.Is)
}

func (c *Check) result(s *Subject, found Finding) Result {
	level := c.Level
	if c.LevelOf != nil {
		level = c.LevelOf(s)
	}
	if found.State == Unknown && !c.Essential {
		level = Warn
	}
	return Result{
		Host: s.Host.Name, ID: c.ID, Groups: c.Groups, Level: level, OK: found.State == Passed, Unknown: found.State == Unknown,
		Title: c.Title, Found: found.Text, Why: c.Why, Fix: c.Fix, Source: c.Source,
	}
}

// unreachable is the result of a host that could not be asked: it blocks, and takes the place of all others.
func unreachable(h Host) Result {
	r := Result{
		Host: h.Name, ID: "reachable", Groups: []string{GroupHost}, Level: Block, Title: "the host can be reached and asked",
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
		if r.Host != "" && len(ids[r.Host]) == 0 {
			hosts = append(hosts, r.Host)
		}
		ids[r.Host] = append(ids[r.Host], r.ID)
	}
	parts := make([]string, 0, len(hosts))
	for _, h := range hosts {
		parts = append(parts, h+": "+strings.Join(ids[h], ", "))
	}
	what := fmt.Sprintf("%d of %d hosts are not ready", len(hosts), len(e.Report.Hosts))
	if of := ids[""]; len(of) > 0 {
		parts = slices.Insert(parts, 0, "the cluster: "+strings.Join(of, ", "))
		if len(hosts) == 0 {
			what = "the cluster cannot be installed"
		}
	}
	const most = 10
	if more := len(parts) - most; more > 0 {
		parts = append(parts[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("precheck: %s (%s)", what, strings.Join(parts, "; "))
}

// An UnreachableError is a report in which hosts could not be asked and nothing else blocks.
type UnreachableError struct{ Report Report }

// Error names the hosts.
func (e *UnreachableError) Error() string {
	hosts := e.Report.unreached(Block)
	return fmt.Sprintf("precheck: %d of %d hosts could not be asked: %s", len(hosts), len(e.Report.Hosts), Ranges(hosts))
}

// Err returns a *BlockedError if something blocks that was found, and an *UnreachableError if all that blocks is that
// hosts could not be asked.
func (r Report) Err() error {
	switch r.Verdict() {
	case NotReady:
		return &BlockedError{Report: r}
	case NotReached:
		return &UnreachableError{Report: r}
	default:
		return nil
	}
}
