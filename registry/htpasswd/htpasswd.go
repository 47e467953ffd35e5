// Package htpasswd authenticates users of an htpasswd file over HTTP (RFC 7617), with bcrypt hashes.
package htpasswd

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	maxUsersFile  = 1 << 20         // bytes of an htpasswd file
	maxCost       = 16              // of a bcrypt hash: about 4 s
	maxWaiting    = 64              // logins being compared or waiting, from all addresses
	maxFromOne    = 4               // from one address
	loginPatience = 5 * time.Second // longest wait of a login
	maxPassword   = 1 << 10         // bytes; bcrypt uses the first 72
)

// Challenge is the WWW-Authenticate header for ErrRefused.
const Challenge = `Basic realm="kkbundle", charset="UTF-8"`

// Retry is the Retry-After header for ErrBusy, in seconds.
const Retry = "5"

var (
	// ErrRefused means a missing or wrong login: 401.
	ErrRefused = errors.New("missing or wrong user and password")
	// ErrBusy means a login could not be checked: 429.
	ErrBusy = errors.New("too many logins at a time: try again in a few seconds")
)

// Users are the users of an htpasswd file. Comparing a password deliberately takes a processor a tenth of a second.
// Valid logins are therefore cached under a key that lives as long as the process; others queue, few at a time and few
// from each address. All methods are safe for concurrent use.
type Users struct {
	path    string
	key     [32]byte
	slots   chan struct{} // a token for each comparison
	refused atomic.Int64

	mu        sync.Mutex
	hashes    map[string][]byte
	unknown   []byte            // hash compared for unknown users, so that they take as long
	good      map[[32]byte]bool // valid logins, at most a few for each user
	waiting   map[string]int    // by address
	comparing map[[32]byte]*comparison
	total     int
}

// New returns the users of a file, which Load reads; without a path everybody is admitted.
func New(path string) *Users {
	u := &Users{
		path: path, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), waiting: make(map[string]int),
		comparing: make(map[[32]byte]*comparison),
	}
	_, _ = rand.Read(u.key[:]) // never fails (crypto/rand)
	return u
}

// Load reads the file. On an error the users stay unchanged.
func (u *Users) Load() error {
	if u.path == "" {
		return nil
	}
	f, err := os.Open(u.path)
	if err != nil {
		return fmt.Errorf("htpasswd file: %w", err)
	}
	defer f.Close()
	hashes, cost, err := parseUsers(f)
	if err != nil {
		return fmt.Errorf("htpasswd file %s: %w", u.path, err)
	}
	unknown, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), cost)
	if err != nil {
		return fmt.Errorf("htpasswd file %s: %w", u.path, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hashes, u.unknown, u.good = hashes, unknown, make(map[[32]byte]bool)
	return nil
}

// parseUsers reads lines of user:hash. The error lists every wrong line, without hashes.
func parseUsers(r io.Reader) (hashes map[string][]byte, cost int, err error) {
	hashes, cost = make(map[string][]byte), bcrypt.MinCost
	var problems []error
	lines := bufio.NewScanner(io.LimitReader(r, maxUsersFile))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, hash, ok := strings.Cut(line, ":")
		c, err := bcrypt.Cost([]byte(hash))
		switch {
		case !ok || user == "":
			problems = append(problems, fmt.Errorf("line %d: want user:hash", n))
		case err != nil:
			problems = append(problems, fmt.Errorf("line %d: user %q has no bcrypt hash: make it with `htpasswd -B`", n,
				user))
		case c > maxCost:
			problems = append(problems,
				fmt.Errorf("line %d: user %q has a hash of cost %d; at most %d can be compared in time", n, user, c,
					maxCost))
		default:
			hashes[user], cost = []byte(hash), max(cost, c)
		}
	}
	if err := lines.Err(); err != nil {
		problems = append(problems, err)
	}
	if len(hashes) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("no users found: add one with `htpasswd -B`"))
	}
	return hashes, cost, errors.Join(problems...)
}

// Has reports whether the file has a user of that name.
func (u *Users) Has(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, there := u.hashes[name]
	return there
}

// Refused returns the number of requests without a valid login.
func (u *Users) Refused() int64 { return u.refused.Load() }

// Admit returns nil if a request may be answered. The error is ErrRefused, ErrBusy, or that of the request's context.
func (u *Users) Admit(r *http.Request) error {
	if u.path == "" {
		return nil
	}
	user, password, ok := r.BasicAuth()
	if !ok || len(password) > maxPassword {
		return u.refuse()
	}
	login := u.fingerprint(user, password)
	u.mu.Lock()
	if u.good[login] {
		u.mu.Unlock()
		return nil
	}
	c := u.comparing[login]
	first := c == nil
	if first {
		c = &comparison{done: make(chan struct{})}
		u.comparing[login] = c
	}
	u.mu.Unlock()
	if first {
		c.err = u.compare(login, user, password, addressOf(r))
		u.mu.Lock()
		delete(u.comparing, login)
		u.mu.Unlock()
		close(c.done)
	}
	select {
	case <-c.done:
		return c.err
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

// A comparison is the check of a login; requests with the same login wait for it.
type comparison struct {
	done chan struct{} // closed when err is set
	err  error
}

func (u *Users) compare(login [32]byte, user, password, address string) error {
	leave, err := u.queue(address)
	if err != nil {
		return err
	}
	defer leave()
	u.mu.Lock()
	hash, there := u.hashes[user]
	if !there {
		hash = u.unknown
	}
	u.mu.Unlock()
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !there {
		return u.refuse()
	}
	u.remember(login, user, hash)
	return nil
}

func (u *Users) refuse() error {
	u.refused.Add(1)
	return ErrRefused
}

func (u *Users) fingerprint(user, password string) (sum [32]byte) {
	h := hmac.New(sha256.New, u.key[:])
	fmt.Fprintf(h, "%d:%s%s", len(user), user, password)
	h.Sum(sum[:0])
	return sum
}

// remember caches a valid login, unless the user's hash has changed meanwhile. A password has one spelling, so there
// are as many entries as users, except for bytes after the 72nd.
func (u *Users) remember(login [32]byte, user string, hash []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if string(u.hashes[user]) != string(hash) {
		return
	}
	if len(u.good) > 2*len(u.hashes) {
		clear(u.good)
	}
	u.good[login] = true
}

// queue waits for the turn to compare a password. Call leave afterwards.
func (u *Users) queue(address string) (leave func(), err error) {
	u.mu.Lock()
	if u.total >= maxWaiting || u.waiting[address] >= maxFromOne {
		u.mu.Unlock()
		return nil, ErrBusy
	}
	u.total++
	u.waiting[address]++
	u.mu.Unlock()
	out := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.total--
		if u.waiting[address]--; u.waiting[address] == 0 {
			delete(u.waiting, address)
		}
	}
	select {
	case u.slots <- struct{}{}:
		return func() { <-u.slots; out() }, nil
	case <-time.After(loginPatience):
		out()
		return nil, ErrBusy
	}
}

func addressOf(r *http.Request) string {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return address
}
