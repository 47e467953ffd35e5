package siteregistry

import (
	"context"
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

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// Harbor's offline installer contains images for Docker, and the script prepare, which converts harbor.yml for Docker
// Compose. A systemd unit replaces the rest of its install.sh: it starts Harbor now and at every boot.
// https://goharbor.io/docs/2.14.0/install-config/
const (
	HarborUnit = "harbor.service"
	HarborDir  = "/opt/harbor"
	HarborData = "/var/lib/harbor"
	HarborLogs = "/var/log/harbor"
	harborPort = 443
	harborCA   = ConfigDir + "/ca.crt"
	// harborAdmin is Harbor's first administrator; the name is fixed.
	harborAdmin = "admin"
	// HarborRobot is the account of hosts' pulls; Harbor adds the prefix.
	HarborRobot = "kkbundle-nodes"
	robotPrefix = "robot$"
	// harborStart limits the start of all of Harbor's parts, including its database's first start. KubeKey uses the
	// same limit.
	harborStart = 5 * time.Minute
)

func harborRegistry() Registry {
	return Registry{
		Units: []string{HarborUnit}, start: harborStart, Data: HarborData, port: harborPort, standard: true,
		files:    []string{task.HarborAdminFile, task.HarborDatabaseFile, task.HarborRobotFile},
		hides:    true,
		projects: &registry.HarborOptions{}, // private projects without a quota
		Tasks:    harborTasks,
		hosts:    passFile{task.HarborRobotFile, robotPrefix + HarborRobot, newHarborSecret},
		secrets:  harborCredentials,
	}
}

// harborTasks installs and seeds Harbor, with its Docker.
func harborTasks(c *manifest.Cluster) []task.Task {
	tasks := append(harborDocker(c), harborTask(c), SeedTask(), harborLoginTask())
	if task.HasRegistryVIP(c) {
		tasks = append(tasks, harborReplicationTask())
	}
	return tasks
}

// harborTask installs Harbor from its offline installer.
func harborTask(c *manifest.Cluster) task.Task {
	images := harborImages(c)
	member := func(name, to string, mode fs.FileMode) task.Place {
		return task.Place{Component: "harbor", Member: "harbor/" + name, Path: path.Join(HarborDir, to), Mode: mode}
	}
	return task.Settle(task.Task{
		Name:  "harbor",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Files: []task.Place{
			{Component: "docker-compose", Member: "", Path: ComposePlugin, Mode: task.Executable},
			member("prepare", "prepare", task.Executable), member("LICENSE", "LICENSE", 0o644),
			member(images, "images.tar.gz", 0o644),
		},
		Leaves: task.Leaves{
			Units: []string{HarborUnit}, Paths: []string{HarborDir, HarborLogs},
			Data: []string{HarborData},
		},
	}, harborSetting)
}

// harborImages returns the name of the image archive in the installer. A missing version is reported by the lookup of
// the file.
func harborImages(c *manifest.Cluster) string {
	version, err := catalog.Version(c, "harbor")
	if err != nil {
		version = "unknown"
	}
	return "harbor." + version + ".tar.gz"
}

// newHarborSecret returns a random password. Harbor requires lower and upper case letters and digits.
func newHarborSecret() string { return "Hb1" + newSecret() }

// harborCredentials adds Harbor's passwords.
func harborCredentials(site *task.Site, s *credentials) error {
	for name, to := range map[string]*string{
		task.HarborAdminFile:    &s.HarborAdmin,
		task.HarborDatabaseFile: &s.HarborDatabase,
	} {
		secret, err := site.Dir.Keep(name, func() ([]byte, error) { return []byte(newHarborSecret()), nil })
		if err != nil {
			return err
		}
		*to = strings.TrimSpace(string(secret))
		site.Mask.Hide(*to)
	}
	s.HarborRobot = s.pull.Password
	s.push = task.Login{Username: harborAdmin, Password: s.HarborAdmin}
	hide(site, s.push)
	return nil
}

func harborSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	s, err := Credentials(t.Site)
	if err != nil {
		return task.Setting{}, err
	}
	config, err := harborConfig(t, s)
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: []task.File{
			{Path: path.Join(HarborDir, "harbor.yml"), Mode: 0o600, Data: config},
			{Path: ConfigDir + "/tls.crt", Mode: 0o644, Data: s.cert},
			{Path: ConfigDir + "/tls.key", Mode: 0o600, Data: s.key},
			{Path: harborCA, Mode: 0o644, Data: s.ca},
			{Path: "/etc/systemd/system/" + HarborUnit, Mode: 0o644, Data: []byte(harborUnitText)},
		},
		Apply: loadHarbor,
		Units: []string{HarborUnit},
		Ready: awaitHarbor,
	}, nil
}

// harborConfig returns harbor.yml with all settings that prepare requires (make/harbor.yml.tmpl,
// make/photon/prepare/utils/configs.py). The hostname is the host's own address, even in a pair: Harbor sends clients
// there for tokens. Port 80 only redirects to 443; prepare cannot disable it.
func harborConfig(t *task.Host, s credentials) ([]byte, error) {
	return kube.Documents(kube.Document{
		"hostname": t.IP.String(),
		"http":     kube.Document{"port": 80},
		"https": kube.Document{
			"port": harborPort, "certificate": ConfigDir + "/tls.crt",
			"private_key": ConfigDir + "/tls.key",
		},
		"harbor_admin_password": s.HarborAdmin,
		"database": kube.Document{
			"password": s.HarborDatabase, "max_idle_conns": 100, "max_open_conns": 900, "conn_max_lifetime": "5m",
			"conn_max_idle_time": "0",
		},
		"data_volume": HarborData,
		"jobservice": kube.Document{
			"max_job_workers": 10, "max_job_duration_hours": 24, "job_loggers": []any{"STD_OUTPUT", "FILE"},
			"logger_sweeper_duration": 1,
		},
		"notification": kube.Document{"webhook_job_max_retry": 3, "webhook_job_http_client_timeout": 3},
		"log": kube.Document{
			"level": "info", "local": kube.Document{"rotate_count": 10, "rotate_size": "50M", "location": HarborLogs},
		},
		"proxy": kube.Document{
			"http_proxy": nil, "https_proxy": nil, "no_proxy": nil,
			"components": []any{"core", "jobservice"},
		},
		"upload_purging": kube.Document{"enabled": true, "age": "168h", "interval": "24h", "dryrun": false},
		"cache":          kube.Document{"enabled": false, "expire_hours": 24},
		"ip_family": kube.Document{
			"ipv4": kube.Document{"enabled": t.IP.Is4()}, "ipv6": kube.Document{"enabled": t.IP.Is6()},
		},
	})
}

// prepare converts harbor.yml at each start, which makes a renewed certificate Harbor's own: Harbor reads a copy. It
// replaces Harbor's additional trusted authorities, too: the certificate of the other Harbor of a pair is signed by
// ours. --pull=never: an incomplete archive is an error at once. Stopping removes the containers, so each start uses
// the current configuration; Harbor's data is below HarborData.
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
WorkingDirectory=` + HarborDir + `
Environment=PATH=` + harborPath + `
ExecStartPre=/bin/bash ` + HarborDir + `/prepare
ExecStartPre=install -D -m 0644 ` + harborCA + ` ` + HarborDir + `/common/config/shared/trust-certificates/kkbundle.crt
ExecStart=/usr/local/bin/docker compose --project-name=harbor up --detach --no-build --pull=never --remove-orphans
ExecStop=/usr/local/bin/docker compose --project-name=harbor down
TimeoutStartSec=10min
TimeoutStopSec=3min

[Install]
WantedBy=multi-user.target
`

const harborPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// loadHarbor loads the images. Harbor is stopped before its next start: prepare replaces mounted files and internal
// passwords.
func loadHarbor(ctx context.Context, t *task.Host) error {
	for _, args := range [][]string{
		{"chmod", "0700", HarborDir}, // prepare writes a world-readable copy of harbor.yml
		{
			"env", "PATH=" + harborPath, "/usr/local/bin/docker", "load", "--quiet", "--input",
			path.Join(HarborDir, "images.tar.gz"),
		},
		{"systemctl", "daemon-reload"},
		{"systemctl", "stop", HarborUnit},
	} {
		if err := t.Run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// harborReissueTask gives Harbor's hosts the certificate of the work directory, one after the other, and restarts
// Harbor.
func harborReissueTask() task.Task {
	return reissueTask(path.Join(HarborDir, "harbor.yml"), 0o600, func(ctx context.Context, t *task.Host) error {
		if err := t.Systemctl(ctx, "restart", HarborUnit); err != nil {
			return t.WithUnitLog(ctx, HarborUnit, err)
		}
		return awaitHarbor(ctx, t)
	})
}

// HarborClient returns an administrator's client for the Harbor on this host.
func HarborClient(t *task.Host) (*harbor.Client, *http.Transport, error) {
	access, err := pushAccess(t)
	if err != nil {
		return nil, nil, err
	}
	client, err := t.Transport(access.CA)
	if err != nil {
		return nil, nil, err
	}
	return &harbor.Client{
		URL: "https://" + access.Address, HTTP: client, Username: access.Username,
		Password: access.Password,
	}, client, nil
}

// awaitHarbor waits until all parts of Harbor are healthy, then checks the administrator's password.
func awaitHarbor(ctx context.Context, t *task.Host) error {
	client, connections, err := HarborClient(t)
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	if err := task.Eventually(ctx, harborStart, client.Healthy); err != nil {
		return t.WithUnitLog(ctx, HarborUnit, fmt.Errorf("%w: see %s and docker ps on the host", err, HarborLogs))
	}
	err = client.CheckLogin(ctx)
	if errors.Is(err, harbor.ErrDenied) {
		return plain.Advise(
			errors.New("the Harbor on "+t.Name+
				" rejects the administrator's password of the work directory; it keeps its first password, or a later change of it, in "+HarborData),
			"put the password into WORKDIR/"+task.HarborAdminFile+
				", use the work directory of its installation, or delete Harbor's data (kkbundle reset --with-data)")
	}
	return err
}

// harborLoginTask creates the hosts' account, which can only pull: the administrator's password stays in the work
// directory.
func harborLoginTask() task.Task {
	return task.Task{
		Name:  "harbor-login",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done:  robotPulls,
		Do: func(ctx context.Context, t *task.Host) error {
			client, connections, err := HarborClient(t)
			if err != nil {
				return err
			}
			defer connections.CloseIdleConnections()
			if err := grantPull(ctx, t, client); err != nil {
				return err
			}
			ok, err := robotPulls(ctx, t)
			if err == nil && !ok {
				err = errors.New("the hosts' account cannot pull from Harbor")
			}
			return err
		},
	}
}

func grantPull(ctx context.Context, t *task.Host, client *harbor.Client) error {
	samples, err := harborProjects(t.Site, client.URL)
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
	s, err := Credentials(t.Site)
	if err != nil {
		return err
	}
	robot := strings.TrimPrefix(s.pull.Username, robotPrefix)
	if _, err := client.GrantPull(ctx, robot, projects); err != nil {
		return err
	}
	return client.SetSecret(ctx, robot, s.pull.Password)
}

// A harborProject is a project of the bundle's images, with one image as a sample.
type harborProject struct{ project, sample string }

// harborProjects returns the projects of all seeded items, in the order of the bundle.
func harborProjects(s *task.Site, address string) ([]harborProject, error) {
	address = strings.TrimPrefix(address, "https://")
	var list []harborProject
	holds := Holds(s)
	for _, it := range s.Items {
		if !holds(it) {
			continue
		}
		ref, err := registry.Destination(address, it)
		if err != nil {
			return nil, err
		}
		project, _, _ := strings.Cut(ref.Context().RepositoryStr(), "/")
		if !slices.ContainsFunc(list, func(p harborProject) bool { return p.project == project }) {
			list = append(list, harborProject{project, ref.Context().RepositoryStr() + "@" +
				it.Descriptor.Digest.String()})
		}
	}
	return list, nil
}

// headManifest checks access to a manifest.
func headManifest(ctx context.Context, reference string, o ...remote.Option) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	_, err = remote.Head(ref, append(o, remote.WithContext(ctx))...)
	return err
}

// robotPulls reports whether the hosts' account can pull from every project of this host's Harbor.
func robotPulls(ctx context.Context, t *task.Host) (bool, error) {
	own, err := localAccess(t)
	if err != nil {
		return false, err
	}
	access, err := t.Site.Access()
	if err != nil {
		return false, err
	}
	projects, err := harborProjects(t.Site, own.Address)
	if err != nil {
		return false, err
	}
	client, err := t.Transport(own.CA)
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	robot := login{authn.FromConfig(authn.AuthConfig{Username: access.Username, Password: access.Password})}
	for _, one := range projects {
		err := headManifest(ctx, own.Address+"/"+one.sample, remote.WithTransport(client),
			remote.WithAuthFromKeychain(robot))
		var refused *transport.Error
		if errors.As(err, &refused) && (refused.StatusCode == http.StatusNotFound || isRefused(refused)) ||
			err != nil && t.Site.DryRun {
			task.Because(ctx, "the hosts' account cannot pull from project %s", one.project)
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
