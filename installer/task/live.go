package task

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
)

// stampsOf returns the stamps of a setting that is in force except for live files: with the wanted live files,
// because a killed run may have written the new stamp, and with those on the host. Releases up to 2026-11 had files
// that may be new in the stamp, too. present is the setting with the live files on the host; differs reports whether
// these are not the wanted ones.
func (t *Host) stampsOf(ctx context.Context, task Task,
	s Setting,
) (stamps []File, present Setting, differs bool, err error) {
	present = s
	present.Files = nil
	for _, f := range s.Files {
		if !f.isLive() {
			present.Files = append(present.Files, f)
			continue
		}
		data, err := t.Read(ctx, f.Path)
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			return nil, s, false, err
		}
		differs = differs || missing || !bytes.Equal(data, f.Data)
		if missing && f.LiveNew {
			continue
		}
		// nil for a missing one that is only Live: HasFiles finds it missing, because only Apply knows its owner
		f.Data = data
		present.Files = append(present.Files, f)
	}
	for _, setting := range []Setting{s, present} {
		now, err := t.stamp(ctx, task, setting)
		if err != nil {
			return nil, s, false, err
		}
		earlier, err := t.stampOver(ctx, task, setting.Files)
		if err != nil {
			return nil, s, false, err
		}
		stamps = append(stamps, now, earlier)
	}
	return stamps, present, differs, nil
}

// hasStamp reports whether the host has one of the stamps of a task, or else whether it has any.
func (t *Host) hasStamp(ctx context.Context, task Task, stamps []File) (ok, some bool, err error) {
	data, err := t.Read(ctx, path.Join(StampDir, task.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	return slices.ContainsFunc(stamps, func(f File) bool { return bytes.Equal(f.Data, data) }), true, nil
}

// hasEarlierStamp reports whether the host has the files of a setting, and the stamp of an earlier release.
func (t *Host) hasEarlierStamp(ctx context.Context, task Task, s Setting) (bool, error) {
	if !slices.ContainsFunc(s.Files, func(f File) bool { return f.LiveNew }) {
		return false, nil
	}
	earlier, err := t.stampOver(ctx, task, s.Files)
	if err != nil {
		return false, err
	}
	quiet, _ := WithReasons(ctx) // the first look gave them
	return t.HasFiles(quiet, append(slices.Clone(s.Files), earlier)...)
}

// differsLive reports whether the setting is in force except for live files.
func (t *Host) differsLive(ctx context.Context, task Task, s Setting) (bool, error) {
	if len(s.live()) == 0 {
		return false, nil
	}
	stamps, present, differs, err := t.stampsOf(ctx, task, s)
	if err != nil || !differs {
		return false, err
	}
	if ok, _, err := t.hasStamp(ctx, task, stamps); err != nil || !ok {
		return false, err
	}
	if ok, err := t.HasFiles(ctx, present.Files...); err != nil || !ok {
		return false, err
	}
	return t.works(ctx, s)
}

// editLive writes a live file. An existing one keeps its owner.
func (t *Host) editLive(ctx context.Context, f File) error {
	if f.LiveNew {
		return t.Write(ctx, f)
	}
	return t.Edit(ctx, f.Path, f.Data)
}

// IsOtherwise reports whether a task has brought another setting or other programs into force on the host, so that it
// would restart its units there. Files that were edited there, and units that do not run, are repairs and no such
// change.
func (step Task) IsOtherwise(ctx context.Context, t *Host) (bool, error) {
	if step.want == nil {
		return false, nil
	}
	s, err := step.want(ctx, t)
	if err != nil {
		return false, err
	}
	stamp, err := t.stamp(ctx, step, s)
	if err != nil {
		return false, err
	}
	ok, some, err := t.hasStamp(ctx, step, []File{stamp})
	if err != nil || ok || !some || len(s.live()) == 0 {
		return some && !ok, err
	}
	stamps, _, _, err := t.stampsOf(ctx, step, s)
	if err != nil {
		return false, err
	}
	ok, _, err = t.hasStamp(ctx, step, stamps)
	return !ok, err
}
