package harbor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// A Remote is another Harbor to which this one replicates every push.
type Remote struct {
	Name     string // of the registry and the replication policy
	URL      string // https://HOST
	Username string
	Password string
	CA       string // PEM, the authority of its certificate
}

type credential struct {
	Type   string `json:"type,omitempty"`
	Key    string `json:"access_key"`
	Secret string `json:"access_secret,omitempty"`
}

type remoteRegistry struct {
	ID         int64      `json:"id,omitempty"`
	Name       string     `json:"name"`
	URL        string     `json:"url"`
	Type       string     `json:"type"`
	Insecure   bool       `json:"insecure"`
	CA         string     `json:"ca_certificate,omitempty"`
	Credential credential `json:"credential"`
}

type idOf struct {
	ID int64 `json:"id"`
}

type trigger struct {
	Type string `json:"type"`
}

// A policy names its deletions as Harbor 2.9 to 2.15 read them: they ignore the name replicate_deletion in requests
// (src/server/v2.0/handler/replication.go), and answer with both.
type policy struct {
	ID       int64   `json:"id,omitempty"`
	Name     string  `json:"name"`
	To       idOf    `json:"dest_registry"`
	Trigger  trigger `json:"trigger"`
	Deletion bool    `json:"deletion"`
	Override bool    `json:"override"`
	Enabled  bool    `json:"enabled"`
}

// Copies reports whether every push is replicated to another Harbor. Harbor does not reveal the password it uses.
func (c *Client) Copies(ctx context.Context, to Remote) (bool, error) {
	registry, err := c.findRemote(ctx, to.Name)
	if err != nil || registry == nil || !registry.leadsTo(to) {
		return false, err
	}
	found, err := c.findPolicy(ctx, to.Name)
	return err == nil && found != nil && *found == wantedPolicy(found.ID, to.Name, registry.ID), err
}

// leadsTo compares Harbor's record of a registry. Versions without support for authorities list none.
func (r *remoteRegistry) leadsTo(to Remote) bool {
	return r.URL == to.URL && r.Credential.Key == to.Username &&
		(r.CA == "" || strings.TrimSpace(r.CA) == strings.TrimSpace(to.CA))
}

// wantedPolicy replicates no deletions. Two Harbors would replicate each deletion to each other in turn, and delete on
// both what was pushed a second after it (seen with Harbor v2.14.2).
func wantedPolicy(id int64, name string, to int64) policy {
	return policy{ID: id, Name: name, To: idOf{to}, Trigger: trigger{"event_based"}, Override: true, Enabled: true}
}

// Missed reports whether a replication to another Harbor failed, as while that one is away, and everything was not
// replicated since. Harbor does not repeat it.
func (c *Client) Missed(ctx context.Context, to Remote) (bool, error) {
	found, err := c.findPolicy(ctx, to.Name)
	if err != nil || found == nil {
		return false, err
	}
	return c.missed(ctx, found.ID)
}

// missed compares the numbers of executions, which grow.
func (c *Client) missed(ctx context.Context, policy int64) (bool, error) {
	failed, err := c.newest(ctx, policy, "status", "Failed")
	if err != nil || failed == 0 {
		return false, err
	}
	whole, err := c.newest(ctx, policy, "trigger", "manual")
	return failed >= whole, err // equal: that of everything failed
}

// newest returns the number of a policy's newest execution with that value, 0 if there is none.
func (c *Client) newest(ctx context.Context, policy int64, key, value string) (int64, error) {
	var list []idOf
	err := c.do(ctx, call{
		op: "look for replications", method: http.MethodGet, path: "/replication/executions",
		query: url.Values{
			"policy_id": {strconv.FormatInt(policy, 10)}, key: {value}, "page": {"1"}, "page_size": {"1"},
			"sort": {"-start_time"},
		},
	}, &list)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return list[0].ID, nil
}

// copyMissed begins a replication of everything if one was missed, and does not wait for it.
func (c *Client) copyMissed(ctx context.Context, policy int64) error {
	missed, err := c.missed(ctx, policy)
	if err != nil || !missed {
		return err
	}
	body := struct {
		Policy int64 `json:"policy_id"`
	}{policy}
	return c.do(ctx, call{
		op: "replicate everything", method: http.MethodPost, path: "/replication/executions", body: body,
		want: http.StatusCreated,
	}, nil)
}

// CopyTo makes this Harbor replicate every push to another one, and what was missed.
func (c *Client) CopyTo(ctx context.Context, to Remote) error {
	if err := c.putRemote(ctx, to); hasStatus(err, http.StatusInternalServerError, http.StatusBadRequest) {
		return fmt.Errorf("%w: this Harbor must reach %s, trust its certificate and be let in", err, to.URL)
	} else if err != nil {
		return err
	}
	registry, err := c.findRemote(ctx, to.Name)
	if err != nil {
		return err
	}
	if registry == nil {
		return &Error{Op: "find registry " + to.Name, Status: http.StatusNotFound}
	}
	found, err := c.findPolicy(ctx, to.Name)
	if err != nil {
		return err
	}
	want := wantedPolicy(0, to.Name, registry.ID)
	op := "make replication policy " + to.Name
	if found == nil {
		return c.do(ctx, call{
			op: op, method: http.MethodPost, path: "/replication/policies", body: want,
			want: http.StatusCreated,
		}, nil)
	}
	want.ID = found.ID
	if err := c.do(ctx, call{op: op, method: http.MethodPut, path: "/replication/policies/" +
		strconv.FormatInt(found.ID, 10), body: want}, nil); err != nil {
		return err
	}
	return c.copyMissed(ctx, found.ID)
}

// putRemote registers the other Harbor, or updates its address and login.
func (c *Client) putRemote(ctx context.Context, to Remote) error {
	found, err := c.findRemote(ctx, to.Name)
	if err != nil {
		return err
	}
	op := "make registry " + to.Name + " known"
	if found == nil {
		body := remoteRegistry{
			Name: to.Name, URL: to.URL, Type: "harbor", CA: to.CA,
			Credential: credential{Type: "basic", Key: to.Username, Secret: to.Password},
		}
		return c.do(ctx, call{
			op: op, method: http.MethodPost, path: "/registries", body: body,
			want: http.StatusCreated,
		}, nil)
	}
	body := struct {
		URL      string `json:"url"`
		Type     string `json:"credential_type"`
		Key      string `json:"access_key"`
		Secret   string `json:"access_secret"`
		Insecure bool   `json:"insecure"`
		CA       string `json:"ca_certificate,omitempty"`
	}{URL: to.URL, Type: "basic", Key: to.Username, Secret: to.Password, CA: to.CA}
	return c.do(ctx, call{
		op: op, method: http.MethodPut, path: "/registries/" + strconv.FormatInt(found.ID, 10),
		body: body,
	}, nil)
}

func (c *Client) findRemote(ctx context.Context, name string) (*remoteRegistry, error) {
	q := call{op: "look for registry " + name, method: http.MethodGet, path: "/registries"}
	return find(ctx, c, q, func(r remoteRegistry) bool { return r.Name == name })
}

func (c *Client) findPolicy(ctx context.Context, name string) (*policy, error) {
	q := call{op: "look for replication policy " + name, method: http.MethodGet, path: "/replication/policies"}
	return find(ctx, c, q, func(p policy) bool { return p.Name == name })
}

// find returns the first entry of a list that fits, or nil.
func find[T any](ctx context.Context, c *Client, q call, fits func(T) bool) (found *T, err error) {
	err = pages(ctx, c, q, func(one T) bool {
		if fits(one) {
			found = &one
		}
		return found == nil
	})
	return found, err
}
