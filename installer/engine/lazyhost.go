package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

// PrecheckHosts is the default of Options.Parallel for prechecks. They cost this machine little, and hosts that do
// not answer must not delay the others.
const PrecheckHosts = 100

// MaxConnections is the number of hosts above which a precheck closes idle connections, to save sockets and memory. It
// reconnects for further questions.
const MaxConnections = 256

// DropConnection closes the connection to a host that stopped answering.
func DropConnection(t *task.Host) {
	if t.Conn != nil {
		_ = t.Conn.Close() // best effort
		t.Conn = nil
	}
}

// CloseIdle closes the connection to a host until its next command, in a precheck of many hosts.
func (r *Run) CloseIdle(t *task.Host) {
	if s := r.Sessions[t.Name]; s != nil && s.lazy != nil && r.Operation.Visits && len(r.Hosts) > MaxConnections {
		s.lazy.CloseWhenIdle()
	}
}

// A LazyHost connects for a command if it has no connection. It does not reconnect after a loss or Close.
type LazyHost struct {
	Name string
	Dial func(ctx context.Context) (host.Host, error)

	mu      sync.Mutex
	conn    host.Host // nil if not connected
	users   int       // running commands
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

// Close closes the connection for good.
func (h *LazyHost) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.disconnect()
}

// CloseWhenIdle closes the connection once no command is running.
func (h *LazyHost) CloseWhenIdle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing = true; h.users == 0 {
		_ = h.disconnect() // all commands have returned
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
		return nil, &host.UnreachableError{Host: h.Name, Err: errors.New("connection closed")}
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
