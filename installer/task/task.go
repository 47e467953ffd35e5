package task

import (
	"context"
	"io/fs"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Where selects among the hosts with a task's roles.
type Where int

// The places.
const (
	Each     Where = iota // every host, several in parallel
	OneByOne              // every host, in the order of the inventory
	First                 // the first host of the inventory; for control planes, the lead
	Here                  // the machine that runs kkbundle; the task has no host
	// every reached host even with Limit, for hosts that replace each other, such as a registry pair
	Reached
)

// Executable is the mode of programs.
const Executable = 0o755

// A Place is the path on a host of a file of the bundle, or of one member of an archive.
type Place struct {
	Component string // the file's name in the catalog
	Member    string // the name inside the archive; empty for a whole file
	Path      string
	Mode      fs.FileMode
}

// A Task establishes one state on hosts, or checks it.
type Task struct {
	Name  string
	Roles []manifest.Role
	Where Where
	// Before, if set, runs on hosts with something to do before Files are sent.
	Before func(ctx context.Context, t *Host) error
	// Files are sent to hosts that lack them, before Do.
	Files []Place
	// Images and Charts are the catalog names of items that the registry or the bundle must have for this task.
	Images, Charts []string
	// Packages are the catalog's purposes of operating system packages that hosts must have for this task. The task
	// os-packages installs the packages; plan.PackagesOf selects those for a bundle.
	Packages []string
	// Leaves lists the traces of the task on hosts, beside Files.
	Leaves Leaves
	// InDryRun runs a check in a dry run, too.
	InDryRun bool
	// AllOrNone tasks do not start while a host has failed, and end the run if they fail.
	AllOrNone bool
	// Independent tasks, which are for Each host, need nothing from other hosts. In a row of them, a fast host does
	// not wait for a slow one.
	Independent bool
	// Follows marks a task whose result depends on the other hosts: it runs on all hosts after nodes were added or
	// deleted.
	Follows bool
	// Done reports whether there is nothing to do, or else gives reasons with Because. It changes nothing. A task
	// without Done is a check: it changes nothing that lasts, and runs every time except in a dry run.
	Done func(ctx context.Context, t *Host) (bool, error)
	// Do establishes the state.
	Do func(ctx context.Context, t *Host) error

	want func(ctx context.Context, t *Host) (Setting, error) // of Settle
}

// Leaves lists the traces of a task that Reset removes, on hosts with stamps of an installation.
type Leaves struct {
	// Units are stopped and disabled, and their files in UnitDir removed, in this order.
	Units []string
	// Paths are files and directories, removed with their content. Mount points stay as empty directories.
	Paths []string
	// Spares, if set, returns those of Paths that stay on a host because others use them, too.
	Spares func(ctx context.Context, t *Host) ([]string, error)
	// Data are directories with data that cannot be restored; Reset keeps them without WithData.
	Data []string
	// Links are network interfaces.
	Links []string
	// Undo, if set, runs before the rest of the task's traces is removed. It must be safe to run again.
	Undo func(ctx context.Context, t *Host) error
}

// Never is the Done of tasks that run whatever the state.
func Never(context.Context, *Host) (bool, error) { return false, nil }

// Once reports whether the task runs once for the whole cluster. The run cannot continue without it.
func (t Task) Once() bool { return t.Where == First || t.Where == Reached }

// Needs returns the task's needs from a bundle.
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

// A State is the state of a task on a host.
type State string

// The states of an Event.
const (
	Started  State = "started"
	Done     State = "done"     // nothing to do, or a check passed
	Changed  State = "changed"  // a change was made
	Would    State = "would"    // a dry run found that a run would change the host
	Skipped  State = "skipped"  // not run: a check in a dry run, or a task that needs a failed host
	Failed   State = "failed"   // the change or the check failed
	Stopped  State = "stopped"  // interrupted
	Warned   State = "warned"   // a check found something to look at
	Progress State = "progress" // bytes were sent
	Waiting  State = "waiting"  // a command on the host has been silent for long
)

// An Event reports progress. Events of a phase have no task, events of a task no host, and events of a task on a host
// have all three.
type Event struct {
	Version  int            `json:"version"` // 1
	Time     time.Time      `json:"time"`
	Phase    string         `json:"phase,omitempty"`
	Task     string         `json:"task,omitempty"`
	Host     string         `json:"host,omitempty"`
	State    State          `json:"state"`
	Duration plain.Duration `json:"duration,omitempty"` // in events at the end of a task or phase
	Message  string         `json:"message,omitempty"`
	Bytes    int64          `json:"bytes,omitempty"` // sent, of Total
	Total    int64          `json:"total,omitempty"`
}
