package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

// PrecheckHosts is how many hosts are looked at at the same time unless the operator says otherwise. It costs this
// machine little, and those that do not answer must not keep the others waiting.
const PrecheckHosts = 100

// MaxKept is with how many hosts a precheck keeps its connections. With more it connects again to those that it has
// another question for: thousands of hosts do not mean thousands of sockets, or their memory.
const MaxKept = 256

// LetGo ends the connection to a host that does not answer any more.
func LetGo(t *task.Host) {
	if t.Conn != nil {
		_ = t.Conn.Close() // it cannot be told anything
		t.Conn = nil
	}
}

// Part ends the connection to a host until the next command, if the run has many and may.
func (r *Run) Part(t *task.Host) {
	if s := r.Sessions[t.Name]; s != nil && s.far != nil && r.Verb.Visits && len(r.Hosts) > MaxKept {
		s.far.Part()
	}
}

// A FarHost is connected to while it has something to do. A connection that was lost is not made again.
type FarHost struct {
	Name string
	Dial func(ctx context.Context) (host.Host, error)

	mu      sync.Mutex
	on      host.Host // nil if it is not connected to
	users   int       // commands under way
	parting bool
	closed  bool
}

// String returns the host's name.
func (h *FarHost) String() string { return h.Name }

// Run runs a command, over a new connection if there is none.
func (h *FarHost) Run(ctx context.Context, cmd host.Cmd) error {
	on, err := h.enter(ctx)
	if err != nil {
		return err
	}
	defer h.leave()
	return on.Run(ctx, cmd)
}

// Close ends the connection for good.
func (h *FarHost) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.end()
}

// Part ends the connection when no command is under way.
func (h *FarHost) Part() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parting = true; h.users == 0 {
		_ = h.end() // everything that was done has been answered
	}
}

func (h *FarHost) enter(ctx context.Context) (host.Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on == nil && !h.closed {
		on, err := h.Dial(ctx)
		if err != nil {
			return nil, err
		}
		h.on = on
	}
	if h.closed {
		return nil, &host.UnreachableError{Host: h.Name, Err: errors.New("it was given up")}
	}
	h.users++
	h.parting = false
	return h.on, nil
}

func (h *FarHost) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 && h.parting {
		_ = h.end()
	}
}

func (h *FarHost) end() error {
	if h.on == nil {
		return nil
	}
	on := h.on
	h.on = nil
	return on.Close()
}
