package installer

import (
	"bufio"
	"context"
	"crypto/tls"
	_ "embed" // scripts
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// securityChecks prove that the cluster is as safe as its level says: they look at what runs, and try what must fail.
func securityChecks() []Task {
	return []Task{
		{Name: "verify-hosts-security", Roles: []manifest.Role{manifest.RoleCluster}, Do: verifyHostSecurity},
		{Name: "verify-security", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: First, Do: verifyClusterSecurity},
	}
}

// securityLevel is what the cluster was made with: a later change of the cluster file does not apply to it. It is empty for a
// cluster from before there were levels.
func (r *Site) securityLevel(ctx context.Context) (manifest.SecurityLevel, error) {
	settings, _, err := r.firstControlPlane().membership(ctx)
	for line := range strings.Lines(settings) {
		if level, ok := strings.CutPrefix(strings.TrimSpace(line), "kubernetes.security "); ok {
			return manifest.SecurityLevel(level), err
		}
	}
	return "", err
}

// verifyHostSecurity looks at one node.
func verifyHostSecurity(ctx context.Context, t *Target) error {
	level, err := t.run.securityLevel(ctx)
	if err != nil || level == "" {
		return err
	}
	paths := secretPaths()
	if level == manifest.SecurityHardened {
		paths = slices.Concat(paths, closedPaths())
	}
	open, err := t.openFiles(ctx, paths...)
	if err != nil {
		return err
	}
	var errs []error
	if len(open) > 0 {
		errs = append(errs, fmt.Errorf("others than root can read %s", strings.Join(open, ", ")))
	}
	errs = append(errs, t.refusesAnonymous(ctx, net.JoinHostPort(t.IP.String(), "10250"), "/pods"), t.refusesOldTLS(ctx, net.JoinHostPort(t.IP.String(), "10250"), "the kubelet"))
	if t.Is(manifest.RoleControlPlane) {
		errs = append(errs, t.verifyControlPlane(ctx, level))
	}
	return errors.Join(errs...)
}

// verifyControlPlane looks at the components that run on a control plane.
func (t *Target) verifyControlPlane(ctx context.Context, level manifest.SecurityLevel) error {
	api := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	errs := []error{
		t.refusesAnonymous(ctx, api, "/api/v1/namespaces/kube-system/secrets"),
		t.refusesOldTLS(ctx, api, "the API server"),
	}
	for _, one := range []struct{ program, port string }{{"kube-controller-manager", "10257"}, {"kube-scheduler", "10259"}} {
		running, err := t.arguments(ctx, one.program)
		if err != nil {
			return err
		}
		errs = append(errs, t.refusesOldTLS(ctx, net.JoinHostPort(boundTo(running), one.port), one.program))
	}
	if level == manifest.SecurityHardened && t.run.limitsAnonymous() {
		errs = append(errs, t.refusesAnonymous(ctx, api, "/version"))
	}
	return errors.Join(append(errs, t.hasFlags(ctx))...)
}

// boundTo is where a program with these arguments can be asked on its own host. kubeadm binds to 127.0.0.1 in clusters of IPv6
// as well, unless flags or patches say otherwise: so that what runs is looked at.
func boundTo(arguments []string) string {
	for _, a := range arguments {
		value, _ := strings.CutPrefix(a, "--bind-address=") // what is left of another flag is no address
		ip, err := netip.ParseAddr(value)
		switch {
		case err != nil:
			continue
		case ip.IsUnspecified():
			return loopback(value)
		}
		return ip.String()
	}
	return loopback("")
}

// components are the control plane's programs by their names in ClusterConfiguration.
func components() map[string]string {
	return map[string]string{apiServer: "kube-apiserver", controllerManager: "kube-controller-manager", scheduler: "kube-scheduler"}
}

// hasFlags compares what the level adds, as far as the cluster file leaves it so, with the arguments of what runs.
func (t *Target) hasFlags(ctx context.Context) error {
	config, err := t.run.kubeadm()
	if err != nil {
		return err
	}
	whole := config.clusterConfiguration()
	var errs []error
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		running, err := t.arguments(ctx, components()[name])
		if err != nil {
			return err
		}
		component, _ := whole[name].(map[string]any)
		wanted := argsOf(component["extraArgs"])
		for flag := range t.run.securityPart().flags[name] {
			for _, a := range wanted {
				if want := fmt.Sprintf("--%s=%v", flag, a.value); a.name == flag && !slices.Contains(running, want) {
					errs = append(errs, fmt.Errorf("%s runs without %s: its manifest was changed, or a patch changes it", components()[name], want))
				}
			}
		}
	}
	return errors.Join(errs...)
}

//go:embed scripts/process-arguments.sh
var processArgumentsScript string

// arguments returns the command line of a program that runs once on the host.
func (t *Target) arguments(ctx context.Context, program string) ([]string, error) {
	out, err := t.output(ctx, host.Script("process-arguments.sh", processArgumentsScript, program)...)
	if err != nil {
		return nil, fmt.Errorf("%s does not run: %w", program, err)
	}
	return strings.Split(string(out), "\n"), nil
}

// handshake opens a TLS connection over one that the host makes. Who is at the other end does not matter: nothing is told.
func (t *Target) handshake(ctx context.Context, address string, c *tls.Config) (*tls.Conn, error) {
	raw, err := t.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.InsecureSkipVerify = true
	conn := tls.Client(raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

const securityWait = 20 * time.Second

// refusesOldTLS tells an error if a server speaks TLS 1.1.
func (t *Target) refusesOldTLS(ctx context.Context, address, what string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := t.handshake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("%s at %s does not speak TLS: %w", what, address, err)
	}
	_ = conn.Close() // nothing was written
	conn, err = t.handshake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err != nil {
		return ctx.Err()
	}
	_ = conn.Close() // nothing was written
	return fmt.Errorf("%s at %s speaks TLS 1.1", what, address)
}

// refusesAnonymous tells an error if a server answers a question without asking who wants to know.
func (t *Target) refusesAnonymous(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := t.handshake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(at) // where a connection has none, the context still ends it
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
		return nil
	}
	return fmt.Errorf("%s answers %s to anybody (%s)", address, path, answer.Status)
}

// verifyClusterSecurity asks the cluster.
func verifyClusterSecurity(ctx context.Context, t *Target) error {
	level, err := t.run.securityLevel(ctx)
	if err != nil || level == "" {
		return err
	}
	errs := []error{t.nothingForAnybody(ctx)}
	if level == manifest.SecurityHardened {
		errs = append(errs, t.refusesPrivileged(ctx), t.keepsSecrets(ctx))
	}
	return errors.Join(errs...)
}

// nothingForAnybody checks that nobody is given rights without logging in, but for what Kubernetes gives to all.
func (t *Target) nothingForAnybody(ctx context.Context) error {
	var list rbacv1.RoleBindingList // of both kinds, which have the same fields
	if err := t.kube().Get(ctx, &list, "rolebindings,clusterrolebindings", "--all-namespaces"); err != nil {
		return err
	}
	own := []string{"kubeadm:bootstrap-signer-clusterinfo", "system:public-info-viewer"}
	var errs []error
	for _, b := range list.Items {
		for _, s := range b.Subjects {
			open := s.Name == "system:anonymous" || s.Name == "system:unauthenticated"
			if open && !slices.Contains(own, b.Name) {
				errs = append(errs, fmt.Errorf("%s gives rights to %s, which is everybody", b.Name, s.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// refusesPrivileged asks, without making it, for a pod that could take over its node.
func (t *Target) refusesPrivileged(ctx context.Context) error {
	pod, err := kube.YAML(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kkbundle-verify", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "verify", Image: "kkbundle.invalid/none", SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		}}},
	})
	if err != nil {
		return err
	}
	_, err = t.kube().Kubectl(ctx, kube.Command{Args: []string{"create", "--dry-run=server", "--filename=-"}, Stdin: pod})
	var failed *host.ExitError
	switch {
	case err == nil:
		return errors.New("a privileged pod is allowed in the namespace default: its labels, or the API server's admission configuration, were changed")
	case errors.As(err, &failed) && strings.Contains(failed.Stderr, "PodSecurity"):
		return nil
	}
	return err
}

// keepsSecrets makes a Secret, and looks whether etcd has it encrypted and the audit log mentions it.
func (t *Target) keepsSecrets(ctx context.Context) (err error) {
	const namespace = "--namespace=kube-system"
	name := "kkbundle-verify-" + randomHex(4)
	if _, err := t.kubectl(ctx, "create", "secret", "generic", namespace, name, "--from-literal=a=b"); err != nil {
		return err
	}
	defer func() {
		_, forget := t.kubectl(context.WithoutCancel(ctx), "delete", "secret", namespace, name)
		err = errors.Join(err, forget)
	}()
	errs := []error{t.isAudited(ctx, name)}
	if t.run.cluster.Etcd.Type == manifest.EtcdInternal {
		errs = append(errs, t.isEncrypted(ctx, "/registry/secrets/kube-system/"+name))
	}
	return errors.Join(errs...)
}

func (t *Target) isEncrypted(ctx context.Context, key string) error {
	const pki = "/etc/kubernetes/pki/etcd/"
	out, err := t.kubectl(withoutOutput(ctx), "exec", "--namespace=kube-system", "etcd-"+t.Name, "--", "etcdctl", "--endpoints=https://localhost:2379",
		"--cacert="+pki+"ca.crt", "--cert="+pki+"server.crt", "--key="+pki+"server.key", "get", "--print-value-only", key)
	if err != nil {
		return fmt.Errorf("etcd does not say how it keeps Secrets: %w", err)
	}
	if !strings.HasPrefix(string(out), "k8s:enc:") {
		return fmt.Errorf("etcd keeps Secrets unencrypted: see %s, and who has changed it", encryptionOnHost)
	}
	return nil
}

// isAudited looks into the logs of all control planes: any of them may have served the request.
func (t *Target) isAudited(ctx context.Context, name string) error {
	for _, one := range t.run.connected(manifest.RoleControlPlane) {
		ok, err := one.test(ctx, "grep", "--quiet", "--fixed-strings", name, auditLog)
		if err != nil || ok {
			return err
		}
	}
	return fmt.Errorf("making a Secret left no trace in %s", auditLog)
}
