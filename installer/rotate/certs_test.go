//go:build linux

package rotate

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

func authorityPair(t *testing.T, now time.Time) pki.Pair {
	t.Helper()
	_, pair, err := pki.NewAuthority("site CA", now)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// TestOwnAuthorities holds that an authority is looked at before kubeadm takes it, and that errors have no key in them.
func TestOwnAuthorities(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good, other, old := authorityPair(t, now), authorityPair(t, now), authorityPair(t, now.AddDate(-11, 0, 0))
	by, err := pki.ParseAuthority(good)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := by.Issue(pki.ParseNames([]string{"a"}), now, pki.Life)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		cert, key []byte
		want      string
	}{
		{"good", good.Cert, good.Key, ""},
		{"another key", good.Cert, other.Key, "does not match the certificate"},
		{"a leaf", leaf.Cert, leaf.Key, "not a CA certificate"},
		{"ended", old.Cert, old.Key, "expired on"},
		{"garbage", []byte("x"), good.Key, "certificate"},
		{"missing", nil, nil, "no such file"},
	} {
		s := sitetest.NewSite(t, "cp1")
		s.Options.Cluster.Certificates.CA = &manifest.KeyPair{Cert: "ca.crt", Key: "ca.key"}
		s.Options.Values = func(path string) ([]byte, error) {
			data := map[string][]byte{"ca.crt": c.cert, "ca.key": c.key}[path]
			if data == nil {
				return nil, &os.PathError{Op: "open", Path: path, Err: errors.New("no such file")}
			}
			return data, nil
		}
		cp1 := s.Run(t, nil).Hosts[0]
		err := authority.Write(t.Context(), cp1)
		if c.want == "" {
			if err != nil || s.Hosts["cp1"].Content(kube.PKIDir+"/ca.key") != string(good.Key) {
				t.Errorf("%s: %v", c.name, err)
			}
			info, statErr := os.Stat(filepath.Join(s.Hosts["cp1"].Root, kube.PKIDir, "ca.key"))
			if statErr != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode of the key: %v, %v", c.name, info, statErr)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: want %q, got %v", c.name, c.want, err)
		}
	}
}

// TestAuthorityRenewal names what replaces an authority: nothing of kkbundle's for the operator's own.
func TestAuthorityRenewal(t *testing.T) {
	t.Parallel()
	const own = "certificates: {ca: {cert: ca.crt, key: ca.key}}"
	for _, c := range []struct{ path, cluster, want string }{
		{kube.ClusterCA, "", "kkbundle certs rotate-ca"},
		{kube.ClusterCA, own, "you: the cluster file names authorities of your own"},
		{"/etc/kkbundle/etcd/ca.crt", own, "an authority: a new one is a new cluster's"},
	} {
		h := &task.Host{Site: &task.Site{Cluster: tasktest.Cluster(t, c.cluster)}}
		if got := renewal(h, node.Certificate{Path: c.path, CA: true}); got != c.want {
			t.Errorf("%s, %q: %q, want %q", c.path, c.cluster, got, c.want)
		}
	}
}

// TestCertificatePlaces holds that the helper looks where the steps put certificates.
func TestCertificatePlaces(t *testing.T) {
	t.Parallel()
	want := map[string]node.CertificateKind{
		kube.ClusterCA: node.KubeadmCertificate, kube.PKIDir + "/etcd/peer.crt": node.KubeadmCertificate, kube.PKIDir +
			"/alice.crt": node.PKICertificate,
		kube.PKIDir + "/kkbundle-ca/ca.crt": node.UnknownCertificate, kube.AdminConf: node.KubeconfigCertificate,
		siteregistry.CertificateFiles().Cert: node.RegistryCertificate,
		etcd.AuthorityFiles().Cert:           node.EtcdCertificate,
		etcd.ClientAuthorityFiles().Cert:     node.EtcdCertificate,
	}
	for _, f := range etcd.LeafFiles(true) {
		want[f.Cert] = node.EtcdCertificate
	}
	for path, kind := range want {
		if got := (node.Certificate{Path: path}).Kind(); got != kind {
			t.Errorf("%s is of kind %d, want %d", path, got, kind)
		}
	}
}

// TestRenewCertificates renews on one control plane after the other, and not where nothing ends soon.
func TestRenewCertificates(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	now := time.Now()
	authority, err := pki.ParseAuthority(authorityPair(t, now))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(pki.ParseNames([]string{"kubernetes-admin"}), now, 20*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := "users: [{user: {client-certificate-data: " + base64.StdEncoding.EncodeToString(leaf.Cert) + "}}]\n"
	h.Put(t, kube.AdminConf, config)
	h.Put(t, "/etc/kubernetes/scheduler.conf", "users: [{user: {token: secret}}]\n")
	r := s.Run(t, nil)
	p := sitetest.PlayProcesses(t, h)
	cp1 := r.Hosts[0]
	h.Put(t, member.Path, string(member.File(r.Site).Data))
	// it has ended, and nothing renews it
	h.Put(t, kube.PKIDir+"/ca.crt", string(authorityPair(t, now.AddDate(-25, 0, 0)).Cert))
	h.Put(t, "/etc/kubernetes/kubelet.conf",
		"users: [{user: {client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem}}]\n")
	all, err := health.Certificates(t.Context(), cp1)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, c := range all {
		if c.Path == kube.AdminConf && !c.NotAfter.Equal(leafEnd(t, leaf)) ||
			strings.HasSuffix(c.Path, "scheduler.conf") && c.Problem != "the kubeconfig's user has no certificate" {
			t.Errorf("%+v", c)
		}
	}
	h.Said("x")
	for before, want := range map[time.Duration]bool{0: true, 10 * 24 * time.Hour: false, 30 * 24 * time.Hour: true} {
		step := renewTask(before)
		done, err := step.Done(t.Context(), cp1)
		if err != nil || done == want {
			t.Errorf("within %s: done %v, %v", before, done, err)
		}
	}
	if err := renewTask(0).Do(t.Context(), cp1); err != nil {
		t.Fatal(err)
	}
	h.Mu.Lock()
	ran := slices.Clone(h.Ran)
	h.Mu.Unlock()
	if ended := p.Log(t); !slices.Contains(ran, "kubeadm certs renew all") ||
		!strings.Contains(ended, "end kube-apiserver") {
		t.Errorf("ran %q, and %s", ran, ended)
	}
}

func leafEnd(t *testing.T, p pki.Pair) time.Time {
	t.Helper()
	cert, err := pki.ParseCertificate(p.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return cert.NotAfter
}

// TestExpiring holds what the timer on hosts goes by.
func TestExpiring(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pair := authorityPair(t, now)
	authority, err := pki.ParseAuthority(pair)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, life := range map[string]time.Duration{"short": 30 * 24 * time.Hour, "long": 90 * 24 * time.Hour} {
		leaf, err := authority.Issue(pki.ParseNames([]string{name}), now, life)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".crt"), leaf.Cert, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), pair.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	soon := node.Expiring(now.AddDate(100, 0, 0), dir, "/absent")
	if len(soon) != 2 { // never the authority
		t.Errorf("%+v", soon)
	}
	soon = node.Expiring(now.AddDate(0, 0, kubeadm.RenewDays), dir)
	if len(soon) != 1 || filepath.Base(soon[0].Path) != "short.crt" {
		t.Errorf("%+v", soon)
	}
}
