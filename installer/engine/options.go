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
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A TaskSelection says which tasks run, and on which hosts.
type TaskSelection struct {
	// Phases, if any, are the only phases that run; Limit, if any, the only hosts on which tasks of several hosts run.
	Phases, Limit []string
	// From is the phase or the task that the run begins with; Tags, if any, are the names or groups of the only tasks that
	// run, see TagGroups.
	From string
	Tags []string
}

// PrecheckOptions say how hosts are judged.
type PrecheckOptions struct {
	// Rules are exceptions from the levels of prechecks; nil has none.
	Rules *manifest.PrecheckRules
	// Selection is which checks Precheck is wanted for. Its report has all of them, but what takes long is not looked at for
	// others.
	Selection precheck.Selection
	// Known is told what is known about all hosts before it is evaluated, Judged the report; nil is told nothing.
	Known  func(precheck.Input) error
	Judged func(precheck.Report)
	// Recorded is where Precheck takes facts from, instead of asking hosts; nil asks.
	Recorded *precheck.Recording
}

// Options says what is installed, where and how.
type Options struct {
	Cluster   *manifest.Cluster
	Inventory *manifest.Inventory
	// Bundle is where everything comes from. Reset does not need it.
	Bundle *bundle.Reader
	// WorkDir is a directory on this machine that belongs to this cluster. It is made, with mode 0700, and holds
	// certificates, credentials, admin.conf and install.log.
	WorkDir string
	task.Inputs
	task.Consent
	TaskSelection
	PrecheckOptions
	// Dial connects to a host as root.
	Dial func(ctx context.Context, h manifest.Host) (host.Host, error)
	// Helper returns kkbundle-node for a Linux architecture in Go's spelling.
	Helper func(arch string) ([]byte, error)
	// Hosts is how many hosts are worked on at the same time; 0 means 20.
	Parallel int
	// StallLimit is how long a command on a host may do nothing that can be seen before it is ended; 0 means the constant of
	// that name.
	StallLimit time.Duration
	// Progress is called with every event, one at a time.
	Progress func(task.Event)
	// Logger gets details; nil discards them.
	Logger *slog.Logger
	// Now is the clock that certificates are made by; nil is the real one.
	Now func() time.Time
}

// A Report says what a run did.
type Report struct {
	// Changed counts the tasks on hosts that changed something; in a dry run, that would.
	Changed int
	// Done counts the tasks on hosts that found nothing to do, and the checks that passed.
	Done     int
	Duration time.Duration
	// Kubeconfig is the path of the administrator's kubeconfig in the work directory, if there is one.
	Kubeconfig string
	// Log is the path of install.log, Page that of the run's report, which a dry run does not write.
	Log, Page string
}

// A TaskError says which task failed on which host.
type TaskError struct {
	Phase, Task, Host string
	Err               error
}

// Error returns the host, the task and the reason, which ends with what a failed command printed last.
func (e *TaskError) Error() string {
	if e.Host == "" {
		return e.Phase + " " + e.Task + ": " + e.Err.Error()
	}
	reason := strings.TrimPrefix(e.Err.Error(), e.Host+": ") // a command's error names its host, too
	return e.Host + ": " + e.Phase + " " + e.Task + ": " + reason
}

// Unwrap returns the reason.
func (e *TaskError) Unwrap() error { return e.Err }

// ErrGone stands for a host that the operator says is gone.
var ErrGone = errors.New("it is gone")

// Claims lets one host alone ask the network for an address: the others would hear its questions.
type Claims struct {
	mu   sync.Mutex
	list []netip.Addr
}

// Claim returns those of the addresses that no other host has claimed.
func (c *Claims) Claim(addresses []netip.Addr) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return slices.Contains(c.list, a) })
	c.list = append(c.list, mine...)
	return mine
}
