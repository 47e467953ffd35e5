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
	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	LockPath  = task.StateDir + "/lock"
	ownerPath = task.StateDir + "/lock.owner"
	// LockConflict is the exit code that flock is told to use if somebody else holds the lock (EX_TEMPFAIL).
	LockConflict = 75
	// lockBeat is how often a run says that it is still there, lockSilence after how long without that the host frees the
	// lock: a cut cable ends no session on the host's side.
	lockBeat    = 15 * time.Second
	lockSilence = 60 * time.Second
)

//go:embed scripts/hold-lock.sh
var HoldLockScript string

// Lock takes the host's Lock and returns what releases it. The Lock is the kernel's (flock), held by a command that this
// run has to feed: however the run ends, kill -9 and a cut cable included, the command ends, and the Lock is free. So there
// is no stale Lock that somebody would have to tell from a held one. Where the owner was a run of this machine that has
// ended, its Lock is waited for.
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
			return nil, fmt.Errorf("%s is the same machine as another host of the inventory: correct its address", t.Name)
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
	holder := host.Open(task.DescribedAs(context.WithoutCancel(ctx), "hold the lock "+LockPath), t.Conn, append(
		[]string{"flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(LockConflict), LockPath},
		host.Script("hold-lock.sh", HoldLockScript, ownerPath, strconv.Itoa(int(lockSilence.Seconds())))...)...)
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

// beat says who holds a lock, and then that it is still held. A write fails once the command has ended.
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
	data, err := t.Output(ctx, "cat", ownerPath)
	if err != nil {
		data = nil // it may just be being written
	}
	return task.NewLockedError(t.Name, data)
}
