// Package installer makes a Kubernetes cluster out of hosts and a bundle, over SSH and without internet.
//
// Plan lists what is done, in phases of tasks that can look (is this already so?) and do. Everything else follows from
// that list: a dry run only looks, a second run does what the first one did not get to, a run on a finished cluster
// changes nothing, and what the tasks declare to need is what a bundle must hold.
//
// Everything on hosts is a plain command that an operator can read in install.log and repeat by hand, or a call of
// kkbundle-node, the helper that is put on every host.
package installer

import (
	"context"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Where says on which of the hosts that have a task's roles the task runs.
type Where int

// The places.
const (
	// Each is every host, several at a time.
	Each Where = iota
	// OneByOne is every host, one after the other in the order of the inventory.
	OneByOne
	// First is the first host in the order of the inventory.
	First
	// Here is the machine that runs kkbundle; the task has no host.
	Here
	// Reached is every host that was reached, whatever Limit is: hosts that stand in for each other, as two registry hosts do.
	Reached
)

// executable is the mode of programs.
const executable = 0o755

// A Place is where a file of the bundle goes on a host: the whole file, or one member of an archive.
type Place struct {
	// Component is the file's name in the catalog.
	Component string
	// Member is the name inside the archive; empty for a file that is no archive.
	Member string
	Path   string
	Mode   fs.FileMode
}

// A Task makes one thing true on hosts, or checks one.
type Task struct {
	Name  string
	Roles []manifest.Role
	Where Where
	// Files are put on the host before Do, those that it lacks.
	Files []Place
	// Images and Charts are the catalog's names of what must be in the registry or the bundle for this task to succeed.
	Images, Charts []string
	// Packages say what the hosts' operating systems must have for this task to succeed, by the catalog's names for what
	// packages are for. The task os-packages installs them; PackagesOf is what a bundle carries.
	Packages []string
	// Leaves is what the task makes on hosts beside Files.
	Leaves Leaves
	// Look says that the task is a check that a dry run makes, too.
	Look bool
	// Together says that the task is for all hosts or none: it is not begun while one of them has failed, and where it fails,
	// the run ends.
	Together bool
	// Apart says that the task, which is for Each host, needs nothing that other hosts do in the tasks before it that are Apart,
	// too: a host that is quick does not wait for one that is slow, until a task comes that is not.
	Apart bool
	// Follows says that what the task makes depends on which other hosts there are: it runs on all of them when nodes are
	// added or deleted.
	Follows bool
	// Done only looks, and says with because what it misses. A task without it is a check: it changes nothing that lasts, and runs every time but in a dry run.
	Done func(ctx context.Context, t *Target) (bool, error)
	// Do makes it so.
	Do func(ctx context.Context, t *Target) error
}

// Leaves is what Reset takes away of what a task has made, on hosts where an installation has left its stamps.
type Leaves struct {
	// Units are stopped, disabled and their files in /etc/systemd/system removed, in this order.
	Units []string
	// Paths are files and directories, removed with everything in them. Mount points stay, empty.
	Paths []string
	// Data are directories with what cannot be made again; they stay unless WithData is set.
	Data []string
	// Links are network interfaces.
	Links []string
	// Undo, if set, does what a list cannot say, before everything else of the task. It has to be rerun-safe.
	Undo func(ctx context.Context, t *Target) error
}

// once tells whether the task is done for the whole cluster, so that nothing goes on without it.
func (t Task) once() bool { return t.Where == First || t.Where == Reached }

// Needs returns what the task needs from a bundle.
func (t Task) Needs() []manifest.Need {
	var needs []manifest.Need
	for _, f := range t.Files {
		needs = append(needs, manifest.Need{Kind: manifest.ItemFile, Name: f.Component})
	}
	for _, name := range t.Images {
		needs = append(needs, manifest.Need{Kind: manifest.ItemImage, Name: name})
	}
	for _, name := range t.Charts {
		needs = append(needs, manifest.Need{Kind: manifest.ItemChart, Name: name})
	}
	return slices.Compact(needs)
}

// A Phase is a named part of an installation; its tasks run in order.
type Phase struct {
	Name  string
	Tasks []Task
}

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
	Inputs
	Consent
	TaskSelection
	PrecheckOptions
	// Dial connects to a host as root.
	Dial func(ctx context.Context, h manifest.Host) (host.Host, error)
	// Helper returns kkbundle-node for a Linux architecture in Go's spelling.
	Helper func(arch string) ([]byte, error)
	// Hosts is how many hosts are worked on at the same time; 0 means 20.
	Hosts int
	// StallLimit is how long a command on a host may do nothing that can be seen before it is ended; 0 means the constant of
	// that name.
	StallLimit time.Duration
	// Progress is called with every event, one at a time.
	Progress func(Event)
	// Logger gets details; nil discards them.
	Logger *slog.Logger
	// Now is the clock that certificates are made by; nil is the real one.
	Now func() time.Time
}

// A State says what became of a task on a host.
type State string

// The states of an Event.
const (
	Started  State = "started"
	Done     State = "done"     // it was so already, or a check passed
	Changed  State = "changed"  // it was made so
	Would    State = "would"    // a dry run found that it is not so
	Skipped  State = "skipped"  // a dry run leaves out the checks of what is not there yet
	Failed   State = "failed"   // it could not be made so, or a check says so
	Stopped  State = "stopped"  // the run was interrupted while it was at work
	Warned   State = "warned"   // a check says that something is to be looked at
	Progress State = "progress" // bytes were sent
	Waiting  State = "waiting"  // a command on the host has been silent for long
)

// An Event is something that happened. Phase events have no task, task events no host, and events of a task on a host
// all three.
type Event struct {
	Version  int           `json:"version"` // 1
	Time     time.Time     `json:"time"`
	Phase    string        `json:"phase,omitempty"`
	Task     string        `json:"task,omitempty"`
	Host     string        `json:"host,omitempty"`
	State    State         `json:"state"`
	Duration time.Duration `json:"duration,omitempty"` // nanoseconds, in events that end something
	Message  string        `json:"message,omitempty"`
	Bytes    int64         `json:"bytes,omitempty"` // how many of Total have been sent
	Total    int64         `json:"total,omitempty"`
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
