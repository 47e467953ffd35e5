package installer

import (
	"context"
	_ "embed" // scripts
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
)

const (
	lockPath  = stateDir + "/lock"
	ownerPath = stateDir + "/lock.owner"
	// lockConflict is the exit code that flock is told to use if somebody else holds the lock (EX_TEMPFAIL).
	lockConflict = 75
	// lockBeat is how often a run says that it is still there, lockSilence after how long without that the host frees the
	// lock: a cut cable ends no session on the host's side.
	lockBeat    = 15 * time.Second
	lockSilence = 60 * time.Second
)

//go:embed scripts/hold-lock.sh
var holdLockScript string

// An owner says who holds the lock of a host.
type owner struct {
	User    string    `json:"user"`
	Machine string    `json:"machine"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
}

func thisOwner(now time.Time) owner {
	o := owner{User: "somebody", Machine: "another machine", PID: os.Getpid(), Since: now.UTC().Truncate(time.Second)}
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	if name, err := os.Hostname(); err == nil {
		o.Machine = name
	}
	return o
}

// A LockedError says that another run is at work on a host, or with the work directory.
type LockedError struct {
	// Host is the host's name, or says which work directory.
	Host string
	// By is who that is and since when, as far as is known.
	By string

	owner owner
}

// Error names the host and the other run.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is being worked on by %s", e.Host, e.By)
}

// Hint says what to do about it.
func (e *LockedError) Hint() string {
	return "wait until that run has ended, or end it; a host frees the lock by itself at most a minute after that run's connection is gone"
}

// lock takes the host's lock and returns what releases it. The lock is the kernel's (flock), held by a command that this
// run has to feed: however the run ends, kill -9 and a cut cable included, the command ends, and the lock is free. So there
// is no stale lock that somebody would have to tell from a held one. Where the owner was a run of this machine that has
// ended, its lock is waited for.
func (t *Target) lock(ctx context.Context, o owner) (release func(), err error) {
	if err := t.command(ctx, "mkdir", "-p", "-m", "0700", stateDir); err != nil {
		return nil, err
	}
	wait := time.NewTimer(lockSilence + lockBeat)
	defer wait.Stop()
	for {
		release, err := t.tryLock(ctx, o)
		var locked *LockedError
		if errors.As(err, &locked) && locked.owner.is(o) {
			return nil, fmt.Errorf("%s is the same machine as another host of the inventory: correct its address", t.Name)
		}
		if locked == nil || !locked.owner.ended(o) {
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

// is tells whether this is the run itself, by another of the host's names.
func (by owner) is(o owner) bool {
	return by.PID > 1 && by.Machine == o.Machine && by.PID == o.PID && by.Since.Equal(o.Since)
}

// ended tells whether an owner was a process of the machine of o that is gone.
func (by owner) ended(o owner) bool {
	return by.Machine == o.Machine && by.PID > 1 && by.PID != o.PID && errors.Is(syscall.Kill(by.PID, 0), syscall.ESRCH)
}

func (t *Target) tryLock(ctx context.Context, o owner) (release func(), err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", t.Name, err)
	}
	holder := host.Open(describedAs(context.WithoutCancel(ctx), "hold the lock "+lockPath), t.on, append(
		[]string{"flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(lockConflict), lockPath},
		host.Script("hold-lock.sh", holdLockScript, ownerPath, strconv.Itoa(int(lockSilence.Seconds())))...)...)
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
	return nil, t.lockFailure(ctx, err)
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

func (t *Target) lockFailure(ctx context.Context, err error) error {
	var failed *host.ExitError
	if !errors.As(err, &failed) || failed.Code != lockConflict {
		return fmt.Errorf("lock %s: %w", t.Name, err)
	}
	data, err := t.output(ctx, "cat", ownerPath)
	if err != nil {
		data = nil // it may just be being written
	}
	return lockedBy(t.Name, data)
}

// lockedBy makes the error out of what the owner has written into the lock.
func lockedBy(what string, data []byte) error {
	var o owner
	if json.Unmarshal(data, &o) != nil {
		return &LockedError{Host: what, By: "another run"}
	}
	return &LockedError{Host: what, owner: o, By: fmt.Sprintf("%s on %s (process %d, since %s)", o.User, o.Machine, o.PID, o.Since.Format(time.RFC3339))}
}
