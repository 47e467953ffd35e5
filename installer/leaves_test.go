//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

// certificateOn returns a certificate on a host.
func certificateOn(t *testing.T, h *sitetest.Rooted, name string) string {
	t.Helper()
	cert, err := pki.ParseCertificate([]byte(h.Content(name)))
	if err != nil {
		t.Fatalf("%s on %s: %v", name, h.Name, err)
	}
	return cert.NotAfter.Format(time.DateOnly) + " " + cert.SerialNumber.String()
}

// leafSite is three hosts with external etcd, of which the first is a registry host, too, and a control plane without
// etcd. The registry and etcd have their certificates.
func leafSite(t *testing.T) *sitetest.Site {
	t.Helper()
	s, _, _ := sitetest.EtcdSite(t, "external")
	inv := s.Options.Inventory
	inv.Groups.Etcd = []string{"node1", "node2"}
	r := s.Run(t, nil)
	for _, target := range r.Hosts {
		var files []task.File
		if target.Is(manifest.RoleEtcd) {
			member, err := etcd.MemberFiles(t.Context(), target)
			if err != nil {
				t.Fatal(err)
			}
			files = member
		}
		if err := target.Write(t.Context(), files...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := siteregistry.Credentials(r.Site); err != nil {
		t.Fatal(err)
	}
	for _, step := range etcd.Tasks(s.Options.Cluster) {
		if step.Name == "etcd-client" {
			if err := step.Do(t.Context(), r.HostNamed("cp1")); err != nil {
				t.Fatal(err)
			}
		}
	}
	pair, err := r.Dir.ReadPair(task.RegistryPair())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.HostNamed("cp1").Write(t.Context(), siteregistry.CertificateFiles().Files(pair)...); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLeavesLastAYear holds the validity of new certificates: a year for those that hosts renew, ten for authorities.
func TestLeavesLastAYear(t *testing.T) {
	t.Parallel()
	s := leafSite(t)
	for name, files := range map[string][]task.PairFiles{"cp1": append(etcd.LeafFiles(false),
		siteregistry.CertificateFiles()), "node1": etcd.LeafFiles(true)} {
		for _, f := range files {
			cert, err := pki.ParseCertificate([]byte(s.Hosts[name].Content(f.Cert)))
			if err != nil {
				t.Fatal(name, f.Cert, err)
			}
			if left := time.Until(cert.NotAfter); left > 366*24*time.Hour || left < 364*24*time.Hour {
				t.Errorf("%s on %s is valid for %s", f.Cert, name, left)
			}
		}
	}
	ca, err := pki.ParseCertificate([]byte(s.Hosts["node1"].Content(etcd.AuthorityFiles().Cert)))
	if err != nil || time.Until(ca.NotAfter) < 9*365*24*time.Hour {
		t.Errorf("etcd's authority: %v", err)
	}
}

// TestLeafTimer holds that the timer's commands renew every certificate of the registry and of external etcd, on
// hosts with and without a control plane, at hours of their own, and that a manual renewal leaves no authority's key
// behind.
func TestLeafTimer(t *testing.T) {
	t.Parallel()
	s := leafSite(t)
	phases := []task.Phase{{Name: "install", Tasks: slices.DeleteFunc(plan.Tasks(s.Options.Cluster),
		func(t task.Task) bool { return t.Name != "certificates-leaf-timer" })}}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"cp1": 2, "node1": 3, "node2": 3}
	hours := map[string]bool{}
	for name, h := range s.Hosts {
		renewed := 0
		for line := range strings.Lines(h.Content(task.ProgramDir + "/bin/renew-leaf-certificates")) {
			command, _, ok := strings.Cut(strings.TrimSpace(line), " || ")
			if !ok {
				continue
			}
			args := strings.Fields(command)[4:] // the helper, renew, --restart, the days
			var pairs []node.CertificatePair
			for one := range slices.Chunk(args, 2) {
				pairs = append(pairs, node.CertificatePair{
					Cert: filepath.Join(h.Root, one[0]),
					Key:  filepath.Join(h.Root, one[1]),
				})
			}
			now := time.Now().AddDate(0, 11, 0)
			got, err := node.Renew(pairs[0], now, now.AddDate(0, 0, 60), pairs[1:]...)
			if err != nil {
				t.Errorf("%s: %s: %v", name, command, err)
			}
			renewed += len(got)
		}
		if renewed != want[name] {
			t.Errorf("%s renews %d certificates, want %d:\n%s", name, renewed, want[name],
				h.Content(task.ProgramDir+"/bin/renew-leaf-certificates"))
		}
		_, timer, _ := strings.Cut(h.Content(task.UnitDir+"kkbundle-leaf-certificates.timer"), "OnCalendar=")
		hours[strings.SplitN(timer, "\n", 2)[0]] = true
	}
	if len(hours) != 3 {
		t.Errorf("hosts renew at %v", hours)
	}
	if !strings.Contains(s.Hosts["cp1"].Content(task.ProgramDir+"/bin/renew-leaf-certificates"), "--restart="+
		siteregistry.Unit+","+siteregistry.PushUnit+" ") {
		t.Error("the registry is not restarted")
	}
	key := filepath.Join(s.Hosts["cp1"].Root, siteregistry.AuthorityFiles().Key)
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the authority's key: %v, %v", info, err)
	}
	s.Options.Cluster.Certificates.Renew = manifest.RenewManual
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: slices.DeleteFunc(plan.Tasks(s.Options.Cluster),
			func(t task.Task) bool { return t.Name != "certificates-leaf-timer" })}}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{siteregistry.AuthorityFiles().Key, etcd.ClientAuthorityFiles().Key, task.UnitDir +
		"kkbundle-leaf-certificates.timer"} {
		if s.Hosts["cp1"].Content(file) != "" {
			t.Errorf("with renew: manual, cp1 keeps %s", file)
		}
	}
	if s.Hosts["node1"].Content(etcd.AuthorityFiles().Key) == "" {
		t.Error("with renew: manual, etcd lost its authority")
	}
}

// TestReissue holds that certs renew replaces the certificates of external etcd on every host, and with --days only
// those that end soon.
func TestReissue(t *testing.T) {
	t.Parallel()
	s := leafSite(t)
	all := map[string][]task.PairFiles{
		"cp1": etcd.LeafFiles(false), "node1": etcd.LeafFiles(true),
		"node2": etcd.LeafFiles(true),
	}
	state := func() (list []string) {
		for name, files := range all {
			for _, f := range files {
				list = append(list, name+" "+f.Cert+" "+certificateOn(t, s.Hosts[name], f.Cert))
			}
		}
		return sitetest.Sorted(list)
	}
	before := state()
	tasks := func(within time.Duration) []task.Phase {
		return []task.Phase{{Name: "certificates", Tasks: plan.ReissueTasks(s.Options.Cluster, within)}}
	}
	if err := s.Run(t, nil).Phases(t.Context(), tasks(30*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if now := state(); !slices.Equal(now, before) {
		t.Errorf("none ends within 30 days, and it was renewed:\n%s", strings.Join(now, "\n"))
	}
	if err := s.Run(t, nil).Phases(t.Context(), tasks(0)); err != nil {
		t.Fatal(err)
	}
	now := state()
	for i := range now {
		if now[i] == before[i] {
			t.Errorf("not renewed: %s", now[i])
		}
	}
}
