package etcd

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// Files, the unit and the ports of etcd on a host.
const (
	etcdDir        = task.ConfigDir + "/etcd"
	Unit           = "etcd.service"
	etcdEnv        = etcdDir + "/etcd.env"
	InitialEnv     = etcdDir + "/initial.env"
	Port           = "2379"
	etcdPeerPort   = "2380"
	DefaultDataDir = "/var/lib/etcd"
)

// AuthorityFiles returns the paths of etcd's certificate authority on members.
func AuthorityFiles() task.PairFiles { return pairFiles("ca") }

func pairFiles(name string) task.PairFiles {
	return task.PairFiles{Cert: path.Join(etcdDir, name+".crt"), Key: path.Join(etcdDir, name+".key")}
}

// Programs returns the places of programs from etcd's archive, whose only directory varies with the version.
func Programs(names ...string) []task.Place {
	var files []task.Place
	for _, name := range names {
		files = append(files, task.Place{
			Component: "etcd", Member: "*/" + name, Path: "/usr/local/bin/" + name,
			Mode: task.Executable,
		})
	}
	return files
}

// Tasks returns the tasks that install external etcd, or the client files for an etcd that the operator provides.
func Tasks(c *manifest.Cluster) []task.Task {
	switch c.Etcd.Type {
	case manifest.EtcdExternal:
		return []task.Task{etcdTask(c), HealthTask(), etcdClientTask(etcdClient)}
	case manifest.EtcdProvided:
		return []task.Task{etcdClientTask(providedEtcdClient)}
	}
	return nil
}

// etcdTask makes hosts members of etcd, one by one: only one member may join or restart at a time.
func etcdTask(c *manifest.Cluster) task.Task {
	return task.Settle(task.Task{
		Name:  "etcd",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Where: task.OneByOne,
		Files: Programs("etcd", "etcdctl", "etcdutl"),
		Leaves: task.Leaves{
			Undo:  leave,
			Units: []string{Unit}, Paths: []string{c.Etcd.DataDir, etcdDir, path.Dir(etcdClientFiles().ca)},
		},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		files, err := MemberFiles(ctx, t)
		if err != nil {
			return task.Setting{}, err
		}
		env, err := Environment(ctx, t)
		if err != nil {
			return task.Setting{}, err
		}
		return task.Setting{
			Files: append(files,
				env,
				task.File{Path: "/etc/systemd/system/" + Unit, Mode: 0o644, Data: []byte(etcdUnitFile)},
			),
			Apply: RunMember,
			Holds: func(ctx context.Context, t *task.Host) (bool, error) {
				return t.Test(ctx, "systemctl", "is-active", "--quiet", Unit)
			},
		}, nil
	})
}

// HealthTask waits until every member is healthy and records that the cluster exists. From then on a member without
// data has lost it and is not treated as new.
func HealthTask() task.Task {
	stamp := marks.EtcdMember.File([]byte("member\n"))
	return task.Task{
		Name:  "etcd-health",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if ok, err := t.HasFiles(ctx, stamp); err != nil || !ok {
				return false, err
			}
			return task.Succeeded(CheckHealth(ctx, t))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := task.Eventually(ctx, LeaderTimeout,
				func(ctx context.Context) error { return CheckHealth(ctx, t) }); err != nil {
				return t.WithUnitLog(ctx, Unit, err)
			}
			return t.Write(ctx, stamp)
		},
	}
}

// etcdClientTask writes the API servers' certificates for etcd on control planes.
func etcdClientTask(files func(ctx context.Context, s *task.Site) ([]task.File, error)) task.Task {
	return task.Settle(task.Task{
		Name:   "etcd-client",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Leaves: task.Leaves{Paths: []string{path.Dir(etcdClientFiles().ca)}},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		list, err := files(ctx, t.Site)
		return task.Setting{Files: list}, err
	})
}

// Environment returns etcd's environment file, or an error if etcd would take no changes with its quota.
func Environment(ctx context.Context, t *task.Host) (task.File, error) {
	text, err := settings(t)
	if err == nil {
		err = checkEnvQuota(ctx, t, text)
	}
	return task.File{Path: etcdEnv, Mode: 0o600, Data: []byte(text)}, err
}

// settings returns the text of etcd's environment file. InitialEnv has the settings that only members without data
// read.
func settings(t *task.Host) (string, error) {
	dir, err := DataDir(t)
	if err != nil {
		return "", err
	}
	ip := t.IP.String()
	client, peer := "https://"+net.JoinHostPort(ip, Port), "https://"+net.JoinHostPort(ip, etcdPeerPort)
	local := "https://" + net.JoinHostPort(task.Loopback(ip), Port)
	trusted, server, peerPair := AuthorityFiles().Cert, pairFiles("server"), pairFiles("peer")
	pairs := []string{
		"ETCD_NAME", t.Name,
		"ETCD_DATA_DIR", dir,
		"ETCD_LISTEN_CLIENT_URLS", client + "," + local,
		"ETCD_ADVERTISE_CLIENT_URLS", client,
		"ETCD_LISTEN_PEER_URLS", peer,
		"ETCD_INITIAL_ADVERTISE_PEER_URLS", peer,
		"ETCD_CERT_FILE", server.Cert,
		"ETCD_KEY_FILE", server.Key,
		"ETCD_TRUSTED_CA_FILE", trusted,
		"ETCD_CLIENT_CERT_AUTH", "true",
		"ETCD_PEER_CERT_FILE", peerPair.Cert,
		"ETCD_PEER_KEY_FILE", peerPair.Key,
		"ETCD_PEER_TRUSTED_CA_FILE", trusted,
		"ETCD_PEER_CLIENT_CERT_AUTH", "true",
	}
	if quota := t.Site.Cluster.Etcd.Quota; quota > 0 {
		pairs = append(pairs, quotaEnv, strconv.FormatInt(quota.Bytes(), 10))
	}
	return hostfile.Mark + "\n" + environment(pairs...), nil
}

// environment renders pairs of name and value as an environment file.
func environment(pairs ...string) string {
	var b strings.Builder
	for pair := range slices.Chunk(pairs, 2) { //nolint:mnd // a name and a value
		fmt.Fprintf(&b, "%s=%s\n", pair[0], pair[1])
	}
	return b.String()
}

// A member is ready when it has found the others, so TimeoutStartSec is long.
const etcdUnitFile = hostfile.Mark + `
[Unit]
Description=etcd
Documentation=https://etcd.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
EnvironmentFile=` + etcdEnv + `
EnvironmentFile=` + InitialEnv + `
ExecStart=/usr/local/bin/etcd
Restart=always
RestartSec=5
TimeoutStartSec=10min
LimitNOFILE=65536
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// DataDir returns etcd's data directory on a host.
func DataDir(t *task.Host) (string, error) {
	c, err := t.Site.ClusterOn(t.Host)
	if err != nil {
		return "", err
	}
	return cmp.Or(c.Etcd.DataDir, DefaultDataDir), nil
}

// Part returns etcd's part of kubeadm's configuration.
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
	case e.Type == manifest.EtcdProvided || e.Type == manifest.EtcdExternal:
		return task.KubeadmPart{}
	}
	local := kube.Document{}
	if e.DataDir != "" && e.DataDir != DefaultDataDir {
		local["dataDir"] = e.DataDir
	}
	if e.Quota > 0 {
		local["extraArgs"] = kube.Document{QuotaArgument: strconv.FormatInt(e.Quota.Bytes(), 10)}
	}
	if len(local) == 0 {
		return task.KubeadmPart{}
	}
	return task.KubeadmPart{Cluster: kube.Document{"etcd": kube.Document{"local": local}}}
}

// etcdEndpoints returns the client URLs of an external etcd, none for kubeadm's.
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

// Endpoint returns the client URL of the host's member.
func Endpoint(t *task.Host) string {
	if !t.IP.IsValid() { // reset does not determine addresses
		return "https://" + net.JoinHostPort(task.Loopback(""), Port)
	}
	return "https://" + net.JoinHostPort(t.IP.String(), Port)
}

// PeerURL returns the URL of the host's member for other members.
func PeerURL(t *task.Host) string { return "https://" + net.JoinHostPort(t.IP.String(), etcdPeerPort) }
