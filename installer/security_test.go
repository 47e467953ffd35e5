//go:build linux

package installer

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestSecurityFiles(t *testing.T) {
	t.Parallel()
	const hardened, baseline = manifest.SecurityHardened, manifest.SecurityBaseline
	got, err := kube.Documents(kubeadm.AdmissionConfig(hardened), kubeadm.AuditPolicy(hardened),
		kubeadm.AuthenticationConfig(true), kubeadm.AuthenticationConfig(false))
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "security.yaml", got)
	if got, err = kube.Documents(kubeadm.AdmissionConfig(baseline), kubeadm.AuditPolicy(baseline)); err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "security-baseline.yaml", got)
	objects := addon.NamespaceDefaults(tasktest.Cluster(t,
		"cni: {type: calico}\naddons: [{chart: a, namespace: web}, {chart: b, namespace: web, release: c}, {chart: d, namespace: kube-system}]"))
	if got, err = kube.YAML(objects...); err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "namespaces.yaml", got)
}

// TestKubernetesTagHasTheSecurityFiles: kubeadm's API server never starts without them, and kubeadm waits minutes for
// it.
func TestKubernetesTagHasTheSecurityFiles(t *testing.T) {
	t.Parallel()
	phases, err := engine.TaskSelection{Tags: []string{"kubernetes"}}.Selected(plan.Plan(tasktest.Cluster(t, "")))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range phases {
		for _, one := range p.Tasks {
			names = append(names, one.Name)
		}
	}
	if at := slices.Index(names, "security"); at < 0 || at > slices.Index(names, "kubeadm-init") {
		t.Errorf("want security before kubeadm-init, got %q", names)
	}
}

func TestKubeadmNeedsTheSecurityFiles(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	began := false
	s.Hosts["cp1"].Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
		began = began || cmd.Args[1] == "init"
		return nil
	})
	err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.InitTask(s.Options.Cluster)}}})
	if began || err == nil || !strings.Contains(err.Error(), "/etc/kubernetes/security") ||
		!strings.Contains(err.Error(), "the tag security") {
		t.Errorf("kubeadm began: %v; %v", began, err)
	}
}

// The key is made once, is the same on all control planes, and is never replaced: what was encrypted with it could
// not be read any more.
func TestEncryptionKeyIsKept(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "cp2")
	s.Options.Inventory = &manifest.Inventory{
		HostSpecs: manifest.HostSpecs{{Name: "cp1", Address: "10.0.0.3"}, {Name: "cp2", Address: "10.0.0.4"}},
		Groups:    manifest.Groups{ControlPlane: []string{"cp1", "cp2"}, Registry: []string{"cp1"}},
	}
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, security: hardened}")
	phases := []task.Phase{{Name: "install", Tasks: kubeadm.SecurityTasks()}}
	once := func(lost bool) {
		t.Helper()
		if lost {
			s.Options.WorkDir = t.TempDir() + "/other"
		}
		if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
	}
	once(false)
	first := s.Hosts["cp1"].Content(kubeadm.EncryptionOnHost)
	if !strings.Contains(first, "secretbox") || s.Hosts["cp2"].Content(kubeadm.EncryptionOnHost) != first {
		t.Fatalf("cp1 has %q, cp2 %q", first, s.Hosts["cp2"].Content(kubeadm.EncryptionOnHost))
	}
	s.States()
	once(false)
	if states := strings.Join(s.States(), " "); strings.Contains(states, "changed") {
		t.Error("a second run:", states)
	}
	once(true)
	if s.Hosts["cp1"].Content(kubeadm.EncryptionOnHost) != first {
		t.Error("without the work directory, another key is made")
	}
	// An operator rotates the key on the first control plane.
	rotated := strings.Replace(first, "- name: kkbundle1",
		"- name: kkbundle2\n        secret: bmV3IGtleSB0aGF0IGlzIGxvbmc=\n      - name: kkbundle1", 1)
	s.Hosts["cp1"].Put(t, kubeadm.EncryptionOnHost, rotated)
	once(false)
	if s.Hosts["cp2"].Content(kubeadm.EncryptionOnHost) != rotated {
		t.Error("the rotated key is not taken to the other control plane")
	}
	r := s.Run(t, nil)
	if _, err := kubeadm.Encryption(t.Context(), r.Site); err != nil ||
		r.Mask.Mask("x bmV3IGtleSB0aGF0IGlzIGxvbmc= y") == "x bmV3IGtleSB0aGF0IGlzIGxvbmc= y" {
		t.Errorf("the key would be in the log (%v)", err)
	}
	s.Hosts["cp1"].Put(t, kubeadm.EncryptionOnHost, "- nonsense\n")
	if err := s.Run(t, nil).Phases(t.Context(), phases); err == nil ||
		!strings.Contains(err.Error(), "is not an EncryptionConfiguration") {
		t.Errorf("a damaged file: %v", err)
	}
}

// A new cluster encrypts Secrets at every level. A cluster that was made without encryption stays as it is.
func TestNewClustersEncryptSecrets(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"baseline", "hardened"} {
		for _, exists := range []bool{false, true} {
			s := sitetest.NewSite(t, "cp1")
			s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, security: "+level+"}")
			if exists {
				s.Hosts["cp1"].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
			}
			phases := []task.Phase{{Name: "install", Tasks: kubeadm.SecurityTasks()}}
			r := s.Run(t, nil)
			sitetest.PlayProcesses(t, s.Hosts["cp1"])
			if err := r.Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
			has := strings.Contains(s.Hosts["cp1"].Content(kubeadm.EncryptionOnHost), "secretbox")
			if want := !exists || level == "hardened"; has != want {
				t.Errorf("%s, a cluster exists: %v: encrypted %v, want %v", level, exists, has, want)
			}
		}
	}
}

func TestFileModes(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Put(t, "/etc/kubernetes/pki/ca.crt", "x")
	h.Put(t, "/etc/cni/net.d/10-flannel.conflist", "x")
	h.Put(t, "/etc/other", "x")
	for _, want := range []string{"file-modes@cp1 changed", "file-modes@cp1 done"} {
		if err := s.Run(t, nil).Phases(t.Context(),
			[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.ModesTask()}}}); err != nil {
			t.Fatal(err)
		}
		if got := s.States(); len(got) != 1 || got[0] != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	out, err := s.Run(t, nil).Hosts[0].Output(t.Context(), "find", "/etc/other", "/etc/kubernetes/pki/ca.crt",
		"-printf", "%m ")
	if err != nil || string(out) != "644 600 " {
		t.Errorf("modes %q, %v", out, err)
	}
}

// etcd's data is closed; the disk that it is on, if the site has mounted one, need not be.
func TestSecretPaths(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	target := s.Run(t, nil).Hosts[0]
	const snap = kubeadm.EtcdMemberDir + "/snap"
	s.Hosts["cp1"].Put(t, snap, "x")
	for _, step := range []struct {
		mode string
		at   []string
		want []string
	}{
		{"go-rwx", []string{kubeadm.EtcdMemberDir, snap}, nil},
		{"go+rx", []string{snap}, nil}, // as etcd writes it
		{"go+rx", []string{kubeadm.EtcdMemberDir}, []string{kubeadm.EtcdMemberDir, snap}},
	} {
		if err := target.Run(t.Context(), append([]string{"chmod", step.mode}, step.at...)...); err != nil {
			t.Fatal(err)
		}
		if open, err := kubeadm.OpenFiles(t.Context(), target, kubeadm.SecretPaths()...); !slices.Equal(open,
			step.want) || err != nil {
			t.Errorf("%s %q: %q, %v", step.mode, step.at, open, err)
		}
	}
}
