//go:build linux

package look

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// healthy is a cluster of a control plane and a worker in which everything is as it should be.
func healthy() *health.Survey {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	named := func(name string) corev1.Node {
		var n corev1.Node
		n.Name = name
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.NodeInfo.KubeletVersion = "v1.34.3"
		return n
	}
	cp, worker := named("cp1"), named("node1")
	cp.Labels = map[string]string{kube.ControlPlaneLabel: "", health.ExcludeLabel: ""}
	cp.Spec.Taints = []corev1.Taint{{Key: kube.ControlPlaneLabel, Effect: corev1.TaintEffectNoSchedule}}
	s := &health.Survey{
		Now: now, Kubernetes: true, Version: "v1.34.3", System: []string{kube.SystemNamespace},
		Nodes: []corev1.Node{cp, worker}, Pods: systemPods(), Objects: map[string]kube.Object{},
		Tokens: []health.Bootstrap{{Name: "bootstrap-token-abcdef", Expires: now.Add(time.Hour).Format(time.RFC3339)}},
		Hosts: []health.Surveyed{
			{
				Name: "cp1", ControlPlane: true, Node: true, Etcd: true, Wanted: true, Member: true,
				Runtime: cri.ContainerdSocket, Asked: true,
				Metrics:      health.EtcdMetrics{HasLeader: true, Leader: true},
				Certificates: []node.Certificate{{Path: "a.crt", NotAfter: now.AddDate(1, 0, 0)}},
			},
			{Name: "node1", Worker: true, Node: true, Wanted: true, Member: true, Runtime: cri.ContainerdSocket},
		},
	}
	for name, key := range map[string]string{
		"kubeadm-config": "ClusterConfiguration", "kubelet-config": "kubelet",
		"cluster-info": "kubeconfig",
	} {
		s.Objects["ConfigMap/"+name] = &corev1.ConfigMap{Data: map[string]string{key: "x"}}
	}
	for _, name := range append(health.KubeadmRoles(), health.SignerRole, health.SignerBinding) {
		s.Objects[name] = &metav1.PartialObjectMetadata{}
	}
	s.Objects["Deployment/coredns"] = &appsv1.Deployment{
		Spec:   appsv1.DeploymentSpec{Replicas: new(int32(2))},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 2},
	}
	s.Objects["DaemonSet/kube-proxy"] = &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{
		DesiredNumberScheduled: 2,
		NumberReady:            2,
	}}
	for _, name := range health.Leased() {
		s.Objects[name] = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("cp1"), RenewTime: new(metav1.NewMicroTime(now.Add(-2 * time.Second))),
		}}
	}
	return s
}

// systemPods returns the ready pods that kubeadm and a pod network make on cp1 and node1.
func systemPods() []corev1.Pod {
	pod := func(name, app, node string) corev1.Pod {
		var p corev1.Pod
		p.Name, p.Namespace, p.Spec.NodeName = name, kube.SystemNamespace, node
		p.Labels = map[string]string{"k8s-app": app}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return p
	}
	return []corev1.Pod{
		pod("kube-apiserver-cp1", "", "cp1"), pod("kube-controller-manager-cp1", "", "cp1"),
		pod("kube-scheduler-cp1", "", "cp1"), pod("etcd-cp1", "", "cp1"),
		pod("coredns-a", "kube-dns", "cp1"), pod("coredns-b", "kube-dns", "node1"),
		pod("kube-proxy-a", "kube-proxy", "cp1"), pod("kube-proxy-b", "kube-proxy", "node1"),
		pod("network-b", "network", "node1"),
	}
}

// stop makes the pods with these names not ready since a time before the survey.
func stop(s *health.Survey, since time.Duration, names ...string) {
	for i := range s.Pods {
		if slices.Contains(names, s.Pods[i].Name) {
			s.Pods[i].Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionFalse,
				LastTransitionTime: metav1.NewTime(s.Now.Add(-since)), Message: "containers with unready status",
			}}
		}
	}
}

// release has the scheduler give its lease back, as one does that stops.
func release(s *health.Survey, since time.Duration) {
	lease := s.Objects["Lease/kube-scheduler"].(*coordinationv1.Lease).DeepCopy()
	nobody, at := "", metav1.NewMicroTime(s.Now.Add(-since))
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &nobody, &at
	s.Objects["Lease/kube-scheduler"] = lease
}

// without removes the pod with this name.
func without(s *health.Survey, name string) {
	s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return p.Name == name })
}

// wrong lists what is not as it should be, as "id host state".
func wrong(list report.Findings) string {
	var text []string
	for _, f := range list {
		if f.State != report.OK {
			text = append(text, strings.Join(strings.Fields(f.ID+" "+f.Host+" "+string(f.State)), " "))
		}
	}
	return strings.Join(text, ", ")
}

// TestSurveyFindings takes one thing after the other out of a healthy cluster, and wants that found and nothing else.
func TestSurveyFindings(t *testing.T) {
	t.Parallel()
	if got := wrong(healthy().Findings()); got != "" {
		t.Fatalf("a healthy cluster: %s", got)
	}
	for want, spoil := range map[string]func(s *health.Survey){
		"host-reachable node1 failed":                func(s *health.Survey) { s.Hosts[1].Err = errors.New("gone") },
		"host-is-node node1 failed":                  func(s *health.Survey) { s.Hosts[1].Member = false },
		"verify-nodes node1 failed, coredns warning": func(s *health.Survey) { s.Nodes[1].Status.Conditions[0].Status = "False" },
		"verify-nodes node1 warning": func(s *health.Survey) {
			s.Nodes[1].Status.Conditions = append(s.Nodes[1].Status.Conditions,
				corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
		},
		"verify-nodes other warning": func(s *health.Survey) {
			s.Nodes = append(s.Nodes, healthy().Nodes[1])
			s.Nodes[2].Name = "other"
			s.Pods = append(s.Pods, systemPods()[7])
			s.Pods[len(s.Pods)-1].Spec.NodeName = "other"
		},
		"node-version node1 failed":  func(s *health.Survey) { s.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.1" },
		"node-version node1 warning": func(s *health.Survey) { s.Version = ""; s.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.1" },
		"verify-pods node1 failed":   func(s *health.Survey) { stop(s, 2*time.Minute, "network-b") },
		"verify-pods node1 warning":  func(s *health.Survey) { stop(s, 20*time.Second, "network-b") },
		"verify-pods theirs warning": func(s *health.Survey) {
			stop(s, time.Hour, "network-b")
			s.Pods[len(s.Pods)-1].Namespace, s.Pods[len(s.Pods)-1].Spec.NodeName = "theirs", "theirs"
		},
		"verify-pods cp1 failed": func(s *health.Survey) {
			stop(s, 2*time.Minute,
				"kube-controller-manager-cp1")
		},
		"control-plane-pods cp1 failed": func(s *health.Survey) { without(s, "kube-scheduler-cp1") },
		"kubeadm-config failed":         func(s *health.Survey) { delete(s.Objects, "ConfigMap/kubeadm-config") },
		"kubelet-config failed":         func(s *health.Survey) { s.Objects["ConfigMap/kubelet-config"] = &corev1.ConfigMap{} },
		"cluster-info failed":           func(s *health.Survey) { delete(s.Objects, "ConfigMap/cluster-info") },
		"kubeadm-rbac failed": func(s *health.Survey) {
			delete(s.Objects,
				"ClusterRoleBinding/kubeadm:kubelet-bootstrap")
		},
		"control-plane-marks cp1 failed": func(s *health.Survey) { s.Nodes[0].Spec.Taints = nil },
		"runtime-record node1 failed":    func(s *health.Survey) { s.Hosts[1].Runtime = "" },
		"autostart node1 warning":        func(s *health.Survey) { s.Hosts[1].Disabled = []string{"kubelet.service"} },
		"bootstrap-tokens warning":       func(s *health.Survey) { s.Tokens[0].Expires = "" },
		"coredns warning":                func(s *health.Survey) { stop(s, time.Hour, "coredns-a") },
		"coredns failed":                 func(s *health.Survey) { stop(s, time.Hour, "coredns-a", "coredns-b") },
		"kube-proxy failed":              func(s *health.Survey) { stop(s, time.Hour, "kube-proxy-b") },
		"kube-proxy warning":             func(s *health.Survey) { stop(s, 5*time.Second, "kube-proxy-b") },
		"controller-leases failed":       func(s *health.Survey) { s.Now = s.Now.Add(2 * time.Minute) },
		"controller-leases warning":      func(s *health.Survey) { release(s, 20*time.Second) },
		" controller-leases failed":      func(s *health.Survey) { release(s, 2*time.Minute) },
		"api-server-health cp1 failed":   func(s *health.Survey) { s.Hosts[0].API = errors.New("[-]etcd failed") },
		"etcd-health cp1 failed":         func(s *health.Survey) { s.Hosts[0].Metrics.HasLeader = false },
		"etcd-agreement failed":          func(s *health.Survey) { s.Hosts[0].Metrics.Leader = false },
		"certificates cp1 warning":       func(s *health.Survey) { s.Hosts[0].Certificates[0].NotAfter = s.Now.AddDate(0, 0, 20) },
		"certificates cp1 failed":        func(s *health.Survey) { s.Hosts[0].Certificates[0].NotAfter = s.Now.AddDate(0, 0, -1) },
		"storage-class warning": func(s *health.Survey) {
			for _, name := range []string{"a", "b"} {
				s.Classes = append(s.Classes, storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
					Name:        name,
					Annotations: map[string]string{health.DefaultClass: "true"},
				}})
			}
		},
	} {
		s := healthy()
		spoil(s)
		list := s.Findings()
		if got := wrong(list); got != strings.TrimSpace(want) { // a second case of a check begins with a blank
			t.Errorf("got %q, want %q", got, want)
		}
		for _, f := range list {
			if f.State != report.OK && (f.Why == "" || f.Fix == "" || f.Found == "") {
				t.Errorf("%s does not say what it means: %+v", want, f)
			}
		}
	}
}

// TestManualRenewalIsWarnedOfEarly holds that status warns of certificates 90 days before their end if no timer
// renews them, and 30 days before if a timer or the kubelet does.
func TestManualRenewalIsWarnedOfEarly(t *testing.T) {
	t.Parallel()
	const kubelet = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	for _, one := range []struct {
		manual bool
		file   string
		days   int
		want   string
	}{
		{true, "a.crt", 89, "certificates cp1 warning"},
		{true, "a.crt", 91, ""},
		{true, "a.crt", -1, "certificates cp1 failed"},
		{true, kubelet, 31, ""},
		{true, kubelet, 29, "certificates cp1 warning"},
		{false, "a.crt", 31, ""},
		{false, "a.crt", 29, "certificates cp1 warning"},
	} {
		s := healthy()
		s.Manual = one.manual
		s.Hosts[0].Certificates[0] = node.Certificate{Path: one.file, NotAfter: s.Now.AddDate(0, 0, one.days)}
		if got := wrong(s.Findings()); got != one.want {
			t.Errorf("manual %t, %s, %d days left: got %q, want %q", one.manual, one.file, one.days, got, one.want)
		}
	}
}

// TestRegistryCertificateIsWatched holds that status warns of the registry's certificate 30 days before its end: the
// timer has failed then. The registry's host may be no node.
func TestRegistryCertificateIsWatched(t *testing.T) {
	t.Parallel()
	for days, want := range map[int]string{31: "", 29: "certificates reg1 warning", -1: "certificates reg1 failed"} {
		s := healthy()
		expires := s.Now.AddDate(0, 0, days)
		s.Registries = []health.RegistryState{{
			Name:         "reg1",
			Certificates: []node.Certificate{{Path: siteregistry.CertificateFiles().Cert, NotAfter: expires}},
		}}
		if got := wrong(s.Findings()); got != want {
			t.Errorf("%d days left: got %q, want %q", days, got, want)
		}
	}
}

// TestJudgeWithoutALostHost has the run go on without a node: its pods are missed by nobody, those of the others are.
func TestJudgeWithoutALostHost(t *testing.T) {
	t.Parallel()
	for stopped, want := range map[string]string{"kube-proxy-b": "", "kube-proxy-a": "kube-proxy failed"} {
		s := healthy()
		stop(s, time.Hour, stopped, "coredns-b", "network-b")
		s.Hosts[1].LeftOut, s.Hosts[1].Wanted, s.Hosts[1].Err = true, false, errors.New("gone")
		s.Nodes[1].Status.Conditions[0].Status = "Unknown"
		want = strings.TrimSuffix("coredns warning, "+want, ", ")
		if got := wrong(s.Findings()); got != want {
			t.Errorf("%s stopped: got %q, want %q", stopped, got, want)
		}
	}
}

// TestLooksAreNamed holds that every task of the phase that can find something says what it means.
func TestLooksAreNamed(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, l := range health.Checks() {
		if slices.Contains(ids, l.ID) || l.Title == "" || l.Why == "" || l.Fix == "" {
			t.Errorf("%+v is there twice or says too little", l)
		}
		ids = append(ids, l.ID)
	}
	for _, task := range plan.VerifyTasks(tasktest.Cluster(t, "")) {
		if name := task.Name; name != "verify-cluster" && name != "verify-result" && !slices.Contains(ids, name) {
			t.Errorf("%s says nothing of what it means", name)
		}
	}
}

// TestVerificationGathers has two tasks that fail; the phase goes through both, and says both at its end.
func TestVerificationGathers(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, nil)
	failing := func(name string) task.Task {
		return health.AsFindings(task.Task{Name: name, Do: func(_ context.Context,
			t *task.Host,
		) error {
			return errors.New(name + " on " + t.Name)
		}})
	}
	result := plan.VerifyTasks(r.Cluster)[len(plan.VerifyTasks(r.Cluster))-1]
	err := r.Phases(t.Context(),
		[]task.Phase{{Name: task.VerifyPhase, Tasks: []task.Task{
			failing("verify-dns"), failing("verify-images"),
			result,
		}}})
	var ill *health.UnhealthyError
	if !errors.As(err, &ill) || len(ill.Findings) != 4 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"verify-dns on cp1", "verify-dns on node1", "verify-images on cp1",
		"verify-images on node1",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// TestParsePulls reads lines that containerd 2.1 wrote.
func TestParsePulls(t *testing.T) {
	t.Parallel()
	list := engine.ParsePulls("cp1", `2026-11-22T04:59:56.020937+0000 host1 containerd[839]: time="2026-11-22T04:59:56.020337878Z" level=info msg="Pulled image \"registry.k8s.io/kube-apiserver:v1.34.3\" with image id \"sha256:48\", repo tag \"registry.k8s.io/kube-apiserver:v1.34.3\", repo digest \"registry.k8s.io/kube-apiserver@sha256:4b\", size \"31730407\" in 4.482643213s"
2026-11-22T04:59:57.020937+0000 host1 containerd[839]: something else
`)
	if len(list) != 1 || list[0].Image != "registry.k8s.io/kube-apiserver:v1.34.3" || list[0].Duration != 4482643213 ||
		list[0].End.Unix() != 1795323596 {
		t.Errorf("got %+v", list)
	}
}

// TestFailingKubeadmIsExplained has a kubeadm that fails and a kubelet whose log says why.
func TestFailingKubeadmIsExplained(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
		return &host.ExitError{Host: "cp1", Args: cmd.Args, Code: 1, Stderr: "The kubelet is not healthy after 4m0s"}
	})
	h.Answer("journalctl", func(_ context.Context, cmd host.Cmd) error {
		text := ""
		if slices.Contains(cmd.Args, "--unit=kubelet") {
			text = "failed to parse kubelet flag: unknown flag: --no-such-flag\ntoken: abcdef.0123456789abcdef\n"
		}
		_, err := cmd.Stdout.Write([]byte(text))
		return err
	})
	r := s.Run(t, nil)
	err := kubeadm.CreateNode(t.Context(), r.Hosts[0], []byte("config"), "init")
	var e *diagnose.ExplainedError
	if !errors.As(err, &e) || !strings.Contains(e.Cause, "--no-such-flag") || e.Fix == "" {
		t.Fatalf("got %v", err)
	}
	log, err := os.ReadFile(e.Dir + "/kubelet.log")
	if err != nil || !strings.Contains(string(log), "--no-such-flag") ||
		strings.Contains(string(log), "0123456789abcdef") {
		t.Errorf("the kubelet's log: %s, %v", log, err)
	}
}

// TestRunLeavesAReport runs tasks of which one fails.
func TestRunLeavesAReport(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, nil)
	r.Began = r.Now()
	cause := r.Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{
		{
			Name: "fine", Done: func(context.Context, *task.Host) (bool, error) { return false, nil },
			Do: func(context.Context, *task.Host) error { return nil },
		},
		{
			Name: "bad", Roles: []manifest.Role{manifest.RoleWorker},
			Do: func(context.Context, *task.Host) error { return errors.New("no <b>luck</b>") },
		},
	}}})
	if err := r.KeepReport(t.Context(), cause); err != nil {
		t.Fatal(err)
	}
	page, err := r.Dir.Read(engine.ReportFile)
	if err != nil || !bytes.Contains(page, []byte("no &lt;b&gt;luck&lt;/b&gt;")) ||
		bytes.Contains(page, []byte("<b>luck")) {
		t.Errorf("the page: %v", err)
	}
	var out report.Status
	addLastRun(r, &out)
	if out.Last == nil || out.Last.Outcome != report.Stopped || out.Last.Changed != 2 {
		t.Errorf("what is remembered of the run: %+v", out.Last)
	}
}

// TestStatusOfWhatIsNot looks at hosts on which there is nothing, and of which one is gone.
func TestStatusOfWhatIsNot(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("node1")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	s.Hosts["cp1"].Answer("uname", func(_ context.Context, cmd host.Cmd) error {
		_, err := cmd.Stdout.Write([]byte("x86_64\n"))
		return err
	})
	status, err := Status(t.Context(), StatusOptions{Options: s.Options})
	if err != nil {
		t.Fatal(err)
	}
	if got := wrong(status.Findings); status.Healthy || !strings.Contains(got, "host-reachable node1 failed") ||
		!strings.Contains(got, "host-is-node") {
		t.Errorf("healthy %v: %s", status.Healthy, got)
	}
	if left := s.Hosts["cp1"].Content(host.HelperPath); left != "" {
		t.Error("the helper is still there")
	}
}

// TestVerificationLooksAgain has nobody hold the lease of the scheduler for a moment.
func TestVerificationLooksAgain(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	asked := 0
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		line := strings.Join(cmd.Args, " ")
		if !strings.Contains(line, "--output=json") {
			return nil
		}
		var items []kube.Document
		switch {
		case strings.Contains(line, " get nodes "):
			items = []kube.Document{{"metadata": kube.Document{"name": "cp1"}}}
		case strings.Contains(line, "Lease/kube-scheduler"):
			asked++
			now := metav1.NowMicro()
			items = []kube.Document{{
				"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
				"metadata": kube.Document{"name": "kube-controller-manager"},
				"spec":     kube.Document{"holderIdentity": "cp1", "renewTime": now},
			}}
			if asked > 1 {
				items = append(items, kube.Document{
					"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
					"metadata": kube.Document{"name": "kube-scheduler"}, "spec": kube.Document{
						"holderIdentity": "cp1",
						"renewTime":      now,
					},
				})
			}
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
	})
	r := s.Run(t, nil)
	if err := health.SurveyTask(t.Context(), r.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	if got := wrong(r.Findings()); asked != 2 || strings.Contains(got, health.CheckLeases) {
		t.Errorf("asked %d times: %s", asked, got)
	}
}
