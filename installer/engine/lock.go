package engine

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	// LockConflict is flock's exit code if another run holds the lock (EX_TEMPFAIL).
	LockConflict = 75
	// A run sends a heartbeat every lockBeat. Without one for lockSilence, the host releases the lock: a cut cable
	// ends no session on the host's side.
	lockBeat    = 15 * time.Second
	lockSilence = 60 * time.Second
)

// HoldLockScript holds a lock as long as it gets heartbeats.
//
//go:embed scripts/hold-lock.sh
var HoldLockScript string

// Lock acquires the host's lock. A command on the host holds it by flock and needs heartbeats from this run. However
// the run ends, kill -9 and a cut cable included, the command ends and the lock is free, so there are no stale locks.
// If the owner is an ended run of this machine, Lock waits for the lock.
func Lock(ctx context.Context, t *task.Host, o task.Owner) (release func(), err error) {
	if err := t.Run(ctx, "mkdir", "-p", "-m", "0700", task.StateDir); err != nil {
		return nil, err
	}
	wait := time.NewTimer(lockSilence + lockBeat)
	defer wait.Stop()
	for {
		release, err := tryLock(ctx, t, o)
		var locked *task.LockedError
		if errors.As(err, &locked) && locked.Owner.Is(o) {
			return nil, fmt.Errorf("%s is the same machine as another host of the inventory: correct its address",
				t.Name)
		}
		if locked == nil || !locked.Owner.Ended(o) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-wait.C:
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

func tryLock(ctx context.Context, t *task.Host, o task.Owner) (release func(), err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", t.Name, err)
	}
	holder := host.Open(task.DescribedAs(context.WithoutCancel(ctx), "hold the lock "+marks.Lock), t.Conn, append(
		[]string{"flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(LockConflict), marks.Lock},
		host.Script("hold-lock.sh", HoldLockScript, marks.LockOwner, strconv.Itoa(int(lockSilence.Seconds())))...)...)
	released := make(chan struct{})
	release = sync.OnceFunc(func() {
		close(released)
		_ = holder.Close()
	})
	stop := context.AfterFunc(ctx, release)
	defer stop()
	go beat(holder, append(text, '\n'), released)
	if _, err = holder.Read(make([]byte, 1)); err == nil {
		go func() { _, _ = io.Copy(io.Discard, holder) }()
		return release, nil
	}
	release()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, lockFailure(ctx, t, err)
}

// beat sends the owner of a lock, and then heartbeats. A write fails once the command has ended.
func beat(holder io.Writer, who []byte, released <-chan struct{}) {
	ticker := time.NewTicker(lockBeat)
	defer ticker.Stop()
	for data := who; ; data = []byte(".") {
		if _, err := holder.Write(data); err != nil {
			return
		}
		select {
		case <-released:
			return
		case <-ticker.C:
		}
	}
}

func lockFailure(ctx context.Context, t *task.Host, err error) error {
	var failed *host.ExitError
	if !errors.As(err, &failed) || failed.Code != LockConflict {
		return fmt.Errorf("lock %s: %w", t.Name, err)
	}
	data, err := t.Output(ctx, "cat", marks.LockOwner)
	if err != nil {
		data = nil // the owner may be writing it
	}
	return task.NewLockedError(t.Name, data)
}
