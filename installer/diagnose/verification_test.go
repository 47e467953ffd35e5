//go:build linux

package diagnose

import (
	"testing"
)

// TestLikelyCause has what programs print when they fail.
func TestLikelyCause(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[ERROR ImagePull]: failed to pull image registry.k8s.io/etcd:9.9.9-0: failed to pull image registry.k8s.io/etcd:9.9.9-0: rpc error: code = NotFound desc = failed to pull and unpack image "registry.k8s.io/etcd:9.9.9-0": failed to resolve reference "registry.k8s.io/etcd:9.9.9-0": registry.k8s.io/etcd:9.9.9-0: not found`: "the registry does not have registry.k8s.io/etcd:9.9.9-0",
		`failed to pull and unpack image "a/b:1": failed to resolve reference "a/b:1": unexpected status from HEAD request to https://10.0.0.1:5000/v2/b/manifests/1: 401 Unauthorized`:                                                                                                                                                  "the registry refuses the host's login for a/b:1",
		`failed to pull and unpack image "a/b:1": failed to resolve reference "a/b:1": failed to do request: Head "https://10.0.0.1:5000/v2/b/manifests/1": dial tcp 10.0.0.1:5000: connect: connection refused`:                                                                                                                         "the host does not reach the registry for a/b:1",
		`level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:etcd-cp1} failed, error" error="failed to get sandbox image \"registry.k8s.io/pause:3.10.1\": failed to pull image"`:                                                                                                                                                "the image of the pods' sandboxes, registry.k8s.io/pause:3.10.1, cannot be pulled",
		`error execution phase preflight: [preflight] Some fatal errors occurred:` + "\n\t" +
			`[ERROR Port-6443]: Port 6443 is in use`: "port 6443 is in use on the host",
		`"command failed" err="failed to validate kubelet configuration, error: invalid configuration: the eviction threshold is not a number"`:                  "the kubelet rejects its configuration: invalid configuration: the eviction threshold is not a number",
		`E1122 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: --no-such-flag"`:                                                     "the kubelet does not know one of its options: unknown flag: --no-such-flag",
		`running with swap on is not supported, please disable swap or set --fail-swap-on flag to false`:                                                         "swap is on, and the kubelet does not start with it",
		`tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2020-01-01T00:00:00Z is before 2026-11-22T00:00:00Z`: "the host's clock and a certificate do not agree: the clock says 2020-01-01T00:00:00Z, which is before 2026-11-22T00:00:00Z",
		`write /var/lib/etcd/member/wal/0.tmp: no space left on device`:                                                                                          "a disk of the host is full",
		`runc create failed: unable to start container process: can't get final child's PID from pipe: EOF`:                                                      "the runtime may not set oom_score_adj for containers: the host is itself a container with too few rights",
		`Error: unknown flag: --audit-log-pathh`:    "a component of the control plane does not know one of its options: unknown flag: --audit-log-pathh",
		`The kubelet is not healthy after 4m0.000s`: "the kubelet does not run",
		`all went well`: "",
	} {
		if got, _ := likelyCause([]collected{{"a", text}}); got != want {
			t.Errorf("%s\n got %q\nwant %q", text, got, want)
		}
	}
}
