// Package precheck finds everything that would make an installation fail, before anything is changed.
//
// A Check is data: a requirement, its reason, and the remedy. Evaluate applies all checks to the facts of all hosts and
// returns one report. It contacts no host and changes nothing; a test of a rule needs no host.
package precheck

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Level is the severity of a failed check.
type Level string

// The levels.
const (
	// Block is a failure that would make the installation fail.
	Block Level = "block"
	// Warn deserves attention; the installation can continue.
	Warn Level = "warn"
	// Off is the level of an excepted failure: it is shown but does not count.
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
	GroupHost       = "host"     // the machine itself, for any use
	GroupKKBundle   = "kkbundle" // limits of this version of kkbundle and of this bundle
)

// Groups lists all groups.
func Groups() []string {
	return []string{
		GroupOS, GroupKubernetes, GroupNetwork, GroupEtcd, GroupCRI, GroupNFS, GroupRegistry, GroupHost,
		GroupKKBundle,
	}
}

// A Host is one host of the inventory with its facts.
type Host struct {
	manifest.Host
	// Facts are the host's facts, nil if unavailable; then Err is the reason.
	Facts *node.Facts
	Err   error
	// SSH has the algorithms of the connection to the host, nil without SSH or without a connection.
	SSH *host.Algorithms
	// Sent and Received bound the time at which the facts' clock was read, by this machine's clock. Clocks of hosts are
	// not compared if they are zero.
	Sent, Received time.Time
	// Space lists the space needed on the host.
	Space []Space
}

// Space is the additional space needed in a directory.
type Space struct {
	// For names the content, such as "images" or "registry".
	For   string `json:"for"`
	Dir   string `json:"dir"`
	Bytes int64  `json:"bytes"`
}

// Input is the input of all checks.
type Input struct {
	Cluster *manifest.Cluster
	Hosts   []Host
	// Install means that kkbundle will install the cluster from a bundle. Conditions that the installation changes by
	// itself, such as active swap, are then no obstacles; settings that this version cannot install are.
	Install bool
	// Upgrade means that nodes of the cluster get another version.
	Upgrade bool
	// Architectures are the bundle's, in Go's spelling; nil without a bundle.
	Architectures []string
	// Links are the tried connections between hosts; nil if none was tried.
	Links []Link
	// Missing lists the items that the bundle lacks for this cluster and these hosts, one sentence each.
	Missing []string
	// Inventory is the file with the hosts, which may have cluster settings for some of them; nil if its requirements
	// are not to be checked.
	Inventory *manifest.Inventory
	// Programs are the bundle's programs for these hosts; nil without a bundle.
	Programs []Program
	// Lacking are the bundle's images without an architecture of the hosts, by that architecture. Images that the
	// installation itself needs are among Missing instead.
	Lacking map[string][]string
	// Packages are the distributions of the bundle's packages, such as "debian/12"; nil if it has none.
	Packages []string
	// Unsigned are those among them whose packages were accepted without a signature.
	Unsigned []string
	// PackagesOf returns the names of the packages that hosts with these roles need on a distribution, or an error for
	// an unknown one; nil if packages are not to be checked. The facts must include them.
	PackagesOf func(roles []manifest.Role, distribution string) ([]string, error)
	// Answers are those of the bundle's programs about the cluster file's settings; nil if none was asked.
	Answers *ProgramAnswers
	// Etcd holds the facts about the user's own etcd (etcd.type: provided); nil if not read.
	Etcd *ProvidedEtcd
}

// A Check is one requirement.
type Check struct {
	// ID is the check's name; its meaning never changes.
	ID    string
	Title string // the requirement
	Why   string // the consequence of a failure
	Fix   string // the remedy
	// FixOf, if set, returns the remedy for a host; Fix then describes it for all.
	FixOf func(s *Subject) string
	// Level is the severity of a failure. If it depends on the cluster or the host, LevelOf returns it, Level is its
	// worst value, and Varies describes the condition.
	Level   Level
	LevelOf func(s *Subject) Level
	Varies  string
	// Groups are the check's groups, at least one.
	Groups []string
	// Kubeadm are kubeadm's names of the same check, such as NumCPU. There may be several, including former names.
	Kubeadm []string
	// Roles are the roles that it applies to; nil is every host.
	Roles []manifest.Role
	// OfCluster means the check is about the cluster: it has one result, without a host.
	OfCluster bool
	// Essential makes an unknown state as bad as a failure. Otherwise it is a warning.
	Essential bool
	// Source is the origin of the rule or its number.
	Source string
	// Rule evaluates the check. It is pure. Unless the check is of the cluster, it is called only for hosts with facts.
	Rule func(s *Subject) Finding
}

// A Finding is the outcome of a rule.
type Finding struct {
	State State
	// Text describes the actual state, for people.
	Text string
}

// State is the verdict of a rule.
type State int

// The states. The zero one gives no result: the check does not apply to this host or this cluster.
const (
	Skipped State = iota
	Passed
	Failed
	Unknown // the facts are unavailable
)

func skip() Finding { return Finding{} }

func pass(text string) Finding { return Finding{Passed, text} }

func fail(text string) Finding { return Finding{Failed, text} }

func failf(format string, args ...any) Finding { return fail(fmt.Sprintf(format, args...)) }

func unknown(text string) Finding { return Finding{Unknown, text} }

// none passes if wrong is empty.
func none(wrong []string, good string) Finding {
	if len(wrong) > 0 {
		return fail(strings.Join(wrong, ", "))
	}
	return pass(good)
}

// noneMissing passes if missing is empty.
func noneMissing(missing []string, good string) Finding {
	if len(missing) > 0 {
		return fail("missing: " + strings.Join(missing, ", "))
	}
	return pass(good)
}

// A Subject is the subject of one check: a host among the others, or the cluster.
type Subject struct {
	// Host and Facts are empty if the check is of the cluster.
	Host  Host
	Facts *node.Facts
	// Cluster is the cluster as configured on the host, with defaults. If the inventory's settings for the host are
	// invalid, Misfit is the reason, and Cluster is without them.
	Cluster *manifest.Cluster
	Misfit  error
	Input   *Input
	fleet   *fleet
	known   network.Table
	address netip.Addr // the host's, see Address
}

// networks returns the pod networks of the cluster: multus adds one to another.
func (s *Subject) networks() network.Table { return s.known.Of(s.Cluster) }

// MarkerDir holds the receipts of an installation by kkbundle. A host with receipts belongs to our cluster, or to an
// interrupted installation: its content is no obstacle to the next run.
const MarkerDir = "/var/lib/kkbundle/applied"

// Ours reports whether kkbundle has installed something on the host.
func (s *Subject) Ours() bool { return len(s.Facts.Path(MarkerDir).Entries) > 0 }

// A Result is a check's verdict on a host, or on the cluster.
type Result struct {
	// Host is the host's name, "" for a result about the cluster.
	Host   string   `json:"host"`
	ID     string   `json:"id"`
	Groups []string `json:"groups,omitempty"`
	Level  Level    `json:"level" enum:"block,warn,off"`
	OK     bool     `json:"ok"`
	// Unknown means the facts are unavailable; Found has the reason. OK is false then.
	Unknown bool `json:"unknown,omitempty"`
	// Title, Found, Why and Fix are for people.
	Title  string `json:"title,omitempty"`
	Found  string `json:"found"`
	Why    string `json:"why,omitempty"`
	Fix    string `json:"fix,omitempty"`
	Source string `json:"source,omitempty"`
	// Exception is the reason that Level is not the check's own, or nil.
	Exception *Exception `json:"exception,omitempty"`
}

// Report has the results of all checks on all hosts, in the order of the inventory and, for each host, of Checks.
type Report struct {
	Version int // 1
	// Time is the report's time, Cluster and Bundle the names of its subjects; they may be empty.
	Time            time.Time
	Cluster, Bundle string
	Hosts           []string
	Blocked         int // number of blocking results
	Warned          int // number of warnings
	Ignored         int // number of excepted failures
	// Notes list the parts that were not checked.
	Notes   []string
	Results []Result
}

// Evaluate applies all checks to all hosts and to the cluster. Its time grows linearly with the number of hosts.
func Evaluate(in Input) Report { return evaluate(network.All(), in) }

func evaluate(known network.Table, in Input) Report {
	in.Cluster = cmp.Or(in.Cluster, &manifest.Cluster{})
	on := in.Cluster.ForHosts(in.Inventory)
	cluster, _ := on(manifest.Host{}) // a host without settings cannot be invalid
	all := newFleet(&in, cluster)
	ofCluster, ofHost := split(checksFor(known))
	r := Report{Version: 1}
	r.Results = make([]Result, 0, len(ofCluster)+len(in.Hosts)*len(ofHost))
	r.evaluate(ofCluster, &Subject{Cluster: cluster, Input: &in, fleet: all, known: known})
	for i, h := range in.Hosts {
		r.Hosts = append(r.Hosts, h.Name)
		if h.Facts == nil {
			r.add(unreachable(h))
			continue
		}
		s := &Subject{Host: h, Facts: h.Facts, Input: &in, fleet: all, known: known, address: all.addresses[i]}
		if s.Cluster, s.Misfit = on(h.Host); s.Misfit != nil {
			s.Cluster = cluster
		}
		r.evaluate(ofHost, s)
	}
	return r
}

// split separates the checks of the cluster from those of each host.
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
	fix := c.Fix
	if c.FixOf != nil && found.State == Failed {
		fix = c.FixOf(s)
	}
	return Result{
		Host: s.Host.Name, ID: c.ID, Groups: c.Groups, Level: level, OK: found.State == Passed,
		Unknown: found.State == Unknown,
		Title:   c.Title, Found: found.Text, Why: c.Why, Fix: fix, Source: c.Source,
	}
}

// unreachable is the result of an unreachable host: it blocks, and replaces all others.
func unreachable(h Host) Result {
	r := Result{
		Host: h.Name, ID: "reachable", Groups: []string{GroupHost}, Level: Block,
		Title: "the host can be reached and asked",
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

// A BlockedError means a report has blocking results.
type BlockedError struct{ Report Report }

// Error lists the blocking results and their hosts.
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

// An UnreachableError means hosts were unreachable and nothing else blocks.
type UnreachableError struct{ Report Report }

// Error names the hosts.
func (e *UnreachableError) Error() string {
	hosts := e.Report.unreached(Block)
	return fmt.Sprintf("precheck: %d of %d hosts could not be asked: %s", len(hosts), len(e.Report.Hosts),
		scalar.Ranges(hosts))
}

// Err returns a *BlockedError if a finding blocks, and an *UnreachableError if only unreachable hosts block.
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
