package envtests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// A program stands for kkbundle and all hosts. It keeps what a host has, and refuses what would be wrong on real ones.
type program struct {
	mu     sync.Mutex
	hosts  map[string]*fakeHost // by address
	source map[string]func() ([]byte, error)
	calls  []call
	faults []string // what never may happen
}

type fakeHost struct {
	has     string // the owner that it was provisioned for; "" if it is clean
	others  bool   // has is the mark of another management cluster
	busy    bool
	runs    int // of provision
	resets  int
	updates []string                                                         // versions, each of a run that has succeeded
	written string                                                           // the files of the last one
	on      func(ctx context.Context, h *fakeHost, verb, phase string) error // what a test wants to happen before a phase
	learned string                                                           // host key
}

type call struct {
	args  []string
	verb  string
	host  string // address
	files map[string]string
}

func newProgram() *program {
	return &program{hosts: map[string]*fakeHost{}, source: map[string]func() ([]byte, error){}}
}

func (p *program) host(address string) *fakeHost {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.hosts[address]
	if !ok {
		h = &fakeHost{}
		p.hosts[address] = h
	}
	return h
}

// with reads or changes a host.
func (p *program) with(address string, do func(h *fakeHost)) {
	h := p.host(address)
	p.mu.Lock()
	defer p.mu.Unlock()
	do(h)
}

func (p *program) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

func (p *program) dump() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for a, h := range p.hosts {
		fmt.Fprintf(&b, "%s has %q, %d runs, %d resets\n", a, h.has, h.runs, h.resets)
	}
	return b.String() + strings.Join(p.faults, "\n")
}

// Run implements hosts.Runner.
func (p *program) Run(ctx context.Context, c hosts.Call) ([]byte, error) {
	one := call{args: c.Args, verb: c.Args[0], files: map[string]string{}}
	switch one.verb {
	case "inspect":
		p.mu.Lock()
		answer := p.source[c.Args[len(c.Args)-1]]
		p.mu.Unlock()
		if answer == nil {
			return nil, &hosts.Failure{Code: 15, Message: "registry.site: no such bundle", Hint: "check the address"}
		}
		return answer()
	case "pull":
		out := c.Args[slices.Index(c.Args, "--output")+1]
		return []byte(`{"digest":"` + digest + `"}`), os.WriteFile(out, nil, 0o600)
	}
	dir := filepath.Dir(c.Args[slices.Index(c.Args, "--inventory")+1])
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		one.files[e.Name()] = string(data)
	}
	var inventory struct {
		Hosts  map[string]struct{ Address string }
		Groups map[string][]string
	}
	if err := yaml.Unmarshal([]byte(one.files["inventory.yaml"]), &inventory); err != nil {
		return nil, err
	}
	node := inventory.Groups["kube_control_plane"][0]
	one.host = inventory.Hosts[node].Address
	h := p.host(one.host)
	p.mu.Lock()
	p.calls = append(p.calls, one)
	if h.busy {
		p.mu.Unlock()
		return nil, &hosts.Failure{Code: 17, Message: node + ": locked by another run", Hint: "wait until it has ended"}
	}
	h.busy = true
	learned := h.learned
	p.mu.Unlock()
	defer p.with(one.host, func(h *fakeHost) { h.busy = false })
	if learned != "" && slices.Contains(c.Args, "--accept-new") {
		if err := os.WriteFile(filepath.Join(dir, "known_hosts"), []byte(one.files["known_hosts"]+learned), 0o600); err != nil {
			return nil, err
		}
	}
	switch one.verb {
	case "reset":
		return nil, p.reset(ctx, h, c)
	case "upgrade-machine":
		return nil, p.update(ctx, h, c, node)
	}
	return nil, p.provision(ctx, h, c, node)
}

// owned returns the owner that a run is for. kkbundle refuses a host that has another one; one manager gives no reason for that.
func (p *program) owned(h *fakeHost, c hosts.Call, node string) (string, error) {
	want := c.Args[slices.Index(c.Args, "--owner")+1]
	if h.has != "" && h.has != want {
		if !h.others {
			p.fault("%s of %q is for %s while the host has %s", c.Args[0], node, want, h.has)
		}
		return want, &hosts.Failure{Code: 12, Message: fmt.Sprintf("%s belongs to machine %s of Cluster API, and not to %s", node, h.has, want), Hint: "nothing was touched"}
	}
	return want, nil
}

func (p *program) reset(ctx context.Context, h *fakeHost, c hosts.Call) error {
	p.mu.Lock()
	_, refused := p.owned(h, c, c.Args[slices.Index(c.Args, "--limit")+1])
	if refused != nil {
		p.mu.Unlock()
		return refused
	}
	h.resets++
	on := h.on
	p.mu.Unlock()
	if on != nil {
		if err := on(ctx, h, "reset", ""); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h.has = ""
	return nil
}

func (p *program) provision(ctx context.Context, h *fakeHost, c hosts.Call, node string) error {
	p.mu.Lock()
	h.runs++
	want, refused := p.owned(h, c, node)
	if cluster := "metadata.name=" + strings.Split(want, "/")[1]; !slices.Contains(c.Args, cluster) || !strings.HasSuffix(want, "/"+node) {
		p.fault("%s: the owner is not that of %q", want, c.Args)
	}
	if refused != nil {
		p.mu.Unlock()
		return refused
	}
	on := h.on
	p.mu.Unlock()
	for _, phase := range hosts.Phases() {
		c.Progress(hosts.Event{Event: "task", Phase: phase, State: "begun"})
		if on != nil {
			if err := on(ctx, h, "provision", phase); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.mu.Lock()
		h.has = want
		p.mu.Unlock()
	}
	return nil
}

// digest is that of all bundles.
const digest = "sha256:abababababababababababababababababababababababababababababababab"

// bundle makes a bundle with these versions known.
func (p *program) bundle(source string, versions ...string) {
	items := []map[string]string{{"kind": "manifest", "name": "cluster.yaml"}}
	for _, v := range versions {
		items = append(items, map[string]string{"kind": "image", "name": "registry.k8s.io/kube-apiserver:" + v})
	}
	out, err := json.Marshal(map[string]any{"version": 1, "name": "site", "bundleVersion": "1.4.0", "digest": digest, "items": items})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source[source] = func() ([]byte, error) { return out, err }
}

// failing returns what makes a phase fail.
func failing(phase string, code int, message, hint string) func(context.Context, *fakeHost, string, string) error {
	return func(_ context.Context, _ *fakeHost, verb, at string) error {
		if verb == "provision" && at == phase || verb == phase {
			return &hosts.Failure{Code: code, Message: message, Hint: hint}
		}
		return nil
	}
}

// nodes stands for the workload clusters.
type nodes struct {
	mu  sync.Mutex
	err error
	ids map[string]string
	// said is what was done to nodes that are updated, and on what a test wants to happen before.
	said []string
	on   func(ctx context.Context, part string) error
}

func (n *nodes) Identify(_ context.Context, _ types.NamespacedName, node controllers.Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return n.err
	}
	if n.ids == nil {
		n.ids = map[string]string{}
	}
	n.ids[node.Name] = node.ProviderID
	return nil
}

var _ controllers.Nodes = &nodes{}
