package authority

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/pki"
)

// An ownCA is an authority that the user brings, and where kubeadm looks for it.
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-certs/#custom-certificates
type ownCA struct {
	field, name string
	pair        *manifest.KeyPair
}

func ownCAs(c *manifest.Cluster) []ownCA {
	return []ownCA{
		{"certificates.ca", "ca", c.Certificates.CA},
		{"certificates.frontProxyCA", "front-proxy-ca", c.Certificates.FrontProxyCA},
		{"certificates.etcdCA", "etcd/ca", c.Certificates.EtcdCA},
	}
}

func HasOwnCA(c *manifest.Cluster) bool {
	return slices.ContainsFunc(ownCAs(c), func(one ownCA) bool { return one.pair != nil })
}

// ownAuthorities reads the authorities that the cluster file names, as files for a control plane.
func ownAuthorities(r *task.Site) ([]task.File, error) {
	var files []task.File
	var errs []error
	for _, one := range ownCAs(r.Cluster) {
		if one.pair == nil {
			continue
		}
		cert, certErr := r.Values(one.pair.Cert)
		key, keyErr := r.Values(one.pair.Key)
		err := errors.Join(certErr, keyErr)
		if err == nil {
			err = checkAuthority(r, cert, key)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", one.field, err))
			continue
		}
		to := path.Join(kube.PKIDir, one.name)
		files = append(files, task.File{Path: to + ".key", Mode: 0o600, Data: key}, task.File{Path: to + ".crt", Mode: 0o644, Data: cert})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &authorityError{err}
	}
	return files, nil
}

// AuthoritiesTask finds out early whether the user's authorities can be used. A cluster that is there has its own already.
func AuthoritiesTask() task.Task {
	return task.Task{
		Name:     "authorities",
		Roles:    []manifest.Role{manifest.RoleControlPlane},
		Where:    task.First,
		InDryRun: true,
		Do: func(ctx context.Context, t *task.Host) error {
			if member, err := member.IsMember(ctx, t); err != nil || member {
				return err
			}
			_, err := ownAuthorities(t.Site)
			return err
		},
	}
}

// An authorityError is about an authority of the user's.
type authorityError struct{ error }

func (e *authorityError) Unwrap() error { return e.error }

// Hint says where the files are looked for.
func (e *authorityError) Hint() string {
	return "keys do not travel in a bundle: name the cluster file with -c, and keep the PEM files where it says"
}

// checkAuthority refuses what kubeadm would take and a cluster could not live with.
func checkAuthority(r *task.Site, cert, key []byte) error {
	a, err := pki.ParseCertificate(cert)
	if err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return errors.New("the key is not that of the certificate") // the error of the library could quote it
	}
	switch now := r.Now(); {
	case !a.IsCA || !a.BasicConstraintsValid:
		return errors.New("the certificate is not one of an authority (CA:TRUE is missing)")
	case now.After(a.NotAfter):
		return fmt.Errorf("the certificate ended on %s", a.NotAfter.Format("2006-01-02"))
	case now.AddDate(1, 0, 0).After(a.NotAfter):
		return fmt.Errorf("the certificate ends on %s, before those that it would sign: they are valid for a year", a.NotAfter.Format("2006-01-02"))
	}
	return nil
}

// PutAuthorities puts the user's authorities where kubeadm init looks for them, before it would make its own. Other control
// planes get them from the cluster.
func PutAuthorities(ctx context.Context, t *task.Host) error {
	files, err := ownAuthorities(t.Site)
	if err != nil || len(files) == 0 {
		return err
	}
	return t.Write(ctx, files...)
}
