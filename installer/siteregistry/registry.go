package siteregistry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/service"
)

// The registry's unit, files and users.
const (
	Unit       = "kkbundle-registry.service"
	Binary     = task.ProgramDir + "/bin/registry"
	DataDir    = marks.RegistryData
	ConfigDir  = task.ConfigDir + "/registry"
	configFile = ConfigDir + "/config.yaml"
	User       = "kkbundle" // the hosts' login
	// PushUnit accepts pushes at the host's loopback address. Unit serves the same content read-only.
	PushUnit   = "kkbundle-registry-push.service"
	pushConfig = ConfigDir + "/push.yaml"
	PushUser   = "kkbundle-push" // the login for pushes
	// Account is the system user of the registry's service.
	Account = "kkbundle-cluster-registry"
	// startWait limits the start of the registry.
	startWait = 30 * time.Second
)

// CertificatesTask creates the registry's certificate and credentials on this machine.
func CertificatesTask() task.Task {
	return task.Task{
		Name:  "certificates",
		Where: task.Here,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if err := checkRotated(t.Site); err != nil {
				return false, err
			}
			has := hasCredentials(t.Site)
			if !has {
				task.Because(ctx, "the work directory lacks the registry's certificate or password, or they expire soon")
			}
			return has, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := checkRenewal(ctx, t.Site); err != nil {
				return err
			}
			_, err := Credentials(t.Site)
			return err
		},
	}
}

// AuthorityFiles returns the paths of the registry's authority on registry hosts, which renew the certificate with it.
// Only root reads the key; the registry's user cannot.
func AuthorityFiles() task.PairFiles {
	const dir = task.ConfigDir + "/registry-authority"
	return task.PairFiles{Cert: dir + "/ca.crt", Key: dir + "/ca.key"}
}

// CertificateFiles returns the paths of the registry's certificate on registry hosts.
func CertificateFiles() task.PairFiles {
	return task.PairFiles{Cert: ConfigDir + "/tls.crt", Key: ConfigDir + "/tls.key"}
}

// ReissueTask gives registry hosts the certificate of the work directory, one after the other, and restarts the
// registry.
func ReissueTask(c *manifest.Cluster) task.Task {
	if c.ImageRegistry.Type == manifest.RegistryHarbor {
		return harborReissueTask()
	}
	return reissueTask(configFile, 0o640, func(ctx context.Context, t *task.Host) error {
		pull, err := localAccess(t)
		if err != nil {
			return err
		}
		push, err := pushAccess(t)
		if err != nil {
			return err
		}
		reader, _ := serviceSpecs(pull.Address, push.Address)
		for _, args := range reader.Prepare() { // the user and its files are the same for both
			if err := t.Run(ctx, args...); err != nil {
				return err
			}
		}
		for _, one := range []struct {
			unit   string
			access task.RegistryAccess
		}{{Unit, pull}, {PushUnit, push}} {
			if err := t.Systemctl(ctx, "restart", one.unit); err != nil {
				return t.WithUnitLog(ctx, one.unit, err)
			}
			if err := awaitServing(ctx, t, one.unit, one.access); err != nil {
				return err
			}
		}
		return nil
	})
}

// reissueTask gives registry hosts that have the file installed the certificate of the work directory and a key with
// this mode, one after the other, and has restart put them to use.
func reissueTask(installed string, mode fs.FileMode, restart func(context.Context, *task.Host) error) task.Task {
	files := CertificateFiles()
	wanted := func(t *task.Host) ([]task.File, error) {
		s, err := Credentials(t.Site)
		return []task.File{{Path: files.Cert, Mode: 0o644, Data: s.cert}, {Path: files.Key, Mode: mode, Data: s.key}},
			err
	}
	return task.Task{
		Name: "registry-certificate", Roles: []manifest.Role{manifest.RoleRegistry}, Where: task.OneByOne,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if there, err := t.Test(ctx, "test", "-e", installed); err != nil || !there {
				return true, err // no registry yet
			}
			want, err := wanted(t)
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, want[:1]...)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			want, err := wanted(t)
			if err != nil {
				return err
			}
			if err := t.Write(ctx, want[1], want[0]); err != nil { // the key first: Done looks at the certificate
				return err
			}
			return restart(ctx, t)
		},
	}
}

// checkRenewal refuses new credentials for an installed registry in a run with --limit, which would not update all
// hosts.
func checkRenewal(ctx context.Context, s *task.Site) error {
	if s.Scope.Whole() || hasFiles(s) {
		return nil
	}
	used := false
	for _, t := range s.Connected(manifest.RoleRegistry) {
		there, err := t.Test(ctx, "test", "-e", ConfigDir)
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

// distribution returns a CNCF distribution registry that install sets up.
func distribution(c *manifest.Cluster) Registry {
	return Registry{
		Units: []string{Unit, PushUnit}, start: startWait, Data: DataDir, port: c.ImageRegistry.Port,
		pushPort: c.ImageRegistry.PushPort(),
		files:    []string{task.RegistryPassFile, task.RegistryHashFile, task.RegistrySecretFile},
		hosts:    passFile{task.RegistryPassFile, User, newSecret},
		Tasks:    func(*manifest.Cluster) []task.Task { return []task.Task{DistributionTask(), SeedTask()} },
		secrets:  distributionCredentials,
	}
}

// existingRegistry returns the user's registry.
func existingRegistry() Registry {
	return Registry{Tasks: func(*manifest.Cluster) []task.Task { return []task.Task{existingRegistryTask()} }}
}

// credentials are the registry's certificate and passwords.
type credentials struct {
	ca, cert, key []byte
	// pull is the hosts' login, old the one that a rotation replaces, and push the login for pushes.
	pull, push task.Login
	old        *task.Login
	// of the distribution registry alone
	htpasswd, pushHtpasswd []byte
	httpSecret             string
	// of Harbor alone
	HarborAdmin, HarborDatabase, HarborRobot string
}

// hasFiles reports whether the work directory has everything that other hosts know of the registry. Its certificate
// may be replaced without them.
func hasFiles(s *task.Site) bool {
	for _, name := range append(slices.Clone(Of(s.Cluster).files), task.CACertFile) {
		if _, err := s.Dir.Read(name); err != nil {
			return false
		}
	}
	return true
}

func hasCredentials(s *task.Site) bool {
	if !hasFiles(s) {
		return false
	}
	authority, err := task.LoadAuthority(s.Dir, s.Now())
	if err != nil {
		return false
	}
	pair, err := s.Dir.ReadPair(task.RegistryPair())
	return err == nil && authority.Fits(pair, CertificateNames(s), s.Now(), task.RenewBefore)
}

// registryLeaf describes the registry's certificate.
func registryLeaf(s *task.Site) task.Leaf {
	return task.Leaf{Files: task.RegistryPair(), Use: pki.Server, Names: CertificateNames(s)}
}

// CertificateNames returns the names in the registry's certificate.
func CertificateNames(s *task.Site) pki.Names {
	var n pki.Names
	for _, t := range s.RegistryHosts() {
		n.Hosts = append(n.Hosts, t.Name)
		n.Addresses = append(n.Addresses, t.IP)
	}
	if vip, err := netip.ParseAddr(s.Cluster.ImageRegistry.VIP); err == nil {
		n.Addresses = append(n.Addresses, vip)
	}
	n.Hosts = append(n.Hosts, "localhost")
	n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	return n
}

// Credentials returns the registry's credentials from the work directory, and creates missing ones.
func Credentials(site *task.Site) (credentials, error) {
	site.Dir.Making.Lock()
	defer site.Dir.Making.Unlock()
	authority, err := task.LoadAuthority(site.Dir, site.Now())
	if err != nil {
		return credentials{}, err
	}
	pair, err := site.Dir.Pair(registryLeaf(site), authority, site.Now())
	if err != nil {
		return credentials{}, err
	}
	s := credentials{ca: authority.PEM, cert: pair.Cert, key: pair.Key}
	own := Of(site.Cluster)
	if s.pull, err = own.hosts.keep(site); err != nil {
		return s, err
	}
	if s.old, err = own.hosts.old(site); err != nil {
		return s, err
	}
	err = own.secrets(site, &s)
	return s, err
}

// newSecret returns a random password of 160 bits.
func newSecret() string {
	const bytes = 20
	return task.RandomHex(bytes)
}

func distributionCredentials(site *task.Site, s *credentials) (err error) {
	s.push.Username = PushUser
	if s.push.Password, err = site.Dir.Secret(task.PushPassFile); err != nil {
		return err
	}
	if s.httpSecret, err = site.Dir.Secret(task.RegistrySecretFile); err != nil {
		return err
	}
	hide(site, s.push)
	site.Mask.Hide(s.httpSecret)
	logins := []task.Login{s.pull}
	if s.old != nil && s.old.Username != s.pull.Username {
		logins = append(logins, *s.old)
	}
	if s.htpasswd, err = Htpasswd(site, task.RegistryHashFile, logins...); err != nil {
		return err
	}
	s.pushHtpasswd, err = Htpasswd(site, task.PushHashFile, s.push)
	return err
}

// NodeAccess returns the hosts' access to the registry.
func NodeAccess(site *task.Site) (task.RegistryAccess, error) {
	if site.Cluster.ImageRegistry.Type == manifest.RegistryExisting {
		return existingAccess(site)
	}
	s, err := Credentials(site)
	if err != nil {
		return task.RegistryAccess{}, err
	}
	return task.RegistryAccess{
		Address: addressWithPort(site, sharedAddress(site)),
		CA:      s.ca,
		Login:   s.pull,
	}, nil
}

// existingAccess returns the access to an existing registry.
func existingAccess(s *task.Site) (a task.RegistryAccess, err error) {
	a.Address, a.Prefix, _ = strings.Cut(s.Cluster.ImageRegistry.Address, "/")
	if file := s.Cluster.ImageRegistry.CA; file != "" {
		if a.CA, err = s.Values(file); err != nil {
			return a, fmt.Errorf("imageRegistry.ca: %w", err)
		}
	}
	auth := s.Cluster.ImageRegistry.Auth
	if auth == nil || s.RegistryPassword == nil {
		return a, nil
	}
	if a.Password, err = s.RegistryPassword(); err != nil {
		return a, fmt.Errorf("imageRegistry.auth: %w", err)
	}
	a.Username = auth.Username
	s.Mask.Hide(a.Password)
	s.Mask.Hide(strings.TrimPrefix(a.Authorization(), "Basic "))
	return a, nil
}

// existingRegistryTask checks that an existing registry contains the bundle's images.
func existingRegistryTask() task.Task {
	return task.Task{
		Name:  existingName,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Do: func(ctx context.Context, t *task.Host) error {
			address := t.Site.Cluster.ImageRegistry.Address
			sum, err := existing(ctx, t)
			if err != nil {
				return fmt.Errorf("registry %s: %w", address, err)
			}
			if sum.ItemsMissing > 0 {
				return fmt.Errorf("registry %s lacks images of the bundle: run kkbundle push --registry %s", address,
					address)
			}
			return nil
		},
	}
}

// existing returns the outcome of a push of the bundle that sends nothing.
func existing(ctx context.Context, t *task.Host) (registry.PushSummary, error) {
	access, err := readAccess(t)
	if err != nil {
		return registry.PushSummary{}, err
	}
	o, client, err := pushOptions(t, access)
	if err != nil {
		return registry.PushSummary{}, err
	}
	defer client.CloseIdleConnections()
	o.DryRun, o.Progress = true, nil
	return registry.Push(ctx, t.Site.Bundle, o)
}

// ReducedIndexes returns the digests of the indexes that a push made smaller for an existing registry, which requires
// all platforms of an index. A node that pulls from it names these, and not the bundle's.
func ReducedIndexes(ctx context.Context, t *task.Host) ([]digest.Digest, error) {
	if t.Site.Cluster.ImageRegistry.Type != manifest.RegistryExisting {
		return nil, nil
	}
	sum, err := existing(ctx, t)
	var list []digest.Digest
	for _, item := range sum.Items {
		if item.Reduced {
			list = append(list, item.Digest)
		}
	}
	return list, err
}

// DistributionTask installs the CNCF distribution registry as a systemd service.
func DistributionTask() task.Task {
	return task.Settle(task.Task{
		Name:  "registry",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Files: []task.Place{{Component: "registry", Member: "registry", Path: Binary, Mode: 0o755}},
	}, distributionSetting)
}

// distributionSetting runs the registry program twice on the same content: read-only for the hosts, and writable at the
// loopback address. The program's password file has no roles, so each has its own.
func distributionSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	s, err := Credentials(t.Site)
	if err != nil {
		return task.Setting{}, err
	}
	pull, err := localAccess(t)
	if err != nil {
		return task.Setting{}, err
	}
	push, err := pushAccess(t)
	if err != nil {
		return task.Setting{}, err
	}
	listen := pull.Address
	if t.Site.HasRegistryVIP() { // it also listens on the shared address
		listen = ":" + strconv.Itoa(t.Site.Cluster.ImageRegistry.Port)
	}
	config, err := registryConfig(listener{listen, htpasswdFile, s.httpSecret}, readOnly())
	if err != nil {
		return task.Setting{}, err
	}
	pushText, err := registryConfig(listener{push.Address, pushHtpasswdFile, s.httpSecret}, writable(t.Site.Cluster))
	if err != nil {
		return task.Setting{}, err
	}
	reader, writer := serviceSpecs(listen, push.Address)
	return task.Setting{
		Files: []task.File{
			{Path: configFile, Mode: 0o640, Data: config},
			{Path: htpasswdFile, Mode: 0o640, Data: s.htpasswd, Live: true},
			{Path: pushConfig, Mode: 0o640, Data: pushText},
			{Path: pushHtpasswdFile, Mode: 0o640, Data: s.pushHtpasswd, Live: true},
			{Path: ConfigDir + "/tls.crt", Mode: 0o644, Data: s.cert},
			{Path: ConfigDir + "/tls.key", Mode: 0o640, Data: s.key},
			{Path: reader.UserFile, Mode: 0o644, Data: reader.UserText()},
			{Path: task.UnitDir + Unit, Mode: 0o644, Data: reader.UnitText()},
			{Path: task.UnitDir + PushUnit, Mode: 0o644, Data: writer.UnitText()},
		},
		Apply: func(ctx context.Context, t *task.Host) error {
			for _, args := range reader.Prepare() { // the user and its files are the same for both
				if err := t.Run(ctx, args...); err != nil {
					return err
				}
			}
			return t.RemoveEarlier(ctx, path.Base(Binary))
		},
		Units: []string{Unit, PushUnit},
		Ready: func(ctx context.Context, t *task.Host) error {
			if err := awaitServing(ctx, t, Unit, pull); err != nil {
				return err
			}
			return awaitServing(ctx, t, PushUnit, push)
		},
	}, nil
}

const (
	htpasswdFile     = ConfigDir + "/htpasswd"
	pushHtpasswdFile = ConfigDir + "/push-htpasswd"
)

// serviceSpecs returns the registry's services. Their user differs from that of kkbundle registry install on the same
// host: neither can read the other's key, and each can be removed alone.
func serviceSpecs(listen, push string) (reader, writer service.Spec) {
	reader = service.Spec{
		Mark: hostfile.Mark, Description: "Image registry of this cluster (CNCF distribution), read-only",
		User: Account, UserFile: ConfigDir + "/user.conf", Dir: DataDir, ReadOnly: true,
		Readable: []string{configFile, htpasswdFile, pushConfig, pushHtpasswdFile, ConfigDir + "/tls.key"},
		Command:  []string{Binary, "serve", configFile}, Program: true, Listen: listen,
	}
	writer = reader
	writer.Description = "Image registry of this cluster (CNCF distribution), for pushes from this host"
	writer.ReadOnly, writer.Command, writer.Listen = false, []string{Binary, "serve", pushConfig}, push
	return reader, writer
}

// A listener is the part of a configuration that differs between the services.
type listener struct{ address, htpasswd, secret string }

// readOnly returns the storage settings of the nodes' service. The program refuses every writing method.
func readOnly() kube.Document {
	return kube.Document{
		"delete": kube.Document{"enabled": false},
		"maintenance": kube.Document{
			"readonly":      kube.Document{"enabled": true},
			"uploadpurging": kube.Document{"enabled": false},
		},
	}
}

// writable returns the storage settings of the service for pushes.
func writable(c *manifest.Cluster) kube.Document {
	return kube.Document{"delete": kube.Document{"enabled": c.ImageRegistry.AllowDelete}}
}

// registryConfig is for distribution 3. Indexes may lack platforms that the bundle excludes, so they keep upstream's
// digests.
// https://distribution.github.io/distribution/about/configuration/
func registryConfig(l listener, storage kube.Document) ([]byte, error) {
	storage["filesystem"] = kube.Document{"rootdirectory": DataDir}
	return kube.Documents(kube.Document{
		"version": 0.1,
		"log":     kube.Document{"level": "info", "accesslog": kube.Document{"disabled": true}},
		"storage": storage,
		"http": kube.Document{
			"addr":   l.address,
			"secret": l.secret,
			"tls": kube.Document{
				"certificate": ConfigDir + "/tls.crt",
				"key":         ConfigDir + "/tls.key",
				"minimumtls":  "tls1.2",
			},
		},
		"auth":       kube.Document{"htpasswd": kube.Document{"realm": "kkbundle", "path": l.htpasswd}},
		"validation": kube.Document{"manifests": kube.Document{"indexes": kube.Document{"platforms": "none"}}},
	})
}

// awaitServing waits until the unit's registry accepts the login.
func awaitServing(ctx context.Context, t *task.Host, unit string, access task.RegistryAccess) error {
	err := task.Eventually(ctx, Of(t.Site.Cluster).start,
		func(ctx context.Context) error { return checkServes(ctx, t, access) })
	if err != nil {
		return t.WithUnitLog(ctx, unit, err)
	}
	return nil
}

// checkServes checks from the host that the registry accepts the login.
func checkServes(ctx context.Context, t *task.Host, access task.RegistryAccess) error {
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

const (
	seedName     = "seed-registry"
	existingName = "existing-registry"
)

// FillTasks are those of a cluster's registry tasks that bring the bundle's images and charts into a registry that
// runs, or check that they are in one that kkbundle does not fill.
func FillTasks(c *manifest.Cluster) []task.Task {
	r := Of(c)
	if r.Tasks == nil {
		return nil
	}
	return slices.DeleteFunc(r.Tasks(c), func(t task.Task) bool { return t.Name != seedName && t.Name != existingName })
}

// Runs reports whether a host's registry of kkbundle runs.
func Runs(ctx context.Context, t *task.Host) (bool, error) {
	units := Of(t.Site.Cluster).Units
	if len(units) == 0 {
		return false, nil
	}
	return t.Test(ctx, "systemctl", "is-active", "--quiet", units[0])
}

// SeedTask pushes the bundle's images and charts to the registry.
func SeedTask() task.Task {
	return task.Task{
		Name:  seedName,
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if access, err := readAccess(t); err != nil {
				return false, err
			} else if !t.Site.DryRun {
				// After a boot the registry may run before it serves.
				if err := awaitServing(ctx, t, Of(t.Site.Cluster).Units[0], access); err != nil {
					return false, err
				}
			}
			return Seeded(ctx, t)
		},
		Do: seed,
	}
}

// pushOptions returns the options of a push with this access.
func pushOptions(t *task.Host, access task.RegistryAccess) (registry.PushOptions, *http.Transport, error) {
	client, err := t.Transport(access.CA)
	if err != nil {
		return registry.PushOptions{}, nil, err
	}
	auth := authn.Anonymous
	if access.Username != "" {
		auth = authn.FromConfig(authn.AuthConfig{Username: access.Username, Password: access.Password})
	}
	holds := Holds(t.Site)
	o := registry.PushOptions{
		Registry:  path.Join(access.Address, access.Prefix),
		Select:    func(it bundle.Item) bool { return holds(it) && t.Site.Groups.Has(it) },
		Auth:      login{auth},
		Transport: client,
		Jobs:      task.ConnectionsPerHost,
		Logger:    t.Site.Logger,
		Progress: func(e registry.Event) {
			t.Site.Tell(task.Event{
				Phase: "install", Task: seedName, Host: t.Name, State: task.Progress, Bytes: e.Done,
				Total: e.Total,
			})
		},
		Harbor: Of(t.Site.Cluster).projects,
	}
	return o, client, nil
}

// A login is one login for every registry.
type login struct{ authn.Authenticator }

// Resolve returns the login.
func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.Authenticator, nil }

func seed(ctx context.Context, t *task.Host) error {
	access, err := pushAccess(t)
	if err != nil {
		return err
	}
	o, client, err := pushOptions(t, access)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	_, err = registry.Push(ctx, t.Site.Bundle, o)
	return err
}

// Seeded reports whether the registry has every image and chart. In a dry run, errors mean that it is not installed
// yet.
func Seeded(ctx context.Context, t *task.Host) (bool, error) {
	access, err := readAccess(t)
	if err != nil {
		return false, err
	}
	o, client, err := pushOptions(t, access)
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
	holds := Holds(t.Site)
	for _, it := range t.Site.Items {
		if !holds(it) {
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
	missing := errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound ||
		Of(t.Site.Cluster).hides && isRefused(refused))
	if missing || errors.Is(err, errAbsent) || err != nil && t.Site.DryRun {
		return false, nil
	}
	return err == nil, err
}

// isRefused reports whether access was denied, Harbor's answer for missing projects too.
func isRefused(err *transport.Error) bool {
	return err.StatusCode == http.StatusUnauthorized || err.StatusCode == http.StatusForbidden
}

var errAbsent = errors.New("item is missing")
