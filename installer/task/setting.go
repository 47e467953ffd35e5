package installer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"strings"
)

// Directories on hosts that belong to an installation. Reset removes them.
const (
	stateDir  = "/var/lib/kkbundle"
	configDir = "/etc/kkbundle"
	// stampDir says which settings are in force: a file written but not applied, because the run was interrupted
	// between the two, has no stamp.
	stampDir = stateDir + "/applied"
	// beforeDir has what Reset puts back.
	beforeDir = stateDir + "/before"
)

// A setting is a state of a host: files, and the commands that bring them into force.
type setting struct {
	files []textFile
	// apply runs after the files are written.
	apply func(ctx context.Context, t *Target) error
	// units must be running and enabled; they are enabled and restarted after apply.
	units []string
	// holds, if set, looks at what the files bring about and something else may have undone.
	holds func(ctx context.Context, t *Target) (bool, error)
	// ready, if set, waits until what was started works.
	ready func(ctx context.Context, t *Target) error
}

// settle completes a task that makes a setting: the setting is in force if the files are as they shall be, among them
// a stamp that was written after everything was applied, and what they bring about is so: the units are running.
func settle(task Task, want func(ctx context.Context, t *Target) (setting, error)) Task {
	task.Done = func(ctx context.Context, t *Target) (bool, error) {
		s, err := want(ctx, t)
		if err != nil {
			return false, err
		}
		stamp, err := t.stamp(ctx, task, s)
		if err != nil {
			return false, err
		}
		if ok, err := t.has(ctx, append(s.files, stamp)...); err != nil || !ok {
			return false, err
		}
		if s.holds != nil {
			if ok, err := s.holds(ctx, t); err != nil || !ok {
				because(ctx, "what it brings about is not so any more")
				return false, err
			}
		}
		if len(s.units) == 0 {
			return true, nil
		}
		ok, err := t.test(ctx, append([]string{"systemctl", "is-active", "--quiet"}, s.units...)...)
		if !ok {
			because(ctx, "%s does not run", strings.Join(s.units, " or "))
		}
		return ok, err
	}
	task.Do = func(ctx context.Context, t *Target) error {
		s, err := want(ctx, t)
		if err != nil {
			return err
		}
		stamp, err := t.stamp(ctx, task, s)
		if err != nil {
			return err
		}
		if err := t.write(ctx, s.files...); err != nil {
			return err
		}
		if err := t.bringIntoForce(ctx, s); err != nil {
			return err
		}
		return t.write(ctx, stamp)
	}
	return task
}

func (t *Target) bringIntoForce(ctx context.Context, s setting) error {
	if s.apply != nil {
		if err := s.apply(ctx, t); err != nil {
			return err
		}
	}
	for _, unit := range s.units {
		if err := t.startUnit(ctx, unit); err != nil {
			return err
		}
	}
	if s.ready == nil {
		return nil
	}
	return s.ready(ctx, t)
}

// startUnit enables and restarts a unit. Where that fails, the reason is in the unit's own log.
func (t *Target) startUnit(ctx context.Context, unit string) error {
	if err := t.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if err := t.systemctl(ctx, "enable", unit); err != nil {
		return err
	}
	if err := t.systemctl(ctx, "restart", unit); err != nil {
		return t.withUnitLog(ctx, unit, err)
	}
	return nil
}

// withUnitLog adds the end of a unit's log to an error.
func (t *Target) withUnitLog(ctx context.Context, unit string, err error) error {
	out, logErr := t.output(context.WithoutCancel(ctx), "journalctl", "--no-pager", "--lines=15", "--output=cat", "--unit="+unit)
	if logErr != nil || len(out) == 0 {
		return err
	}
	return fmt.Errorf("%w\nlog of %s:\n%s", err, unit, t.run.mask.mask(string(out)))
}

// stamp is the file that says that a task's setting is in force, with these files and this content from the bundle.
func (t *Target) stamp(ctx context.Context, task Task, s setting) (textFile, error) {
	sum := sha256.New()
	for _, f := range s.files {
		fmt.Fprintf(sum, "%s %o %d\n", f.path, f.mode, len(f.data))
		sum.Write(f.data)
	}
	digests, err := t.run.bundled(ctx, t, task.Files)
	if err != nil {
		return textFile{}, err
	}
	for _, d := range digests {
		_, _ = io.WriteString(sum, d+"\n")
	}
	data := hex.EncodeToString(sum.Sum(nil)) + "\n"
	return textFile{path: path.Join(stampDir, task.Name), mode: 0o600, data: []byte(data)}, nil
}
