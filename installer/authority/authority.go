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
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// An ownCA is a certificate authority that the operator provides, under kubeadm's name for it.
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

// HasOwnCA reports whether the cluster file names a certificate authority.
func HasOwnCA(c *manifest.Cluster) bool {
	return slices.ContainsFunc(ownCAs(c), func(one ownCA) bool { return one.pair != nil })
}

// ownAuthorities reads the authorities of the cluster file and returns them as files for a control plane.
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
		files = append(files, task.File{Path: to + ".key", Mode: 0o600, Data: key},
			task.File{Path: to + ".crt", Mode: 0o644, Data: cert})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, plain.Advise(err,
			"a bundle does not contain keys: name the cluster file with -c, and keep the PEM files at the paths in it")
	}
	return files, nil
}

// CheckTask checks the operator's authorities before anything is installed. An existing cluster has its own already.
func CheckTask() task.Task {
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

// checkAuthority refuses authorities that kubeadm accepts but that break a cluster.
func checkAuthority(r *task.Site, cert, key []byte) error {
	a, err := pki.ParseCertificate(cert)
	if err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return errors.New("the key does not match the certificate") // the library's error could quote the key
	}
	switch now := r.Now(); {
	case !a.IsCA || !a.BasicConstraintsValid:
		return errors.New("the certificate is not a CA certificate (CA:TRUE is missing)")
	case now.After(a.NotAfter):
		return fmt.Errorf("the certificate expired on %s", a.NotAfter.Format("2006-01-02"))
	case now.AddDate(1, 0, 0).After(a.NotAfter):
		return fmt.Errorf("the certificate expires on %s, before the certificates that it would sign, which are valid for a year", a.NotAfter.Format("2006-01-02"))
	}
	return nil
}

// Write writes the operator's authorities for kubeadm init. Joining control planes get them from the cluster.
func Write(ctx context.Context, t *task.Host) error {
	files, err := ownAuthorities(t.Site)
	if err != nil || len(files) == 0 {
		return err
	}
	return t.Write(ctx, files...)
}
