package installer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// Harbor is installed by what its offline installer brings: images for Docker, and the script prepare, which makes of harbor.yml a
// file for Docker Compose. What its install.sh does beside that, systemd does here: starting, also after the host has started.
// https://goharbor.io/docs/2.14.0/install-config/
const (
	harborUnit = "harbor.service"
	harborDir  = "/opt/harbor"
	harborData = "/var/lib/harbor"
	harborLogs = "/var/log/harbor"
	// harborPort is that of HTTPS.
	harborPort = 443
	// harborAdmin is the name of Harbor's first administrator, which cannot be chosen.
	harborAdmin = "admin"
	// harborRobot is the account that hosts pull with; Harbor puts robot$ before the name.
	harborRobot = "kkbundle-nodes"
	// harborStart is how long Harbor's parts may take until they all work, its database's first start included; KubeKey waits as long.
	harborStart = 5 * time.Minute
)

// harborRegistry is a Harbor that install sets up.
func harborRegistry() siteRegistry {
	return siteRegistry{
		unit: harborUnit, start: harborStart, data: harborData, port: harborPort, standard: true,
		files:    []string{harborAdminFile, harborDatabaseFile, harborRobotFile},
		hides:    true,
		projects: &registry.HarborOptions{}, // private projects without a quota of ours
		tasks:    harborTasks,
		secrets:  harborSecrets,
		puller:   func(s registrySecrets) registryLogin { return registryLogin{"robot$" + harborRobot, s.harborRobot} },
		pusher:   func(s registrySecrets) registryLogin { return registryLogin{harborAdmin, s.harborAdmin} },
	}
}

// harborTasks install Docker where Harbor will run, Harbor, and what is pulled from it.
func harborTasks(c *manifest.Cluster) []Task {
	tasks := append(harborDocker(c), harborTask(c), seedTask(), harborLoginTask())
	if isPaired(c) {
		tasks = append(tasks, harborCopiesTask())
	}
	return tasks
}

// harborTask installs Harbor with the containers that its installer brings.
func harborTask(c *manifest.Cluster) Task {
	images := harborImages(c)
	member := func(name, to string, mode fs.FileMode) Place {
		return Place{"harbor", "harbor/" + name, path.Join(harborDir, to), mode}
	}
	return settle(Task{
		Name:  "harbor",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Files: []Place{
			{"docker-compose", "", composePlugin, executable},
			member("prepare", "prepare", executable), member("LICENSE", "LICENSE", 0o644),
			member(images, "images.tar.gz", 0o644),
		},
		Leaves: Leaves{Units: []string{harborUnit}, Paths: []string{harborDir, harborLogs}, Data: []string{harborData}},
	}, harborSetting)
}

// harborImages is the name of the archive with images in the installer. The version is the catalog's or the cluster file's, and
// what has none is said when the file is looked for.
func harborImages(c *manifest.Cluster) string {
	version, err := catalog.Version(c, "harbor")
	if err != nil {
		version = "unknown"
	}
	return "harbor." + version + ".tar.gz"
}

// harborSecrets adds what Harbor is set up with. Harbor wants small and capital letters and digits in passwords.
func harborSecrets(r *Site, s *registrySecrets) error {
	for name, to := range map[string]*string{harborAdminFile: &s.harborAdmin, harborDatabaseFile: &s.harborDatabase, harborRobotFile: &s.harborRobot} {
		secret, err := r.dir.keep(name, func() ([]byte, error) { return []byte("Hb1" + randomHex(20)), nil })
		if err != nil {
			return err
		}
		*to = strings.TrimSpace(string(secret))
		r.mask.hide(*to)
	}
	for _, pair := range []string{harborAdmin + ":" + s.harborAdmin, "robot$" + harborRobot + ":" + s.harborRobot} {
		r.mask.hide(pair)
		r.mask.hide(base64.StdEncoding.EncodeToString([]byte(pair)))
	}
	return nil
}

func harborSetting(_ context.Context, t *Target) (setting, error) {
	s, err := t.run.secrets()
	if err != nil {
		return setting{}, err
	}
	config, err := t.harborConfig(s)
	if err != nil {
		return setting{}, err
	}
	return setting{
		files: []textFile{
			{path.Join(harborDir, "harbor.yml"), 0o600, config},
			{registryDir + "/tls.crt", 0o644, s.cert},
			{registryDir + "/tls.key", 0o600, s.key},
			{"/etc/systemd/system/" + harborUnit, 0o644, []byte(harborUnitText)},
		},
		apply: func(ctx context.Context, t *Target) error { return t.prepareHarbor(ctx, s.ca) },
		units: []string{harborUnit},
		ready: func(ctx context.Context, t *Target) error { return t.harborWorks(ctx) },
	}, nil
}

// harborConfig is harbor.yml, with all that prepare wants to find in it (make/harbor.yml.tmpl, make/photon/prepare/utils/configs.py).
// Harbor has its host's own address, which is what it sends clients to for tokens, whoever has the address that two hosts share. Port
// 80 leads to 443 and nowhere else; prepare cannot leave it out.
func (t *Target) harborConfig(s registrySecrets) ([]byte, error) {
	return kube.Documents(document{
		"hostname":              t.IP.String(),
		"http":                  document{"port": 80},
		"https":                 document{"port": harborPort, "certificate": registryDir + "/tls.crt", "private_key": registryDir + "/tls.key"},
		"harbor_admin_password": s.harborAdmin,
		"database": document{
			"password": s.harborDatabase, "max_idle_conns": 100, "max_open_conns": 900, "conn_max_lifetime": "5m", "conn_max_idle_time": "0",
		},
		"data_volume": harborData,
		"jobservice": document{
			"max_job_workers": 10, "max_job_duration_hours": 24, "job_loggers": []any{"STD_OUTPUT", "FILE"}, "logger_sweeper_duration": 1,
		},
		"notification": document{"webhook_job_max_retry": 3, "webhook_job_http_client_timeout": 3},
		"log": document{
			"level": "info", "local": document{"rotate_count": 10, "rotate_size": "50M", "location": harborLogs},
		},
		"proxy":          document{"http_proxy": nil, "https_proxy": nil, "no_proxy": nil, "components": []any{"core", "jobservice"}},
		"upload_purging": document{"enabled": true, "age": "168h", "interval": "24h", "dryrun": false},
		"cache":          document{"enabled": false, "expire_hours": 24},
		"ip_family": document{
			"ipv4": document{"enabled": t.IP.Is4()}, "ipv6": document{"enabled": t.IP.Is6()},
		},
	})
}

// Nothing is pulled: what an archive lacks is an error at once. Stopping takes the containers away, so that starting makes them
// of the configuration that there is then; what Harbor keeps is below harborData.
const harborUnitText = hostfile.Mark + `
[Unit]
Description=Harbor
Documentation=https://goharbor.io/docs/
After=docker.service network-online.target
Wants=network-online.target
Requires=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory=` + harborDir + `
Environment=PATH=` + harborPath + `
ExecStart=/usr/local/bin/docker compose --project-name=harbor up --detach --no-build --pull=never --remove-orphans
ExecStop=/usr/local/bin/docker compose --project-name=harbor down
TimeoutStartSec=10min
TimeoutStopSec=3min

[Install]
WantedBy=multi-user.target
`

const harborPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// prepareHarbor gives Docker the images and makes the configuration of the containers. Harbor is stopped meanwhile: prepare
// replaces files that running containers see, and the passwords that they know each other by.
func (t *Target) prepareHarbor(ctx context.Context, ca []byte) error {
	environment := []string{"env", "PATH=" + harborPath}
	for _, args := range [][]string{
		{"chmod", "0700", harborDir}, // prepare copies harbor.yml, for everybody to read
		append(environment, "/usr/local/bin/docker", "load", "--quiet", "--input", path.Join(harborDir, "images.tar.gz")),
		{"systemctl", "daemon-reload"},
		{"systemctl", "stop", harborUnit},
		append(slices.Clone(environment), path.Join(harborDir, "prepare")),
	} {
		if err := t.command(ctx, args...); err != nil {
			return err
		}
	}
	// Where Harbor's parts look for more authorities: that of the other Harbor, which copies come from and go to, is ours.
	return t.write(ctx, textFile{path.Join(harborDir, "common/config/shared/trust-certificates/kkbundle.crt"), 0o644, ca})
}

// harborClient asks the Harbor on this host, as its administrator.
func (t *Target) harborClient() (*harbor.Client, *http.Transport, error) {
	access, err := t.ownRegistry()
	if err != nil {
		return nil, nil, err
	}
	client, err := t.transport(access.ca)
	if err != nil {
		return nil, nil, err
	}
	return &harbor.Client{URL: "https://" + access.address, HTTP: client, Username: access.username, Password: access.password}, client, nil
}

// harborWorks waits until all parts of Harbor work, and it takes our password.
func (t *Target) harborWorks(ctx context.Context) error {
	client, connections, err := t.harborClient()
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	if err := eventually(ctx, harborStart, client.Healthy); err != nil {
		return t.withUnitLog(ctx, harborUnit, fmt.Errorf("%w: see %s and docker ps on the host", err, harborLogs))
	}
	err = client.CheckLogin(ctx)
	if errors.Is(err, harbor.ErrDenied) {
		return &HarborPasswordError{Host: t.Name}
	}
	return err
}

// A HarborPasswordError says that Harbor was begun with another administrator's password than the work directory has.
type HarborPasswordError struct{ Host string }

// Error names the host.
func (e *HarborPasswordError) Error() string {
	return "the Harbor on " + e.Host + " does not take the administrator's password of the work directory: it keeps the one that it was first started with, or was given since, in " + harborData
}

// Hint says what to do about it.
func (e *HarborPasswordError) Hint() string {
	return "put the password into WORKDIR/" + harborAdminFile + ", use the work directory that it was installed with, or take its data away (kkbundle reset --with-data)"
}

// harborLoginTask makes the account that hosts pull with and nothing else: the administrator's password stays in the work directory.
func harborLoginTask() Task {
	return Task{
		Name:  "harbor-login",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Done:  func(ctx context.Context, t *Target) (bool, error) { return t.robotPulls(ctx) },
		Do: func(ctx context.Context, t *Target) error {
			client, connections, err := t.harborClient()
			if err != nil {
				return err
			}
			defer connections.CloseIdleConnections()
			if err := t.grantPull(ctx, client); err != nil {
				return err
			}
			ok, err := t.robotPulls(ctx)
			if err == nil && !ok {
				err = fmt.Errorf("the account %s that hosts pull with is not let in", harborRobot)
			}
			return err
		},
	}
}

func (t *Target) grantPull(ctx context.Context, client *harbor.Client) error {
	samples, err := t.run.harborProjects(client.URL)
	if err != nil {
		return err
	}
	var projects []string
	for _, one := range samples {
		projects = append(projects, one.project)
	}
	if len(projects) == 0 {
		return nil
	}
	if _, err := client.GrantPull(ctx, harborRobot, projects); err != nil {
		return err
	}
	s, err := t.run.secrets()
	if err != nil {
		return err
	}
	return client.SetSecret(ctx, harborRobot, s.harborRobot)
}

// A harborProject is a project that the bundle's images are in, with one of them.
type harborProject struct{ project, sample string }

// harborProjects are the projects of everything that Harbor is seeded with, in the order of the bundle.
func (r *Site) harborProjects(address string) ([]harborProject, error) {
	address = strings.TrimPrefix(address, "https://")
	var list []harborProject
	for _, it := range r.items {
		if !isSeeded(it) {
			continue
		}
		ref, err := registry.Destination(address, it)
		if err != nil {
			return nil, err
		}
		project, _, _ := strings.Cut(ref.Context().RepositoryStr(), "/")
		if !slices.ContainsFunc(list, func(p harborProject) bool { return p.project == project }) {
			list = append(list, harborProject{project, ref.Context().RepositoryStr() + "@" + it.Descriptor.Digest.String()})
		}
	}
	return list, nil
}

// pulls asks for a manifest.
func pulls(ctx context.Context, reference string, o ...remote.Option) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	_, err = remote.Head(ref, append(o, remote.WithContext(ctx))...)
	return err
}

// robotPulls tells whether hosts' account may pull from every project of this host's Harbor.
func (t *Target) robotPulls(ctx context.Context) (bool, error) {
	own, err := t.ownRegistry()
	if err != nil {
		return false, err
	}
	access, err := t.run.access()
	if err != nil {
		return false, err
	}
	projects, err := t.run.harborProjects(own.address)
	if err != nil {
		return false, err
	}
	client, err := t.transport(own.ca)
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	robot := login{authn.FromConfig(authn.AuthConfig{Username: access.username, Password: access.password})}
	for _, one := range projects {
		err := pulls(ctx, own.address+"/"+one.sample, remote.WithTransport(client), remote.WithAuthFromKeychain(robot))
		var refused *transport.Error
		if errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound || isRefused(refused)) || err != nil && t.run.DryRun {
			because(ctx, "the account that hosts pull with may not pull from project %s", one.project)
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
