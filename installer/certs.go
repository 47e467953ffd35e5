package installer

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Certificate is one that a cluster lives by.
type Certificate struct {
	Host string `json:"host"`
	Path string `json:"path"`
	// Subject is whom it is for.
	Subject string    `json:"subject,omitempty"`
	CA      bool      `json:"ca,omitempty"`
	End     time.Time `json:"end"`
	// Renewal says what makes a new one.
	Renewal string `json:"renewal,omitempty"`
	// Problem says why it cannot be read.
	Problem string `json:"problem,omitempty"`
}

// Certificates looks at the certificates of all hosts, sorted by their end. It changes nothing; o.DryRun is taken as set.
// Hosts that cannot be reached are named in the error, and the others' certificates are returned.
func Certificates(ctx context.Context, o engine.Options) ([]Certificate, error) {
	o.DryRun = true
	r, err := newRun(o, engine.Changing())
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []Certificate
	_, err = r.Start(ctx, func(ctx context.Context) error {
		ctx = task.InTask(ctx, "certificates")
		err := r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
			found, err := allCertificates(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, found...)
			return errors.Join(err, forgetHelper(ctx, t))
		})
		return err
	})
	slices.SortFunc(all, func(a, b Certificate) int {
		return errorsFirst(a, b)
	})
	return all, err
}

// errorsFirst orders certificates that cannot be read before the others, and those by their end.
func errorsFirst(a, b Certificate) int {
	if (a.Problem == "") != (b.Problem == "") {
		return strings.Compare(b.Problem, a.Problem)
	}
	return slices.Compare([]string{a.End.UTC().Format(time.RFC3339), a.Host, a.Path}, []string{b.End.UTC().Format(time.RFC3339), b.Host, b.Path})
}

// allCertificates returns those of a host: files, and clients' in kubeconfigs.
func allCertificates(ctx context.Context, t *task.Host) ([]Certificate, error) {
	probe := node.Probe{Certificates: []string{kube.PKIDir, kube.PKIDir + "/etcd", "/var/lib/kubelet/pki", siteregistry.ConfigDir, "/etc/kkbundle/etcd", "/etc/kkbundle/pki"}}
	facts, err := t.Facts(ctx, probe)
	if err != nil {
		return nil, err
	}
	var all []Certificate
	seen := map[string]bool{}
	for _, c := range facts.Certificates {
		if link := c.Subject + c.NotAfter.String(); strings.HasPrefix(c.Path, "/var/lib/kubelet/pki") && seen[link] {
			continue // kubelet-client-current.pem is a link to one with a date in its name
		} else if seen[link] = true; c.NotAfter.IsZero() && c.Problem == "" {
			continue
		}
		all = append(all, Certificate{Host: t.Name, Path: c.Path, Subject: c.Subject, CA: c.CA, End: c.NotAfter, Problem: c.Problem, Renewal: renewal(c)})
	}
	if !t.Is(manifest.RoleControlPlane) {
		return current(all), nil
	}
	for _, name := range []string{"admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf"} {
		one, err := clientOf(ctx, t, path.Join("/etc/kubernetes", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return all, err
		}
		all = append(all, one)
	}
	return current(all), nil
}

// current leaves out the kubelet's older client certificates, which lie beside the one in use.
func current(all []Certificate) []Certificate {
	const prefix = "/var/lib/kubelet/pki/kubelet-client-"
	last := ""
	for _, c := range all {
		if strings.HasPrefix(c.Path, prefix) {
			last = max(last, c.End.Format(time.RFC3339))
		}
	}
	return slices.DeleteFunc(all, func(c Certificate) bool {
		return strings.HasPrefix(c.Path, prefix) && c.End.Format(time.RFC3339) != last
	})
}

// renewal says what makes a new certificate of a kind.
func renewal(c node.Certificate) string {
	switch {
	case c.CA:
		return ""
	case strings.HasPrefix(c.Path, kube.PKIDir):
		return "kkbundle certs renew"
	case strings.HasPrefix(c.Path, "/var/lib/kubelet/pki/kubelet-client"):
		return "the kubelet itself"
	case strings.HasPrefix(c.Path, "/var/lib/kubelet/pki"):
		return "a new one where it is removed and the kubelet is restarted; the API server does not look at it"
	}
	return "kkbundle install"
}

// clientOf returns the certificate of a kubeconfig's user.
func clientOf(ctx context.Context, t *task.Host, file string) (Certificate, error) {
	one := Certificate{Host: t.Name, Path: file, Renewal: "kkbundle certs renew"}
	data, err := t.Read(ctx, file)
	if err != nil {
		return one, err
	}
	var config struct {
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if yaml.Unmarshal(data, &config) != nil || len(config.Users) == 0 {
		one.Problem = "it is not a kubeconfig with a user" // what is wrong with it could be quoted from the key
		return one, nil
	}
	block, _ := pem.Decode(config.Users[0].User.Certificate)
	if block == nil {
		one.Problem = "its user has no certificate"
		return one, nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		one.Problem = strings.ToValidUTF8(err.Error(), "\uFFFD")
		return one, nil
	}
	one.Subject, one.End = cert.Subject.String(), cert.NotAfter.UTC()
	return one, nil
}

// RenewCertificates renews what kubeadm has issued, on one control plane after the other, and restarts the components so
// that they use it; the next one waits until the API server is ready again. With before, only control planes where a
// certificate ends within that time are worked on. The administrator's kubeconfig in the work directory is renewed, too.
func RenewCertificates(ctx context.Context, o engine.Options, before time.Duration) (engine.Report, error) {
	if err := distributionOf(o.Cluster).Refuses(task.CertsRenewCommand); err != nil {
		return engine.Report{}, err
	}
	r, err := newRun(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		return r.Phases(ctx, []task.Phase{{Name: "certificates", Tasks: []task.Task{renewTask(before), cluster.AdminConfTask()}}})
	})
}

// renewTask is done on hosts where nothing ends soon. Without before everything is renewed.
func renewTask(before time.Duration) task.Task {
	return task.Task{
		Name:  "renew-certificates",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.OneByOne,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return true, errors.Join(err, notAMember(t, member))
			}
			if before == 0 {
				return false, nil
			}
			all, err := allCertificates(ctx, t)
			soon := t.Site.Now().Add(before)
			ends := slices.ContainsFunc(all, func(c Certificate) bool {
				return c.Renewal == "kkbundle certs renew" && c.Problem == "" && c.End.Before(soon)
			})
			return !ends, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := t.Run(ctx, "kubeadm", "certs", "renew", "all"); err != nil {
				return err
			}
			return kubeadm.RestartControlPlane(ctx, t)
		},
	}
}

func notAMember(t *task.Host, member bool) error {
	if member {
		return nil
	}
	return fmt.Errorf("%s is no control plane yet", t.Name)
}

// A KeyFile is a part of a backup of keys. Its content is secret.
type KeyFile struct {
	Name string
	Data []byte
}

// Keys returns what a cluster cannot be restored without: the authorities and the key of service accounts of a control
// plane, and the work directory's. It changes nothing; o.DryRun is taken as set.
func Keys(ctx context.Context, o engine.Options) ([]KeyFile, error) {
	if err := distributionOf(o.Cluster).Refuses(task.CertsBackupCommand); err != nil {
		return nil, err
	}
	o.DryRun = true
	r, err := newRun(o, engine.Changing())
	if err != nil {
		return nil, err
	}
	var files []KeyFile
	_, err = r.Start(ctx, func(ctx context.Context) error {
		t := r.FirstControlPlane()
		for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub", "etcd/ca.crt", "etcd/ca.key"} {
			data, err := t.Read(task.InTask(ctx, "keys"), path.Join(kube.PKIDir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue // an etcd beside the cluster, or an authority whose key is kept elsewhere
			}
			if err != nil {
				return err
			}
			files = append(files, KeyFile{path.Join("kubernetes", name), data})
		}
		if len(files) == 0 {
			return &NoClusterError{Reason: fmt.Sprintf("%s has no keys in %s: there is no cluster yet", t.Name, kube.PKIDir)}
		}
		own, err := keys(r.Dir)
		files = append(files, own...)
		return errors.Join(err, forgetHelper(ctx, t))
	})
	return files, err
}

// keyPaths are the work directory's files and directories with secrets that exist nowhere else, or on hosts only.
func keyPaths() []string { return []string{"pki", "registry", "k3s", kubeadm.EncryptionFile} }

// keys returns the secrets of the work directory.
func keys(w *task.WorkDir) ([]KeyFile, error) {
	var files []KeyFile
	for _, root := range keyPaths() {
		err := fs.WalkDir(w.Root.FS(), root, func(name string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
				return nil
			}
			if err != nil {
				return err
			}
			data, err := w.Read(name)
			files = append(files, KeyFile{path.Join("work", name), data})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("keys of the work directory: %w", err)
		}
	}
	return files, nil
}
