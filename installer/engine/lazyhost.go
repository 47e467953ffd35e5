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
const MaxConnections = 256

// LetGo ends the connection to a host that does not answer any more.
func DropConnection(t *task.Host) {
	if t.Conn != nil {
		_ = t.Conn.Close() // it cannot be told anything
		t.Conn = nil
	}
}

// Part ends the connection to a host until the next command, if the run has many and may.
func (r *Run) CloseIdle(t *task.Host) {
	if s := r.Sessions[t.Name]; s != nil && s.lazy != nil && r.Operation.Visits && len(r.Hosts) > MaxConnections {
		s.lazy.CloseWhenIdle()
	}
}

// A FarHost is connected to while it has something to do. A connection that was lost is not made again.
type LazyHost struct {
	Name string
	Dial func(ctx context.Context) (host.Host, error)

	mu      sync.Mutex
	conn    host.Host // nil if it is not connected to
	users   int       // commands under way
	closing bool
	closed  bool
}

// String returns the host's name.
func (h *LazyHost) String() string { return h.Name }

// Run runs a command, over a new connection if there is none.
func (h *LazyHost) Run(ctx context.Context, cmd host.Cmd) error {
	on, err := h.acquire(ctx)
	if err != nil {
		return err
	}
	defer h.release()
	return on.Run(ctx, cmd)
}

// Close ends the connection for good.
func (h *LazyHost) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.disconnect()
}

// Part ends the connection when no command is under way.
func (h *LazyHost) CloseWhenIdle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing = true; h.users == 0 {
		_ = h.disconnect() // everything that was done has been answered
	}
}

func (h *LazyHost) acquire(ctx context.Context) (host.Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn == nil && !h.closed {
		on, err := h.Dial(ctx)
		if err != nil {
			return nil, err
		}
		h.conn = on
	}
	if h.closed {
		return nil, &host.UnreachableError{Host: h.Name, Err: errors.New("it was given up")}
	}
	h.users++
	h.closing = false
	return h.conn, nil
}

func (h *LazyHost) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 && h.closing {
		_ = h.disconnect()
	}
}

func (h *LazyHost) disconnect() error {
	if h.conn == nil {
		return nil
	}
	on := h.conn
	h.conn = nil
	return on.Close()
}
