package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
)

const (
	lockPath  = stateDir + "/lock"
	ownerPath = stateDir + "/lock.owner"
	// lockConflict is the exit code that flock is told to use if somebody else holds the lock (EX_TEMPFAIL).
	lockConflict = 75
)

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

// A LockedError says that another run is at work on a host.
type LockedError struct {
	Host string
	// By is who that is and since when, as far as is known.
	By string
}

// Error names the host and the other run.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is being worked on by %s", e.Host, e.By)
}

// Hint says what to do about it.
func (e *LockedError) Hint() string {
	return "wait until that run has ended; the host frees the lock by itself as soon as that run's connection is gone"
}

// lock takes the host's lock and returns what releases it. The lock is the kernel's (flock), held by a command that
// reads its input from this run: however the run ends, kill -9 included, the session ends, the command reads the end of
// its input, and the lock is free. So there is no stale lock that somebody would have to tell from a held one.
func (t *Target) lock(ctx context.Context, o owner) (release func(), err error) {
	if err := t.command(ctx, "mkdir", "-p", "-m", "0700", stateDir); err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", t.Name, err)
	}
	holder := host.Open(context.WithoutCancel(ctx), t.on,
		"flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(lockConflict), lockPath, "tee", ownerPath)
	release = func() { _ = holder.Close() }
	stop := context.AfterFunc(ctx, release)
	defer stop()
	go func() { _, _ = holder.Write(append(text, '\n')) }() // if nobody reads it, the command has ended
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

func (t *Target) lockFailure(ctx context.Context, err error) error {
	var failed *host.ExitError
	if !errors.As(err, &failed) || failed.Code != lockConflict {
		return fmt.Errorf("lock %s: %w", t.Name, err)
	}
	var o owner
	data, err := t.output(ctx, "cat", ownerPath)
	if err != nil || json.Unmarshal(data, &o) != nil {
		return &LockedError{Host: t.Name, By: "another run"}
	}
	return &LockedError{Host: t.Name, By: fmt.Sprintf("%s on %s (process %d, since %s)", o.User, o.Machine, o.PID, o.Since.Format(time.RFC3339))}
}
