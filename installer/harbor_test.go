//go:build linux

package installer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestHarbor(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1", "", "")
	h := s.Hosts["reg1"]
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"certificates@ done", "docker-is-ours@reg1 done", "docker@reg1 changed",
		"harbor-login@reg1 changed", "harbor@reg1 changed", "seed-registry@reg1 changed",
	}
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	secrets, err := siteregistry.Credentials(s.R.Site)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer(secrets.HarborAdmin, "ADMIN", secrets.HarborDatabase,
		"DATABASE").Replace(h.Content(siteregistry.HarborDir + "/harbor.yml"))
	tasktest.Golden(t, "harbor.yml", []byte(config))
	tasktest.Golden(t, "harbor-docker.service", []byte(h.Content("/etc/systemd/system/"+cri.DockerUnit)))
	info, err := os.Stat(filepath.Join(h.Root, siteregistry.HarborDir, "harbor.yml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("harbor.yml with the passwords in it: %v, %v", info, err)
	}
	if p, ok := s.Stands["reg1"].Project("registry.k8s.io"); !ok || p.Public {
		t.Errorf("project registry.k8s.io: %t, public %t", ok, p.Public)
	}
	if access := sitetest.MustAccess(t, s.R); access.Address != "10.0.0.2" ||
		access.Username != "robot$kkbundle-nodes" || access.Password == secrets.HarborAdmin {
		t.Errorf("nodes pull from %s as %s", access.Address, access.Username)
	}
	for _, program := range []string{
		"/usr/local/bin/docker", siteregistry.DockerDir + "/dockerd",
		siteregistry.DockerDir + "/containerd", siteregistry.ComposePlugin,
	} {
		if h.Content(program) == "" {
			t.Errorf("there is no %s", program)
		}
	}
	if got := h.Content("/usr/local/bin/containerd") + h.Content("/usr/local/bin/runc"); got != "" {
		t.Error("Docker's containerd and runc are where those of nodes are")
	}
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	h.Put(t, siteregistry.HarborDir+"/harbor.yml", "hostname: other\n")
	if err := s.Install(t); err != nil || s.Prepared["reg1"] != 2 ||
		!slices.Contains(s.States(), "harbor@reg1 changed") {
		t.Errorf("after somebody has changed harbor.yml: %v, prepared %d times", err, s.Prepared["reg1"])
	}
	s.Quiet(t)
}

// TestHarborCertificate holds that Harbor's certificate is valid for a year, that its host renews it by a timer, and
// that certs renew replaces it and has Harbor read it.
func TestHarborCertificate(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1", "", "")
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	file := siteregistry.CertificateFiles().Cert
	first := certificateOn(t, s.Hosts["reg1"], file)
	if year := time.Now().AddDate(1, 0, 1).Format(time.DateOnly); first > year {
		t.Errorf("Harbor's certificate is valid until %s", first)
	}
	cluster := s.Options.Cluster
	if err := s.R.Phases(t.Context(),
		[]task.Phase{
			{Name: "timer", Tasks: slices.DeleteFunc(plan.Tasks(cluster),
				func(t task.Task) bool { return t.Name != "certificates-leaf-timer" })},
			{Name: "certificates", Tasks: plan.ReissueTasks(cluster, 0)},
		}); err != nil {
		t.Fatal(err)
	}
	if script := s.Hosts["reg1"].Content(task.ProgramDir + "/bin/renew-leaf-certificates"); !strings.Contains(script,
		"--restart="+siteregistry.HarborUnit+" ") || !strings.Contains(script, file) {
		t.Errorf("the timer runs:\n%s", script)
	}
	if now := certificateOn(t, s.Hosts["reg1"], file); now == first || s.Prepared["reg1"] != 2 {
		t.Errorf("after certs renew: %s, before %s, prepared %d times", now, first, s.Prepared["reg1"])
	}
}

// Harbor keeps the password that it was begun with: another work directory has another.
func TestHarborOfAnotherWorkDirectory(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1", "", "Another12345")
	var refused interface{ Hint() string }
	if err := s.Install(t); !errors.As(err, &refused) || !strings.Contains(err.Error(), "the Harbor on reg1 ") ||
		!strings.Contains(refused.Hint(), "registry/harbor-admin") {
		t.Errorf("got %v", err)
	}
}

// A changed pull configuration of a host is repaired.
func TestHarborLoginIsMended(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1", "", "")
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	s.States()
	client, connections, err := siteregistry.HarborClient(s.R.RegistryHosts()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer connections.CloseIdleConnections()
	if err := client.SetSecret(t.Context(), siteregistry.HarborRobot, "Somebody12345"); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	changed := slices.DeleteFunc(s.States(), func(state string) bool { return strings.HasSuffix(state, " done") })
	if diff := cmp.Diff(changed, []string{"harbor-login@reg1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestHarborPair(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1, reg2", ", vip: 10.0.0.9", "")
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	s.States()
	secrets, err := siteregistry.Credentials(s.R.Site)
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"reg1": "kkbundle-reg2 https://10.0.0.3 admin ",
		"reg2": "kkbundle-reg1 https://10.0.0.2 admin ",
	} {
		if got := s.Stands[name].Copies(); !slices.Equal(got, []string{to + secrets.HarborAdmin}) {
			t.Errorf("%s copies to %q", name, got)
		}
		if !strings.Contains(s.Hosts[name].Content(siteregistry.AddressDir+"/keepalived.conf"), ":443 ") {
			t.Errorf("%s is not asked at Harbor's port", name)
		}
	}
	if got := sitetest.MustAccess(t, s.R).Address; got != "10.0.0.9" {
		t.Errorf("nodes pull from %s", got)
	}
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	s.Stands["reg2"].DisablePolicies()
	if err := s.Install(t); err != nil || !slices.Contains(s.States(), "harbor-copies@reg2 changed") ||
		len(s.Stands["reg2"].Copies()) != 1 {
		t.Errorf("after somebody has disabled it: %v", err)
	}
	s.Stands["reg1"].FailCopies() // a push while reg2 was away
	s.States()
	for _, want := range [][]string{{"harbor-copies@reg1 changed"}, nil} {
		if err := s.Install(t); err != nil {
			t.Fatal(err)
		}
		changed := slices.DeleteFunc(s.States(), func(state string) bool { return strings.HasSuffix(state, " done") })
		if !slices.Equal(changed, want) {
			t.Errorf("after a failed replication: %q, want %q", changed, want)
		}
	}
	s.Quiet(t)
}
