// Package installer makes a Kubernetes cluster out of hosts and a bundle, over SSH and without internet.
//
// Plan lists what is done, in phases of tasks that can look (is this already so?) and do. Everything else follows from
// that list: a dry run only looks, a second run does what the first one did not get to, a run on a finished cluster
// changes nothing, and what the tasks declare to need is what a bundle must hold.
//
// Everything on hosts is a plain command that an operator can read in install.log and repeat by hand, or a call of
// kkbundle-node, the helper that is put on every host.
package task

import (
	"context"
	"io/fs"
	"slices"
	"time"

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

// Executable is the mode of programs.
const Executable = 0o755

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
	// packages are for. The task os-packages installs them; installer.PackagesOf is what a bundle carries.
	Packages []string
	// Leaves is what the task makes on hosts beside Files.
	Leaves Leaves
	// Look says that the task is a check that a dry run makes, too.
	InDryRun bool
	// Together says that the task is for all hosts or none: it is not begun while one of them has failed, and where it fails,
	// the run ends.
	AllOrNone bool
	// Apart says that the task, which is for Each host, needs nothing that other hosts do in the tasks before it that are Apart,
	// too: a host that is quick does not wait for one that is slow, until a task comes that is not.
	Independent bool
	// Follows says that what the task makes depends on which other hosts there are: it runs on all of them when nodes are
	// added or deleted.
	Follows bool
	// Done only looks, and says with because what it misses. A task without it is a check: it changes nothing that lasts, and runs every time but in a dry run.
	Done func(ctx context.Context, t *Host) (bool, error)
	// Do makes it so.
	Do func(ctx context.Context, t *Host) error
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
	Undo func(ctx context.Context, t *Host) error
}

// Once tells whether the task is done for the whole cluster, so that nothing goes on without it.
func (t Task) Once() bool { return t.Where == First || t.Where == Reached }

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
