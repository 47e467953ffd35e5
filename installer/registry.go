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
	registryUser   = "kkbundle"
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
func (r *run) mayRenew(ctx context.Context) error {
	if len(r.Limit) == 0 {
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

// registrySecrets are what the registry is set up with.
type registrySecrets struct {
	ca, cert, key []byte
	password      string
	htpasswd      []byte
	httpSecret    string
	// of Harbor alone: its administrator's password, its database's, and that of the account that hosts pull with
	harborAdmin, harborDatabase, harborRobot string
}

func (r *run) hasSecrets() bool {
	files := []string{caCertFile, registryCertFile, registryPassFile, registryHashFile, registrySecretFile}
	if isHarbor(r.cluster) {
		files = []string{caCertFile, registryCertFile, harborAdminFile, harborDatabaseFile, harborRobotFile}
	}
	for _, name := range files {
		if _, err := r.dir.read(name); err != nil {
			return false
		}
	}
	authority, err := loadAuthority(r.dir, r.Now())
	if err != nil {
		return false
	}
	cert, certErr := r.dir.read(registryCertFile)
	key, keyErr := r.dir.read(registryKeyFile)
	return certErr == nil && keyErr == nil && authority.Fits(pki.Pair{Cert: cert, Key: key}, r.registryNames(), r.Now(), renewBefore)
}

// registryNames are what the registry's certificate is for.
func (r *run) registryNames() pki.Names {
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
func (r *run) secrets() (registrySecrets, error) {
	r.secretsMu.Lock()
	defer r.secretsMu.Unlock()
	authority, err := loadAuthority(r.dir, r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	pair, err := serverPair(authority, r.dir, r.registryNames(), r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	s := registrySecrets{ca: authority.PEM, cert: pair.Cert, key: pair.Key}
	if isHarbor(r.cluster) {
		err := r.harborSecrets(&s)
		return s, err
	}
	if s.password, err = r.dir.secret(registryPassFile); err != nil {
		return registrySecrets{}, err
	}
	if s.httpSecret, err = r.dir.secret(registrySecretFile); err != nil {
		return registrySecrets{}, err
	}
	r.mask.hide(s.password)
	r.mask.hide(s.httpSecret)
	r.mask.hide(registryUser + ":" + s.password)
	s.htpasswd, err = r.htpasswd(s.password)
	return s, err
}

// htpasswd returns the registry's password file. The registry computes the hash at every request, so its cost is the
// least there is: a random password of 160 bits needs no protection against guessing.
func (r *run) htpasswd(password string) ([]byte, error) {
	data, err := r.dir.read(registryHashFile)
	if err == nil {
		_, hash, _ := strings.Cut(strings.TrimSpace(string(data)), ":")
		if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil {
			return data, nil
		}
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return nil, fmt.Errorf("registry password: %w", err)
	}
	data = fmt.Appendf(nil, "%s:%s\n", registryUser, hash)
	return data, r.dir.write(registryHashFile, data)
}

// access says how hosts reach the registry.
func (r *run) access() (registryAccess, error) {
	if r.cluster.ImageRegistry.Type == "existing" {
		return r.existingAccess()
	}
	s, err := r.secrets()
	if err != nil {
		return registryAccess{}, err
	}
	if isHarbor(r.cluster) {
		return registryAccess{address: r.registryAddress(r.sharedAddress()), ca: s.ca, username: "robot$" + harborRobot, password: s.harborRobot}, nil
	}
	return registryAccess{
		address:  r.registryAddress(r.sharedAddress()),
		ca:       s.ca,
		username: registryUser,
		password: s.password,
	}, nil
}

// existingAccess is for a registry of the site's own.
func (r *run) existingAccess() (a registryAccess, err error) {
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
		return setting{
			files: []textFile{
				{registryDir + "/config.yaml", 0o600, config},
				{registryDir + "/htpasswd", 0o600, s.htpasswd},
				{registryDir + "/tls.crt", 0o644, s.cert},
				{registryDir + "/tls.key", 0o600, s.key},
				{"/etc/systemd/system/" + registryUnit, 0o644, []byte(registryUnitText)},
			},
			apply: func(ctx context.Context, t *Target) error {
				return t.command(ctx, "mkdir", "-p", "-m", "0700", registryData)
			},
			units: []string{registryUnit},
			ready: func(ctx context.Context, t *Target) error { return t.registryAnswers(ctx, access) },
		}, nil
	})
}

// registryConfig is for distribution 3. Indexes are accepted although the platforms that the bundle is not for are
// missing from them: their digests stay what upstream made them.
// https://distribution.github.io/distribution/about/configuration/
func registryConfig(listen, httpSecret string) ([]byte, error) {
	return documents(document{
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

// The service is root's, because its files are, and may do nothing but serve. Its tracing, which is on by default and
// would look for a collector, is off.
const registryUnitText = hostfile.Mark + `
[Unit]
Description=Image registry of this cluster (CNCF distribution)
Documentation=https://distribution.github.io/distribution/
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=` + registryBinary + ` serve ` + registryDir + `/config.yaml
Environment=OTEL_TRACES_EXPORTER=none
Restart=always
RestartSec=2
LimitNOFILE=65536
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
` + service.Hardening + `ReadWritePaths=` + registryData + `

[Install]
WantedBy=multi-user.target
`

// registryAnswers waits until the registry lets us in.
func (t *Target) registryAnswers(ctx context.Context, access registryAccess) error {
	start, unit := registryStart, registryUnit
	if isHarbor(t.run.cluster) {
		start, unit = harborStart, harborUnit
	}
	err := eventually(ctx, start, func(ctx context.Context) error { return t.registryServes(ctx, access) })
	if err != nil {
		return t.withUnitLog(ctx, unit, err)
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
	}
	if isHarbor(t.run.cluster) {
		o.Harbor = &registry.HarborOptions{} // private projects without a quota of ours
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
func (r *run) upstreams() []string {
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
	missing := errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound || isHarbor(t.run.cluster) && isRefused(refused))
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
