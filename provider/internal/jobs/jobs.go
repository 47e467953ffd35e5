// Package jobs runs work that takes minutes beside the reconcilers. A job belongs to a key, and a key has one job at
// most. The number of jobs at work is bounded; a host that is slow has one place and holds up no other.
package jobs

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrCancelled is the error of a job that was cancelled.
var ErrCancelled = errors.New("cancelled")

// A State is a snapshot of a job.
type State struct {
	Kind  string // as given to Start
	Ready bool   // it is prepared
	Began bool   // it is not waiting for a free place
	Phase string // as told by the job
	Done  bool
	Err   error // of a job that is done
	Value any   // that a job which is done returned
}

// A Func does the work of a job. It tells phases as it reaches them.
type Func func(ctx context.Context, reached func(phase string)) (any, error)

// A Prepare gets what a job needs before it waits for a place: several jobs may wait for the same thing, and places are
// for hosts.
type Prepare func(ctx context.Context) error

// A Pool runs jobs. Make one with New.
type Pool[K comparable] struct {
	places map[string]chan struct{} // by kind
	notify func(K)

	mu    sync.Mutex
	jobs  map[K]*job
	ended bool // no job begins any more
	all   sync.WaitGroup
}

type job struct {
	state  State
	cancel context.CancelCauseFunc
}

// New returns a pool that runs up to n jobs at a time of each of the kinds, so that those of one kind do not wait for
// those of another. notify is called after each change of a job's state, on a goroutine of the job.
func New[K comparable](n int, kinds []string, notify func(K)) *Pool[K] {
	p := &Pool[K]{places: map[string]chan struct{}{}, notify: notify, jobs: map[K]*job{}}
	for _, kind := range kinds {
		p.places[kind] = make(chan struct{}, n)
	}
	return p
}

// Start begins a job unless the key has one, and reports whether it did. prepare may be nil; its error is the job's.
func (p *Pool[K]) Start(key K, kind string, prepare Prepare, do Func) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.jobs[key]; ok || p.ended {
		return false
	}
	ctx, cancel := context.WithCancelCause(context.Background()) // a job outlives the reconciliation that starts it
	j := &job{state: State{Kind: kind}, cancel: cancel}
	p.jobs[key] = j
	p.all.Go(func() { p.run(ctx, key, j, prepare, do) })
	return true
}

func (p *Pool[K]) run(ctx context.Context, key K, j *job, prepare Prepare, do Func) {
	defer j.cancel(nil)
	if prepare != nil {
		if err := prepare(ctx); err != nil {
			p.change(key, j, func(s *State) { s.Done, s.Err = true, err })
			return
		}
	}
	p.change(key, j, func(s *State) { s.Ready = true })
	places := p.places[j.state.Kind]
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		p.change(key, j, func(s *State) { s.Done, s.Err = true, context.Cause(ctx) })
		return
	}
	p.change(key, j, func(s *State) { s.Began = true })
	value, err := do(ctx, func(phase string) { p.change(key, j, func(s *State) { s.Phase = phase }) })
	p.change(key, j, func(s *State) { s.Done, s.Value, s.Err = true, value, err })
}

func (p *Pool[K]) change(key K, j *job, to func(*State)) {
	p.mu.Lock()
	to(&j.state)
	p.mu.Unlock()
	p.notify(key)
}

// Look returns the state of the key's job.
func (p *Pool[K]) Look(key K) (State, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, ok := p.jobs[key]
	if !ok {
		return State{}, false
	}
	return j.state, true
}

// Forget removes the key's job if it is done, so that another one can begin.
func (p *Pool[K]) Forget(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j, ok := p.jobs[key]; ok && j.state.Done {
		delete(p.jobs, key)
	}
}

// Cancel tells the key's job to end. It is done later.
func (p *Pool[K]) Cancel(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j, ok := p.jobs[key]; ok {
		j.cancel(ErrCancelled)
	}
}

// grace is the time that jobs have to end when the manager stops: that of kkbundle to leave hosts in order, and a
// little more.
const grace = 40 * time.Second

// Run waits until ctx is done, and ends all jobs.
func (p *Pool[K]) Run(ctx context.Context) error {
	<-ctx.Done()
	p.mu.Lock()
	p.ended = true
	for _, j := range p.jobs {
		j.cancel(ErrCancelled)
	}
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { p.all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(grace):
	}
	return nil
}
