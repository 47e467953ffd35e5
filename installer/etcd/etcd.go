package etcd

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	etcdDir = task.ConfigDir + "/etcd"
	Unit    = "etcd.service"
	etcdEnv = etcdDir + "/etcd.env"
	Initial = etcdDir + "/initial.env"
	// etcdMemberPath says that the host has been a member of a cluster of etcd that worked.
	etcdMemberPath = task.StampDir + "/etcd-member"
	Port           = "2379"
	etcdPeerPort   = "2380"
	DefaultEtcdDir = "/var/lib/etcd"
)

func AuthorityFiles() task.PairFiles {
	return task.PairFiles{Cert: etcdDir + "/ca.crt", Key: etcdDir + "/ca.key"}
}

func etcdServerFiles() task.PairFiles {
	return task.PairFiles{Cert: etcdDir + "/server.crt", Key: etcdDir + "/server.key"}
}

func etcdPeerFiles() task.PairFiles {
	return task.PairFiles{Cert: etcdDir + "/peer.crt", Key: etcdDir + "/peer.key"}
}

// Programs are members of etcd's archive, whose only directory is named for the version and the architecture.
func Programs(names ...string) []task.Place {
	var files []task.Place
	for _, name := range names {
		files = append(files, task.Place{Component: "etcd", Member: "*/" + name, Path: "/usr/local/bin/" + name, Mode: task.Executable})
	}
	return files
}

// Tasks install etcd beside the cluster, or the files for one that is there.
func Tasks(c *manifest.Cluster) []task.Task {
	switch c.Etcd.Type {
	case manifest.EtcdExternal:
		return []task.Task{etcdTask(c), HealthTask(), etcdClientTask(func(t *task.Site, ctx context.Context) ([]task.File, error) { return etcdClient(ctx, t) })}
	case manifest.EtcdProvided:
		return []task.Task{etcdClientTask(func(r *task.Site, _ context.Context) ([]task.File, error) { return providedEtcdClient(r) })}
	}
	return nil
}

// etcdTask makes hosts members of etcd, one after the other: members join and restart singly.
func etcdTask(c *manifest.Cluster) task.Task {
	return task.Settle(task.Task{
		Name:  "etcd",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Where: task.OneByOne,
		Files: Programs("etcd", "etcdctl", "etcdutl"),
		Leaves: task.Leaves{
			Undo:  func(ctx context.Context, t *task.Host) error { return leaveEtcd(ctx, t) },
			Units: []string{Unit}, Paths: []string{c.Etcd.DataDir, etcdDir, path.Dir(etcdClientFiles().ca)},
		},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		files, err := MemberFiles(ctx, t)
		if err != nil {
			return task.Setting{}, err
		}
		env, err := etcdSettings(t)
		if err != nil {
			return task.Setting{}, err
		}
		return task.Setting{
			Files: append(files,
				task.File{Path: etcdEnv, Mode: 0o600, Data: []byte(env)},
				task.File{Path: "/etc/systemd/system/" + Unit, Mode: 0o644, Data: []byte(etcdUnitFile)},
			),
			Apply: func(ctx context.Context, t *task.Host) error { return RunMember(ctx, t) },
			Holds: func(ctx context.Context, t *task.Host) (bool, error) {
				return t.Test(ctx, "systemctl", "is-active", "--quiet", Unit)
			},
		}, nil
	})
}

// HealthTask waits until every member answers, and remembers that there is a cluster: from then on members without data are
// not taken for new ones.
func HealthTask() task.Task {
	stamp := task.File{Path: etcdMemberPath, Mode: 0o600, Data: []byte("member\n")}
	return task.Task{
		Name:  "etcd-health",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if ok, err := t.HasFiles(ctx, stamp); err != nil || !ok {
				return false, err
			}
			return task.Succeeded(Healthy(ctx, t))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := task.Eventually(ctx, Patience, func(ctx context.Context) error { return Healthy(ctx, t) }); err != nil {
				return t.WithUnitLog(ctx, Unit, err)
			}
			return t.Write(ctx, stamp)
		},
	}
}

// etcdClientTask gives control planes what API servers need for etcd.
func etcdClientTask(files func(r *task.Site, ctx context.Context) ([]task.File, error)) task.Task {
	return task.Settle(task.Task{
		Name:   "etcd-client",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Leaves: task.Leaves{Paths: []string{path.Dir(etcdClientFiles().ca)}},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		list, err := files(t.Site, ctx)
		return task.Setting{Files: list}, err
	})
}

// etcdSettings is the environment that etcd is configured by. What counts for a member without data only is in another file.
func etcdSettings(t *task.Host) (string, error) {
	dir, err := Data(t)
	if err != nil {
		return "", err
	}
	ip := t.IP.String()
	client, peer := "https://"+net.JoinHostPort(ip, Port), "https://"+net.JoinHostPort(ip, etcdPeerPort)
	local := "https://" + net.JoinHostPort(task.Loopback(ip), Port)
	trusted := AuthorityFiles().Cert
	return hostfile.Mark + "\n" + environment(
		"ETCD_NAME", t.Name,
		"ETCD_DATA_DIR", dir,
		"ETCD_LISTEN_CLIENT_URLS", client+","+local,
		"ETCD_ADVERTISE_CLIENT_URLS", client,
		"ETCD_LISTEN_PEER_URLS", peer,
		"ETCD_INITIAL_ADVERTISE_PEER_URLS", peer,
		"ETCD_CERT_FILE", etcdServerFiles().Cert,
		"ETCD_KEY_FILE", etcdServerFiles().Key,
		"ETCD_TRUSTED_CA_FILE", trusted,
		"ETCD_CLIENT_CERT_AUTH", "true",
		"ETCD_PEER_CERT_FILE", etcdPeerFiles().Cert,
		"ETCD_PEER_KEY_FILE", etcdPeerFiles().Key,
		"ETCD_PEER_TRUSTED_CA_FILE", trusted,
		"ETCD_PEER_CLIENT_CERT_AUTH", "true",
	), nil
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
EnvironmentFile=` + Initial + `
ExecStart=/usr/local/bin/etcd
Restart=always
RestartSec=5
TimeoutStartSec=10min
LimitNOFILE=65536
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// Data is etcd's directory on a host.
func Data(t *task.Host) (string, error) {
	c, err := t.Site.ClusterOn(t.Host)
	if err != nil {
		return "", err
	}
	if dir := c.Etcd.DataDir; dir != "" {
		return dir, nil
	}
	return DefaultEtcdDir, nil
}

// Part tells kubeadm about etcd.
func Part(r *task.Site) task.KubeadmPart {
	e := r.Cluster.Etcd
	var endpoints []any
	for _, one := range etcdEndpoints(r) {
		endpoints = append(endpoints, one)
	}
	switch {
	case len(endpoints) > 0:
		f := etcdClientFiles()
		return task.KubeadmPart{Cluster: kube.Document{"etcd": kube.Document{"external": kube.Document{
			"endpoints": endpoints, "caFile": f.ca, "certFile": f.Cert, "keyFile": f.Key,
		}}}}
	case e.DataDir != "" && e.DataDir != DefaultEtcdDir:
		return task.KubeadmPart{Cluster: kube.Document{"etcd": kube.Document{"local": kube.Document{"dataDir": e.DataDir}}}}
	}
	return task.KubeadmPart{}
}

// etcdEndpoints are the addresses of an etcd beside the cluster; none where kubeadm runs it.
func etcdEndpoints(r *task.Site) []string {
	switch r.Cluster.Etcd.Type {
	case manifest.EtcdProvided:
		return r.Cluster.Etcd.Endpoints
	case manifest.EtcdExternal:
		var list []string
		for _, t := range r.WithRole(manifest.RoleEtcd) {
			list = append(list, Endpoint(t))
		}
		return list
	}
	return nil
}

func Endpoint(t *task.Host) string {
	if !t.IP.IsValid() { // Reset does not ask hosts for their address
		return "https://" + net.JoinHostPort(task.Loopback(""), Port)
	}
	return "https://" + net.JoinHostPort(t.IP.String(), Port)
}

func PeerURL(t *task.Host) string {
	return "https://" + net.JoinHostPort(t.IP.String(), etcdPeerPort)
}
