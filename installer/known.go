package installer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// input is what checks look at apart from the hosts. What the bundle lacks is part of a precheck's report, and ends an
// installation, which would run into it.
func (r *run) input(ctx context.Context) (precheck.Input, error) {
	var missing []string
	err := r.checkBundle(ctx)
	if err != nil && r.verb.visits {
		missing, err = sentences(err), nil
	}
	return precheck.Input{
		Cluster: r.cluster, Inventory: r.options.Inventory, Install: r.Bundle != nil, Upgrade: r.rule == OtherVersion, Missing: missing,
		Architectures: r.architectures(), Packages: r.distributions(), Etcd: r.providedEtcd(ctx),
		PackagesOf: r.packages.on,
	}, errors.Join(r.checkHooks(), err)
}

// sentences takes joined errors apart.
func sentences(err error) []string {
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	var list []string
	for _, one := range all.Unwrap() {
		list = append(list, sentences(one)...)
	}
	return list
}

// distributions are those that the bundle has packages for, sorted.
func (r *Site) distributions() []string {
	var list []string
	for _, it := range r.items {
		if distribution, ok := manifest.PackageDistribution(it.Ref); ok {
			list = append(list, distribution)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// rolePackages knows the packages that hosts need. What is the same for many hosts is worked out once.
type rolePackages struct {
	cluster *manifest.Cluster
	wanted  bool // there is a bundle with packages
	names   func(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error)

	mu    sync.Mutex
	known map[string][]string
}

func newRolePackages(
	c *manifest.Cluster, wanted bool, names func(*manifest.Cluster, []manifest.Role, string) ([]string, error),
) *rolePackages {
	return &rolePackages{cluster: c, wanted: wanted, names: names, known: map[string][]string{}}
}

// of returns the names that hosts with these roles are asked for, as all families of distributions have them: which one
// a host is of it says in the same answer. There are none if that does not matter.
func (p *rolePackages) of(roles []manifest.Role) []string {
	if !p.wanted {
		return nil
	}
	return p.ofAny(roles)
}

// ofAny returns them whether there is a bundle with packages or not.
func (p *rolePackages) ofAny(roles []manifest.Role) []string {
	var list []string
	for _, one := range []string{"debian", "rhel"} {
		names, _ := p.on(roles, one) // who has no names is not asked
		list = append(list, names...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// on is PackagesOf for the cluster.
func (p *rolePackages) on(roles []manifest.Role, distribution string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := fmt.Sprint(roles, distribution)
	if list, ok := p.known[key]; ok {
		return list, nil
	}
	list, err := p.names(p.cluster, roles, distribution)
	if err == nil {
		p.known[key] = list
	}
	return list, err
}

// providedEtcd looks at the files for an etcd of the user's and asks it for its version, from this machine. It is nil
// where the cluster has its own.
func (r *run) providedEtcd(ctx context.Context) *precheck.ProvidedEtcd {
	e := r.cluster.Etcd
	if e.Type != manifest.EtcdProvided || r.Values == nil {
		return nil
	}
	known := &precheck.ProvidedEtcd{Now: r.Now()}
	var key []byte
	for _, file := range []struct {
		path string
		into *[]byte
	}{{e.CA, &known.CA}, {e.Cert, &known.Cert}, {e.Key, &key}} {
		data, err := r.Values(file.path)
		if err != nil {
			known.Problem = err.Error()
			return known
		}
		*file.into = data
	}
	pair, err := tls.X509KeyPair(known.Cert, key)
	if err != nil {
		known.Problem = fmt.Sprintf("%s with %s: %s", e.Cert, e.Key, err)
		return known
	}
	roots := x509.NewCertPool()
	if roots.AppendCertsFromPEM(known.CA) && r.options.Recorded == nil {
		known.Versions = etcdVersions(ctx, e, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}})
	}
	return known
}

// etcdVersions asks all endpoints at once.
func etcdVersions(ctx context.Context, e manifest.Etcd, config *tls.Config) []precheck.EtcdVersion {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	list := make([]precheck.EtcdVersion, len(e.Endpoints))
	var all sync.WaitGroup
	for i, endpoint := range e.Endpoints {
		all.Go(func() {
			list[i].Endpoint = endpoint
			version, err := etcdVersion(ctx, client, endpoint)
			if list[i].Version = version; err != nil {
				list[i].Problem = err.Error()
			}
		})
	}
	all.Wait()
	return list
}

func etcdVersion(ctx context.Context, client *http.Client, endpoint string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(endpoint, "/")+"/version", nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	var says struct {
		Server string `json:"etcdserver"`
	}
	const most = 64 << 10
	if err := json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&says); err != nil || says.Server == "" {
		return "", fmt.Errorf("it does not say its version (%s)", answer.Status)
	}
	return says.Server, nil
}
