package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// A shelf is what is served at a time: the open bundles and what their items are called. It does not change; Reload
// replaces it, and it lasts until the last request that uses it is done.
type shelf struct {
	books []*book // as they were named
	names func() *names

	filesOf  lazy[*tree]
	chartsOf lazy[*orchard]
	debsOf   lazy[*tree]
	rpmsOf   lazy[*tree]
	indexes  indexCache // of the packages
	listOf   lazy[[]listed]

	mu      sync.Mutex
	readers int
}

// newShelf takes over the caller's hold on the books.
func (s *Server) newShelf(books []*book) *shelf {
	sh := &shelf{books: books, readers: 1}
	sh.names = sync.OnceValue(func() *names {
		n := nameItems(books)
		for _, w := range n.warnings {
			s.log.Warn("an item does not have its name", "why", w)
		}
		return n
	})
	return sh
}

// use keeps the shelf and returns it. The caller calls done.
func (s *Server) use() *shelf {
	s.mu.RLock()
	defer s.mu.RUnlock()
	sh := s.shelf
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.readers++
	return sh
}

func (sh *shelf) done() {
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

// Reload takes up what was replaced: bundles, and the files of users and certificates. Transfers that run go on with what
// they began with. Whatever cannot be opened is left as it was; the error names all of that.
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
		s.put(s.newShelf(books))
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

// reopen returns a new book for the path of the old one or, where nothing changed or there is an error, the old one; the
// caller has a hold on what it gets.
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

// same says that two books are of the same file, and that it was not written to.
func (b *book) same(other *book) bool {
	return b.reader.Digest() == other.reader.Digest() && b.opened == other.opened
}

// put makes sh what is served from now on.
func (s *Server) put(sh *shelf) {
	s.mu.Lock()
	old := s.shelf
	s.shelf = sh
	s.mu.Unlock()
	if old != nil {
		old.done()
	}
}

// A lazy value is made when it is first asked for. An error is not remembered.
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
