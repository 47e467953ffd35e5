package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// A snapshot is the served content at a time: the open bundles and the names of their items. It is immutable; Reload
// replaces it, and it lasts until its last request is done.
type snapshot struct {
	books []*book // in the given order
	names func() *names

	filesOf  lazy[*tree]
	chartsOf lazy[*chartIndex]
	debsOf   lazy[*tree]
	gitOf    lazy[map[string]*repositoryEntry]
	rpmsOf   lazy[*tree]
	indexes  indexCache // of packages
	listOf   lazy[[]listed]

	mu      sync.Mutex
	readers int
}

// newSnapshot takes over the caller's references to the books.
func (s *Server) newSnapshot(books []*book) *snapshot {
	sh := &snapshot{books: books, readers: 1}
	sh.names = sync.OnceValue(func() *names {
		n := nameItems(books)
		for _, w := range n.warnings {
			s.log.Warn("an item does not have its name", "why", w)
		}
		return n
	})
	return sh
}

// use retains the snapshot and returns it. The caller calls done.
func (s *Server) use() *snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	sh := s.snapshot
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.readers++
	return sh
}

func (sh *snapshot) done() {
	sh.mu.Lock()
	sh.readers--
	last := sh.readers == 0
	sh.mu.Unlock()
	if last {
		for _, b := range sh.books {
			b.release()
		}
	}
}

// Reload reloads replaced bundles, and the files of users and certificates. Running transfers continue with the old
// ones. Anything that cannot be opened stays unchanged; the error names all of it.
func (s *Server) Reload(ctx context.Context) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	old := s.use()
	defer old.done()
	var problems []error
	books := make([]*book, len(old.books))
	for i, was := range old.books {
		b, err := s.reopen(ctx, was)
		if err != nil {
			problems = append(problems, err)
		}
		books[i] = b
	}
	if !slices.Equal(books, old.books) {
		s.put(s.newSnapshot(books))
	} else {
		for _, b := range books {
			b.release()
		}
	}
	if err := s.users.Load(); err != nil {
		problems = append(problems, err)
	}
	s.reloads.Add(1)
	return errors.Join(problems...)
}

// reopen returns a new book for the old one's path or, if nothing changed or on an error, the old one. The caller holds
// a reference to the result.
func (s *Server) reopen(ctx context.Context, was *book) (*book, error) {
	b, err := s.openBook(was.path)
	if err == nil && s.verify && !b.same(was) {
		if err = b.verify(ctx); err != nil {
			b.release()
		}
	}
	if err == nil && !b.same(was) {
		return b, nil
	}
	if err == nil {
		b.release()
	}
	was.retain()
	return was, err
}

// same reports whether two books have the same, unmodified file.
func (b *book) same(other *book) bool {
	return b.reader.Digest() == other.reader.Digest() && b.opened == other.opened
}

// put makes sh the served snapshot.
func (s *Server) put(sh *snapshot) {
	s.mu.Lock()
	old := s.snapshot
	s.snapshot = sh
	s.mu.Unlock()
	if old != nil {
		old.done()
	}
}

// A lazy value is computed on first use. An error is not cached.
type lazy[T any] struct {
	mu   sync.Mutex
	made bool
	v    T
}

func (l *lazy[T]) get(make func() (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made {
		return l.v, nil
	}
	v, err := make()
	if err == nil {
		l.v, l.made = v, true
	}
	return v, err
}
