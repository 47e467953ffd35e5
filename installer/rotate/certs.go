package rotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Certificate is a line of the list of a cluster's certificates: one of the helper's facts with its host.
type Certificate struct {
	Host    string    `json:"host"`
	Path    string    `json:"path"`
	Subject string    `json:"subject,omitempty"`
	CA      bool      `json:"ca,omitempty"`
	End     time.Time `json:"end"`
	// Renewal names the command or program that renews the certificate, or replaces the authority.
	Renewal string `json:"renewal,omitempty"`
	// Problem is the reason why the certificate cannot be read.
	Problem string `json:"problem,omitempty"`
}

// Certificates returns the certificates of all hosts, sorted by their end. It changes nothing; o.DryRun is taken as
// set. The error names unreachable hosts; the certificates of the others are returned.
func Certificates(ctx context.Context, o engine.Options) ([]Certificate, error) {
	o.DryRun = true
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []Certificate
	_, err = r.Start(ctx, func(ctx context.Context) error {
		ctx = task.InTask(ctx, "certificates")
		return r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
			found, err := health.Certificates(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			for _, c := range found {
				all = append(all, Certificate{
					Host: t.Name, Path: c.Path, Subject: c.Subject, CA: c.CA, End: c.NotAfter,
					Problem: c.Problem, Renewal: renewal(t, c),
				})
			}
			return errors.Join(err, begin.ForgetHelper(ctx, t))
		})
	})
	slices.SortFunc(all, compareByEnd)
	return all, err
}

// compareByEnd orders unreadable certificates before the others, and those by their end.
func compareByEnd(a, b Certificate) int {
	if (a.Problem == "") != (b.Problem == "") {
		return strings.Compare(b.Problem, a.Problem)
	}
	return slices.Compare([]string{a.End.UTC().Format(time.RFC3339), a.Host, a.Path},
		[]string{b.End.UTC().Format(time.RFC3339), b.Host, b.Path})
}

// renewal names the command or program that renews a certificate.
func renewal(t *task.Host, c node.Certificate) string {
	switch kind := c.Kind(); {
	case c.CA && kind.InKubernetesPKI() && authority.HasOwnCA(t.Site.Cluster):
		return "you: the cluster file names authorities of your own"
	case c.CA && kind.InKubernetesPKI():
		return "kkbundle certs rotate-ca"
	case c.CA:
		return "an authority: a new one is a new cluster's"
	case plan.IsLeaf(t, c.Path), kind.InKubernetesPKI(), kind == node.KubeconfigCertificate:
		return renewCommandName
	case kind == node.KubeletFirstCertificate, kind == node.KubeletClientCertificate:
		return "the kubelet itself"
	case kind == node.KubeletServingCertificate:
		return "a new one where it is removed and the kubelet is restarted; the API server does not look at it"
	}
	return "kkbundle install"
}

// renewCommandName is the command that renews certificates, as people type it.
const renewCommandName = "kkbundle certs renew"

// RenewCertificates renews the certificates of the registry and of external etcd, and kubeadm's on one control plane
// after the other. It restarts the components and waits until the API server is ready again. With before, it skips
// hosts where no certificate ends within that time. It also renews the administrator's kubeconfig in the work
// directory. A cluster that was handed over to Cluster API takes it, too: no object there names a leaf certificate, and
// Cluster API renews none of a running node.
func RenewCertificates(ctx context.Context, o engine.Options, before time.Duration) (engine.Report, error) {
	tasks := plan.ReissueTasks(o.Cluster.WithDefaults(), before)
	switch refused := plan.Distribution(o.Cluster).Refuses(task.CertsRenewCommand); {
	case refused == nil:
		tasks = append(tasks, renewTask(before), cluster.AdminConfTask())
	case len(tasks) == 0:
		return engine.Report{}, refused
	}
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return engine.Report{}, err
	}
	return r.Start(ctx, func(ctx context.Context) error {
		return r.Phases(ctx, []task.Phase{{Name: "certificates", Tasks: tasks}})
	})
}

// renewTask renews the certificates of hosts where one ends soon, or of all hosts if before is 0.
func renewTask(before time.Duration) task.Task {
	return task.Task{
		Name:  "renew-certificates",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.OneByOne,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			switch member, err := member.IsMember(ctx, t); {
			case err != nil:
				return true, err
			case !member:
				return true, fmt.Errorf("%s is not a control plane yet", t.Name)
			}
			if before == 0 {
				return false, nil
			}
			all, err := health.Certificates(ctx, t)
			soon := t.Site.Now().Add(before)
			ends := slices.ContainsFunc(all, func(c node.Certificate) bool {
				return renewal(t, c) == renewCommandName && !plan.IsLeaf(t, c.Path) && c.Problem == "" &&
					c.NotAfter.Before(soon)
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

// A KeyFile is a file in a backup of keys. Its content is secret.
type KeyFile struct {
	Name string
	Data []byte
}

// Keys returns the files that a restore of the cluster needs: a control plane's authorities and key of service
// accounts, and the secrets of the work directory. It changes nothing; o.DryRun is taken as set.
func Keys(ctx context.Context, o engine.Options) ([]KeyFile, error) {
	if err := plan.Distribution(o.Cluster).Refuses(task.CertsBackupCommand); err != nil {
		return nil, err
	}
	o.DryRun = true
	r, err := begin.New(o, engine.Changing())
	if err != nil {
		return nil, err
	}
	var files []KeyFile
	_, err = r.Start(ctx, func(ctx context.Context) error {
		t := r.FirstControlPlane()
		for _, name := range []string{
			"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key",
			"sa.pub", "etcd/ca.crt", "etcd/ca.key",
		} {
			data, err := t.Read(task.InTask(ctx, "keys"), path.Join(kube.PKIDir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue // an external etcd, or an authority whose key is kept elsewhere
			}
			if err != nil {
				return err
			}
			files = append(files, KeyFile{path.Join("kubernetes", name), data})
		}
		if len(files) == 0 {
			return &begin.NoClusterError{Reason: fmt.Sprintf("%s has no keys in %s: there is no cluster yet", t.Name,
				kube.PKIDir)}
		}
		own, err := keys(r.Dir)
		files = append(files, own...)
		return errors.Join(err, begin.ForgetHelper(ctx, t))
	})
	return files, err
}

// keyPaths returns the work directory's files and directories with secrets that exist nowhere else, or on hosts only.
func keyPaths() []string {
	return []string{"pki", "registry", "k3s", kubeadm.EncryptionFile, kubeadm.RetiredKeysFile}
}

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
