package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/service"
)

const (
	registryUnit   = "kkbundle-registry.service"
	registryBinary = "/usr/local/lib/kkbundle/registry"
	registryData   = stateDir + "/registry"
	registryDir    = configDir + "/registry"
	// registryConfigFile configures the registry program.
	registryConfigFile = registryDir + "/config.yaml"
	registryUser       = "kkbundle" // that clients log in as
	// registryAccount is the system's user that the registry runs as.
	registryAccount = "kkbundle-cluster-registry"
	// registryStart is how long the registry may take to answer after its unit was started.
	registryStart = 30 * time.Second
)

// certificatesTask makes, on this machine, what the registry and the hosts trust each other by.
func certificatesTask() Task {
	return Task{
		Name:  "certificates",
		Where: Here,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			has := t.run.hasSecrets()
			if !has {
				because(ctx, "the work directory lacks the registry's certificate or password, or they end soon")
			}
			return has, nil
		},
		Do: func(ctx context.Context, t *Target) error {
			if err := t.run.mayRenew(ctx); err != nil {
				return err
			}
			_, err := t.run.secrets()
			return err
		},
	}
}

// mayRenew refuses new credentials for a registry that hosts use which a limited run would not give them to.
func (r *Site) mayRenew(ctx context.Context) error {
	if r.scope.Whole() {
		return nil
	}
	used := false
	for _, t := range r.connected(manifest.RoleRegistry) {
		there, err := t.test(ctx, "test", "-e", registryDir)
		if err != nil {
			return err
		}
		used = used || there
	}
	if !used {
		return nil
	}
	return errors.New("the work directory lacks the registry's credentials (is it the right one?), and all hosts need the new ones: run without --limit")
}

// plainRegistry is a CNCF distribution registry that install sets up.
func plainRegistry(c *manifest.Cluster) siteRegistry {
	login := func(s registrySecrets) registryLogin { return registryLogin{registryUser, s.password} }
	return siteRegistry{
		unit: registryUnit, start: registryStart, data: registryData, port: c.ImageRegistry.Port,
		files:   []string{registryPassFile, registryHashFile, registrySecretFile},
		tasks:   func(*manifest.Cluster) []Task { return []Task{registryTask(), seedTask()} },
		secrets: plainSecrets, puller: login, pusher: login,
	}
}

// existingRegistry is a registry of the user's.
func existingRegistry() siteRegistry {
	return siteRegistry{tasks: func(*manifest.Cluster) []Task { return []Task{existingRegistryTask()} }}
}

// registrySecrets are what the registry is set up with.
type registrySecrets struct {
	ca, cert, key []byte
	password      string
	htpasswd      []byte
	httpSecret    string
	// of Harbor alone: its administrator's password, its database's, and that of the account that hosts pull with
	harborAdmin, harborDatabase, harborRobot string
}

func (r *Site) hasSecrets() bool {
	for _, name := range append(siteRegistryOf(r.cluster).files, caCertFile, registryCertFile) {
		if _, err := r.dir.read(name); err != nil {
			return false
		}
	}
	authority, err := loadAuthority(r.dir, r.Now())
	if err != nil {
		return false
	}
	pair, err := r.dir.readPair(registryPair())
	return err == nil && authority.Fits(pair, r.registryNames(), r.Now(), renewBefore)
}

// registryNames are what the registry's certificate is for.
func (r *Site) registryNames() pki.Names {
	var n pki.Names
	for _, t := range r.registryHosts() {
		n.Hosts = append(n.Hosts, t.Name)
		n.Addresses = append(n.Addresses, t.IP)
	}
	if vip, err := netip.ParseAddr(r.cluster.ImageRegistry.VIP); err == nil {
		n.Addresses = append(n.Addresses, vip)
	}
	n.Hosts = append(n.Hosts, "localhost")
	n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	return n
}

// secrets returns the registry's secrets, from the work directory where it has them.
func (r *Site) secrets() (registrySecrets, error) {
	r.dir.making.Lock()
	defer r.dir.making.Unlock()
	authority, err := loadAuthority(r.dir, r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	pair, err := r.dir.pair(registryPair(), authority, pki.Server, r.registryNames(), r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	s := registrySecrets{ca: authority.PEM, cert: pair.Cert, key: pair.Key}
	err = siteRegistryOf(r.cluster).secrets(r, &s)
	return s, err
}

// plainSecrets adds the secrets that the registry is set up with.
func plainSecrets(r *Site, s *registrySecrets) (err error) {
	if s.password, err = r.dir.secret(registryPassFile); err != nil {
		return err
	}
	if s.httpSecret, err = r.dir.secret(registrySecretFile); err != nil {
		return err
	}
	r.mask.hide(s.password)
	r.mask.hide(s.httpSecret)
	r.mask.hide(registryUser + ":" + s.password)
	s.htpasswd, err = r.htpasswd(s.password)
	return err
}

// htpasswd returns the registry's password file: the one in the work directory while it fits the password, else a new one.
func (r *Site) htpasswd(password string) ([]byte, error) {
	data, err := r.dir.read(registryHashFile)
	if err == nil {
		_, hash, _ := strings.Cut(strings.TrimSpace(string(data)), ":")
		if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil {
			return data, nil
		}
	}
	if data, err = service.Htpasswd(registryUser, []byte(password)); err != nil {
		return nil, err
	}
	return data, r.dir.write(registryHashFile, data)
}

// nodeAccess says how hosts reach the registry.
func (r *Site) nodeAccess() (registryAccess, error) {
	if r.cluster.ImageRegistry.Type == manifest.RegistryExisting {
		return r.existingAccess()
	}
	s, err := r.secrets()
	if err != nil {
		return registryAccess{}, err
	}
	return registryAccess{
		address:       r.registryAddress(r.sharedAddress()),
		ca:            s.ca,
		registryLogin: siteRegistryOf(r.cluster).puller(s),
	}, nil
}

// existingAccess is for a registry of the site's own.
func (r *Site) existingAccess() (a registryAccess, err error) {
	a.address, a.prefix, _ = strings.Cut(r.cluster.ImageRegistry.Address, "/")
	if file := r.cluster.ImageRegistry.CA; file != "" {
		if a.ca, err = r.Values(file); err != nil {
			return a, fmt.Errorf("imageRegistry.ca: %w", err)
		}
	}
	auth := r.cluster.ImageRegistry.Auth
	if auth == nil || r.RegistryPassword == nil {
		return a, nil
	}
	if a.password, err = r.RegistryPassword(); err != nil {
		return a, fmt.Errorf("imageRegistry.auth: %w", err)
	}
	a.username = auth.Username
	r.mask.hide(a.password)
	r.mask.hide(strings.TrimPrefix(a.authorization(), "Basic "))
	return a, nil
}

// existingRegistryTask checks that a registry of the site's own has what kkbundle push puts there.
func existingRegistryTask() Task {
	return Task{
		Name:  "existing-registry",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Do: func(ctx context.Context, t *Target) error {
			address := t.run.cluster.ImageRegistry.Address
			ok, err := t.seeded(ctx)
			if err != nil {
				return fmt.Errorf("registry %s: %w", address, err)
			}
			if !ok {
				return fmt.Errorf("registry %s lacks images of the bundle: put them there with kkbundle push --registry %s", address, address)
			}
			return nil
		},
	}
}

// registryTask installs the CNCF distribution registry as a service of systemd.
func registryTask() Task {
	return settle(Task{
		Name:  "registry",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Files: []Place{{"registry", "registry", registryBinary, 0o755}},
	}, func(_ context.Context, t *Target) (setting, error) {
		s, err := t.run.secrets()
		if err != nil {
			return setting{}, err
		}
		access, err := t.ownRegistry()
		if err != nil {
			return setting{}, err
		}
		listen := access.address
		if t.run.isPair() { // it answers at the address that both share, too
			listen = ":" + strconv.Itoa(t.run.cluster.ImageRegistry.Port)
		}
		config, err := registryConfig(listen, s.httpSecret)
		if err != nil {
			return setting{}, err
		}
		spec := registrySpec(listen)
		return setting{
			files: []textFile{
				{registryConfigFile, 0o640, config},
				{registryDir + "/htpasswd", 0o640, s.htpasswd},
				{registryDir + "/tls.crt", 0o644, s.cert},
				{registryDir + "/tls.key", 0o640, s.key},
				{spec.UserFile, 0o644, spec.UserText()},
				{unitDir + registryUnit, 0o644, spec.UnitText()},
			},
			apply: func(ctx context.Context, t *Target) error {
				for _, args := range spec.Prepare() {
					if err := t.command(ctx, args...); err != nil {
						return err
					}
				}
				return nil
			},
			units: []string{registryUnit},
			ready: func(ctx context.Context, t *Target) error { return t.registryAnswers(ctx, access) },
		}, nil
	})
}

// registrySpec is the service of the registry program on a registry host. Its user is another one than that of a registry that kkbundle
// registry install made on the same host: neither can read the other's key, and removing one leaves the other.
func registrySpec(listen string) service.Spec {
	return service.Spec{
		Mark: hostfile.Mark, Description: "Image registry of this cluster (CNCF distribution)",
		User: registryAccount, UserFile: registryDir + "/user.conf", Dir: registryData, Closed: stateDir,
		Readable: []string{registryConfigFile, registryDir + "/htpasswd", registryDir + "/tls.key"},
		Command:  []string{registryBinary, "serve", registryConfigFile}, Program: true, Listen: listen,
	}
}

// registryConfig is for distribution 3. Indexes are accepted although the platforms that the bundle is not for are
// missing from them: their digests stay what upstream made them.
// https://distribution.github.io/distribution/about/configuration/
func registryConfig(listen, httpSecret string) ([]byte, error) {
	return kube.Documents(document{
		"version": 0.1,
		"log":     document{"level": "info", "accesslog": document{"disabled": true}},
		"storage": document{
			"filesystem": document{"rootdirectory": registryData},
			"delete":     document{"enabled": true},
		},
		"http": document{
			"addr":   listen,
			"secret": httpSecret,
			"tls": document{
				"certificate": registryDir + "/tls.crt",
				"key":         registryDir + "/tls.key",
				"minimumtls":  "tls1.2",
			},
		},
		"auth":       document{"htpasswd": document{"realm": "kkbundle", "path": registryDir + "/htpasswd"}},
		"validation": document{"manifests": document{"indexes": document{"platforms": "none"}}},
	})
}

// registryAnswers waits until the registry lets us in.
func (t *Target) registryAnswers(ctx context.Context, access registryAccess) error {
	own := siteRegistryOf(t.run.cluster)
	err := eventually(ctx, own.start, func(ctx context.Context) error { return t.registryServes(ctx, access) })
	if err != nil {
		return t.withUnitLog(ctx, own.unit, err)
	}
	return nil
}

// registryServes asks, from the host, whether the registry lets us in.
func (t *Target) registryServes(ctx context.Context, access registryAccess) error {
	client, err := t.transport(access.ca)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	failed := func(err error) error { return fmt.Errorf("registry %s does not serve: %w", access.address, err) }
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+access.address+"/v2/", nil)
	if err != nil {
		return failed(err)
	}
	req.Header.Set("Authorization", access.authorization())
	resp, err := client.RoundTrip(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxFile))
	if resp.StatusCode != http.StatusOK {
		return failed(fmt.Errorf("it answers %s", resp.Status))
	}
	return nil
}

// eventually tries until there is no error or the time is over; then it returns the last error.
func eventually(ctx context.Context, most time.Duration, try func(ctx context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	const pause = 500 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for {
		err := try(limit)
		if err == nil || ctx.Err() != nil || errors.As(err, new(*host.UnreachableError)) {
			return err // a host that was lost is not connected to again
		}
		if last == nil || limit.Err() == nil { // one that was cut short says nothing
			last = err
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("%w (waited %s)", last, most)
		}
	}
}

const seedName = "seed-registry"

// seedTask copies the bundle's images and charts into the registry. Needs of images are declared by the tasks whose
// pods run them.
func seedTask() Task {
	return Task{
		Name:  seedName,
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if access, err := t.ownRegistry(); err != nil {
				return false, err
			} else if !t.run.DryRun {
				// After a start of the host the registry may be running and not serve yet.
				if err := t.registryAnswers(ctx, access); err != nil {
					return false, err
				}
			}
			return t.seeded(ctx)
		},
		Do: func(ctx context.Context, t *Target) error { return t.seed(ctx) },
	}
}

// isSeeded tells whether an item belongs into the registry. Files go to hosts over SSH.
func isSeeded(it bundle.Item) bool { return it.Kind == bundle.KindImage || it.Kind == bundle.KindChart }

func (t *Target) pushOptions() (registry.PushOptions, *http.Transport, error) {
	access, err := t.ownRegistry()
	if err != nil {
		return registry.PushOptions{}, nil, err
	}
	client, err := t.transport(access.ca)
	if err != nil {
		return registry.PushOptions{}, nil, err
	}
	auth := authn.Anonymous
	if access.username != "" {
		auth = authn.FromConfig(authn.AuthConfig{Username: access.username, Password: access.password})
	}
	o := registry.PushOptions{
		Registry:  path.Join(access.address, access.prefix),
		Select:    isSeeded,
		Auth:      login{auth},
		Transport: client,
		Jobs:      connections,
		Logger:    t.run.Logger,
		Progress: func(e registry.Event) {
			t.run.tell(Event{Phase: "install", Task: seedName, Host: t.Name, State: Progress, Bytes: e.Done, Total: e.Total})
		},
		Harbor: siteRegistryOf(t.run.cluster).projects,
	}
	return o, client, nil
}

// A login is one login for every registry.
type login struct{ authn.Authenticator }

// Resolve returns the login.
func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.Authenticator, nil }

func (t *Target) seed(ctx context.Context) error {
	o, client, err := t.pushOptions()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	_, err = registry.Push(ctx, t.run.Bundle, o)
	return err
}

// upstreams are the registries that the bundle's images come from, sorted.
func (r *Site) upstreams() []string {
	var hosts []string
	for _, it := range r.items {
		if it.Kind != bundle.KindImage {
			continue
		}
		if host, _, ok := strings.Cut(it.Ref, "/"); ok {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// seeded asks the registry for every image and chart. Before there is a registry, a dry run finds none.
func (t *Target) seeded(ctx context.Context) (bool, error) {
	o, client, err := t.pushOptions()
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	puller, err := remote.NewPuller(remote.WithTransport(client), remote.WithAuthFromKeychain(o.Auth))
	if err != nil {
		return false, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(connections)
	for _, it := range t.run.items {
		if !isSeeded(it) {
			continue
		}
		ref, err := registry.Destination(o.Registry, it)
		if err != nil {
			return false, err
		}
		group.Go(func() error {
			found, err := puller.Head(ctx, ref)
			if err == nil && found.Digest.String() != it.Descriptor.Digest.String() {
				err = errAbsent
			}
			if err != nil {
				because(ctx, "the registry lacks %s", it.Ref)
			}
			return err
		})
	}
	err = group.Wait()
	var refused *transport.Error
	missing := errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound || siteRegistryOf(t.run.cluster).hides && isRefused(refused))
	if missing || errors.Is(err, errAbsent) || err != nil && t.run.DryRun {
		return false, nil
	}
	return err == nil, err
}

// isRefused tells whether nobody may do that: Harbor says no more of a project that does not exist.
func isRefused(err *transport.Error) bool {
	return err.StatusCode == http.StatusUnauthorized || err.StatusCode == http.StatusForbidden
}

var errAbsent = errors.New("it is not there")
