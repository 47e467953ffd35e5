package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"syscall"
	"time"
)

// An Owner identifies the run that holds a lock.
type Owner struct {
	User    string    `json:"user"`
	Machine string    `json:"machine"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
}

// ThisOwner returns the Owner of this run.
func ThisOwner(now time.Time) Owner {
	o := Owner{User: "somebody", Machine: "another machine", PID: os.Getpid(), Since: now.UTC().Truncate(time.Second)}
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	if name, err := os.Hostname(); err == nil {
		o.Machine = name
	}
	return o
}

// A LockedError means that another run holds the lock of a host or of the work directory.
type LockedError struct {
	Host string // or the work directory
	By   string // user, machine, process and start of the other run, as far as known

	Owner Owner
}

// Error names the host and the other run.
func (e *LockedError) Error() string { return fmt.Sprintf("%s is locked by %s", e.Host, e.By) }

// Hint returns the remedy.
func (e *LockedError) Hint() string {
	return "wait for the other run to end, or end it; a host releases the lock at most one minute after it loses the connection"
}

// Is reports whether both are the same run, which reached one host by two names.
func (by Owner) Is(o Owner) bool {
	return by.PID > 1 && by.Machine == o.Machine && by.PID == o.PID && by.Since.Equal(o.Since)
}

// Ended reports whether the owner is an ended process on o's machine.
func (by Owner) Ended(o Owner) bool {
	return by.Machine == o.Machine && by.PID > 1 && by.PID != o.PID && errors.Is(syscall.Kill(by.PID, 0), syscall.ESRCH)
}

// NewLockedError returns the error for a lock that contains data from its owner.
func NewLockedError(what string, data []byte) error {
	var o Owner
	if json.Unmarshal(data, &o) != nil {
		return &LockedError{Host: what, By: "another run"}
	}
	return &LockedError{Host: what, Owner: o, By: fmt.Sprintf("%s on %s (process %d, since %s)", o.User, o.Machine,
		o.PID, o.Since.Format(time.RFC3339))}
}
