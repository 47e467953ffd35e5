package installer

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	etcdDir     = configDir + "/etcd"
	etcdUnit    = "etcd.service"
	etcdEnv     = etcdDir + "/etcd.env"
	etcdInitial = etcdDir + "/initial.env"
	// etcdMemberPath says that the host has been a member of a cluster of etcd that worked.
	etcdMemberPath = stampDir + "/etcd-member"
	etcdPort       = "2379"
	etcdPeerPort   = "2380"
	defaultEtcdDir = "/var/lib/etcd"
)

func etcdAuthorityFiles() pairFiles { return pairFiles{etcdDir + "/ca.crt", etcdDir + "/ca.key"} }
func etcdServerFiles() pairFiles    { return pairFiles{etcdDir + "/server.crt", etcdDir + "/server.key"} }

func etcdPeerFiles() pairFiles { return pairFiles{etcdDir + "/peer.crt", etcdDir + "/peer.key"} }

// etcdPrograms are members of etcd's archive, whose only directory is named for the version and the architecture.
func etcdPrograms(names ...string) []Place {
	var files []Place
	for _, name := range names {
		files = append(files, Place{"etcd", "*/" + name, "/usr/local/bin/" + name, executable})
	}
	return files
}

// etcdTasks install etcd beside the cluster, or the files for one that is there.
func etcdTasks(c *manifest.Cluster) []Task {
	switch c.Etcd.Type {
	case manifest.EtcdExternal:
		return []Task{etcdTask(c), etcdHealthTask(), etcdClientTask((*Site).etcdClient)}
	case manifest.EtcdProvided:
		return []Task{etcdClientTask(func(r *Site, _ context.Context) ([]textFile, error) { return r.providedEtcdClient() })}
	}
	return nil
}

// etcdTask makes hosts members of etcd, one after the other: members join and restart singly.
func etcdTask(c *manifest.Cluster) Task {
	return settle(Task{
		Name:  "etcd",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Where: OneByOne,
		Files: etcdPrograms("etcd", "etcdctl", "etcdutl"),
		Leaves: Leaves{
			Undo:  func(ctx context.Context, t *Target) error { return t.leaveEtcd(ctx) },
			Units: []string{etcdUnit}, Paths: []string{c.Etcd.DataDir, etcdDir, path.Dir(etcdClientFiles().ca)},
		},
	}, func(ctx context.Context, t *Target) (setting, error) {
		files, err := t.etcdMemberFiles(ctx)
		if err != nil {
			return setting{}, err
		}
		env, err := t.etcdSettings()
		if err != nil {
			return setting{}, err
		}
		return setting{
			files: append(files,
				textFile{etcdEnv, 0o600, []byte(env)},
				textFile{"/etc/systemd/system/" + etcdUnit, 0o644, []byte(etcdUnitFile)},
			),
			apply: func(ctx context.Context, t *Target) error { return t.runMember(ctx) },
			holds: func(ctx context.Context, t *Target) (bool, error) {
				return t.test(ctx, "systemctl", "is-active", "--quiet", etcdUnit)
			},
		}, nil
	})
}

// etcdHealthTask waits until every member answers, and remembers that there is a cluster: from then on members without data are
// not taken for new ones.
func etcdHealthTask() Task {
	stamp := textFile{etcdMemberPath, 0o600, []byte("member\n")}
	return Task{
		Name:  "etcd-health",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if ok, err := t.has(ctx, stamp); err != nil || !ok {
				return false, err
			}
			return succeeded(t.etcdHealthy(ctx))
		},
		Do: func(ctx context.Context, t *Target) error {
			if err := eventually(ctx, etcdPatience, t.etcdHealthy); err != nil {
				return t.withUnitLog(ctx, etcdUnit, err)
			}
			return t.write(ctx, stamp)
		},
	}
}

// etcdClientTask gives control planes what API servers need for etcd.
func etcdClientTask(files func(r *Site, ctx context.Context) ([]textFile, error)) Task {
	return settle(Task{
		Name:   "etcd-client",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Leaves: Leaves{Paths: []string{path.Dir(etcdClientFiles().ca)}},
	}, func(ctx context.Context, t *Target) (setting, error) {
		list, err := files(t.run, ctx)
		return setting{files: list}, err
	})
}

// etcdSettings is the environment that etcd is configured by. What counts for a member without data only is in another file.
func (t *Target) etcdSettings() (string, error) {
	dir, err := t.etcdData()
	if err != nil {
		return "", err
	}
	ip := t.IP.String()
	client, peer := "https://"+net.JoinHostPort(ip, etcdPort), "https://"+net.JoinHostPort(ip, etcdPeerPort)
	local := "https://" + net.JoinHostPort(loopback(ip), etcdPort)
	trusted := etcdAuthorityFiles().cert
	return hostfile.Mark + "\n" + environment(
		"ETCD_NAME", t.Name,
		"ETCD_DATA_DIR", dir,
		"ETCD_LISTEN_CLIENT_URLS", client+","+local,
		"ETCD_ADVERTISE_CLIENT_URLS", client,
		"ETCD_LISTEN_PEER_URLS", peer,
		"ETCD_INITIAL_ADVERTISE_PEER_URLS", peer,
		"ETCD_CERT_FILE", etcdServerFiles().cert,
		"ETCD_KEY_FILE", etcdServerFiles().key,
		"ETCD_TRUSTED_CA_FILE", trusted,
		"ETCD_CLIENT_CERT_AUTH", "true",
		"ETCD_PEER_CERT_FILE", etcdPeerFiles().cert,
		"ETCD_PEER_KEY_FILE", etcdPeerFiles().key,
		"ETCD_PEER_TRUSTED_CA_FILE", trusted,
		"ETCD_PEER_CLIENT_CERT_AUTH", "true",
	), nil
}

// loopback is the address of the loopback interface in the family of a node's address: etcd listens there.
func loopback(ip string) string {
	if strings.Contains(ip, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// environment writes names and values in turn.
func environment(pairs ...string) string {
	var b strings.Builder
	for pair := range slices.Chunk(pairs, 2) { //nolint:mnd // a name and a value
		fmt.Fprintf(&b, "%s=%s\n", pair[0], pair[1])
	}
	return b.String()
}

// A member waits for others before it is ready, so that the unit takes as long as they do.
const etcdUnitFile = hostfile.Mark + `
[Unit]
Description=etcd
Documentation=https://etcd.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
EnvironmentFile=` + etcdEnv + `
EnvironmentFile=` + etcdInitial + `
ExecStart=/usr/local/bin/etcd
Restart=always
RestartSec=5
TimeoutStartSec=10min
LimitNOFILE=65536
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// etcdData is etcd's directory on a host.
func (t *Target) etcdData() (string, error) {
	c, err := t.run.on(t.Host)
	if err != nil {
		return "", err
	}
	if dir := c.Etcd.DataDir; dir != "" {
		return dir, nil
	}
	return defaultEtcdDir, nil
}

// etcdPart tells kubeadm about etcd.
func (r *Site) etcdPart() configPart {
	e := r.cluster.Etcd
	var endpoints []any
	for _, one := range r.etcdEndpoints() {
		endpoints = append(endpoints, one)
	}
	switch {
	case len(endpoints) > 0:
		f := etcdClientFiles()
		return configPart{cluster: document{"etcd": document{"external": document{
			"endpoints": endpoints, "caFile": f.ca, "certFile": f.cert, "keyFile": f.key,
		}}}}
	case e.DataDir != "" && e.DataDir != defaultEtcdDir:
		return configPart{cluster: document{"etcd": document{"local": document{"dataDir": e.DataDir}}}}
	}
	return configPart{}
}

// etcdEndpoints are the addresses of an etcd beside the cluster; none where kubeadm runs it.
func (r *Site) etcdEndpoints() []string {
	switch r.cluster.Etcd.Type {
	case manifest.EtcdProvided:
		return r.cluster.Etcd.Endpoints
	case manifest.EtcdExternal:
		var list []string
		for _, t := range r.withRole(manifest.RoleEtcd) {
			list = append(list, t.etcdEndpoint())
		}
		return list
	}
	return nil
}

func (t *Target) etcdEndpoint() string {
	if !t.IP.IsValid() { // Reset does not ask hosts for their address
		return "https://" + net.JoinHostPort(loopback(""), etcdPort)
	}
	return "https://" + net.JoinHostPort(t.IP.String(), etcdPort)
}

func (t *Target) etcdPeerURL() string {
	return "https://" + net.JoinHostPort(t.IP.String(), etcdPeerPort)
}
