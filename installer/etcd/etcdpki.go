package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
)

// Names in the work directory.
const (
	etcdCACertFile = "pki/etcd-ca.crt"
	etcdCAKeyFile  = "pki/etcd-ca.key"
	etcdPairs      = "pki/etcd"
)

// A pairFiles is where a certificate and its key lie on hosts.
type pairFiles struct{ cert, key string }

// clientFiles are what a client of etcd needs on a host.
type clientFiles struct {
	ca string
	pairFiles
}

// etcdClientFiles are the files of clients of an etcd beside the cluster: kkbundle's own and the API servers. They are not in
// kubeadm's directory, which kubeadm empties when it undoes an interrupted init.
func etcdClientFiles() clientFiles {
	const dir = configDir + "/etcd-client"
	return clientFiles{dir + "/ca.crt", pairFiles{dir + "/client.crt", dir + "/client.key"}}
}

// stackedClientFiles are kubeadm's, on its control planes.
func stackedClientFiles() clientFiles {
	const dir = "/etc/kubernetes/pki/etcd"
	return clientFiles{dir + "/ca.crt", pairFiles{dir + "/healthcheck-client.crt", dir + "/healthcheck-client.key"}}
}

// etcdAuthority returns the authority that signs the certificates of etcd and its clients. Its key is on the hosts of etcd, too, as
// kubeadm leaves its own on control planes: a lost work directory gets it back from there, and members go on trusting each other.
func (r *Site) etcdAuthority(ctx context.Context) (authority *pki.Authority, key []byte, err error) {
	authority, err = r.dir.authority(etcdCACertFile, etcdCAKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		var pair pki.Pair
		if pair, err = r.etcdAuthorityOfHosts(ctx); err == nil {
			err = r.dir.writePair(pairFiles{etcdCACertFile, etcdCAKeyFile}, pair)
		}
		if err == nil {
			authority, err = pki.ParseAuthority(pair)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if end := authority.Certificate.NotAfter; r.Now().After(end) {
		return nil, nil, fmt.Errorf("%s ended %s: etcd's members and clients do not trust each other any more", r.dir.join(etcdCACertFile), end.Format(time.DateOnly))
	}
	key, err = r.dir.read(etcdCAKeyFile)
	return authority, key, err
}

// etcdAuthorityOfHosts returns the authority that hosts of etcd have, or makes one if none of them has.
func (r *Site) etcdAuthorityOfHosts(ctx context.Context) (pki.Pair, error) {
	all := r.withRole(manifest.RoleEtcd)
	connected := r.connected(manifest.RoleEtcd)
	for _, t := range connected {
		key, err := t.read(ctx, etcdAuthorityFiles().key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return pki.Pair{}, err
		}
		cert, err := t.read(ctx, etcdAuthorityFiles().cert)
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
func (r *Site) etcdPair(by *pki.Authority, name string, use pki.Use, names pki.Names) (pki.Pair, error) {
	return r.dir.pair(pairFiles{path.Join(etcdPairs, name+".crt"), path.Join(etcdPairs, name+".key")}, by, use, names, r.Now())
}

func (p pairFiles) files(pair pki.Pair) []textFile {
	const certMode, keyMode = 0o644, 0o600
	return []textFile{{p.cert, certMode, pair.Cert}, {p.key, keyMode, pair.Key}}
}

// etcdClient returns the files of a client of etcd. What they are made of is kept, whoever asks first.
func (r *Site) etcdClient(ctx context.Context) ([]textFile, error) {
	r.dir.making.Lock()
	defer r.dir.making.Unlock()
	authority, _, err := r.etcdAuthority(ctx)
	if err != nil {
		return nil, err
	}
	pair, err := r.etcdPair(authority, "client", pki.Client, pki.ParseNames([]string{"kkbundle-etcd-client"}))
	if err != nil {
		return nil, err
	}
	f := etcdClientFiles()
	return append([]textFile{{f.ca, 0o644, authority.PEM}}, f.files(pair)...), nil
}

// etcdMemberFiles returns the certificates of a member of etcd and the authority.
func (t *Target) etcdMemberFiles(ctx context.Context) ([]textFile, error) {
	client, err := t.run.etcdClient(ctx)
	if err != nil {
		return nil, err
	}
	t.run.dir.making.Lock()
	defer t.run.dir.making.Unlock()
	authority, key, err := t.run.etcdAuthority(ctx)
	if err != nil {
		return nil, err
	}
	files := append(client, etcdAuthorityFiles().files(pki.Pair{Cert: authority.PEM, Key: key})...)
	names := pki.ParseNames([]string{t.Name, "localhost", t.IP.String(), "127.0.0.1", "::1"})
	for _, one := range []struct {
		kind string
		at   pairFiles
	}{{"server", etcdServerFiles()}, {"peer", etcdPeerFiles()}} {
		// A server of etcd is also the client of itself, for its gateway.
		pair, err := t.run.etcdPair(authority, t.Name+"-"+one.kind, pki.Peer, names)
		if err != nil {
			return nil, err
		}
		files = append(files, one.at.files(pair)...)
	}
	return files, nil
}

// providedEtcdClient returns the operator's files for the etcd that is theirs.
func (r *Site) providedEtcdClient() ([]textFile, error) {
	e, f := r.cluster.Etcd, etcdClientFiles()
	var files []textFile
	const certMode, keyMode = 0o644, 0o600
	for _, one := range []struct {
		from, to string
		mode     fs.FileMode
	}{{e.CA, f.ca, certMode}, {e.Cert, f.cert, certMode}, {e.Key, f.key, keyMode}} {
		if r.Values == nil {
			return nil, &EtcdFileError{Path: one.from, Err: fs.ErrNotExist}
		}
		data, err := r.Values(one.from)
		if err != nil {
			return nil, &EtcdFileError{Path: one.from, Err: err}
		}
		files = append(files, textFile{one.to, one.mode, data})
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
