//go:build linux

package installer

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
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

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

// healthy is a cluster of a control plane and a worker in which everything is as it should be.
func healthy() *survey {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	node := func(name string) corev1.Node {
		var n corev1.Node
		n.Name = name
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.NodeInfo.KubeletVersion = "v1.34.3"
		return n
	}
	cp, worker := node("cp1"), node("node1")
	cp.Labels = map[string]string{controlLabel: "", excludeLabel: ""}
	cp.Spec.Taints = []corev1.Taint{{Key: controlLabel, Effect: corev1.TaintEffectNoSchedule}}
	var pod corev1.Pod
	pod.Name, pod.Namespace = "coredns-x", kubeSystem
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	s := &survey{
		now: now, kubernetes: true, version: "v1.34.3", system: []string{kubeSystem},
		nodes: []corev1.Node{cp, worker}, pods: []corev1.Pod{pod}, objects: map[string]kube.Object{},
		tokens: []bootstrap{{"bootstrap-token-abcdef", now.Add(time.Hour).Format(time.RFC3339)}},
		hosts: []surveyed{
			{
				name: "cp1", controlPlane: true, node: true, etcd: true, wanted: true, member: true, runtime: criSocket, asked: true,
				metrics: etcdMetrics{hasLeader: true, leader: true}, certificates: []report.Certificate{{File: "a.crt", Expires: now.AddDate(1, 0, 0)}},
			},
			{name: "node1", worker: true, node: true, wanted: true, member: true, runtime: criSocket},
		},
	}
	for name, key := range map[string]string{"kubeadm-config": "ClusterConfiguration", "kubelet-config": "kubelet", "cluster-info": "kubeconfig"} {
		s.objects["ConfigMap/"+name] = &corev1.ConfigMap{Data: map[string]string{key: "x"}}
	}
	for _, name := range append(kubeadmRoles(), signerRole, signerBinding) {
		s.objects[name] = &metav1.PartialObjectMetadata{}
	}
	s.objects["Deployment/coredns"] = &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2}}
	s.objects["DaemonSet/kube-proxy"] = &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2}}
	for _, name := range leased() {
		s.objects[name] = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("cp1"), RenewTime: new(metav1.NewMicroTime(now.Add(-2 * time.Second))),
		}}
	}
	return s
}

// proxy returns the status of kube-proxy.
func (s *survey) proxy() *appsv1.DaemonSetStatus {
	return &s.objects["DaemonSet/kube-proxy"].(*appsv1.DaemonSet).Status
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
	if got := wrong(healthy().findings()); got != "" {
		t.Fatalf("a healthy cluster: %s", got)
	}
	for want, spoil := range map[string]func(s *survey){
		"host-reachable node1 failed": func(s *survey) { s.hosts[1].err = errors.New("gone") },
		"host-is-node node1 failed":   func(s *survey) { s.hosts[1].member = false },
		"verify-nodes node1 failed":   func(s *survey) { s.nodes[1].Status.Conditions[0].Status = "False" },
		"verify-nodes node1 warning": func(s *survey) {
			s.nodes[1].Status.Conditions = append(s.nodes[1].Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
		},
		"verify-nodes other warning": func(s *survey) {
			s.nodes = append(s.nodes, healthy().nodes[1])
			s.nodes[2].Name = "other"
			s.proxy().DesiredNumberScheduled, s.proxy().NumberReady = 3, 3
		},
		"node-version node1 failed":  func(s *survey) { s.nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.1" },
		"node-version node1 warning": func(s *survey) { s.version = ""; s.nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.1" },
		"verify-pods failed":         func(s *survey) { s.pods[0].Status.Conditions = nil },
		"verify-pods warning": func(s *survey) {
			s.pods[0].Status.Conditions, s.pods[0].Namespace = nil, "theirs"
		},
		"kubeadm-config failed":          func(s *survey) { delete(s.objects, "ConfigMap/kubeadm-config") },
		"kubelet-config failed":          func(s *survey) { s.objects["ConfigMap/kubelet-config"] = &corev1.ConfigMap{} },
		"cluster-info failed":            func(s *survey) { delete(s.objects, "ConfigMap/cluster-info") },
		"kubeadm-rbac failed":            func(s *survey) { delete(s.objects, "ClusterRoleBinding/kubeadm:kubelet-bootstrap") },
		"control-plane-marks cp1 failed": func(s *survey) { s.nodes[0].Spec.Taints = nil },
		"runtime-record node1 failed":    func(s *survey) { s.hosts[1].runtime = "" },
		"bootstrap-tokens warning":       func(s *survey) { s.tokens[0].expires = "" },
		"coredns warning":                func(s *survey) { s.objects["Deployment/coredns"].(*appsv1.Deployment).Status.ReadyReplicas = 1 },
		"coredns failed":                 func(s *survey) { s.objects["Deployment/coredns"].(*appsv1.Deployment).Status.ReadyReplicas = 0 },
		"kube-proxy failed":              func(s *survey) { s.proxy().NumberReady = 1 },
		"controller-leases failed":       func(s *survey) { s.now = s.now.Add(2 * time.Minute) },
		"api-server-health cp1 failed":   func(s *survey) { s.hosts[0].api = errors.New("[-]etcd failed") },
		"etcd-health cp1 failed":         func(s *survey) { s.hosts[0].metrics.hasLeader = false },
		"etcd-agreement failed":          func(s *survey) { s.hosts[0].metrics.leader = false },
		"certificates cp1 warning":       func(s *survey) { s.hosts[0].certificates[0].Expires = s.now.AddDate(0, 0, 20) },
		"certificates cp1 failed":        func(s *survey) { s.hosts[0].certificates[0].Expires = s.now.AddDate(0, 0, -1) },
		"storage-class warning": func(s *survey) {
			for _, name := range []string{"a", "b"} {
				s.classes = append(s.classes, storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{defaultClass: "true"}}})
			}
		},
	} {
		s := healthy()
		spoil(s)
		list := s.findings()
		if got := wrong(list); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, f := range list {
			if f.State != report.OK && (f.Why == "" || f.Fix == "" || f.Found == "") {
				t.Errorf("%s does not say what it means: %+v", want, f)
			}
		}
	}
}

// TestJudgeWithoutALostHost has the run go on without a node: its pods are missed by nobody, those of the others are.
func TestJudgeWithoutALostHost(t *testing.T) {
	t.Parallel()
	for ready, want := range map[int32]string{1: "", 0: "kube-proxy failed"} {
		s := healthy()
		s.hosts[1].left, s.hosts[1].wanted, s.hosts[1].err = true, false, errors.New("gone")
		s.nodes[1].Status.Conditions[0].Status = "Unknown"
		s.proxy().NumberReady = ready
		if got := wrong(s.findings()); got != want {
			t.Errorf("%d ready: got %q, want %q", ready, got, want)
		}
	}
}

// TestLooksAreNamed holds that every task of the phase that can find something says what it means.
func TestLooksAreNamed(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, l := range looks() {
		if slices.Contains(ids, l.id) || l.title == "" || l.why == "" || l.fix == "" {
			t.Errorf("%+v is there twice or says too little", l)
		}
		ids = append(ids, l.id)
	}
	for _, task := range verifyTasks(cluster(t, "")) {
		if name := task.Name; name != "verify-cluster" && name != "verify-result" && !slices.Contains(ids, name) {
			t.Errorf("%s says nothing of what it means", name)
		}
	}
}

// TestVerificationGathers has two tasks that fail; the phase goes through both, and says both at its end.
func TestVerificationGathers(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	r := s.run(t, nil)
	failing := func(name string) Task {
		return verifying(Task{Name: name, Do: func(_ context.Context, t *Target) error { return errors.New(name + " on " + t.Name) }})
	}
	result := verifyTasks(r.cluster)[len(verifyTasks(r.cluster))-1]
	err := r.phases(t.Context(), []Phase{{Name: verifyPhase, Tasks: []Task{failing("verify-dns"), failing("verify-images"), result}}})
	var ill *UnhealthyError
	if !errors.As(err, &ill) || len(ill.Findings) != 4 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"verify-dns on cp1", "verify-dns on node1", "verify-images on cp1", "verify-images on node1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestEtcdMetrics(t *testing.T) {
	t.Parallel()
	got := parseEtcdMetrics(`# HELP etcd_server_has_leader Whether or not a leader exists. 1 is existence, 0 is not.
etcd_server_has_leader 1
etcd_server_is_leader 1
etcd_mvcc_db_total_size_in_bytes 1.646592e+06
etcd_server_version{server_version="3.6.5"} 1
`)
	if want := (etcdMetrics{true, true, "3.6.5", 1646592}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseCertificates(t *testing.T) {
	t.Parallel()
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	list := parseCertificates("cp1", "# /etc/kubernetes/pki/ca.crt\n"+string(ca)+"# /etc/kubernetes/kubelet.conf\n\n# /broken.crt\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	if len(list) != 1 || list[0].File != "/etc/kubernetes/pki/ca.crt" || list[0].Expires.IsZero() {
		t.Errorf("got %+v", list)
	}
}

// TestParsePulls reads lines that containerd 2.1 wrote.
func TestParsePulls(t *testing.T) {
	t.Parallel()
	list := parsePulls("cp1", `2026-11-22T04:59:56.020937+0000 host1 containerd[839]: time="2026-11-22T04:59:56.020337878Z" level=info msg="Pulled image \"registry.k8s.io/kube-apiserver:v1.34.3\" with image id \"sha256:48\", repo tag \"registry.k8s.io/kube-apiserver:v1.34.3\", repo digest \"registry.k8s.io/kube-apiserver@sha256:4b\", size \"31730407\" in 4.482643213s"
2026-11-22T04:59:57.020937+0000 host1 containerd[839]: something else
`)
	if len(list) != 1 || list[0].Image != "registry.k8s.io/kube-apiserver:v1.34.3" || list[0].Duration != 4482643213*time.Nanosecond || list[0].End.Unix() != 1795323596 {
		t.Errorf("got %+v", list)
	}
}

func TestSignedBy(t *testing.T) {
	t.Parallel()
	const token, config = "abcdef.0123456789abcdef", "apiVersion: v1\n"
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","kid":"abcdef"}`))
	mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
	mac.Write([]byte(header + "." + base64.RawURLEncoding.EncodeToString([]byte(config))))
	signature := header + ".." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	info := map[string]string{"kubeconfig": config, "jws-kubeconfig-abcdef": signature}
	if err := signedBy(token, info); err != nil {
		t.Error(err)
	}
	for what, bad := range map[string]map[string]string{
		"no signature":   {"kubeconfig": config},
		"another config": {"kubeconfig": config + "x", "jws-kubeconfig-abcdef": signature},
		"another token":  {"kubeconfig": config, "jws-kubeconfig-abcdef": header + "..AAAA"},
	} {
		if err := signedBy(token, bad); err == nil {
			t.Errorf("%s is believed", what)
		}
	}
}

// TestLikelyCause has what programs print when they fail.
func TestLikelyCause(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[ERROR ImagePull]: failed to pull image registry.k8s.io/etcd:9.9.9-0: failed to pull image registry.k8s.io/etcd:9.9.9-0: rpc error: code = NotFound desc = failed to pull and unpack image "registry.k8s.io/etcd:9.9.9-0": failed to resolve reference "registry.k8s.io/etcd:9.9.9-0": registry.k8s.io/etcd:9.9.9-0: not found`: "the registry does not have registry.k8s.io/etcd:9.9.9-0",
		`failed to pull and unpack image "a/b:1": failed to resolve reference "a/b:1": unexpected status from HEAD request to https://10.0.0.1:5000/v2/b/manifests/1: 401 Unauthorized`:                                                                                                                                                  "the registry refuses the host's login for a/b:1",
		`failed to pull and unpack image "a/b:1": failed to resolve reference "a/b:1": failed to do request: Head "https://10.0.0.1:5000/v2/b/manifests/1": dial tcp 10.0.0.1:5000: connect: connection refused`:                                                                                                                         "the host does not reach the registry for a/b:1",
		`level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:etcd-cp1} failed, error" error="failed to get sandbox image \"registry.k8s.io/pause:3.10.1\": failed to pull image"`:                                                                                                                                                "the image of the pods' sandboxes, registry.k8s.io/pause:3.10.1, cannot be pulled",
		`error execution phase preflight: [preflight] Some fatal errors occurred:` + "\n\t" + `[ERROR Port-6443]: Port 6443 is in use`:                                                                                                                                                                                                   "port 6443 is in use on the host",
		`"command failed" err="failed to validate kubelet configuration, error: invalid configuration: the eviction threshold is not a number"`:                                                                                                                                                                                          "the kubelet does not take its configuration: invalid configuration: the eviction threshold is not a number",
		`E1122 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: --no-such-flag"`:                                                                                                                                                                                                                             "the kubelet does not know an option that it is given: unknown flag: --no-such-flag",
		`running with swap on is not supported, please disable swap or set --fail-swap-on flag to false`:                                                                                                                                                                                                                                 "swap is on, and the kubelet does not start with it",
		`tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2020-01-01T00:00:00Z is before 2026-11-22T00:00:00Z`:                                                                                                                                                                         "the host's clock and a certificate do not agree: the clock says 2020-01-01T00:00:00Z, which is before 2026-11-22T00:00:00Z",
		`write /var/lib/etcd/member/wal/0.tmp: no space left on device`:                                                                                                                                                                                                                                                                  "a disk of the host is full",
		`runc create failed: unable to start container process: can't get final child's PID from pipe: EOF`:                                                                                                                                                                                                                              "the runtime may not set what it sets for every container (oom_score_adj): the host is itself a container with too few rights",
		`Error: unknown flag: --audit-log-pathh`:    "a component of the control plane does not know an option that it is given: unknown flag: --audit-log-pathh",
		`The kubelet is not healthy after 4m0.000s`: "the kubelet does not run",
		`all went well`: "",
	} {
		if got, _ := likelyCause([]collected{{"a", text}}); got != want {
			t.Errorf("%s\n got %q\nwant %q", text, got, want)
		}
	}
}

// TestFailingKubeadmIsExplained has a kubeadm that fails and a kubelet whose log says why.
func TestFailingKubeadmIsExplained(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	h.answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
		return &host.ExitError{Host: "cp1", Args: cmd.Args, Code: 1, Stderr: "The kubelet is not healthy after 4m0s"}
	})
	h.answer("journalctl", func(_ context.Context, cmd host.Cmd) error {
		text := ""
		if slices.Contains(cmd.Args, "--unit=kubelet") {
			text = "failed to parse kubelet flag: unknown flag: --no-such-flag\ntoken: abcdef.0123456789abcdef\n"
		}
		_, err := cmd.Stdout.Write([]byte(text))
		return err
	})
	r := s.run(t, nil)
	err := r.targets[0].becomeMember(t.Context(), []byte("config"), "init")
	var e *ExplainedError
	if !errors.As(err, &e) || !strings.Contains(e.Cause, "--no-such-flag") || e.Fix == "" {
		t.Fatalf("got %v", err)
	}
	log, err := os.ReadFile(e.Dir + "/kubelet.log")
	if err != nil || !strings.Contains(string(log), "--no-such-flag") || strings.Contains(string(log), "0123456789abcdef") {
		t.Errorf("the kubelet's log: %s, %v", log, err)
	}
}

// TestRunLeavesAReport runs tasks of which one fails.
func TestRunLeavesAReport(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	r := s.run(t, nil)
	r.began = r.Now()
	cause := r.phases(t.Context(), []Phase{{Name: "install", Tasks: []Task{
		{Name: "fine", Done: func(context.Context, *Target) (bool, error) { return false, nil }, Do: func(context.Context, *Target) error { return nil }},
		{Name: "bad", Roles: []manifest.Role{manifest.RoleWorker}, Do: func(context.Context, *Target) error { return errors.New("no <b>luck</b>") }},
	}}})
	if err := r.keepReport(t.Context(), cause); err != nil {
		t.Fatal(err)
	}
	page, err := r.dir.read(reportFile)
	if err != nil || !bytes.Contains(page, []byte("no &lt;b&gt;luck&lt;/b&gt;")) || bytes.Contains(page, []byte("<b>luck")) {
		t.Errorf("the page: %v", err)
	}
	var out report.Status
	r.remembered(&out)
	if out.Last == nil || out.Last.Outcome != report.Stopped || out.Last.Changed != 2 {
		t.Errorf("what is remembered of the run: %+v", out.Last)
	}
}

// TestStatusOfWhatIsNot looks at hosts on which there is nothing, and of which one is gone.
func TestStatusOfWhatIsNot(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	s.dialing("node1")
	s.options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	for _, name := range []string{"uname", host.HelperPath} {
		s.hosts["cp1"].answer(name, func(_ context.Context, cmd host.Cmd) error {
			_, err := cmd.Stdout.Write([]byte("x86_64\n"))
			return err
		})
	}
	status, err := Status(t.Context(), StatusOptions{Options: s.options})
	if err != nil {
		t.Fatal(err)
	}
	if got := wrong(status.Findings); status.Healthy || !strings.Contains(got, "host-reachable node1 failed") || !strings.Contains(got, "host-is-node") {
		t.Errorf("healthy %v: %s", status.Healthy, got)
	}
	if left := s.hosts["cp1"].content(host.HelperPath); left != "" {
		t.Error("the helper is still there")
	}
}

// TestVerificationLooksAgain has nobody hold the lease of the scheduler for a moment.
func TestVerificationLooksAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	asked := 0
	s.hosts["cp1"].answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		line := strings.Join(cmd.Args, " ")
		if !strings.Contains(line, "--output=json") {
			return nil
		}
		var items []document
		switch {
		case strings.Contains(line, " get nodes "):
			items = []document{{"metadata": document{"name": "cp1"}}}
		case strings.Contains(line, "Lease/kube-scheduler"):
			asked++
			now := metav1.NowMicro()
			items = []document{{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": document{"name": "kube-controller-manager"}, "spec": document{"holderIdentity": "cp1", "renewTime": now}}}
			if asked > 1 {
				items = append(items, document{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": document{"name": "kube-scheduler"}, "spec": document{"holderIdentity": "cp1", "renewTime": now}})
			}
		}
		return json.NewEncoder(cmd.Stdout).Encode(document{"items": items})
	})
	r := s.run(t, nil)
	if err := surveyTask(t.Context(), r.targets[0]); err != nil {
		t.Fatal(err)
	}
	if got := wrong(r.findings()); asked != 2 || strings.Contains(got, lookLeases) {
		t.Errorf("asked %d times: %s", asked, got)
	}
}

func TestIllChecks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\nlivez check failed": "[-]etcd failed: reason withheld",
		"Internal Server Error": "Internal Server Error",
	} {
		if got := illChecks(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
