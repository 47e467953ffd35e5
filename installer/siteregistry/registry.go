package siteregistry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path"
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
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/service"
)

const (
	RegistryUnit   = "kkbundle-registry.service"
	RegistryBinary = "/usr/local/lib/kkbundle/registry"
	RegistryData   = task.StateDir + "/registry"
	RegistryDir    = task.ConfigDir + "/registry"
	// registryConfigFile configures the registry program.
	registryConfigFile = RegistryDir + "/config.yaml"
	RegistryUser       = "kkbundle" // that clients log in as
	// RegistryAccount is the system's user that the registry runs as.
	RegistryAccount = "kkbundle-cluster-registry"
	// registryStart is how long the registry may take to answer after its unit was started.
	registryStart = 30 * time.Second
)

// CertificatesTask makes, on this machine, what the registry and the hosts trust each other by.
func CertificatesTask() task.Task {
	return task.Task{
		Name:  "certificates",
		Where: task.Here,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			has := hasSecrets(t.Site)
			if !has {
				task.Because(ctx, "the work directory lacks the registry's certificate or password, or they end soon")
			}
			return has, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := mayRenew(ctx, t.Site); err != nil {
				return err
			}
			_, err := Secrets(t.Site)
			return err
		},
	}
}

// mayRenew refuses new credentials for a registry that hosts use which a limited run would not give them to.
func mayRenew(ctx context.Context, r *task.Site) error {
	if r.Scope.Whole() {
		return nil
	}
	used := false
	for _, t := range r.Connected(manifest.RoleRegistry) {
		there, err := t.Test(ctx, "test", "-e", RegistryDir)
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
func plainRegistry(c *manifest.Cluster) Registry {
	login := func(s registrySecrets) task.Login { return task.Login{Username: RegistryUser, Password: s.password} }
	return Registry{
		unit: RegistryUnit, start: registryStart, Data: RegistryData, port: c.ImageRegistry.Port,
		files:   []string{task.RegistryPassFile, task.RegistryHashFile, task.RegistrySecretFile},
		Tasks:   func(*manifest.Cluster) []task.Task { return []task.Task{RegistryTask(), SeedTask()} },
		secrets: plainSecrets, puller: login, pusher: login,
	}
}

// existingRegistry is a registry of the user's.
func existingRegistry() Registry {
	return Registry{Tasks: func(*manifest.Cluster) []task.Task { return []task.Task{existingRegistryTask()} }}
}

// registrySecrets are what the registry is set up with.
type registrySecrets struct {
	ca, cert, key []byte
	password      string
	htpasswd      []byte
	httpSecret    string
	// of Harbor alone: its administrator's password, its database's, and that of the account that hosts pull with
	HarborAdmin, HarborDatabase, HarborRobot string
}

func hasSecrets(r *task.Site) bool {
	for _, name := range append(RegistryOf(r.Cluster).files, task.CACertFile, task.RegistryCertFile) {
		if _, err := r.Dir.Read(name); err != nil {
			return false
		}
	}
	authority, err := task.LoadAuthority(r.Dir, r.Now())
	if err != nil {
		return false
	}
	pair, err := r.Dir.ReadPair(task.RegistryPair())
	return err == nil && authority.Fits(pair, RegistryNames(r), r.Now(), task.RenewBefore)
}

// RegistryNames are what the registry's certificate is for.
func RegistryNames(r *task.Site) pki.Names {
	var n pki.Names
	for _, t := range r.RegistryHosts() {
		n.Hosts = append(n.Hosts, t.Name)
		n.Addresses = append(n.Addresses, t.IP)
	}
	if vip, err := netip.ParseAddr(r.Cluster.ImageRegistry.VIP); err == nil {
		n.Addresses = append(n.Addresses, vip)
	}
	n.Hosts = append(n.Hosts, "localhost")
	n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	return n
}

// Secrets returns the registry's Secrets, from the work directory where it has them.
func Secrets(r *task.Site) (registrySecrets, error) {
	r.Dir.Making.Lock()
	defer r.Dir.Making.Unlock()
	authority, err := task.LoadAuthority(r.Dir, r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	pair, err := r.Dir.Pair(task.RegistryPair(), authority, pki.Server, RegistryNames(r), r.Now())
	if err != nil {
		return registrySecrets{}, err
	}
	s := registrySecrets{ca: authority.PEM, cert: pair.Cert, key: pair.Key}
	err = RegistryOf(r.Cluster).secrets(r, &s)
	return s, err
}

// plainSecrets adds the secrets that the registry is set up with.
func plainSecrets(r *task.Site, s *registrySecrets) (err error) {
	if s.password, err = r.Dir.Secret(task.RegistryPassFile); err != nil {
		return err
	}
	if s.httpSecret, err = r.Dir.Secret(task.RegistrySecretFile); err != nil {
		return err
	}
	r.Mask.Hide(s.password)
	r.Mask.Hide(s.httpSecret)
	r.Mask.Hide(RegistryUser + ":" + s.password)
	s.htpasswd, err = Htpasswd(r, s.password)
	return err
}

// htpasswd returns the registry's password file: the one in the work directory while it fits the password, else a new one.
func Htpasswd(r *task.Site, password string) ([]byte, error) {
	data, err := r.Dir.Read(task.RegistryHashFile)
	if err == nil {
		_, hash, _ := strings.Cut(strings.TrimSpace(string(data)), ":")
		if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil {
			return data, nil
		}
	}
	if data, err = service.Htpasswd(RegistryUser, []byte(password)); err != nil {
		return nil, err
	}
	return data, r.Dir.Write(task.RegistryHashFile, data)
}

// NodeAccess says how hosts reach the registry.
func NodeAccess(r *task.Site) (task.RegistryAccess, error) {
	if r.Cluster.ImageRegistry.Type == manifest.RegistryExisting {
		return existingAccess(r)
	}
	s, err := Secrets(r)
	if err != nil {
		return task.RegistryAccess{}, err
	}
	return task.RegistryAccess{
		Address: registryAddress(r, sharedAddress(r)),
		CA:      s.ca,
		Login:   RegistryOf(r.Cluster).puller(s),
	}, nil
}

// existingAccess is for a registry of the site's own.
func existingAccess(r *task.Site) (a task.RegistryAccess, err error) {
	a.Address, a.Prefix, _ = strings.Cut(r.Cluster.ImageRegistry.Address, "/")
	if file := r.Cluster.ImageRegistry.CA; file != "" {
		if a.CA, err = r.Values(file); err != nil {
			return a, fmt.Errorf("imageRegistry.ca: %w", err)
		}
	}
	auth := r.Cluster.ImageRegistry.Auth
	if auth == nil || r.RegistryPassword == nil {
		return a, nil
	}
	if a.Password, err = r.RegistryPassword(); err != nil {
		return a, fmt.Errorf("imageRegistry.auth: %w", err)
	}
	a.Username = auth.Username
	r.Mask.Hide(a.Password)
	r.Mask.Hide(strings.TrimPrefix(a.Authorization(), "Basic "))
	return a, nil
}

// existingRegistryTask checks that a registry of the site's own has what kkbundle push puts there.
func existingRegistryTask() task.Task {
	return task.Task{
		Name:  "existing-registry",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Do: func(ctx context.Context, t *task.Host) error {
			address := t.Site.Cluster.ImageRegistry.Address
			ok, err := Seeded(ctx, t)
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

// RegistryTask installs the CNCF distribution registry as a service of systemd.
func RegistryTask() task.Task {
	return task.Settle(task.Task{
		Name:  "registry",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Files: []task.Place{{Component: "registry", Member: "registry", Path: RegistryBinary, Mode: 0o755}},
	}, func(_ context.Context, t *task.Host) (task.Setting, error) {
		s, err := Secrets(t.Site)
		if err != nil {
			return task.Setting{}, err
		}
		access, err := ownRegistry(t)
		if err != nil {
			return task.Setting{}, err
		}
		listen := access.Address
		if t.Site.IsPair() { // it answers at the address that both share, too
			listen = ":" + strconv.Itoa(t.Site.Cluster.ImageRegistry.Port)
		}
		config, err := registryConfig(listen, s.httpSecret)
		if err != nil {
			return task.Setting{}, err
		}
		spec := registrySpec(listen)
		return task.Setting{
			Files: []task.File{
				{Path: registryConfigFile, Mode: 0o640, Data: config},
				{Path: RegistryDir + "/htpasswd", Mode: 0o640, Data: s.htpasswd},
				{Path: RegistryDir + "/tls.crt", Mode: 0o644, Data: s.cert},
				{Path: RegistryDir + "/tls.key", Mode: 0o640, Data: s.key},
				{Path: spec.UserFile, Mode: 0o644, Data: spec.UserText()},
				{Path: task.UnitDir + RegistryUnit, Mode: 0o644, Data: spec.UnitText()},
			},
			Apply: func(ctx context.Context, t *task.Host) error {
				for _, args := range spec.Prepare() {
					if err := t.Run(ctx, args...); err != nil {
						return err
					}
				}
				return nil
			},
			Units: []string{RegistryUnit},
			Ready: func(ctx context.Context, t *task.Host) error { return registryAnswers(ctx, t, access) },
		}, nil
	})
}

// registrySpec is the service of the registry program on a registry host. Its user is another one than that of a registry that kkbundle
// registry install made on the same host: neither can read the other's key, and removing one leaves the other.
func registrySpec(listen string) service.Spec {
	return service.Spec{
		Mark: hostfile.Mark, Description: "Image registry of this cluster (CNCF distribution)",
		User: RegistryAccount, UserFile: RegistryDir + "/user.conf", Dir: RegistryData, Closed: task.StateDir,
		Readable: []string{registryConfigFile, RegistryDir + "/htpasswd", RegistryDir + "/tls.key"},
		Command:  []string{RegistryBinary, "serve", registryConfigFile}, Program: true, Listen: listen,
	}
}

// registryConfig is for distribution 3. Indexes are accepted although the platforms that the bundle is not for are
// missing from them: their digests stay what upstream made them.
// https://distribution.github.io/distribution/about/configuration/
func registryConfig(listen, httpSecret string) ([]byte, error) {
	return kube.Documents(kube.Document{
		"version": 0.1,
		"log":     kube.Document{"level": "info", "accesslog": kube.Document{"disabled": true}},
		"storage": kube.Document{
			"filesystem": kube.Document{"rootdirectory": RegistryData},
			"delete":     kube.Document{"enabled": true},
		},
		"http": kube.Document{
			"addr":   listen,
			"secret": httpSecret,
			"tls": kube.Document{
				"certificate": RegistryDir + "/tls.crt",
				"key":         RegistryDir + "/tls.key",
				"minimumtls":  "tls1.2",
			},
		},
		"auth":       kube.Document{"htpasswd": kube.Document{"realm": "kkbundle", "path": RegistryDir + "/htpasswd"}},
		"validation": kube.Document{"manifests": kube.Document{"indexes": kube.Document{"platforms": "none"}}},
	})
}

// registryAnswers waits until the registry lets us in.
func registryAnswers(ctx context.Context, t *task.Host, access task.RegistryAccess) error {
	own := RegistryOf(t.Site.Cluster)
	err := task.Eventually(ctx, own.start, func(ctx context.Context) error { return registryServes(ctx, t, access) })
	if err != nil {
		return t.WithUnitLog(ctx, own.unit, err)
	}
	return nil
}

// registryServes asks, from the host, whether the registry lets us in.
func registryServes(ctx context.Context, t *task.Host, access task.RegistryAccess) error {
	client, err := t.Transport(access.CA)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	failed := func(err error) error { return fmt.Errorf("registry %s does not serve: %w", access.Address, err) }
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+access.Address+"/v2/", nil)
	if err != nil {
		return failed(err)
	}
	req.Header.Set("Authorization", access.Authorization())
	resp, err := client.RoundTrip(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, task.MaxFile))
	if resp.StatusCode != http.StatusOK {
		return failed(fmt.Errorf("it answers %s", resp.Status))
	}
	return nil
}

const seedName = "seed-registry"

// SeedTask copies the bundle's images and charts into the registry. Needs of images are declared by the tasks whose
// pods run them.
func SeedTask() task.Task {
	return task.Task{
		Name:  seedName,
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if access, err := ownRegistry(t); err != nil {
				return false, err
			} else if !t.Site.DryRun {
				// After a start of the host the registry may be running and not serve yet.
				if err := registryAnswers(ctx, t, access); err != nil {
					return false, err
				}
			}
			return Seeded(ctx, t)
		},
		Do: func(ctx context.Context, t *task.Host) error { return seed(ctx, t) },
	}
}

// isSeeded tells whether an item belongs into the registry. Files go to hosts over SSH.
func isSeeded(it bundle.Item) bool { return it.Kind == bundle.KindImage || it.Kind == bundle.KindChart }

func pushOptions(t *task.Host) (registry.PushOptions, *http.Transport, error) {
	access, err := ownRegistry(t)
	if err != nil {
		return registry.PushOptions{}, nil, err
	}
	client, err := t.Transport(access.CA)
	if err != nil {
		return registry.PushOptions{}, nil, err
	}
	auth := authn.Anonymous
	if access.Username != "" {
		auth = authn.FromConfig(authn.AuthConfig{Username: access.Username, Password: access.Password})
	}
	o := registry.PushOptions{
		Registry:  path.Join(access.Address, access.Prefix),
		Select:    isSeeded,
		Auth:      login{auth},
		Transport: client,
		Jobs:      task.ConnectionsPerHost,
		Logger:    t.Site.Logger,
		Progress: func(e registry.Event) {
			t.Site.Tell(task.Event{Phase: "install", Task: seedName, Host: t.Name, State: task.Progress, Bytes: e.Done, Total: e.Total})
		},
		Harbor: RegistryOf(t.Site.Cluster).projects,
	}
	return o, client, nil
}

// A login is one login for every registry.
type login struct{ authn.Authenticator }

// Resolve returns the login.
func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.Authenticator, nil }

func seed(ctx context.Context, t *task.Host) error {
	o, client, err := pushOptions(t)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	_, err = registry.Push(ctx, t.Site.Bundle, o)
	return err
}

// Seeded asks the registry for every image and chart. Before there is a registry, a dry run finds none.
func Seeded(ctx context.Context, t *task.Host) (bool, error) {
	o, client, err := pushOptions(t)
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	puller, err := remote.NewPuller(remote.WithTransport(client), remote.WithAuthFromKeychain(o.Auth))
	if err != nil {
		return false, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(task.ConnectionsPerHost)
	for _, it := range t.Site.Items {
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
				task.Because(ctx, "the registry lacks %s", it.Ref)
			}
			return err
		})
	}
	err = group.Wait()
	var refused *transport.Error
	missing := errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound || RegistryOf(t.Site.Cluster).hides && isRefused(refused))
	if missing || errors.Is(err, errAbsent) || err != nil && t.Site.DryRun {
		return false, nil
	}
	return err == nil, err
}

// isRefused tells whether nobody may do that: Harbor says no more of a project that does not exist.
func isRefused(err *transport.Error) bool {
	return err.StatusCode == http.StatusUnauthorized || err.StatusCode == http.StatusForbidden
}

var errAbsent = errors.New("it is not there")
