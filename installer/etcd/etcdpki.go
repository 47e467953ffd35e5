package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
)

// Names in the work directory.
const (
	etcdCACertFile = "pki/etcd-ca.crt"
	etcdCAKeyFile  = "pki/etcd-ca.key"
	etcdPairs      = "pki/etcd"
)

// clientFiles are what a client of etcd needs on a host.
type clientFiles struct {
	ca string
	task.PairFiles
}

// ClientFiles are the files of clients of an etcd beside the cluster: kkbundle's own and the API servers. They are not in
// kubeadm's directory, which kubeadm empties when it undoes an interrupted init.
func etcdClientFiles() clientFiles {
	const dir = task.ConfigDir + "/etcd-client"
	return clientFiles{dir + "/ca.crt", task.PairFiles{Cert: dir + "/client.crt", Key: dir + "/client.key"}}
}

// stackedClientFiles are kubeadm's, on its control planes.
func stackedClientFiles() clientFiles {
	const dir = "/etc/kubernetes/pki/etcd"
	return clientFiles{dir + "/ca.crt", task.PairFiles{Cert: dir + "/healthcheck-client.crt", Key: dir + "/healthcheck-client.key"}}
}

// etcdAuthority returns the authority that signs the certificates of etcd and its clients. Its key is on the hosts of etcd, too, as
// kubeadm leaves its own on control planes: a lost work directory gets it back from there, and members go on trusting each other.
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
		return nil, nil, fmt.Errorf("%s ended %s: etcd's members and clients do not trust each other any more", r.Dir.Join(etcdCACertFile), end.Format(time.DateOnly))
	}
	key, err = r.Dir.Read(etcdCAKeyFile)
	return authority, key, err
}

// etcdAuthorityOfHosts returns the authority that hosts of etcd have, or makes one if none of them has.
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
		return pki.Pair{}, fmt.Errorf("the work directory lacks etcd's authority, and hosts of etcd that may have it are left out: name the right directory with --work-dir, or run without --limit")
	}
	_, pair, err := pki.NewAuthority("kkbundle etcd CA", r.Now())
	return pair, err
}

// etcdPair returns a certificate of etcd's authority: the one in the work directory if it still fits, else a new one.
func etcdPair(r *task.Site, by *pki.Authority, name string, use pki.Use, names pki.Names) (pki.Pair, error) {
	return r.Dir.Pair(task.PairFiles{Cert: path.Join(etcdPairs, name+".crt"), Key: path.Join(etcdPairs, name+".key")}, by, use, names, r.Now())
}

// etcdClient returns the files of a client of etcd. What they are made of is kept, whoever asks first.
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
	for _, one := range []struct {
		kind string
		at   task.PairFiles
	}{{"server", etcdServerFiles()}, {"peer", etcdPeerFiles()}} {
		// A server of etcd is also the client of itself, for its gateway.
		pair, err := etcdPair(t.Site, authority, t.Name+"-"+one.kind, pki.Peer, names)
		if err != nil {
			return nil, err
		}
		files = append(files, one.at.Files(pair)...)
	}
	return files, nil
}

// providedEtcdClient returns the operator's files for the etcd that is theirs.
func providedEtcdClient(r *task.Site) ([]task.File, error) {
	e, f := r.Cluster.Etcd, etcdClientFiles()
	var files []task.File
	const certMode, keyMode = 0o644, 0o600
	for _, one := range []struct {
		from, to string
		mode     fs.FileMode
	}{{e.CA, f.ca, certMode}, {e.Cert, f.Cert, certMode}, {e.Key, f.Key, keyMode}} {
		if r.Values == nil {
			return nil, &EtcdFileError{Path: one.from, Err: fs.ErrNotExist}
		}
		data, err := r.Values(one.from)
		if err != nil {
			return nil, &EtcdFileError{Path: one.from, Err: err}
		}
		files = append(files, task.File{Path: one.to, Mode: one.mode, Data: data})
	}
	return files, nil
}

// An EtcdFileError is a file for an etcd of the operator's that could not be read.
type EtcdFileError struct {
	Path string
	Err  error
}

// Error names the file.
func (e *EtcdFileError) Error() string { return fmt.Sprintf("%s, for your etcd: %s", e.Path, e.Err) }

// Unwrap returns the reason.
func (e *EtcdFileError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *EtcdFileError) Hint() string {
	return "a bundle does not carry the client's key: give the cluster file with -c, and put ca, cert and key where it says, relative to it"
}
