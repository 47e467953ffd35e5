package engine

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/record"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A TaskSelection selects tasks and hosts. Empty fields select everything.
type TaskSelection struct {
	Phases []string
	Limit  []string // hosts for tasks of several hosts
	// Without lists hosts that install and upgrade leave as they are.
	Without []string
	From    string   // the first phase or task
	Tags    []string // names of tasks or TagGroups
}

// PrecheckOptions configure the precheck.
type PrecheckOptions struct {
	// Rules change the levels of prechecks; nil changes none.
	Rules *manifest.PrecheckRules
	// Selection selects checks. The report has all of them, but slow measurements are made only for the selected ones.
	Selection precheck.Selection
	// Known, if set, gets the facts of all hosts before their evaluation, and Judged the report.
	Known  func(precheck.Input) error
	Judged func(precheck.Report)
	// Recorded replaces the hosts as the source of facts; nil asks hosts.
	Recorded *record.Recording
}

// Options configure a run.
type Options struct {
	Cluster   *manifest.Cluster
	Inventory *manifest.Inventory
	Bundle    *bundle.Reader // nil for Reset
	// WorkDir is the directory of this cluster on this machine. A run creates it with mode 0700, for certificates,
	// credentials, admin.conf and install.log.
	WorkDir string
	task.Inputs
	task.Consent
	TaskSelection
	PrecheckOptions
	// Dial connects to a host as root.
	Dial func(ctx context.Context, h manifest.Host) (host.Host, error)
	// Helper returns kkbundle-node for a Linux architecture in Go's spelling.
	Helper func(arch string) ([]byte, error)
	// Parallel limits how many hosts a run works on at the same time; 0 means DefaultHosts.
	Parallel int
	// StallLimit ends a command on a host that shows no activity for so long; 0 means the constant StallLimit.
	StallLimit time.Duration
	// Progress is called with every event, one at a time.
	Progress func(task.Event)
	// Logger gets details; nil discards them.
	Logger *slog.Logger
	// Now is the clock for certificates; nil is the real one.
	Now func() time.Time
}

// A Report is the result of a run.
type Report struct {
	Changed    int // tasks on hosts that changed something, or would in a dry run
	Done       int // tasks on hosts with nothing to do, and checks that passed
	Duration   time.Duration
	Kubeconfig string // path of the administrator's kubeconfig, if the work directory has one
	Log        string // path of install.log
	Page       string // path of the report, which a dry run does not write
}

// A TaskError is the failure of a task on a host.
type TaskError struct {
	Phase, Task, Host string
	Err               error
}

// Error returns the host, the task and the reason, which ends with the last output of a failed command.
func (e *TaskError) Error() string {
	if e.Host == "" {
		return e.Phase + " " + e.Task + ": " + e.Err.Error()
	}
	reason := strings.TrimPrefix(e.Err.Error(), e.Host+": ") // a command's error names its host
	return e.Host + ": " + e.Phase + " " + e.Task + ": " + reason
}

// Unwrap returns the reason.
func (e *TaskError) Unwrap() error { return e.Err }

// ErrGone is the error of a host that the operator declared gone.
var ErrGone = errors.New("declared gone")

// Claims ensures that only one host probes the network for an address: probes from two hosts would disturb each other.
type Claims struct {
	mu   sync.Mutex
	list []netip.Addr
}

// Claim returns the addresses that no other host has claimed.
func (c *Claims) Claim(addresses []netip.Addr) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return slices.Contains(c.list, a) })
	c.list = append(c.list, mine...)
	return mine
}
