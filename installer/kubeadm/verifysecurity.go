package kubeadm

import (
	"bufio"
	"context"
	"crypto/tls"
	_ "embed"
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
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// SecurityChecks prove that the cluster is as safe as its level says: they look at what runs, and try what must fail.
func SecurityChecks() []task.Task {
	return []task.Task{
		{Name: "verify-hosts-security", Roles: []manifest.Role{manifest.RoleCluster}, Do: verifyHostSecurity},
		{Name: "verify-security", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, Do: verifyClusterSecurity},
	}
}

// securityLevel is what the cluster was made with: a later change of the cluster file does not apply to it. It is empty for a
// cluster from before there were levels.
func securityLevel(ctx context.Context, r *task.Site) (manifest.SecurityLevel, error) {
	settings, _, err := member.Membership(ctx, r.FirstControlPlane())
	for line := range strings.Lines(settings) {
		if level, ok := strings.CutPrefix(strings.TrimSpace(line), "kubernetes.security "); ok {
			return manifest.SecurityLevel(level), err
		}
	}
	return "", err
}

// verifyHostSecurity looks at one node.
func verifyHostSecurity(ctx context.Context, t *task.Host) error {
	level, err := securityLevel(ctx, t.Site)
	if err != nil || level == "" {
		return err
	}
	paths := SecretPaths()
	if level == manifest.SecurityHardened {
		paths = slices.Concat(paths, closedPaths())
	}
	open, err := OpenFiles(ctx, t, paths...)
	if err != nil {
		return err
	}
	var errs []error
	if len(open) > 0 {
		errs = append(errs, fmt.Errorf("others than root can read %s", strings.Join(open, ", ")))
	}
	errs = append(errs, refusesAnonymous(ctx, t, net.JoinHostPort(t.IP.String(), "10250"), "/pods"), refusesOldTLS(ctx, t, net.JoinHostPort(t.IP.String(), "10250"), "the kubelet"))
	if t.Is(manifest.RoleControlPlane) {
		errs = append(errs, verifyControlPlane(ctx, t, level))
	}
	return errors.Join(errs...)
}

// verifyControlPlane looks at the components that run on a control plane.
func verifyControlPlane(ctx context.Context, t *task.Host, level manifest.SecurityLevel) error {
	api := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	errs := []error{
		refusesAnonymous(ctx, t, api, "/api/v1/namespaces/kube-system/secrets"),
		refusesOldTLS(ctx, t, api, "the API server"),
	}
	for _, one := range []struct{ program, port string }{{"kube-controller-manager", "10257"}, {"kube-scheduler", "10259"}} {
		running, err := arguments(ctx, t, one.program)
		if err != nil {
			return err
		}
		errs = append(errs, refusesOldTLS(ctx, t, net.JoinHostPort(boundTo(running), one.port), one.program))
	}
	if level == manifest.SecurityHardened && limitsAnonymous(t.Site) {
		errs = append(errs, refusesAnonymous(ctx, t, api, "/version"))
	}
	return errors.Join(append(errs, hasFlags(ctx, t))...)
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
			return task.Loopback(value)
		}
		return ip.String()
	}
	return task.Loopback("")
}

// components are the control plane's programs by their names in ClusterConfiguration.
func components() map[string]string {
	return map[string]string{apiServer: "kube-apiserver", controllerManager: "kube-controller-manager", scheduler: "kube-scheduler"}
}

// hasFlags compares what the level adds, as far as the cluster file leaves it so, with the arguments of what runs.
func hasFlags(ctx context.Context, t *task.Host) error {
	config, err := Kubeadm(t.Site)
	if err != nil {
		return err
	}
	whole := config.ClusterConfiguration()
	var errs []error
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		running, err := arguments(ctx, t, components()[name])
		if err != nil {
			return err
		}
		component, _ := whole[name].(map[string]any)
		wanted := argsOf(component["extraArgs"])
		for flag := range securityPart(t.Site).Flags[name] {
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
func arguments(ctx context.Context, t *task.Host, program string) ([]string, error) {
	out, err := t.Output(ctx, host.Script("process-arguments.sh", processArgumentsScript, program)...)
	if err != nil {
		return nil, fmt.Errorf("%s does not run: %w", program, err)
	}
	return strings.Split(string(out), "\n"), nil
}

// handshake opens a TLS connection over one that the host makes. Who is at the other end does not matter: nothing is told.
func handshake(ctx context.Context, t *task.Host, address string, c *tls.Config) (*tls.Conn, error) {
	raw, err := t.Dial(ctx, "tcp", address)
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
func refusesOldTLS(ctx context.Context, t *task.Host, address, what string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("%s at %s does not speak TLS: %w", what, address, err)
	}
	_ = conn.Close() // nothing was written
	conn, err = handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err != nil {
		return ctx.Err()
	}
	_ = conn.Close() // nothing was written
	return fmt.Errorf("%s at %s speaks TLS 1.1", what, address)
}

// refusesAnonymous tells an error if a server answers a question without asking who wants to know.
func refusesAnonymous(ctx context.Context, t *task.Host, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, securityWait)
	defer cancel()
	conn, err := handshake(ctx, t, address, &tls.Config{MinVersion: tls.VersionTLS12})
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
func verifyClusterSecurity(ctx context.Context, t *task.Host) error {
	level, err := securityLevel(ctx, t.Site)
	if err != nil || level == "" {
		return err
	}
	errs := []error{nothingForAnybody(ctx, t)}
	if level == manifest.SecurityHardened {
		errs = append(errs, refusesPrivileged(ctx, t), keepsSecrets(ctx, t))
	}
	return errors.Join(errs...)
}

// nothingForAnybody checks that nobody is given rights without logging in, but for what Kubernetes gives to all.
func nothingForAnybody(ctx context.Context, t *task.Host) error {
	var list rbacv1.RoleBindingList // of both kinds, which have the same fields
	if err := t.Kube().Get(ctx, &list, "rolebindings,clusterrolebindings", "--all-namespaces"); err != nil {
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
func refusesPrivileged(ctx context.Context, t *task.Host) error {
	pod, err := kube.YAML(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kkbundle-verify", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "verify", Image: "kkbundle.invalid/none", SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		}}},
	})
	if err != nil {
		return err
	}
	_, err = t.Kube().Kubectl(ctx, kube.Command{Args: []string{"create", "--dry-run=server", "--filename=-"}, Stdin: pod})
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
func keepsSecrets(ctx context.Context, t *task.Host) (err error) {
	const namespace = "--namespace=kube-system"
	name := "kkbundle-verify-" + task.RandomHex(4)
	if _, err := t.Kubectl(ctx, "create", "secret", "generic", namespace, name, "--from-literal=a=b"); err != nil {
		return err
	}
	defer func() {
		_, forget := t.Kubectl(context.WithoutCancel(ctx), "delete", "secret", namespace, name)
		err = errors.Join(err, forget)
	}()
	errs := []error{isAudited(ctx, t, name)}
	if t.Site.Cluster.Etcd.Type == manifest.EtcdInternal {
		errs = append(errs, isEncrypted(ctx, t, "/registry/secrets/kube-system/"+name))
	}
	return errors.Join(errs...)
}

func isEncrypted(ctx context.Context, t *task.Host, key string) error {
	const pki = "/etc/kubernetes/pki/etcd/"
	out, err := t.Kubectl(task.WithoutOutput(ctx), "exec", "--namespace=kube-system", "etcd-"+t.Name, "--", "etcdctl", "--endpoints=https://localhost:2379",
		"--cacert="+pki+"ca.crt", "--cert="+pki+"server.crt", "--key="+pki+"server.key", "get", "--print-value-only", key)
	if err != nil {
		return fmt.Errorf("etcd does not say how it keeps Secrets: %w", err)
	}
	if !strings.HasPrefix(string(out), "k8s:enc:") {
		return fmt.Errorf("etcd keeps Secrets unencrypted: see %s, and who has changed it", EncryptionOnHost)
	}
	return nil
}

// isAudited looks into the logs of all control planes: any of them may have served the request.
func isAudited(ctx context.Context, t *task.Host, name string) error {
	for _, one := range t.Site.Connected(manifest.RoleControlPlane) {
		ok, err := one.Test(ctx, "grep", "--quiet", "--fixed-strings", name, auditLog)
		if err != nil || ok {
			return err
		}
	}
	return fmt.Errorf("making a Secret left no trace in %s", auditLog)
}
