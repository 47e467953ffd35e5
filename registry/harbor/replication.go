package harbor

import (
	"context"
	"net/http"
	"strconv"
	"strings"
)

// A Remote is another Harbor to which this one replicates every push and deletion.
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

// A policy has its deletions under two names: Harbor 2.9 to 2.15 take the deprecated one and ignore the other in
// requests (src/server/v2.0/handler/replication.go), and answer with both.
type policy struct {
	ID        int64   `json:"id,omitempty"`
	Name      string  `json:"name"`
	To        idOf    `json:"dest_registry"`
	Trigger   trigger `json:"trigger"`
	Deletion  bool    `json:"deletion"`
	Deletions bool    `json:"replicate_deletion"`
	Override  bool    `json:"override"`
	Enabled   bool    `json:"enabled"`
}

// Copies reports whether everything is replicated to another Harbor. Harbor does not reveal the password it uses.
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

func wantedPolicy(id int64, name string, to int64) policy {
	return policy{
		ID: id, Name: name, To: idOf{to}, Trigger: trigger{"event_based"}, Deletion: true, Deletions: true,
		Override: true, Enabled: true,
	}
}

// CopyTo makes this Harbor replicate every push to another one.
func (c *Client) CopyTo(ctx context.Context, to Remote) error {
	if err := c.putRemote(ctx, to); err != nil {
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
	return c.do(ctx, call{op: op, method: http.MethodPut, path: "/replication/policies/" +
		strconv.FormatInt(found.ID, 10), body: want}, nil)
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
