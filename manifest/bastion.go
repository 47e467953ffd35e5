package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const (
	// maxHops bounds the SSH servers on the path to a host; each costs a handshake through all before it.
	maxHops = 8
	// noBastion is the keyword of ssh's ProxyJump.
	noBastion = "none"
)

// hop is one written hop of a bastion.
type hop struct {
	user, host string
	port       int
}

// parseBastion reads [user@]host[:port],… or none.
func parseBastion(s string) ([]hop, error) {
	if s == "" || s == noBastion {
		return nil, nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > maxHops {
		return nil, fmt.Errorf("%d hops; at most %d", len(parts), maxHops)
	}
	hops := make([]hop, len(parts))
	for i, part := range parts {
		part = strings.TrimSpace(part)
		h := &hops[i]
		if at := strings.LastIndexByte(part, '@'); at >= 0 {
			h.user, part = part[:at], part[at+1:]
			if strings.Contains(h.user, ":") {
				return nil, errors.New("has a colon before the @; passwords do not belong here: make the hop a host of the inventory, with passwordEnv or passwordFile under ssh")
			}
			if !isUser(h.user) {
				return nil, fmt.Errorf("%q is not a user name", document.Shorten(h.user))
			}
		}
		var err error
		if h.host, h.port, err = scalar.SplitHostPort(part); err != nil {
			return nil, fmt.Errorf("%w; write [user@]host[:port], several with commas between, or none", err)
		}
	}
	return hops, nil
}

func isUser(s string) bool {
	return s != "" && !strings.ContainsAny(s, " :@/") && !strings.HasPrefix(s, "-")
}

// ways finds the hops to each host.
type ways struct{ hosts map[string]*Host }

func newWays(list []Host) *ways {
	w := &ways{make(map[string]*Host, len(list))}
	for i := range list {
		w.hosts[list[i].Name] = &list[i]
	}
	return w
}

// to returns the hops to a host.
func (w *ways) to(h *Host) ([]Hop, error) { return w.through(h, nil) }

// through is to for a host that is itself a hop of the hosts named in behind.
func (w *ways) through(h *Host, behind []string) ([]Hop, error) {
	if h.Local {
		return nil, nil
	}
	behind = append(behind, h.Name)
	if len(behind) > maxHops+1 {
		return nil, fmt.Errorf("more than %d hops (%s)", maxHops, strings.Join(behind, " through "))
	}
	written, err := parseBastion(h.SSH.Bastion)
	if err != nil {
		return nil, err
	}
	var way []Hop
	for i, one := range written {
		if one.host == h.Name && !h.ownBastion {
			// The common bastion of all hosts applies to its own hops only up to themselves.
			return way, nil
		}
		if index := slices.Index(behind, one.host); index >= 0 {
			return nil, fmt.Errorf("the way leads in a circle: %s through %s; write bastion: none for the host that is reached directly",
				strings.Join(behind[index:], " through "), one.host)
		}
		next, known := w.hosts[one.host]
		switch {
		case known && next.Local:
			return nil, fmt.Errorf("%s is the machine that kkbundle runs on; leave it out", one.host)
		case known && i == 0:
			if way, err = w.through(next, behind); err != nil {
				return nil, err
			}
		}
		way = append(way, one.resolve(next, h.inherited))
	}
	if len(way) > maxHops {
		return nil, fmt.Errorf("more than %d hops", maxHops)
	}
	return way, nil
}

// resolve adds the hop's settings: those of its host in the inventory, or vars and port 22.
func (o hop) resolve(h *Host, vars SSH) Hop {
	r := Hop{Name: o.host, Address: o.host, SSH: vars}
	r.SSH.Port = 0
	if h != nil {
		r.Address, r.SSH = h.Address, h.SSH
	}
	r.SSH.Bastion = ""
	r.SSH.User = orDefault(orDefault(o.user, r.SSH.User), defaultUser)
	r.SSH.Port = orDefault(orDefault(o.port, r.SSH.Port), defaultSSHPort)
	return r
}
