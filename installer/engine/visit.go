package installer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// precheckHosts is how many hosts are looked at at the same time unless the operator says otherwise. It costs this
	// machine little, and those that do not answer must not keep the others waiting.
	precheckHosts = 100
	// maxKept is with how many hosts a precheck keeps its connections. With more it connects again to those that it has
	// another question for: thousands of hosts do not mean thousands of sockets, or their memory.
	maxKept = 256
	// factsTimeout is how long a host may take to say what it is like, probeTimeout how much longer for what only etcd
	// and control planes are asked for: the speed of the disk, and addresses that nobody may have.
	factsTimeout = 20 * time.Second
	probeTimeout = 15 * time.Second
	// spaceTimeout is for counting what directories hold.
	spaceTimeout = 2 * time.Minute
)

// bounded gives what a host is asked an end.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &host.SlowError{Limit: limit})
}

// factsLimit returns how long the host may take to answer.
func (t *Target) factsLimit() time.Duration {
	if t.Is(manifest.RoleEtcd) || t.Is(manifest.RoleControlPlane) {
		return factsTimeout + probeTimeout
	}
	return factsTimeout
}

// visit connects to the host for a precheck and looks at it.
func (r *run) visit(ctx context.Context, t *Target) {
	t.failure = r.connectTo(inTask(ctx, "connect"), t)
	known := r.examine(inTask(ctx, "precheck"), t)
	r.sessions[t.Name].known = known
	if isGone(known.Err) {
		t.failure = known.Err
		t.letGo()
	}
}

// isGone tells whether asking a host again would be to wait again.
func isGone(err error) bool {
	var unreachable *host.UnreachableError
	var slow *host.SlowError
	return errors.As(err, &unreachable) || errors.As(err, &slow)
}

// letGo ends the connection to a host that does not answer any more.
func (t *Target) letGo() {
	if t.on != nil {
		_ = t.on.Close() // it cannot be told anything
		t.on = nil
	}
}

// part ends the connection to a host until the next command, if the run has many and may.
func (r *run) part(t *Target) {
	if s := r.sessions[t.Name]; s != nil && s.far != nil && r.verb.visits && len(r.targets) > maxKept {
		s.far.part()
	}
}

// A farHost is connected to while it has something to do. A connection that was lost is not made again.
type farHost struct {
	name string
	dial func(ctx context.Context) (host.Host, error)

	mu      sync.Mutex
	on      host.Host // nil if it is not connected to
	users   int       // commands under way
	parting bool
	closed  bool
}

// String returns the host's name.
func (h *farHost) String() string { return h.name }

// Run runs a command, over a new connection if there is none.
func (h *farHost) Run(ctx context.Context, cmd host.Cmd) error {
	on, err := h.enter(ctx)
	if err != nil {
		return err
	}
	defer h.leave()
	return on.Run(ctx, cmd)
}

// Close ends the connection for good.
func (h *farHost) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return h.end()
}

// part ends the connection when no command is under way.
func (h *farHost) part() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parting = true; h.users == 0 {
		_ = h.end() // everything that was done has been answered
	}
}

func (h *farHost) enter(ctx context.Context) (host.Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on == nil && !h.closed {
		on, err := h.dial(ctx)
		if err != nil {
			return nil, err
		}
		h.on = on
	}
	if h.closed {
		return nil, &host.UnreachableError{Host: h.name, Err: errors.New("it was given up")}
	}
	h.users++
	h.parting = false
	return h.on, nil
}

func (h *farHost) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 && h.parting {
		_ = h.end()
	}
}

func (h *farHost) end() error {
	if h.on == nil {
		return nil
	}
	on := h.on
	h.on = nil
	return on.Close()
}
