package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// balancerEnv has the fronts of a balancer: the test's program is the balancer then.
const balancerEnv = "LAB_BALANCER"

func TestMain(m *testing.M) {
	if fronts := os.Getenv(balancerEnv); fronts != "" {
		fmt.Fprintln(os.Stderr, balance(fronts))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A front is a port of a balancer beside the hosts, and how the hosts' same port is probed.
type front struct {
	Port     int
	Probe    string // the URL's beginning and end around the address, as in https://%s/readyz
	Backends []string
}

// startBalancer runs a balancer of TCP connections beside the hosts until the test's end, as a site has one: it probes
// each host, and gives connections to those that answer.
func (c *capi) startBalancer(t *testing.T, fronts ...front) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(fronts)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(c.dir, "balancer.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := c.lab.Command(c.life, program)
	cmd.Env = append(os.Environ(), balancerEnv+"="+string(spec))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// balance serves the fronts, and returns only if that is impossible.
func balance(spec string) error {
	var fronts []front
	if err := json.Unmarshal([]byte(spec), &fronts); err != nil {
		return err
	}
	failed := make(chan error)
	for _, f := range fronts {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", besideHosts, f.Port))
		if err != nil {
			return err
		}
		go func() { failed <- f.serve(l) }()
	}
	return <-failed
}

func (f front) serve(l net.Listener) error {
	var all []*backend
	for _, b := range f.Backends {
		one := &backend{address: fmt.Sprintf("%s:%d", b, f.Port), sessions: map[net.Conn]bool{}}
		all = append(all, one)
		go one.watch(f.Probe)
	}
	for turn := 0; ; turn++ {
		client, err := l.Accept()
		if err != nil {
			return err
		}
		go forward(client, all, turn)
	}
}

// forward gives a connection to the first backend that takes it, beginning with another one each time.
func forward(client net.Conn, all []*backend, turn int) {
	defer client.Close()
	const patience = 300 * time.Millisecond
	for i := range all {
		b := all[(turn+i)%len(all)]
		if !b.up.Load() {
			continue
		}
		server, err := net.DialTimeout("tcp", b.address, patience)
		if err != nil {
			continue
		}
		b.carry(client, server)
		return
	}
}

// A backend is a host's port, with its connections.
type backend struct {
	address  string
	up       atomic.Bool
	mu       sync.Mutex
	sessions map[net.Conn]bool
}

// carry copies both ways until one of them ends.
func (b *backend) carry(client, server net.Conn) {
	b.mu.Lock()
	b.sessions[server] = true
	b.mu.Unlock()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // a connection ends in many ways
			ended <- struct{}{}
		}()
	}
	<-ended
	b.mu.Lock()
	delete(b.sessions, server)
	b.mu.Unlock()
	_ = errors.Join(client.Close(), server.Close())
	<-ended
}

// watch probes the backend for ever. After two probes without an answer it gets no connections, and its connections
// end.
func (b *backend) watch(probe string) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	for misses := 0; ; time.Sleep(500 * time.Millisecond) {
		if b.answers(&client, fmt.Sprintf(probe, b.address)) {
			misses = 0
			b.set(true)
			continue
		}
		if misses++; misses == 2 {
			b.set(false)
		}
	}
}

func (b *backend) answers(client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (b *backend) set(up bool) {
	if b.up.Swap(up) == up {
		return
	}
	fmt.Fprintln(os.Stderr, time.Now().UTC().Format(time.TimeOnly), b.address, map[bool]string{true: "up", false: "down"}[up])
	if up {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.sessions {
		_ = c.Close()
	}
}

// addresses of hosts, for a front.
func addresses(all []hosts.Host) (list []string) {
	for _, h := range all {
		list = append(list, h.Address)
	}
	return list
}
