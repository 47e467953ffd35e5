package begin

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// links tries the links between hosts that their roles need. On every host the helper listens for a moment on the free
// ports, and the others dial. Hosts do so in groups, each with the hosts that all need; other links are not tried.
func links(ctx context.Context, r *engine.Run, hosts []precheck.Host, targets []*task.Host) []precheck.Link {
	const perHost = 5 // hosts mostly wait
	links := precheck.Links(r.Cluster, hosts)
	names := make([]string, 0, len(targets))
	shared := map[string]bool{}
	for _, t := range targets {
		names = append(names, t.Name)
		shared[t.Name] = t.Is(manifest.RoleControlPlane) || t.Is(manifest.RoleEtcd) || t.Is(manifest.RoleRegistry) ||
			t.Is(manifest.RoleNFS)
	}
	done := make([]precheck.Link, 0, len(links))
	for _, group := range groups(names, shared, perHost*r.Parallel) {
		var now, later []precheck.Link
		for _, l := range links {
			if group[l.From] && group[l.To] {
				now = append(now, l)
			} else {
				later = append(later, l)
			}
		}
		links = later
		if ctx.Err() == nil && len(now) > 0 {
			a := &attempt{run: r, links: now, token: node.NewToken()}
			a.try(ctx, targets)
			done = append(done, now...)
		}
	}
	return done
}

// groups divides hosts into groups of about size. Neighbours share a group; the shared hosts are in all groups.
func groups(names []string, shared map[string]bool, size int) []map[string]bool {
	const overlap = 2 // the distance of peers in precheck.Links
	var others []string
	for _, name := range names {
		if !shared[name] {
			others = append(others, name)
		}
	}
	var list []map[string]bool
	for begin := 0; begin == 0 || begin+overlap < len(others); begin += max(size-overlap, 1) {
		group := map[string]bool{}
		for _, name := range names {
			group[name] = shared[name]
		}
		for _, name := range others[begin:min(begin+size, len(others))] {
			group[name] = true
		}
		list = append(list, group)
	}
	return list
}

// An attempt tries some links at one time.
type attempt struct {
	run   *engine.Run
	links []precheck.Link
	token string
}

// attemptTime bounds an attempt: a helper that hangs must not block the others for longer.
const attemptTime = 45 * time.Second

// try fills in the results of the links.
func (a *attempt) try(ctx context.Context, targets []*task.Host) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	to, from := map[string][]*precheck.Link{}, map[string][]*precheck.Link{}
	for i := range a.links {
		l := &a.links[i]
		to[l.To], from[l.From] = append(to[l.To], l), append(from[l.From], l)
	}
	listeners := make([]*host.Stream, len(targets))
	_ = a.run.OnAll(targets, func(i int, t *task.Host) error {
		if len(to[t.Name]) > 0 {
			listeners[i] = a.listen(ctx, t, to[t.Name])
		}
		return nil
	})
	_ = a.run.OnAll(targets, func(_ int, t *task.Host) error {
		if len(from[t.Name]) > 0 {
			a.reach(ctx, t, from[t.Name])
		}
		return nil
	})
	_ = a.run.OnAll(targets, func(i int, t *task.Host) error {
		if listeners[i] != nil {
			_ = listeners[i].Close() // the results are known
		}
		if len(to[t.Name])+len(from[t.Name]) > 0 {
			a.run.CloseIdle(t)
		}
		return nil
	})
}

// listen starts to listen on a host for all links to it.
func (a *attempt) listen(ctx context.Context, t *task.Host, links []*precheck.Link) *host.Stream {
	address, err := netip.ParseAddr(links[0].Address)
	question := node.Listen{Token: a.token, Address: address}
	place := map[node.ListenPort]int{}
	for _, l := range links {
		p := node.ListenPort{Network: l.Network, Port: l.Port}
		if _, ok := place[p]; !ok {
			place[p] = len(question.Ports)
			question.Ports = append(question.Ports, p)
		}
	}
	stream := t.Helper(ctx, "listen")
	var answer node.Listening
	if err == nil {
		answer, err = node.AskListen(stream, question)
	}
	for _, l := range links {
		if err != nil {
			l.Skipped = fmt.Sprintf("%s could not listen: %v", t.Name, err)
			continue
		}
		state := answer.Ports[place[node.ListenPort{Network: l.Network, Port: l.Port}]]
		switch {
		case state.Taken && l.Network == "udp":
			l.Skipped, l.Service = fmt.Sprintf("%s uses the port already", t.Name), true
		case state.Taken:
			l.Service = true
		case state.Problem != "":
			l.Skipped = fmt.Sprintf("%s could not listen: %s", t.Name, state.Problem)
		}
	}
	return stream
}

func (a *attempt) reach(ctx context.Context, t *task.Host, links []*precheck.Link) {
	question := node.Reach{Token: a.token}
	var asked []*precheck.Link
	sized := map[string]int{} // for each other host, the index in asked of the link that measures the MTU
	for _, l := range links {
		if l.Skipped != "" {
			continue
		}
		address, err := netip.ParseAddr(l.Address)
		if err != nil {
			continue // never: the address was valid when written
		}
		if at, ok := sized[l.To]; !ok || (l.Network == "udp" && asked[at].Network != "udp") {
			sized[l.To] = len(asked)
		}
		asked = append(asked, l)
		question.Targets = append(question.Targets, node.ReachTarget{
			Address: address, ListenPort: node.ListenPort{Network: l.Network, Port: l.Port}, Service: l.Service,
		})
	}
	for _, at := range sized {
		question.Targets[at].MTU = true
	}
	if len(asked) == 0 {
		return
	}
	stream := t.Helper(ctx, "reach")
	answer, err := node.AskReach(stream, question)
	_ = stream.Close() // err reports more
	for i, l := range asked {
		if err != nil {
			l.Skipped = fmt.Sprintf("%s could not dial: %v", t.Name, err)
			continue
		}
		got := answer.Targets[i]
		l.OK, l.Error, l.MTU, l.Want = got.OK, got.Problem, got.MTU, got.Want
	}
}
