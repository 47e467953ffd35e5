package task

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
)

// Directories of an installation on hosts. Reset removes them.
const (
	StateDir  = "/var/lib/kkbundle"
	ConfigDir = "/etc/kkbundle"
	// StampDir has a stamp per setting in force. A setting whose run was interrupted before it was applied has none.
	StampDir = StateDir + "/applied"
	// BeforeDir has the values that Reset restores.
	BeforeDir = StateDir + "/before"
	// ProvisionDir has the receipts of provisioning steps.
	ProvisionDir = StateDir + "/provision"
	// ProgramDir has the programs of units that nobody calls by name. Below it, each directory is named bin: only
	// there do SELinux policies give programs a type that systemd executes (/opt/(.*/)?bin(/.*)? in corecommands.fc
	// of Fedora and Debian).
	ProgramDir = "/opt/kkbundle"
	// EarlierProgramDir had these programs in releases whose files had no labels; its type is lib_t.
	EarlierProgramDir = "/usr/local/lib/kkbundle"
)

// A Setting is a state of a host: files, and the commands that apply them.
type Setting struct {
	Files []File
	// Apply runs after the files are written.
	Apply func(ctx context.Context, t *Host) error
	// Units are enabled and restarted after Apply, and must be running.
	Units []string
	// Holds, if set, reports whether the effect of the files is still there.
	Holds func(ctx context.Context, t *Host) (bool, error)
	// Ready, if set, waits until the started units work.
	Ready func(ctx context.Context, t *Host) error
	// Reload, if set, runs after a change of live files alone.
	Reload func(ctx context.Context, t *Host) error
}

// Settle completes a task with Done and Do for a setting. The setting is in force if the files are unchanged, a stamp
// shows that they were applied, Holds reports true and the units are running.
//
// If only live files of a setting in force differ, no unit is restarted.
func Settle(task Task, want func(ctx context.Context, t *Host) (Setting, error)) Task {
	task.want = want
	task.Done = func(ctx context.Context, t *Host) (bool, error) {
		s, err := want(ctx, t)
		if err != nil {
			return false, err
		}
		stamp, err := t.stamp(ctx, task, s)
		if err != nil {
			return false, err
		}
		ok, err := t.HasFiles(ctx, append(s.Files, stamp)...)
		if err == nil && !ok {
			ok, err = t.hasEarlierStamp(ctx, task, s)
		}
		if err != nil || !ok {
			return false, err
		}
		return t.works(ctx, s)
	}
	task.Do = func(ctx context.Context, t *Host) error {
		s, err := want(ctx, t)
		if err != nil {
			return err
		}
		stamp, err := t.stamp(ctx, task, s)
		if err != nil {
			return err
		}
		if live, err := t.differsLive(ctx, task, s); err != nil {
			return err
		} else if live {
			return t.replaceLive(ctx, s, stamp)
		}
		if err := t.Write(ctx, s.Files...); err != nil {
			return err
		}
		if err := t.bringIntoForce(ctx, s); err != nil {
			return err
		}
		return t.Write(ctx, stamp)
	}
	return task
}

// works reports whether the setting's effect is there and its units run.
func (t *Host) works(ctx context.Context, s Setting) (bool, error) {
	if s.Holds != nil {
		if ok, err := s.Holds(ctx, t); err != nil || !ok {
			Because(ctx, "its effect is gone")
			return false, err
		}
	}
	all := true
	for _, unit := range s.Units { // of several units, is-active wants only one to run
		ok, err := t.Test(ctx, "systemctl", "is-active", "--quiet", unit)
		if err != nil {
			return false, err
		}
		if !ok {
			Because(ctx, "%s does not run", unit)
		}
		all = all && ok
	}
	return all, nil
}

// replaceLive writes live files. It keeps their owner, and writes the stamp first: a killed run is continued by
// another one without a restart.
func (t *Host) replaceLive(ctx context.Context, s Setting, stamp File) error {
	if err := t.Write(ctx, stamp); err != nil {
		return err
	}
	for _, f := range s.live() {
		if err := t.editLive(ctx, f); err != nil {
			return err
		}
	}
	if s.Reload != nil {
		if err := s.Reload(ctx, t); err != nil {
			return err
		}
	}
	if s.Ready == nil {
		return nil
	}
	return s.Ready(ctx, t)
}

// LiveOnly returns a task that replaces the live files of a setting in force, and changes nothing else. Hosts without
// the setting are skipped. ok is false if Settle did not make the task.
func (step Task) LiveOnly() (live Task, ok bool) {
	if step.want == nil {
		return Task{}, false
	}
	return Task{
		Name: step.Name, Roles: step.Roles, Where: step.Where,
		Done: func(ctx context.Context, t *Host) (bool, error) {
			there, err := t.Test(ctx, "test", "-e", path.Join(StampDir, step.Name))
			if err != nil || !there {
				return true, err
			}
			s, err := step.want(ctx, t)
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, s.live()...)
		},
		Do: func(ctx context.Context, t *Host) error {
			s, err := step.want(ctx, t)
			if err != nil {
				return err
			}
			if ok, err := t.differsLive(ctx, step, s); err != nil {
				return err
			} else if !ok {
				return fmt.Errorf("%s on %s is not as the bundle and the cluster file say: run kkbundle install with them first", step.Name, t.Name)
			}
			stamp, err := t.stamp(ctx, step, s)
			if err != nil {
				return err
			}
			return t.replaceLive(ctx, s, stamp)
		},
	}, true
}

// live returns the live files.
func (s Setting) live() []File {
	return slices.DeleteFunc(slices.Clone(s.Files), func(f File) bool { return !f.isLive() })
}

func (t *Host) bringIntoForce(ctx context.Context, s Setting) error {
	if s.Apply != nil {
		if err := s.Apply(ctx, t); err != nil {
			return err
		}
	}
	for _, unit := range s.Units {
		if err := t.startUnit(ctx, unit); err != nil {
			return err
		}
	}
	if s.Ready == nil {
		return nil
	}
	return s.Ready(ctx, t)
}

// startUnit enables and restarts a unit. The error of a failed start includes the unit's log.
func (t *Host) startUnit(ctx context.Context, unit string) error {
	if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "enable", unit); err != nil {
		return err
	}
	if err := t.Systemctl(ctx, "restart", unit); err != nil {
		return t.WithUnitLog(ctx, unit, err)
	}
	return nil
}

// WithUnitLog adds the end of a unit's log to an error.
func (t *Host) WithUnitLog(ctx context.Context, unit string, err error) error {
	out, logErr := t.Output(context.WithoutCancel(ctx), "journalctl", "--no-pager", "--lines=15", "--output=cat",
		"--unit="+unit)
	if logErr != nil || len(out) == 0 {
		return err
	}
	return fmt.Errorf("%w\nlog of %s:\n%s", err, unit, t.Site.Mask.Mask(string(out)))
}

// stamp returns the stamp of a task's setting: a digest over its files and the task's files from the bundle. Files
// that may be new without a restart are not part of it.
func (t *Host) stamp(ctx context.Context, task Task, s Setting) (File, error) {
	return t.stampOver(ctx, task, slices.DeleteFunc(slices.Clone(s.Files), func(f File) bool { return f.LiveNew }))
}

func (t *Host) stampOver(ctx context.Context, task Task, files []File) (File, error) {
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %o %d\n", f.Path, f.Mode, len(f.Data))
		sum.Write(f.Data)
	}
	digests, err := t.Site.bundled(ctx, t, task.Files)
	if err != nil {
		return File{}, err
	}
	for _, d := range digests {
		_, _ = io.WriteString(sum, d+"\n")
	}
	data := hex.EncodeToString(sum.Sum(nil)) + "\n"
	return File{Path: path.Join(StampDir, task.Name), Mode: 0o600, Data: []byte(data)}, nil
}
