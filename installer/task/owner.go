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

// An Owner says who holds the lock of a host.
type Owner struct {
	User    string    `json:"user"`
	Machine string    `json:"machine"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
}

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

// A LockedError says that another run is at work on a host, or with the work directory.
type LockedError struct {
	// Host is the host's name, or says which work directory.
	Host string
	// By is who that is and since when, as far as is known.
	By string

	Owner Owner
}

// Error names the host and the other run.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is being worked on by %s", e.Host, e.By)
}

// Hint says what to do about it.
func (e *LockedError) Hint() string {
	return "wait until that run has ended, or end it; a host frees the lock by itself at most a minute after that run's connection is gone"
}

// Is tells whether this Is the run itself, by another of the host's names.
func (by Owner) Is(o Owner) bool {
	return by.PID > 1 && by.Machine == o.Machine && by.PID == o.PID && by.Since.Equal(o.Since)
}

// Ended tells whether an owner was a process of the machine of o that is gone.
func (by Owner) Ended(o Owner) bool {
	return by.Machine == o.Machine && by.PID > 1 && by.PID != o.PID && errors.Is(syscall.Kill(by.PID, 0), syscall.ESRCH)
}

// LockedBy makes the error out of what the owner has written into the lock.
func NewLockedError(what string, data []byte) error {
	var o Owner
	if json.Unmarshal(data, &o) != nil {
		return &LockedError{Host: what, By: "another run"}
	}
	return &LockedError{Host: what, Owner: o, By: fmt.Sprintf("%s on %s (process %d, since %s)", o.User, o.Machine, o.PID, o.Since.Format(time.RFC3339))}
}
