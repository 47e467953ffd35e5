package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Paths in the work directory.
const (
	etcdCACertFile = "pki/etcd-ca.crt"
	etcdCAKeyFile  = "pki/etcd-ca.key"
	etcdPairs      = "pki/etcd"
)

// clientFiles are the paths of an etcd client's certificates on a host.
type clientFiles struct {
	ca string
	task.PairFiles
}

// etcdClientFiles are for clients of an external etcd. kubeadm reset would delete files in kubeadm's directory.
func etcdClientFiles() clientFiles {
	const dir = task.ConfigDir + "/etcd-client"
	return clientFiles{dir + "/ca.crt", task.PairFiles{Cert: dir + "/client.crt", Key: dir + "/client.key"}}
}

// stackedClientFiles are kubeadm's files on control planes.
func stackedClientFiles() clientFiles {
	const dir = "/etc/kubernetes/pki/etcd"
	return clientFiles{dir + "/ca.crt", task.PairFiles{Cert: dir + "/healthcheck-client.crt", Key: dir +
		"/healthcheck-client.key"}}
}

// etcdAuthority returns the certificate authority of etcd and its clients. etcd hosts keep a copy of its key, as
// control planes do with kubeadm's, so that a new work directory can recover it.
func etcdAuthority(ctx context.Context, r *task.Site) (authority *pki.Authority, key []byte, err error) {
	authority, err = r.Dir.Authority(etcdCACertFile, etcdCAKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		var pair pki.Pair
		if pair, err = etcdAuthorityOfHosts(ctx, r); err == nil {
			err = r.Dir.WritePair(task.PairFiles{Cert: etcdCACertFile, Key: etcdCAKeyFile}, pair)
		}
		if err == nil {
			authority, err = pki.ParseAuthority(pair)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if end := authority.Certificate.NotAfter; r.Now().After(end) {
		return nil, nil, fmt.Errorf("%s expired on %s: etcd's members and clients no longer trust each other",
			r.Dir.Join(etcdCACertFile), end.Format(time.DateOnly))
	}
	key, err = r.Dir.Read(etcdCAKeyFile)
	return authority, key, err
}

// etcdAuthorityOfHosts returns the authority found on etcd hosts, or a new one if no host has one.
func etcdAuthorityOfHosts(ctx context.Context, r *task.Site) (pki.Pair, error) {
	all := r.WithRole(manifest.RoleEtcd)
	connected := r.Connected(manifest.RoleEtcd)
	for _, t := range connected {
		key, err := t.Read(ctx, AuthorityFiles().Key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return pki.Pair{}, err
		}
		cert, err := t.Read(ctx, AuthorityFiles().Cert)
		if err != nil {
			return pki.Pair{}, err
		}
		pair := pki.Pair{Cert: cert, Key: key}
		if _, err := pki.ParseAuthority(pair); err != nil {
			return pki.Pair{}, fmt.Errorf("etcd's authority on %s: %w", t.Name, err)
		}
		return pair, nil
	}
	if len(connected) < len(all) {
		return pki.Pair{}, errors.New(
			"the work directory lacks etcd's authority, and this run excludes etcd hosts that may have it; name the right directory with --work-dir, or run without --limit")
	}
	_, pair, err := pki.NewAuthority("kkbundle etcd CA", r.Now())
	return pair, err
}

// etcdPair returns a certificate from etcd's authority: the work directory's if it is still valid, else a new one.
func etcdPair(r *task.Site, by *pki.Authority, name string, use pki.Use, names pki.Names) (pki.Pair, error) {
	files := task.PairFiles{Cert: path.Join(etcdPairs, name+".crt"), Key: path.Join(etcdPairs, name+".key")}
	return r.Dir.Pair(task.Leaf{Files: files, Use: use, Names: names}, by, r.Now())
}

// etcdClient returns the files of an etcd client, with certificates from the work directory.
func etcdClient(ctx context.Context, r *task.Site) ([]task.File, error) {
	r.Dir.Making.Lock()
	defer r.Dir.Making.Unlock()
	authority, _, err := etcdAuthority(ctx, r)
	if err != nil {
		return nil, err
	}
	pair, err := etcdPair(r, authority, "client", pki.Client, pki.ParseNames([]string{"kkbundle-etcd-client"}))
	if err != nil {
		return nil, err
	}
	f := etcdClientFiles()
	return append([]task.File{{Path: f.ca, Mode: 0o644, Data: authority.PEM}}, f.Files(pair)...), nil
}

// MemberFiles returns the certificates of a member of etcd and the authority.
func MemberFiles(ctx context.Context, t *task.Host) ([]task.File, error) {
	client, err := etcdClient(ctx, t.Site)
	if err != nil {
		return nil, err
	}
	t.Site.Dir.Making.Lock()
	defer t.Site.Dir.Making.Unlock()
	authority, key, err := etcdAuthority(ctx, t.Site)
	if err != nil {
		return nil, err
	}
	files := append(client, AuthorityFiles().Files(pki.Pair{Cert: authority.PEM, Key: key})...)
	names := pki.ParseNames([]string{t.Name, "localhost", t.IP.String(), "127.0.0.1", "::1"})
	for _, kind := range []string{"server", "peer"} {
		// A server's gateway is a client of the server itself.
		pair, err := etcdPair(t.Site, authority, t.Name+"-"+kind, pki.Peer, names)
		if err != nil {
			return nil, err
		}
		files = append(files, pairFiles(kind).Files(pair)...)
	}
	return files, nil
}

// clientFileError returns the error of a client file for a provided etcd that cannot be read.
func clientFileError(path string, err error) error {
	return plain.Advise(fmt.Errorf("%s, for your etcd: %w", path, err),
		"a bundle does not contain the client's key: name the cluster file with -c, and keep ca, cert and key at the paths in it, relative to it")
}

// providedEtcdClient returns the operator's client files for a provided etcd.
func providedEtcdClient(_ context.Context, r *task.Site) ([]task.File, error) {
	e, f := r.Cluster.Etcd, etcdClientFiles()
	var files []task.File
	const certMode, keyMode = 0o644, 0o600
	for _, one := range []struct {
		from, to string
		mode     fs.FileMode
	}{{e.CA, f.ca, certMode}, {e.Cert, f.Cert, certMode}, {e.Key, f.Key, keyMode}} {
		if r.Values == nil {
			return nil, clientFileError(one.from, fs.ErrNotExist)
		}
		data, err := r.Values(one.from)
		if err != nil {
			return nil, clientFileError(one.from, err)
		}
		files = append(files, task.File{Path: one.to, Mode: one.mode, Data: data})
	}
	return files, nil
}

// ClientAuthorityFiles returns the paths of etcd's authority on control planes without etcd, which renew their client
// certificate with it. kubeadm leaves its etcd's authority on control planes, too.
func ClientAuthorityFiles() task.PairFiles {
	f := etcdClientFiles()
	return task.PairFiles{Cert: f.ca, Key: path.Join(path.Dir(f.ca), "ca.key")}
}

// LeafFiles returns the certificates that etcd's authority signs: of a member with its client, or of a client.
func LeafFiles(member bool) []task.PairFiles {
	client := []task.PairFiles{etcdClientFiles().PairFiles}
	if !member {
		return client
	}
	return append(client, pairFiles("server"), pairFiles("peer"))
}

// AuthorityInWorkDir returns the files of etcd's authority in the work directory.
func AuthorityInWorkDir() task.PairFiles {
	return task.PairFiles{Cert: etcdCACertFile, Key: etcdCAKeyFile}
}

// PairsInWorkDir returns the files of the certificates of etcd and its clients in the work directory.
func PairsInWorkDir(dir *task.WorkDir) ([]task.PairFiles, error) {
	certs, err := fs.Glob(dir.Root.FS(), etcdPairs+"/*.crt")
	var pairs []task.PairFiles
	for _, name := range certs {
		pairs = append(pairs, task.PairFiles{Cert: name, Key: name[:len(name)-len("crt")] + "key"})
	}
	return pairs, err
}

// ReissueTasks give the members and clients of external etcd the certificates of the work directory. Nothing
// restarts: etcd and its clients read their files for every connection.
// https://github.com/etcd-io/etcd/blob/v3.6.5/client/pkg/transport/listener.go (GetCertificate, GetClientCertificate)
func ReissueTasks() []task.Task {
	give := func(name string, role manifest.Role, files func(ctx context.Context,
		t *task.Host) ([]task.File, error),
	) task.Task {
		return task.Task{
			Name: name, Roles: []manifest.Role{role}, Where: task.OneByOne,
			Done: func(ctx context.Context, t *task.Host) (bool, error) {
				if there, err := t.Test(ctx, "test", "-e", etcdClientFiles().Cert); err != nil || !there {
					return true, err // not installed yet
				}
				want, err := files(ctx, t)
				if err != nil {
					return false, err
				}
				return t.HasFiles(ctx, want...)
			},
			Do: func(ctx context.Context, t *task.Host) error {
				want, err := files(ctx, t)
				if err != nil {
					return err
				}
				return t.Write(ctx, want...)
			},
		}
	}
	return []task.Task{
		give("etcd-certificates", manifest.RoleEtcd, MemberFiles),
		give("etcd-client-certificate", manifest.RoleControlPlane,
			func(ctx context.Context, t *task.Host) ([]task.File, error) {
				return etcdClient(ctx, t.Site)
			}),
	}
}
